"""The command line: parse, call, print.

Exit codes: 0 done, 1 failed because of a bug of ours, 2 the request cannot be met or is wrong (also when
interrupted). Heavy imports happen inside the commands, so that `--help` answers at once.
"""

import errno
import os
import signal
import sys
from types import FrameType
from typing import Annotated

import typer

from budgetrec._version import __version__
from budgetrec.cli.console import print_error, stderr, stdout
from budgetrec.cli.help import App, tell_wrong_flag
from budgetrec.errors import BudgetrecError
from budgetrec.files import NO_ROOM

app = App("Train sequential recommenders inside a memory budget.")

# What Python, torch and polars say when they get neither memory nor a thread, which needs some.
_OUT_OF_MEMORY = (
    "allocate memory",
    "out of memory",
    "not enough memory",
    "failed to map segment",
    "start new thread",
    "could not spawn threads",
    "resource temporarily unavailable",
)
_OF_THE_DISK = {*NO_ROOM, errno.EIO}  # what a device may answer in the middle of a file, without its name
_TYPER_INTERRUPTED = 130  # what typer makes of a KeyboardInterrupt


def _print_version(wanted: bool) -> None:
    if wanted:
        stdout.print(f"budgetrec {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def _interrupt(signum: int, frame: FrameType | None) -> None:
    """Treat SIGTERM as Ctrl-C, so that nothing half-written stays behind."""
    raise KeyboardInterrupt


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; every failure is told in one sentence."""
    try:
        code = app(arguments, prog_name="budgetrec", standalone_mode=False, obj=arguments)
    except BudgetrecError as error:
        print_error(str(error))
        return 2
    except typer.TyperException as error:
        if hasattr(error, "option_name") and hasattr(error, "possibilities"):  # a flag that does not exist
            print_error(tell_wrong_flag(error, arguments))
            return 2
        if error.format_message().startswith("Usage:"):  # a group without a command: help, not an error
            stderr.print(error.format_message())
            return 2
        told = error.format_message().rstrip(".")
        print_error(f"{told}{'' if told.endswith('?') else '.'} Try --help.")
        return 2
    except (KeyboardInterrupt, typer.Abort):
        return _tell_interrupt()
    except BrokenPipeError:
        # The reader of our output went away (`| head`): not our failure, and stdout is gone.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.filename is None and error.errno in _OF_THE_DISK:
            print_error(f"a file cannot be read or written: {error.strerror}. Check the disk and the paths.")
            return 2
        if error.filename is None:
            return _tell_fault(error)
        print_error(
            f"{error.filename} cannot be read or written: {error.strerror}. Check the path and permissions."
        )
        return 2
    except Exception as error:  # the last line of defence: one sentence instead of a traceback
        return _tell_fault(error)
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # what polars raises when its Rust code gives up
            raise
        return _tell_fault(error)
    if code == _TYPER_INTERRUPTED:
        return _tell_interrupt()
    return code if isinstance(code, int) else 0


def _tell_fault(error: BaseException) -> int:
    words = str(error).lower()
    if isinstance(error, MemoryError) or any(part in words for part in _OUT_OF_MEMORY):
        reason = str(error).splitlines()[0].rstrip(".") if words else "an allocation failed"
        print_error(f"there is not enough memory for this ({reason}). Free some, or ask for less.")
        return 2
    if os.environ.get("BUDGETREC_TRACEBACK"):
        raise error
    print_error(
        f"a bug in budgetrec itself, {type(error).__name__}: {error}. "
        "Set BUDGETREC_TRACEBACK=1 to see where, and please report it."
    )
    return 1


def _tell_interrupt() -> int:
    print_error("interrupted; nothing half-written was left behind.")
    return 2


def main() -> None:
    """Entry point of the `budgetrec` command."""
    signal.signal(signal.SIGTERM, _interrupt)
    sys.exit(run(sys.argv[1:]))


# The commands register themselves on the app above, so they are imported after it.
from budgetrec.cli import (  # noqa: E402, F401
    compare,
    data,
    evaluate,
    fit,
    plan,
    prepare,
    recommend,
    report,
    reproduce,
    train,
)
