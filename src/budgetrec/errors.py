"""What can go wrong, as one small tree.

::

    BudgetrecError          the request cannot be met or is wrong; the command line exits with 2
    ├── ArgumentError       a number or a word outside its range (also a ValueError)
    │   └── NotFiniteError  a loss or logits that became NaN or infinite
    ├── ConfigError         a setting in a file that is unknown or wrong
    ├── DataError           a file, a column or a row that cannot be used
    ├── DownloadError       a known dataset that could not be fetched
    ├── PlanError           a budget that nothing fits, or a plan that cannot be made or read
    └── TrainingError       a run that cannot start, continue or be opened
        └── InterruptedRunError  work that was asked to stop

Each message is one sentence, sometimes two: what is wrong, what was seen, what to do.
"""

from typing import Self


class BudgetrecError(Exception):
    """The request cannot be met or is wrong."""


class ArgumentError(BudgetrecError, ValueError):
    """A number or a word outside its range."""


class NotFiniteError(ArgumentError):
    """A loss or logits that became NaN or infinite."""


class ConfigError(BudgetrecError):
    """A setting in a file that is unknown or wrong."""


class DataError(BudgetrecError):
    """A file, a column or a row that cannot be used."""


class DownloadError(BudgetrecError):
    """A known dataset that could not be fetched."""


class PlanError(BudgetrecError):
    """A budget that nothing fits, or a plan that cannot be made or read."""


class TrainingError(BudgetrecError):
    """A run that cannot start, continue or be opened."""


class InterruptedRunError(TrainingError):
    """Work that was asked to stop; `happened` says what is kept, and `command` goes on with it."""

    def __init__(self, happened: str, command: str) -> None:
        super().__init__(f"{happened} Continue with: {command}")
        self.happened, self.command = happened, command

    def __reduce__(self) -> tuple[type[Self], tuple[str, str]]:
        """Let another process raise it again."""
        return type(self), (self.happened, self.command)


def first_line(error: Exception) -> str:
    r"""Return what an error says first, without its full stop; its kind where it says nothing.

    >>> first_line(ValueError("no such column.\nIt was searched for in ...")), first_line(KeyError())
    ('no such column', 'KeyError')
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
