"""What README shows is what happens: its shell lines and its Python are run, one after the other."""

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PLAN_WORDS = (
    "sequences a step",
    "optimiser state",
    "noise of a step from",
    "this plan",
    "batch_size: ",
    "Test ndcg@10",
)


def _blocks(kind: str, page: Path = README) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def _without_numbers(text: str) -> str:
    """Seconds, bytes and the last digits of what was trained differ between machines."""
    return re.sub(r" +", " ", re.sub(r"[\d,.]+", "#", text))


def test_shell_lines_and_python_give_the_output_shown(budgetrec, monkeypatch, tmp_path):
    """Every `$ budgetrec ...` prints what stands below it, and the Python runs on what they made."""
    monkeypatch.chdir(tmp_path)
    commands = 0
    for block in _blocks("console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, shown = part.partition("\n")
            program, *arguments = shlex.split(line)
            assert program == "budgetrec"
            answer = budgetrec(*arguments)
            assert answer.code == 0, answer.err
            said = "\n".join(text.rstrip() for text in answer.out.splitlines()).strip()
            if arguments[0] == "fit":  # which allocation is best hangs on the machine
                for word in PLAN_WORDS:
                    assert word in said, word
                    assert word in shown, word
            elif arguments[0] in ("train", "evaluate", "recommend"):
                assert _without_numbers(said) == _without_numbers(shown.strip()), line
            else:
                assert said == shown.strip(), line
            commands += 1
    assert commands >= 4
    pages = [README, ROOT / "docs" / "training.md", ROOT / "docs" / "planning.md"]
    for example in (example for page in pages for example in _blocks("python", page)):
        exec(compile(example, "an example", "exec"), {})  # noqa: S102 - our own pages


def test_every_linked_file_exists():
    """Figures and pages that README points to are there."""
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", README.read_text("utf-8")):
        assert (README.parent / link).exists(), link
