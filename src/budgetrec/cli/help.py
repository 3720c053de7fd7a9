"""Help a person can read: options in titled groups, the important ones first, and a hint for a wrong flag."""

import difflib
import textwrap
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

# The groups in the order shown. Where a command has `--help-all`, its `--help` leaves out what stands behind
# the bar. A setting that is named nowhere here is left out too, and belongs to the group of its section.
GROUPS = {
    "Output": "output overwrite as_json | checkpoint_seconds tensorboard",
    "Start from": "preset_name config plan resume item_features |",
    "Budget": "memory goal num_items mean_length | rule margin warm_up_targets measurements replan",
    "Model": "model dim max_length |",
    "Objective": "objective num_negatives sharing |",
    "Optimizer": "learning_rate |",
    "Training": "batch_size device seed |",
    "Stopping": "epochs seconds patience | steps",
    "Evaluation": "| metric keep_seen evaluate_every evaluation_growth validation_users",
    "Input": "| layout user_column item_column time_column rating_column file_order no_header drop_nulls",
    "Cleaning": "| rating_above min_user min_item one_pass repeats",
    "Split": "split | test_share validation_share",
    "Options": "|",
    "Help": "help_all help |",
}
# Names that people know from elsewhere, where likeness does not lead to ours.
ALIASES = {
    "lr": "learning-rate",
    "bs": "batch-size",
    "wd": "weight-decay",
    "loss": "objective",
    "layers": "num-blocks",
    "width": "dim",
    "budget": "memory",
    "ram": "memory",
    "time": "seconds",
    "iterations": "steps",
    "gpu": "device",
    "force": "overwrite",
    "k": "num-negatives",
    "n": "batch-size",
}
_SECTIONS = ("Model", "Objective", "Optimizer", "Training")  # their settings bring their group along
GROUP_OF = {
    name: title
    for title, names in GROUPS.items()
    if title not in _SECTIONS
    for name in names.replace("|", "").split()
}
_ESSENTIAL = {name for names in GROUPS.values() for name in names.partition("|")[0].split()}
_FIRST_COLUMN = 30  # characters; a longer flag gets a line of its own


class GroupedCommand(TyperCommand):
    """A command whose help is in titled groups."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then one section per group; every section has the same columns."""
        params = self.get_params(ctx)
        short = any(item.name == "help_all" for item in params) and not ctx.meta.get("help_all")
        rows: dict[str, list[tuple[str, str]]] = {"Arguments": [], **{title: [] for title in GROUPS}}
        for item in params:
            record = item.get_help_record(ctx)
            if record is None:
                continue
            name, text = record[0], " ".join(record[1].split())
            if item.param_type_name == "argument":
                rows["Arguments"].append((f"{item.metavar or name}{'...' if item.nargs != 1 else ''}", text))
            elif not short or item.name in _ESSENTIAL:
                title = getattr(item, "rich_help_panel", None) or GROUP_OF.get(item.name, "Options")
                rows.setdefault(title, []).append((name, text))
        for title, shown in rows.items():
            if shown:
                with formatter.section(title):
                    _write_rows(formatter, shown)


def _write_rows(formatter: Any, rows: list[tuple[str, str]]) -> None:
    """Write names and sentences in two columns; neither a flag nor a default is broken over two lines."""
    indent = " " * (_FIRST_COLUMN + 4)
    for name, text in rows:
        together = text.replace("[default: ", "[default:\u00a0")
        lines = textwrap.wrap(together, formatter.width - len(indent), break_on_hyphens=False)
        if len(name) > _FIRST_COLUMN:
            formatter.write(f"  {name}\n")
            name = ""
        first = f"  {name}".ljust(len(indent))
        formatter.write(first + f"\n{indent}".join(lines).replace("\u00a0", " ") + "\n")


class CommandGroup(TyperGroup):
    """A group that lists its commands with whole sentences, the main job first."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands in the order in which they are used."""
        order = ("fit", "prepare", "plan", "train", "evaluate", "compare", "recommend", "report")
        return sorted(self.commands, key=lambda name: order.index(name) if name in order else len(order))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the first sentence of each command."""
        with formatter.section("Commands"):
            names = self.list_commands(ctx)
            formatter.write_dl([(name, self.commands[name].get_short_help_str(limit=200)) for name in names])


class App(typer.Typer):
    """Commands with grouped help on 100 columns, and errors that are left to `budgetrec.cli.run`."""

    def __init__(self, sentence: str) -> None:
        super().__init__(
            cls=CommandGroup,
            help=sentence,
            no_args_is_help=True,
            add_completion=False,
            pretty_exceptions_enable=False,
            rich_markup_mode=None,
            context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        )

    def command(  # type: ignore[override]  # whatever else typer takes goes through
        self, name: str | None = None, **options: Any
    ) -> Callable[[Any], Callable[..., None]]:
        """Register a command."""
        return super().command(name, cls=GroupedCommand, **options)


def print_all_help(context: typer.Context, wanted: bool) -> None:
    """Print the help with every option in it."""
    if wanted:
        context.meta["help_all"] = True
        typer.echo(context.get_help())
        raise typer.Exit


def tell_wrong_flag(error: Any, arguments: list[str]) -> str:
    """Return one sentence on a flag that does not exist, with the one that was probably meant."""
    # Of `-lr` only `-l` is named in the error.
    flag = next((part for part in arguments if part.startswith(error.option_name)), error.option_name)
    flag = flag.partition("=")[0]
    known = [name for item in error.ctx.command.params for name in (*item.opts, *item.secondary_opts)]
    near = nearest_flags(flag, [name[2:] for name in known if name.startswith("--")])
    if near:
        *others, last = (f"--{name}" for name in near)
        return f"there is no option {flag}. Did you mean {', '.join(others)}{' or ' if others else ''}{last}?"
    everything = "--help-all" if "--help-all" in known else "--help"
    return f"there is no option {flag}. See {error.ctx.command_path} {everything}."


def nearest_flags(flag: str, known: list[str]) -> list[str]:
    """Return up to three of the known flags that may have been meant, all without their dashes.

    >>> nearest_flags("--batchsize", ["batch-size", "dim"]), nearest_flags("--lr", ["learning-rate"])
    (['batch-size'], ['learning-rate'])
    """
    word = flag.lstrip("-").replace("_", "-").lower()
    alias = ALIASES.get(word)
    ways = (
        [name for name in known if name.replace("-", "") == word.replace("-", "")],
        [name for name in known if name == alias],
        [name for name in known if name.startswith(word)],
        [name for name in known if word in name.split("-") and not name.startswith("no-")],
        difflib.get_close_matches(word, known, n=1),
    )
    return next((found[:3] for found in ways if found), [])
