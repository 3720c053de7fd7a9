"""Every study in one folder, and a page that leads through them."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from budgetrec.display.study_folder import MARKER, SHOWN
from budgetrec.study import lognormal, timing
from budgetrec.study.engine.frame import PAGE, Finished, Request, Study, begin_folder, run_study
from budgetrec.study.engine.grid import Engine
from budgetrec.study.engine.outputs import Progress, write_marker
from budgetrec.study.synthetic import study as synthetic
from budgetrec.study.table import study as table
from budgetrec.study.variance import study as variance

STUDIES: dict[str, Study] = {
    each.name: each for each in (lognormal.STUDY, variance.STUDY, synthetic.STUDY, timing.STUDY, table.STUDY)
}
_TITLE = "The study, reproduced"
_QUESTIONS = {
    "lognormal": "Are sums of lognormals as the paper's theory takes them to be?",
    "variance": "How noisy is a step, and does the law know?",
    "synthetic": "How is a budget of logits best divided where the truth is known?",
    "timing": "What do negatives cost?",
    "table": "How is it best divided on real sequences, and does the correction matter?",
}


def run_everything(
    request: Request,
    folder: Path,
    *,
    engine: Engine,
    counted: Callable[[str, int], AbstractContextManager[Progress]],
    overwrite: bool,
) -> list[Finished]:
    """Run all studies, each in a folder of its own name, and write the page; what is done is not redone."""
    settings = {"study": "all", "scale": request.scale.value, "seed": request.seed}
    begin_folder(folder, settings, overwrite=overwrite, files=(MARKER, PAGE, *STUDIES))
    finished = []
    for name, study in STUDIES.items():
        with counted(name, study.count(request)) as progress:
            done = run_study(study, request, folder / name, engine=engine, progress=progress, overwrite=False)
        finished.append(done)
        (folder / PAGE).write_text(_page(request, finished), "utf-8")  # as far as it is
        names = {each.name: _QUESTIONS[each.name] for each in finished}
        write_marker(
            folder, {**settings, SHOWN: {"title": _TITLE, "text": [_lead(request)], "studies": names}}
        )
    return finished


def _lead(request: Request) -> str:
    return (
        "Every table and figure of the paper and the fair version beside it, at scale "
        f"{request.scale.value}, seed {request.seed}. Each part has a page, its numbers as CSV and its runs "
        "as cells that are not run twice."
    )


def _page(request: Request, finished: Sequence[Finished]) -> str:
    parts = [f"# {_TITLE}", _lead(request)]
    for done in finished:
        failed = f" **{done.num_failed} cells failed.**" if done.num_failed else ""
        first = next(iter(done.findings.charts.items()), None)
        figure = f"\n\n![{first[1][0]}]({done.name}/{first[0]}.svg)" if first else ""
        words = "\n\n".join(done.findings.text)
        parts.append(
            f"## {_QUESTIONS[done.name]}\n\n{words}{failed}{figure}\n\n"
            f"[{done.findings.title}]({done.name}/{PAGE})"
        )
        for name, (caption, made) in done.findings.tables.items():
            if len(made.rows) <= _MOST_ROWS:
                parts.append(f"### {caption}\n\n{made.to_markdown()}".rstrip())
            else:
                parts.append(f"### {caption}\n\n{len(made.rows)} rows: [{name}.md]({done.name}/{name}.md).")
    return "\n\n".join(parts) + "\n"


_MOST_ROWS = 32
