"""`budgetrec fit`: the main job, from interactions and a number of bytes to a run with a report."""

import inspect
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from budgetrec.cli import app, options
from budgetrec.cli.console import print_json, stages, stdout
from budgetrec.cli.options import setting_flags, with_flags
from budgetrec.cli.plan import plan_options, plan_request, print_plan
from budgetrec.cli.prepare import prepare, prepare_options
from budgetrec.cli.train import starting_config
from budgetrec.cli.training_bar import TrainingBar
from budgetrec.errors import InterruptedRunError
from budgetrec.units import format_bytes

if TYPE_CHECKING:
    from budgetrec.planner.plan import Plan


@app.command()
@with_flags(
    settings=setting_flags(planned=True), preparing=list(inspect.signature(prepare).parameters.values())
)
def fit(
    context: typer.Context,
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="INPUT", help="Files of interactions, or one folder written by budgetrec prepare."
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="RUN", help="Write the run to this folder.")
    ],
    memory: options.Memory,
    goal: options.Goal = "time",
    rule: options.Rule = "law",
    margin: options.Margin = 0.1,
    warm_up_targets: options.WarmUpTargets = 200_000,
    preset_name: options.Preset = None,
    config: options.ConfigFile = None,
    item_features: options.ItemFeatures = None,
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
    *,
    preparing: dict[str, Any],
    settings: dict[str, Any],
) -> None:
    """Do everything in one go: prepare, plan, train, evaluate and report.

    Files are prepared into RUN-dataset, which other runs can use. After an interruption or a kill the same
    command continues where it was. Options marked "planned" are chosen to fit the memory; pass one to fix it,
    and the rest is planned around it.
    """
    prepared = prepare_options(**preparing)
    planning = plan_options(settings, goal=goal, rule=rule, margin=margin, warm_up_targets=warm_up_targets)
    chosen = starting_config(preset_name, config, has_features=item_features is not None)
    request = plan_request(memory, chosen, settings, planning, has_features=item_features is not None)
    from budgetrec.display.evaluation_text import repeats_sentence

    def again(begun: bool) -> str:
        """Return this very command; once the run has begun, --overwrite would start it over."""
        words = [word for word in context.obj if not (begun and word == "--overwrite")]
        return shlex.join(["budgetrec", *words])

    def tell(plan: "Plan") -> None:
        if not as_json:
            print_plan(plan)
            stdout.print()

    try:
        from budgetrec.fitting import fit as fit_run

        fitted = fit_run(
            inputs,
            output,
            memory=memory,
            config=request.config,
            features=item_features,
            preparing=prepared,
            planning=planning,
            overwrite=overwrite,
            watcher=TrainingBar(settings),
            stages=stages,
            hear_plan=tell,
            again=again,
        )
    except KeyboardInterrupt:
        told = "interrupted before anything was read; nothing was left behind."
        raise InterruptedRunError(told, again(False)) from None
    last = fitted.run.metrics.row(-1, named=True)
    if as_json:
        print_json(
            {
                "output": str(output),
                "dataset": str(fitted.run.dataset.folder),
                "report": str(fitted.report),
                "plan": fitted.plan.to_json(),
                "training": last,
                "evaluation": fitted.evaluation.to_dict(),
            }
        )
        return
    used, budget = last["training_bytes"], fitted.plan.budget_bytes
    ndcg = fitted.evaluation.intervals["ndcg@10"]
    took = f"{last['step']:,} steps in {last['seconds']:,.1f} s"
    stdout.print(f"{took}; training adds {format_bytes(used)} of {format_bytes(budget)}.")
    stdout.print(f"Test ndcg@10 {ndcg.mean:.4f} [{ndcg.low:.4f}, {ndcg.high:.4f}], full ranking.")
    if fitted.evaluation.groups:
        stdout.print(repeats_sentence(fitted.evaluation))
    stdout.print(f"Report: {fitted.report}. Next: budgetrec recommend {output} --top 10")
