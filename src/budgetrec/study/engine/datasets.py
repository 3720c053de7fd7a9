"""The datasets of a study: prepared folders that are given by name, or generated ones."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from budgetrec.data.demo import generate_events, make_truth
from budgetrec.data.prepare import prepare
from budgetrec.data.store import Dataset
from budgetrec.errors import ArgumentError
from budgetrec.files import write_parquet
from budgetrec.study.engine.frame import DATA, Request
from budgetrec.study.engine.scale import Scale
from budgetrec.theory.paper.published import DATASETS

GENERATED = "generated"
_SIZES = {
    Scale.SMOKE: (80, 60, 1_200),
    Scale.SMALL: (2_000, 2_000, 80_000),
    Scale.PAPER: (6_000, 4_000, 500_000),
}


def parse_data(given: Sequence[str]) -> dict[str, Path]:
    """Read NAME=FOLDER; a folder alone is named after itself, or after the file that it was made from.

    >>> parse_data(["Gowalla=prepared/gowalla"])
    {'Gowalla': PosixPath('prepared/gowalla')}
    """
    found: dict[str, Path] = {}
    for text in given:
        name, equals, folder = text.partition("=")
        if not equals:
            name, folder = _known_name(Path(text)), text
        if not name or not folder:
            raise ArgumentError(
                f"data is {text!r}. Pass NAME=FOLDER, such as {DATASETS[0]}=FOLDER for what "
                "budgetrec prepare made."
            )
        if name in found:
            raise ArgumentError(f"data names {name} twice. Pass each dataset once.")
        found[name] = Path(folder)
    return found


def _known_name(folder: Path) -> str:
    """Tell a dataset of the paper by how its folder, or the file that it was prepared from, begins."""
    starts = {_plain(name): name for name in DATASETS} | {"ml1m": DATASETS[0], "ml20m": DATASETS[3]}
    for text in (folder.resolve().name, *Dataset.open(folder).info["source"].get("files", [])):
        for start, name in starts.items():
            if _plain(text).startswith(start):
                return name
    return ""


def _plain(text: str) -> str:
    return "".join(filter(str.isalnum, text.lower()))


def open_datasets(request: Request, folder: Path) -> Mapping[str, Dataset]:
    """Open what was given, or generate a dataset in the study's folder."""
    if request.data:
        return {name: Dataset.open(path.resolve()) for name, path in request.data.items()}
    place = (folder / DATA / GENERATED).resolve()
    if not place.exists():
        _generate(place, request)
    return {GENERATED: Dataset.open(place)}


def _generate(place: Path, request: Request) -> None:
    num_users, num_items, num_rows = _SIZES[request.scale]
    place.parent.mkdir(parents=True, exist_ok=True)
    truth = make_truth(num_users=num_users, num_items=num_items, seed=request.seed)
    events = place.parent / "events.parquet"
    write_parquet(generate_events(truth, num_rows=num_rows, seed=request.seed), events)
    prepare(events, place)
