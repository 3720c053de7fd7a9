"""`budgetrec fit`: the main job, from interactions and a number of bytes to a run with a report."""

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from budgetrec.cli import app
from budgetrec.cli.console import print_json, stages, stdout
from budgetrec.cli.plan import Goal, Margin, Memory, Rule, WarmUp, print_plan
from budgetrec.cli.prepare import prepare, prepare_options
from budgetrec.cli.train import (
    ConfigFile,
    ItemFeatures,
    Preset,
    TrainingBarWatcher,
    starting_config,
    with_settings,
)
from budgetrec.units import format_bytes, parse_bytes

_NOT_TAKEN = {"inputs", "output", "overwrite", "as_json", "seed"}  # they are of fit itself, or of training


def with_preparing(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command the flags of `budgetrec prepare`, which it receives as `preparing`."""
    flags = [item for name, item in inspect.signature(prepare).parameters.items() if name not in _NOT_TAKEN]
    own = [item for item in inspect.signature(command).parameters.values() if item.name != "preparing"]

    def parsed(**values: Any) -> None:
        preparing = {item.name: values.pop(item.name) for item in flags}
        command(**values, preparing=preparing)

    keyword_only = [item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in (*own, *flags)]
    parsed.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]
    parsed.__annotations__ = {item.name: item.annotation for item in keyword_only}
    parsed.__name__, parsed.__doc__ = command.__name__, command.__doc__
    return parsed


@app.command()
@with_settings
@with_preparing
def fit(
    inputs: Annotated[
        list[Path],
        typer.Argument(metavar="INPUT...", help="Files of interactions, or one folder prepared already."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="RUN", help="The folder of the run.")],
    memory: Memory,
    goal: Goal = "time",
    rule: Rule = "law",
    margin: Margin = 0.1,
    warm_up: WarmUp = 15.0,
    preset_name: Preset = None,
    config: ConfigFile = None,
    item_features: ItemFeatures = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run if it exists.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    *,
    preparing: dict[str, Any],
    settings: dict[str, Any],
) -> None:
    """Prepare, plan, train, evaluate and report: everything from a file and a number of bytes.

    Files are prepared into RUN-dataset, which other runs can use. What is planned can be fixed, as in
    `budgetrec plan`; what training does otherwise is set as in `budgetrec train`.
    """
    parse_bytes(memory)  # before the slow start
    options = prepare_options(**preparing)
    chosen = starting_config(preset_name, config, has_features=item_features is not None)
    chosen.replaced(settings).refuse_unused(settings)
    from budgetrec.fitting import fit as fit_run

    def tell(planned: Any) -> None:
        if not as_json:
            print_plan(planned.plan)
            stdout.print()

    fitted = fit_run(
        inputs,
        output,
        memory=memory,
        config=chosen,
        features=item_features,
        preparing=options,
        planning={"goal": goal, "rule": rule, "margin": margin, "warm_up": warm_up},
        overwrite=overwrite,
        watcher=TrainingBarWatcher(threads_chosen="threads" in settings or "OMP_NUM_THREADS" in os.environ),
        stages=stages,
        hear_plan=tell,
        **settings,
    )
    last = fitted.run.metrics.row(-1, named=True)
    if as_json:
        print_json(
            {
                "output": str(output),
                "dataset": str(fitted.run.dataset.folder),
                "report": str(fitted.report),
                "plan": fitted.planned.plan.to_json(),
                "training": last,
                "evaluation": fitted.evaluation.to_dict(),
            }
        )
        return
    used, budget = last["training_bytes"], fitted.planned.plan.budget_bytes
    ndcg = fitted.evaluation.intervals["ndcg@10"]
    took = f"{last['step']:,} steps in {last['seconds']:,.1f} s"
    stdout.print(f"{took}, {format_bytes(used)} of {format_bytes(budget)} used.")
    stdout.print(f"Test ndcg@10 {ndcg.mean:.4f} [{ndcg.low:.4f}, {ndcg.high:.4f}], full ranking.")
    stdout.print(f"Report: {fitted.report}. Next: budgetrec recommend {output} --top 10")
