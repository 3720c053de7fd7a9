"""The main job: from interactions and a number of bytes to a trained, evaluated and reported run.

What was interrupted goes on when it is asked for again in the same words: a prepared dataset is used, a run
that has begun is resumed, and both are checked to be what was asked for (decision 0052).
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from budgetrec.data.item_features import read_item_features
from budgetrec.data.prepare import PrepareOptions, find_prepared, prepare
from budgetrec.data.store import MARKER as DATASET_MARKER
from budgetrec.data.store import Dataset
from budgetrec.errors import DataError, InterruptedRunError
from budgetrec.evaluation.evaluate import Evaluation, evaluate
from budgetrec.files import check_free, claim
from budgetrec.memory.budget import release_memory
from budgetrec.planner.choosing import made_for
from budgetrec.planner.following import resume, train
from budgetrec.planner.plan import Plan
from budgetrec.planner.planning import plan_with_search
from budgetrec.planner.request import PLANNED, PlanOptions, Request, make_request
from budgetrec.report import write_report
from budgetrec.report.write import FILE as PAGE
from budgetrec.runs.layout import FILES, MARKER, PLAN, evaluation_summary
from budgetrec.runs.run import Run
from budgetrec.settings.sections import RunConfig, all_settings
from budgetrec.training.tracking import Stages, Watcher

_PLANNING, _PREPARING = PlanOptions(), PrepareOptions()

Report = Callable[[str], None]


@dataclass(frozen=True)
class Fitted:
    """A run with its plan, its evaluation on the test part and its report."""

    run: Run
    plan: Plan
    evaluation: Evaluation
    report: Path


@dataclass
class _Stage:
    """How far a fit is, for whoever interrupts it."""

    name: str = "preparing"
    kept: str = "nothing was left behind"
    begun: bool = False  # whether the run's folder is there

    def enter(self, name: str, kept: str) -> None:
        """Begin another stage; `kept` says what the stages before it have left."""
        self.name, self.kept = name, kept


def _call_again(begun: bool) -> str:
    return f"the same call of budgetrec.fit{', without overwrite' if begun else ''}"


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
    hear_plan: Callable[[Plan], None] = lambda plan: None,
    again: Callable[[bool], str] = _call_again,
) -> Fitted:
    """Prepare, plan, train, evaluate and report, all from interactions and a number of bytes.

    `inputs` are files of interactions, prepared into the folder `output`-dataset, or one folder that is
    prepared already. `config` holds the settings of the run, `planning` what is wanted from the plan and
    `preparing` how files are read, cleaned and split. `features` stand in for a table of item vectors: a
    tensor (K, f), or a file of items. `stages` surrounds quiet work and returns what is told the name of each
    stage; `hear_plan` is told the plan before training begins.

    Interrupted, it raises an `InterruptedRunError`; the same call goes on where it was, unless `overwrite`
    asks to start over. `again` words that for the error, given whether the run has begun. A failure before
    the first step takes the prepared dataset away again.
    """
    output = Path(output)
    request = make_request(memory, config, planning)
    request.refuse_contradictions(has_features=features is not None)
    stage = _Stage()
    with claim(output), _telling_interrupts(stage, again):
        cut_off = None if overwrite else _cut_off(output)
        if cut_off is None:
            check_free(output, overwrite=overwrite, files=FILES)
        with stages() as report:
            dataset, made = _open(inputs, output, preparing, overwrite=overwrite, report=report)
            stage.enter("planning", f"{dataset.folder} is prepared")
            with _removed_unless_begun(made, output, stage):
                if isinstance(features, Path | str):
                    features = read_item_features(Path(features), dataset)
                if cut_off is None:
                    plan = plan_with_search(request, dataset, features=features, report=report).plan
                else:
                    plan = _check_same(cut_off, request, dataset, features)
                    stage.begun = True
        release_memory()  # what planning used is not training's
        if cut_off is None:
            hear_plan(plan)
            with _removed_unless_begun(made, output, stage):
                run = train(
                    dataset,
                    output,
                    config,
                    features=features,
                    plan=plan,
                    overwrite=overwrite,
                    watcher=watcher,
                )
        else:
            stage.enter("training", f"{output} is saved")
            run = resume(output, dataset=dataset, watcher=watcher)
        with stages() as report:
            stage.enter("evaluating", f"{output} is trained and saved")
            evaluation = evaluate(run, report=report, progress=report.progress)
            evaluation.save(run.folder)
            stage.enter("reporting", f"{output} is trained and evaluated")
            report("writing the report")
            page = write_report(run.folder)
    return Fitted(run, plan, evaluation, page)


def _open(
    inputs: Path | str | Sequence[Path | str],
    output: Path,
    preparing: PrepareOptions,
    *,
    overwrite: bool,
    report: Report,
) -> tuple[Dataset, Path | None]:
    """Open a prepared dataset, or prepare one beside the run; if that is new, its folder is given too."""
    paths = [Path(inputs)] if isinstance(inputs, Path | str) else [Path(path) for path in inputs]
    if len(paths) == 1 and (paths[0] / DATASET_MARKER).is_file():
        return Dataset.open(paths[0]), None
    folder = output.with_name(f"{output.name}-dataset")
    if not overwrite and (kept := find_prepared(paths, folder, preparing)):
        return kept, None
    new = not folder.exists()
    dataset = prepare(paths, folder, overwrite=overwrite, report=report, **vars(preparing))
    return dataset, folder if new else None


def _cut_off(output: Path) -> Run | None:
    """Return the run of an earlier fit that did not come to its end, if there is one."""
    ended = all((output / name).is_file() for name in (evaluation_summary("test"), PAGE))
    if ended or not all((output / name).is_file() for name in (MARKER, PLAN)):
        return None
    return Run.open(output, weights=None)


def _check_same(run: Run, request: Request, dataset: Dataset, features: Tensor | None) -> Plan:
    """Return the plan of a run that was cut off, if all that is asked for is what the run was begun with."""
    run.source.check(dataset)
    plan, fixed = Plan.read(run.folder), request.options.fixed
    wanted = made_for(request, plan.allocation)
    chosen = {"memory", *PLANNED} - fixed.keys()
    others = {item.name for _, item, _ in all_settings()} - chosen - wanted.keys()
    if request.config.training.keep_seen is None:  # then the data have decided it
        others.discard("keep_seen")
    pairs = [(name, plan.made_for.get(name), value) for name, value in wanted.items()]
    pairs += [(name, run.config[name], request.config[name]) for name in sorted(others)]
    pairs += [(name, getattr(plan, name), getattr(request.options, name)) for name in _OF_THE_PLAN]
    pairs.append(("memory", plan.budget_bytes, request.budget_bytes))
    for name, begun_with, asked in pairs:
        if begun_with != asked:
            raise DataError(
                f"{run.folder} was cut off and has {name} {begun_with}, not {asked}. Ask for the same to "
                "continue it, pass --overwrite to start over, or another name."
            )
    trained = run.features
    if (features is None) != (trained is None) or not (
        features is None or trained is None or torch.equal(features, trained)
    ):
        raise DataError(
            f"{run.folder} was cut off and has other item features. Pass the same to continue it, "
            "--overwrite to start over, or another name."
        )
    return plan


_OF_THE_PLAN = ("goal", "rule", "margin")


@contextmanager
def _removed_unless_begun(made: Path | None, output: Path, stage: _Stage) -> Iterator[None]:
    """Take a new dataset away again when something fails before there is a run; an interrupt keeps it."""
    before = _inode(output)
    try:
        yield
    except Exception as error:
        if made and _inode(output) == before and not isinstance(error, InterruptedRunError):
            shutil.rmtree(made, ignore_errors=True)
        raise
    finally:
        if _inode(output) != before:
            stage.begun = True
            stage.enter("training", f"{output} is saved")


def _inode(path: Path) -> int | None:
    """Return what tells a folder from another that takes its name."""
    return path.stat().st_ino if path.exists() else None


@contextmanager
def _telling_interrupts(stage: _Stage, again: Callable[[bool], str]) -> Iterator[None]:
    """Say of an interrupt what is kept, and how to go on."""
    try:
        yield
    except InterruptedRunError as error:  # training tells better where it is
        raise InterruptedRunError(error.happened, again(stage.begun)) from None
    except KeyboardInterrupt:
        told = f"interrupted while {stage.name}; {stage.kept}."
        raise InterruptedRunError(told, again(stage.begun)) from None
