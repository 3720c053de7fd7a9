import errno
import os

import pytest

from budgetrec import __version__
from budgetrec.cli import run


def test_version_is_printed_on_stdout(capsys):
    """`--version` prints one line and exits with 0."""
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"budgetrec {__version__}\n"


def test_an_unknown_command_is_one_sentence_and_exit_2(capsys):
    """A wrong word on the command line never shows a traceback."""
    assert run(["prepair"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "prepair" in captured.err


@pytest.mark.parametrize(
    "flags", [("--num-items", 10**20, "--mean-length", 20), ("--num-items", 99, "--mean-length", 1e20)]
)
def test_data_larger_than_ids_can_name_is_not_planned_for(refused, flags):
    """2^31 - 1 items have an id, and no sequence is longer than 2^20."""
    assert "pass 2 to 2^31 - 1 and 1 to 2^20" in refused("plan", "--memory", "1GiB", *flags)


def test_a_device_that_fails_in_the_middle_of_a_file_is_told(refused, monkeypatch, tmp_path):
    """Such an error names no file; it is no fault of ours, and there is no traceback."""

    def fail(*given: object, **named: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("budgetrec.data.store.Dataset.open", fail)
    assert "cannot be read or written: Input/output error" in refused("data", "show", tmp_path)
