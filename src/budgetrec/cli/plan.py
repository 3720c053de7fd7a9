"""`budgetrec plan`: from a number of bytes to batch size, negatives and sharing, with reasons."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from budgetrec.cli import app, options
from budgetrec.cli.console import print_json, print_table, stages, stdout
from budgetrec.cli.options import setting_flags, with_flags
from budgetrec.cli.train import starting_config
from budgetrec.errors import ArgumentError

if TYPE_CHECKING:
    from budgetrec.planner.plan import Plan
    from budgetrec.planner.request import PlanOptions, Request
    from budgetrec.settings.sections import RunConfig


@app.command()
@with_flags(settings=setting_flags(planned=True))
def plan(
    dataset: options.OptionalDataset = None,
    memory: options.Memory = "",
    goal: options.Goal = "time",
    rule: options.Rule = "law",
    margin: options.Margin = 0.1,
    warm_up_targets: options.WarmUpTargets = 200_000,
    num_items: Annotated[
        int | None, typer.Option(help="Without a dataset: how many items there are.")
    ] = None,
    mean_length: Annotated[
        float | None, typer.Option(help="Without a dataset: how long sequences are on average.")
    ] = None,
    preset_name: options.Preset = None,
    config: options.ConfigFile = None,
    item_features: options.ItemFeatures = None,
    measurements: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Take seconds and noise from this plan.toml of the same data and model; measure nothing.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Write plan.toml and a figure to this folder."),
    ] = None,
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
    *,
    settings: dict[str, Any],
) -> None:
    """Choose batch size, negatives and how they are shared for a memory budget, and say why.

    Options marked "planned" are chosen for you; pass one to fix it, and the rest is planned around it. Pass
    all of them to have your choice judged. Without a dataset, --num-items and --mean-length describe one,
    and the plan says what it assumed.
    """
    if not memory:
        raise ArgumentError("there is no memory budget to plan for. Pass one, as in --memory 2GiB.")
    request = plan_request(
        memory,
        starting_config(preset_name, config, has_features=item_features is not None),
        settings,
        plan_options(settings, goal=goal, rule=rule, margin=margin, warm_up_targets=warm_up_targets),
        has_features=item_features is not None,
    )
    from budgetrec.files import check_free

    files = ("plan.toml", "plan.svg", "plan.png")
    if output is not None:
        check_free(output, overwrite=overwrite, files=files)
    opened = features = None
    if dataset is not None:
        from budgetrec.data.item_features import read_item_features
        from budgetrec.data.store import Dataset

        opened = Dataset.open(dataset)
        features = None if item_features is None else read_item_features(item_features, opened)
    elif item_features is not None:
        raise ArgumentError("--item-features describes the items of a dataset. Pass a dataset too.")
    from budgetrec.planner.planning import plan_with_search

    with stages() as report:
        planned = plan_with_search(
            request,
            opened,
            features=features,
            num_items=num_items,
            mean_length=mean_length,
            measurements=measurements,
            report=report,
        )
        if output is not None:
            from budgetrec.display.charts import save_pictures
            from budgetrec.display.plan_chart import draw_plan
            from budgetrec.files import new_folder

            report("drawing")
            with new_folder(output, overwrite=overwrite, files=files) as staging:
                planned.plan.write(staging / "plan.toml")
                save_pictures(draw_plan(planned.plan, planned.search), staging, "plan")
    if as_json:
        print_json(planned.plan.to_json())
        return
    print_plan(planned.plan)
    if output is not None:
        kept = planned.plan.settings.keys()
        flags = "".join(_as_flag(name, value) for name, value in settings.items() if name not in kept)
        flags += "" if item_features is None else f" --item-features {item_features}"
        command = f"budgetrec train {dataset or 'DATASET'} -o RUN --plan {output / 'plan.toml'}{flags}"
        stdout.print(f"\nSaved in {output}. Next: {command}")


def plan_request(
    memory: str,
    config: "RunConfig",
    settings: dict[str, Any],
    options: "PlanOptions",
    *,
    has_features: bool,
) -> "Request":
    """Return what is asked of a plan, if its words make sense: that is seen before the slow start."""
    from budgetrec.planner.request import make_request

    request = make_request(memory, config.asked(settings), options)
    request.refuse_contradictions(has_features=has_features)
    return request


def plan_options(
    settings: dict[str, Any], *, goal: str, rule: str, margin: float, warm_up_targets: int
) -> "PlanOptions":
    """Return what is wanted of a plan; of the settings that were given it keeps those that a plan decides."""
    from budgetrec.planner.request import DRAWN_ONLY, PLANNED, PlanOptions

    return PlanOptions(
        goal=goal,
        rule=rule,
        margin=margin,
        warm_up_targets=warm_up_targets,
        drawn=any(name in settings for name in DRAWN_ONLY),
        **{name: value for name, value in settings.items() if name in PLANNED},
    )


def _as_flag(name: str, value: object) -> str:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f" --{flag}" if value else f" --no-{flag}"
    return f" --{flag} {value}"


def print_plan(plan: "Plan") -> None:
    """Print a plan for people: what was chosen, what it takes, what lost, and why."""
    from budgetrec.display.plan_text import candidate_rows, headline, memory_rows, noise_rows

    stdout.print(headline(plan))
    score = "time to the same loss" if plan.goal == "time" else "against the plan"
    for head, rows in (
        (("memory", "bytes", ""), memory_rows(plan)),
        (("noise of a step from", "", ""), noise_rows(plan)),
        (("allocation", "n", "k", "bytes", "noise", "per step", score, "why it lost"), candidate_rows(plan)),
    ):
        stdout.print()
        print_table(head, rows, words=("", "why it lost"))
    stdout.print()
    for name, sentence in plan.because.items():
        stdout.print(f"{name}: {sentence}")
    for name, sentence in plan.assumptions.items():
        assumed = "data" in plan.assumptions or "not measured" in sentence
        stdout.print(f"{'assumed, ' if assumed else ''}{name}: {sentence}.")
