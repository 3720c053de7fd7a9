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
