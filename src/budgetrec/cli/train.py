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
from budgetrec.settings.sections import RESUMABLE, RunConfig, read_toml
from budgetrec.units import format_bytes, parse_bytes


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
        if overwrite:
            raise ArgumentError(
                "--resume goes on with a run, and --overwrite would replace it. Leave one out."
            )
        if not (resume / "run.toml").is_file():  # before the slow start
            raise TrainingError(f"{resume} is not a run: it has no run.toml. Make one with budgetrec train.")
        if output is not None and output.resolve() != resume.resolve():
            raise ArgumentError(f"--output is {output}, and the run to resume {resume}. Leave one out.")
        from budgetrec.runs.record import read_settings

        asked = {**_named_settings(preset_name, config, plan), **settings}
        _refuse_changes(asked, read_settings(resume).config(), resume)
        if item_features is not None:
            _refuse_other_features(item_features, resume, dataset)
        from budgetrec.planner import following

        ends = {name: value for name, value in asked.items() if name in RESUMABLE}
        run = following.resume(resume, dataset=dataset, watcher=watcher, **ends)
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
        chosen.refuse_contradictions(has_features=item_features is not None, has_plan=plan is not None)
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


def _named_settings(preset_name: str | None, path: Path | None, plan: Path | None) -> dict[str, Any]:
    """Return the settings that a preset, a file and a plan name, the later ones over the earlier."""
    named = {} if preset_name is None else preset(preset_name)
    if path is not None:
        named = {**named, **_read_config(path)[0]}
    if plan is not None:
        from budgetrec.planner.plan import Plan

        followed = Plan.read(plan)
        named = {**named, "memory": str(followed.budget_bytes), **followed.settings}
    return dict(named)


def _refuse_other_features(path: Path, folder: Path, dataset: Path | None) -> None:
    from budgetrec.data.item_features import read_item_features
    from budgetrec.runs.run import Run, features_hash

    run = Run.open(folder, dataset=dataset, weights=None)
    given = read_item_features(path, run.dataset)
    if run.features is None or features_hash(given) != features_hash(run.features):
        own = "none" if run.features is None else "others"
        raise ArgumentError(
            f"{path} has item features, and {folder} was trained with {own}. Leave --item-features out, or "
            "start another run."
        )


def _refuse_changes(settings: dict[str, Any], config: RunConfig, folder: Path) -> None:
    """Accept settings that say what the run says; only those that end a run may differ."""
    for name, value in settings.items():
        own = config[name]
        if name not in RESUMABLE and not _same(name, value, own):
            raise ArgumentError(
                f"{name} is {value}, and {folder} was trained with {'none' if own is None else own}, which "
                "cannot change in the middle of a run. Leave it out, or start another run; "
                f"{', '.join(sorted(RESUMABLE))} may change."
            )


def _same(name: str, one: Any, other: Any) -> bool:
    """Say whether two values mean the same: 2GiB and 2048MiB do."""
    if name == "memory" and other is not None:
        return parse_bytes(one) == parse_bytes(other)
    return bool(one == other)


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
    settings, with_features = _read_config(path)
    if with_features and not has_features:
        raise ConfigError(f"{path} is of a run with item features. Pass them again with --item-features.")
    return chosen.replaced(settings)


def _read_config(path: Path) -> tuple[dict[str, Any], bool]:
    """Return the settings that a file names, and whether it is of a run with item features."""
    document = read_toml(path)
    with_features = "features" in document
    for name in ("dataset", "budgetrec", "features"):  # what a run's own file says besides its settings
        document.pop(name, None)
    RunConfig.from_dict(document, str(path))
    return {key: value for section in document.values() for key, value in section.items()}, with_features


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
        f"training adds {format_bytes(last['training_bytes'])}, process {format_bytes(last['peak_bytes'])}."
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
