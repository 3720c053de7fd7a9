"""`budgetrec train`: from a prepared dataset to a run."""

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from budgetrec.cli import app
from budgetrec.cli.console import print_json, stderr, stdout, training_bar
from budgetrec.errors import ArgumentError, ConfigError, TrainingError
from budgetrec.settings.presets import PRESETS, preset
from budgetrec.settings.sections import RunConfig, all_settings, read_toml
from budgetrec.training.tracking import Watcher

Preset = Annotated[
    str | None, typer.Option("--preset", help=f"Start from these settings: {', '.join(PRESETS)}.")
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Start from a TOML file such as run.toml.")
]
ItemFeatures = Annotated[
    Path | None,
    typer.Option(
        "--item-features",
        metavar="FILE",
        help="Items file with numeric columns or a vector column, "
        "from which item vectors are made instead of a table.",
    ),
]


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command a flag for every setting, so that flags, keys and fields cannot drift apart.

    A flag that is not given stays out of `settings`, the dictionary that the command receives. A setting that
    the command has a parameter of its own for is left to it.
    """
    own = [item for item in inspect.signature(command).parameters.values() if item.name != "settings"]
    flags = []
    taken = {item.name for item in own}
    for section, item, kind in all_settings():
        if item.name in taken:
            continue
        kind = kind | None  # None: not given
        flag = item.name.replace("_", "-")
        names = [f"--{flag}/--no-{flag}"] if item.type in (bool, "bool") else [f"--{flag}"]
        help_text = item.metadata["help"]
        if item.default is not None and "[default" not in help_text:
            help_text += f" [default: {item.default}]"
        option = typer.Option(*names, help=help_text, rich_help_panel=section, show_default=False)
        flags.append(
            inspect.Parameter(
                item.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
            )
        )
    names_of_flags = {item.name for item in flags}

    def parsed(**values: Any) -> None:
        settings = {key: values.pop(key) for key in names_of_flags}
        command(**values, settings={key: value for key, value in settings.items() if value is not None})

    keyword_only = [item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in own]
    parsed.__signature__ = inspect.Signature([*keyword_only, *flags])  # type: ignore[attr-defined]
    parsed.__annotations__ = {item.name: item.annotation for item in (*own, *flags)}
    parsed.__name__, parsed.__doc__ = command.__name__, command.__doc__
    return parsed


@app.command()
@with_settings
def train(
    dataset: Annotated[
        Path | None, typer.Argument(metavar="DATASET", help="A folder made by budgetrec prepare.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="RUN", help="The folder to write the run into.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume", metavar="RUN", help="Go on with a run. DATASET is needed only if it has moved."
        ),
    ] = None,
    preset_name: Preset = None,
    config: ConfigFile = None,
    plan: Annotated[
        Path | None,
        typer.Option("--plan", metavar="FILE", help="Train as a plan.toml of budgetrec plan says."),
    ] = None,
    item_features: ItemFeatures = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run if it exists.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    *,
    settings: dict[str, Any],
) -> None:
    """Train a model on a prepared dataset, evaluating and saving on the way.

    Flags win over --config, which wins over --preset, which wins over the defaults.
    """
    watcher = TrainingBarWatcher(threads_chosen="threads" in settings or "OMP_NUM_THREADS" in os.environ)
    if resume is not None:
        given = {"--output": output, "--preset": preset_name, "--config": config, "--plan": plan}
        _refuse_with_resume({**given, "--item-features": item_features, "--overwrite": overwrite or None})
        if not (resume / "run.toml").is_file():  # before the slow start
            raise TrainingError(f"{resume} is not a run: it has no run.toml. Make one with budgetrec train.")
        from budgetrec.training import loop as training

        run = training.resume(resume, dataset=dataset, watcher=watcher, **settings)
    else:
        if dataset is None and config is not None:
            dataset = _dataset_of(config)
        if dataset is None or output is None:
            raise ArgumentError(
                "a dataset and --output are needed, or --resume. Try: budgetrec train DATASET -o RUN"
            )
        chosen = starting_config(preset_name, config, has_features=item_features is not None)
        planned = None
        if plan is not None:
            from budgetrec.planner.record import Plan

            planned = Plan.read(plan)
            for name, value in planned.settings.items():
                if settings.get(name, value) != value:
                    raise ArgumentError(
                        f"{name} is {settings[name]}, and {plan} has {value}. Leave it out, or plan again."
                    )
            chosen = chosen.replaced(planned.settings)
        chosen.replaced(settings).refuse_unused(settings)
        from budgetrec.data.store import Dataset
        from budgetrec.files import check_free

        if not overwrite:
            check_free(output, overwrite=False, files=())
        opened = Dataset.open(dataset)  # before the slow start
        from budgetrec.data.features import read_item_features
        from budgetrec.training import loop as training

        features = None if item_features is None else read_item_features(item_features, opened)
        run = training.train(
            opened,
            output,
            chosen,
            features=features,
            plan=planned,
            overwrite=overwrite,
            watcher=watcher,
            **settings,
        )
    _tell(run, as_json=as_json)


def _refuse_with_resume(given: dict[str, object]) -> None:
    for name, value in given.items():
        if value is not None:
            raise ArgumentError(
                f"--resume goes on with a run as it was, so {name} cannot be given with it. Leave it out."
            )


def _dataset_of(path: Path) -> Path | None:
    """Find the dataset in the file of a run."""
    source = read_toml(path).get("dataset")
    return Path(source["path"]) if isinstance(source, dict) and "path" in source else None


def starting_config(preset_name: str | None, path: Path | None, *, has_features: bool) -> RunConfig:
    """Return the settings that flags change: a preset's, then a file's, then the defaults."""
    chosen = RunConfig()
    if preset_name is not None:
        chosen = chosen.replaced(preset(preset_name))
    return chosen if path is None else _from_file(chosen, path, has_features=has_features)


def _from_file(chosen: RunConfig, path: Path, *, has_features: bool) -> RunConfig:
    document = read_toml(path)
    if "features" in document and not has_features:
        raise ConfigError(f"{path} is of a run with item features. Pass them again with --item-features.")
    for name in ("dataset", "budgetrec", "features"):  # what a run's own file says besides its settings
        document.pop(name, None)
    RunConfig.from_dict(document, str(path))
    return chosen.replaced({key: value for section in document.values() for key, value in section.items()})


def _tell(run: Any, *, as_json: bool) -> None:
    metric = run.config.training.metric
    rows = run.metrics.to_dicts()
    sign = -1 if metric == "val_loss" else 1
    best = max(rows, key=lambda row: sign * row[metric])
    last = rows[-1]
    if as_json:
        print_json({"output": str(run.folder), "best": best, "last": last, "evaluations": len(rows)})
        return
    stdout.print(
        f"{last['step']:,} steps over {last['examples']:,} sequences ({last['epoch']:.1f} epochs) in "
        f"{last['seconds']:,.1f} s: {last['examples'] / max(last['seconds'], 1e-9):,.0f} sequences a second, "
        f"peak {last['peak_bytes'] / 2**20:,.0f} MiB."
    )
    stdout.print(
        f"Best {metric} {best[metric]:.4f} on the validation part at step {best['step']:,} "
        f"(validation loss {best['val_loss']:.4f})."
    )
    if best["step"] == 0:
        stdout.print(
            "No evaluation did better than the untrained model: train longer, or change --learning-rate."
        )
    stdout.print(f"Saved in {run.folder}. Next: budgetrec evaluate {run.folder}")


class TrainingBarWatcher(Watcher):
    """Shows a bar on a terminal, and everywhere a line an evaluation or change."""

    def __init__(self, *, threads_chosen: bool) -> None:
        self._bar: Any = None
        self._threads_chosen = threads_chosen

    @contextmanager
    def watching(self, total_steps: int | None, seconds: float | None) -> Iterator[None]:
        """Show a bar, and a hint where threads would get in each other's way."""
        # Threads that wait for each other can take a hundred times as long.
        if not self._threads_chosen and os.getloadavg()[0] > 0.75 * (os.cpu_count() or 1):
            stderr.print("Other work keeps this machine busy; --threads 1 may be many times faster.")
        with training_bar(total_steps, seconds) as self._bar:
            yield

    def step(
        self, *, step: int, seconds: float, examples: int, targets: int, loss: float, peak_bytes: int
    ) -> None:
        """Move the bar."""
        self._bar.update(
            step=step,
            seconds=seconds,
            text=f"{examples / max(seconds, 1e-9):,.0f} seq/s  loss {loss:.3f}  "
            f"peak {peak_bytes / 2**20:,.0f} MiB",
        )

    def change(self, sentence: str) -> None:
        """Say it."""
        stderr.print(sentence)

    def evaluation(self, row: dict[str, Any]) -> None:
        """Write a line."""
        loss = "" if row["train_loss"] is None else f"train loss {row['train_loss']:.4f}  "
        stderr.print(
            f"step {row['step']:>7,}  epoch {row['epoch']:6.1f}  {row['seconds']:8.1f} s  {loss}"
            f"val loss {row['val_loss']:.4f}  ndcg@10 {row['ndcg@10']:.4f}"
        )
