"""The main job: from interactions and a number of bytes to a trained, evaluated and reported run."""

import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from budgetrec.data.item_features import read_item_features
from budgetrec.data.prepare import PrepareOptions, prepare
from budgetrec.data.store import MARKER as DATASET_MARKER
from budgetrec.data.store import Dataset
from budgetrec.evaluation.evaluate import Evaluation, evaluate
from budgetrec.files import check_free
from budgetrec.memory.budget import release_memory
from budgetrec.planner.choosing import Planned
from budgetrec.planner.following import train
from budgetrec.planner.planning import make_request, plan_with_search
from budgetrec.planner.request import PlanOptions
from budgetrec.report import write_report
from budgetrec.runs.layout import FILES
from budgetrec.runs.run import Run
from budgetrec.settings.sections import RunConfig
from budgetrec.training.tracking import Stages, Watcher

_PLANNING, _PREPARING = PlanOptions(), PrepareOptions()

Report = Callable[[str], None]


@dataclass(frozen=True)
class Fitted:
    """A run with its plan, its evaluation on the test part and its report."""

    run: Run
    planned: Planned
    evaluation: Evaluation
    report: Path


def fit(
    inputs: Path | str | Sequence[Path | str],
    output: Path | str,
    *,
    memory: str | int,
    config: RunConfig | None = None,
    planning: PlanOptions = _PLANNING,
    preparing: PrepareOptions = _PREPARING,
    features: Tensor | Path | str | None = None,
    overwrite: bool = False,
    watcher: Watcher | None = None,
    stages: Callable[[], AbstractContextManager[Stages]] = lambda: nullcontext(Stages()),
    hear_plan: Callable[[Planned], None] = lambda planned: None,
) -> Fitted:
    """Prepare, plan, train, evaluate and report, all from interactions and a number of bytes.

    `inputs` are files of interactions, prepared into the folder `output`-dataset, or one folder that is
    prepared already. `config` holds the settings of the run, `planning` what is wanted from the plan and
    `preparing` how files are read, cleaned and split. `features` stand in for a table of item vectors: a
    tensor (K, f), or a file of items. `stages` surrounds quiet work and returns what is told the name of each
    stage; `hear_plan` is called with the plan before training begins.
    """
    output = Path(output)
    check_free(output, overwrite=overwrite, files=FILES)
    with stages() as report:
        dataset, made = _open(inputs, output, preparing, overwrite=overwrite, report=report)
        try:
            if isinstance(features, Path | str):
                features = read_item_features(Path(features), dataset)
            request = make_request(memory, config, planning)
            planned = plan_with_search(request, dataset, features=features, report=report)
        except BaseException:
            if made:  # a request that cannot be met leaves nothing behind
                shutil.rmtree(made, ignore_errors=True)
            raise
    hear_plan(planned)
    release_memory()  # what planning used is not training's
    run = train(
        dataset,
        output,
        config,
        features=features,
        plan=planned.plan,
        overwrite=overwrite,
        watcher=watcher,
    )
    with stages() as report:
        evaluation = evaluate(run, report=report, progress=report.progress)
        evaluation.save(run.folder)
        report("writing the report")
        page = write_report(run.folder)
    return Fitted(run, planned, evaluation, page)


def _open(
    inputs: Path | str | Sequence[Path | str],
    output: Path,
    preparing: PrepareOptions,
    *,
    overwrite: bool,
    report: Report,
) -> tuple[Dataset, Path | None]:
    """Open a prepared dataset, or prepare one beside the run; then its folder is given too."""
    paths = [Path(inputs)] if isinstance(inputs, Path | str) else [Path(path) for path in inputs]
    if len(paths) == 1 and (paths[0] / DATASET_MARKER).is_file():
        return Dataset.open(paths[0]), None
    folder = output.with_name(f"{output.name}-dataset")
    return prepare(paths, folder, overwrite=overwrite, report=report, **vars(preparing)), folder
