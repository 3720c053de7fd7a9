"""`budgetrec plan`: from a number of bytes to batch size, negatives and sharing, with reasons."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from budgetrec.cli import app
from budgetrec.cli.console import print_json, stages, stdout
from budgetrec.cli.train import ConfigFile, ItemFeatures, Preset, starting_config, with_settings
from budgetrec.errors import ArgumentError
from budgetrec.units import parse_bytes

if TYPE_CHECKING:
    from budgetrec.planner import Plan

Memory = Annotated[
    str,
    typer.Option(
        "--memory", metavar="BYTES", help="What training may add to the process, as in 512MiB, 2GiB or 1.5GB."
    ),
]
Goal = Annotated[
    str, typer.Option(help="time: least time to the same loss; noise: least noise a step, whatever it takes.")
]
Rule = Annotated[str, typer.Option(help="law, or paper for its n = k.")]
Margin = Annotated[float, typer.Option(help="Share of the bytes that is left free for safety.")]
WarmUp = Annotated[
    float, typer.Option("--warm-up", metavar="SECONDS", help="Train so long before the noise is measured.")
]


@app.command()
@with_settings
def plan(
    dataset: Annotated[
        Path | None, typer.Argument(metavar="DATASET", help="A folder made by budgetrec prepare.")
    ] = None,
    memory: Memory = "",
    goal: Goal = "time",
    rule: Rule = "law",
    margin: Margin = 0.1,
    warm_up: WarmUp = 15.0,
    num_items: Annotated[
        int | None, typer.Option(help="Plan without data: how many items there are.")
    ] = None,
    mean_length: Annotated[
        float | None, typer.Option(help="Plan without data: how long sequences are on average.")
    ] = None,
    preset_name: Preset = None,
    config: ConfigFile = None,
    item_features: ItemFeatures = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Write plan.toml and a figure into this folder."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the folder if it exists.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    *,
    settings: dict[str, Any],
) -> None:
    """Choose batch size, negatives and sharing for a number of bytes, and say why.

    Any of --batch-size, --num-negatives, --sharing, --objective, --lean, --micro-batches and --table-updates
    is kept where it is given, and the rest is planned around it; given all, they are judged. Without a
    dataset, --num-items and --mean-length describe one, and the plan says what it assumed.
    """
    if not memory:
        raise ArgumentError("there is no number of bytes to plan for. Pass one, as in --memory 2GiB.")
    parse_bytes(memory)  # before the slow start
    from budgetrec.files import check_free

    files = ("plan.toml", "plan.svg", "plan.png")
    if output is not None:
        check_free(output, overwrite=overwrite, files=files)
    chosen = starting_config(preset_name, config, has_features=item_features is not None)
    opened = features = None
    if dataset is not None:
        from budgetrec.data.features import read_item_features
        from budgetrec.data.store import Dataset

        opened = Dataset.open(dataset)
        features = None if item_features is None else read_item_features(item_features, opened)
    elif item_features is not None:
        raise ArgumentError("--item-features are of the items of a dataset, and there is none. Pass one.")
    from budgetrec.planner.making import plan_with_search

    with stages() as report:
        planned = plan_with_search(
            opened,
            memory=memory,
            config=chosen,
            features=features,
            goal=goal,
            rule=rule,
            margin=margin,
            warm_up=warm_up,
            num_items=num_items,
            mean_length=mean_length,
            report=report,
            **settings,
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


def _as_flag(name: str, value: object) -> str:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f" --{flag}" if value else f" --no-{flag}"
    return f" --{flag} {value}"


def print_plan(plan: "Plan") -> None:
    """Print a plan for people: what was chosen, what it takes, what lost, and why."""
    from budgetrec.display.plan_text import candidate_rows, headline, memory_rows, noise_rows

    stdout.print(headline(plan))
    _print_table(("memory", "bytes", ""), memory_rows(plan))
    _print_table(("noise of a step from", "", ""), noise_rows(plan))
    score = "time to the same loss" if plan.goal == "time" else "against the plan"
    _print_table(
        ("allocation", "n", "k", "bytes", "noise", "a step", score, "why it lost"), candidate_rows(plan)
    )
    stdout.print()
    for name, sentence in plan.because.items():
        stdout.print(f"{name}: {sentence}")
    for name, sentence in plan.assumptions.items():
        assumed = "data" in plan.assumptions or "not measured" in sentence
        stdout.print(f"{'assumed, ' if assumed else ''}{name}: {sentence}.")


def _print_table(head: tuple[str, ...], rows: list[Any]) -> None:
    table = Table(box=None, pad_edge=False)
    for place, name in enumerate(head):
        left = place == 0 or name in ("", "why it lost")
        table.add_column(name, justify="left" if left else "right", no_wrap=place < 2)
    for row in rows:
        table.add_row(*row)
    stdout.print()
    stdout.print(table)
