"""`budgetrec train`: from a prepared dataset to a run."""

from pathlib import Path
from typing import Annotated, Any

import typer

from budgetrec.cli import app, options
from budgetrec.cli.console import print_json, stdout
from budgetrec.cli.options import setting_flags, with_flags
from budgetrec.cli.training_bar import TrainingBar
from budgetrec.errors import ArgumentError, ConfigError, TrainingError
from budgetrec.settings.presets import preset
from budgetrec.settings.sections import RunConfig, read_toml


@app.command()
@with_flags(settings=setting_flags(planned=False))
def train(
    dataset: options.OptionalDataset = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="RUN", help="Write the run to this folder.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Continue this run. DATASET is only needed if it has moved."),
    ] = None,
    preset_name: options.Preset = None,
    config: options.ConfigFile = None,
    plan: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Follow the plan.toml that budgetrec plan wrote."),
    ] = None,
    item_features: options.ItemFeatures = None,
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
    *,
    settings: dict[str, Any],
) -> None:
    """Train a model on a prepared dataset, evaluating and saving along the way.

    Flags win over --config, which wins over --preset, which wins over the defaults.
    """
    watcher = TrainingBar(settings)
    if resume is not None:
        given = {"--output": output, "--preset": preset_name, "--config": config, "--plan": plan}
        _refuse_with_resume({**given, "--item-features": item_features, "--overwrite": overwrite or None})
        if not (resume / "run.toml").is_file():  # before the slow start
            raise TrainingError(f"{resume} is not a run: it has no run.toml. Make one with budgetrec train.")
        from budgetrec.planner import following
        from budgetrec.training.loop import RESUMABLE

        for name in sorted(settings.keys() - set(RESUMABLE)):
            raise ArgumentError(
                f"{name} cannot change in the middle of a run. Start another run, or change one of "
                f"{', '.join(sorted(RESUMABLE))}."
            )
        run = following.resume(resume, dataset=dataset, watcher=watcher, **settings)
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
            from budgetrec.planner.plan import Plan

            planned = Plan.read(plan)
            chosen = planned.configure(chosen)
            for name, value in planned.settings.items():
                if settings.get(name, value) != value:
                    raise ArgumentError(
                        f"{name} is {settings[name]}, and {plan} has {value}. Leave it out, or plan again."
                    )
        chosen = chosen.asked(settings)
        from budgetrec.data.store import Dataset
        from budgetrec.files import check_free

        if not overwrite:
            check_free(output, overwrite=False, files=())
        opened = Dataset.open(dataset)  # before the slow start
        from budgetrec.data.item_features import read_item_features
        from budgetrec.planner import following

        features = None if item_features is None else read_item_features(item_features, opened)
        run = following.follow(
            opened,
            output,
            chosen,
            planned,
            features=features,
            overwrite=overwrite,
            watcher=watcher,
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
