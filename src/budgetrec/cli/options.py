"""Options that several commands share, and flags that are made rather than written."""

import dataclasses
import inspect
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from budgetrec.allocation import Allocation
from budgetrec.cli.help import GROUP_OF, print_all_help
from budgetrec.settings.presets import PRESETS
from budgetrec.settings.sections import TrainingConfig, all_settings

Command = Callable[..., None]

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the folder if it exists.")]
OutputFolder = Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Write to this folder.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
OptionalDataset = Annotated[
    Path | None, typer.Argument(metavar="DATASET", help="A folder written by budgetrec prepare.")
]
Preset = Annotated[
    str | None,
    typer.Option("--preset", metavar="NAME", help=f"Start from these settings: {', '.join(PRESETS)}."),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Start from the settings in a TOML file such as run.toml."),
]
ItemFeatures = Annotated[
    Path | None,
    typer.Option(
        "--item-features",
        metavar="FILE",
        help="Compute item vectors from the numeric columns or the vector column of this file, "
        "instead of learning a table of them.",
    ),
]
Memory = Annotated[
    str,
    typer.Option(
        "--memory",
        metavar="BYTES",
        help="Memory that training may add to the process, such as 512MiB, 2GiB or 1.5GB.",
    ),
]
Goal = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="time: reach a given loss soonest; noise: least noise per step, however slow."
    ),
]
Rule = Annotated[
    str, typer.Option(metavar="NAME", help="How to choose n and k: law, or paper for the paper's n = k.")
]
Margin = Annotated[float, typer.Option(help="Share of the memory to leave free for safety.")]
WarmUpTargets = Annotated[
    int, typer.Option(metavar="TARGETS", help="How many targets to train on before measuring the noise.")
]
KeepSeen = Annotated[
    bool | None,
    typer.Option(
        "--keep-seen/--no-keep-seen",
        help="Rank and recommend what a user has had, too. [default: as the run was validated]",
        rich_help_panel="Options",
        show_default=False,
    ),
]
MovedDataset = Annotated[
    Path | None, typer.Option("--dataset", metavar="DIR", help="Where the dataset is now, if it has moved.")
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", help="Number of CPU threads. [default: torch's choice]", show_default=False),
]
Device = Annotated[
    str, typer.Option("--device", metavar="NAME", help="One of auto, cpu, cuda.", rich_help_panel="Options")
]


def use_threads(count: int | None) -> None:
    """Let torch use this many threads; None leaves it as it is."""
    if count is not None:
        TrainingConfig(threads=count)  # which refuses what makes no sense
        import torch

        torch.set_num_threads(count)


def _flag(name: str, annotation: Any, *, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


_help_all = typer.Option(
    "--help-all", is_eager=True, callback=print_all_help, help="Show every option and exit."
)
_HELP_ALL = _flag("help_all", Annotated[bool, _help_all], default=False)


def setting_flags(*, planned: bool) -> list[inspect.Parameter]:
    """Return one flag for each setting, so that flags, keys and fields cannot drift apart.

    Where an allocation is `planned`, the plan is the default of what it decides.
    """
    decided = {item.name for item in dataclasses.fields(Allocation)} if planned else set()
    flags = []
    for section, item, kind in all_settings():
        flag = item.name.replace("_", "-")
        text, _, default = item.metadata["help"].partition(" [default: ")
        if item.name in decided:
            default = "planned]"
        elif not default and item.default is not None:
            default = f"{f'no-{flag}' if item.default is False else flag if kind is bool else item.default}]"
        option = typer.Option(
            f"--{flag}/--no-{flag}" if kind in (bool, bool | None) else f"--{flag}",
            help=f"{text} [default: {default}" if default else text,
            rich_help_panel=GROUP_OF.get(item.name, section.title()),
            show_default=False,
        )
        flags.append(_flag(item.name, Annotated[kind | None, option], default=None))  # None: not given
    return flags


def with_flags(**collections: Sequence[inspect.Parameter]) -> Callable[[Command], Command]:
    """Add flags to a command, which receives each collection of them as one dictionary.

    A flag that is not given and has no default stays out of it. A flag that the command, or an earlier
    collection, has a parameter for is left to that. `--help-all` is added too.
    """

    def decorate(command: Command) -> Command:
        params = inspect.signature(command).parameters
        own = {name: item for name, item in params.items() if name not in collections}
        added: dict[str, list[inspect.Parameter]] = {}
        taken = set(own)
        for collection, flags in collections.items():
            added[collection] = [item for item in flags if item.name not in taken]
            taken |= {item.name for item in flags}

        def parsed(**values: Any) -> None:
            del values[_HELP_ALL.name]
            for collection, flags in added.items():
                found = {item.name: values.pop(item.name) for item in flags}
                values[collection] = {name: value for name, value in found.items() if value is not None}
            command(**values)

        every = [*own.values(), *itertools.chain(*added.values()), _HELP_ALL]
        keyword_only = [item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in every]
        parsed.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]
        parsed.__annotations__ = {item.name: item.annotation for item in every}
        parsed.__name__, parsed.__doc__ = command.__name__, command.__doc__
        return parsed

    return decorate
