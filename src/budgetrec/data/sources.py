"""Well-known datasets: where they are published, and a verified download."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pooch
import requests
from requests import exceptions

from budgetrec.errors import ArgumentError, DownloadError
from budgetrec.options import check_choice

_GROUPLENS = "https://files.grouplens.org/datasets/movielens"
_BAD_ADDRESS = (exceptions.MissingSchema, exceptions.InvalidSchema, exceptions.InvalidURL)
_CUT = (exceptions.ChunkedEncodingError, exceptions.ReadTimeout)


@dataclass(frozen=True)
class KnownDataset:
    """A public dataset: its file, the publisher's checksum if there is one, and its size."""

    name: str
    file_name: str
    url: str | None  # None: withdrawn by its publisher, so it must be obtained by hand
    md5: str | None
    rows: int
    description: str


def _movielens(name: str, md5: str, rows: int, size: str) -> KnownDataset:
    file_name = f"{name}.zip"
    return KnownDataset(name, file_name, f"{_GROUPLENS}/{file_name}", md5, rows, f"MovieLens, {size} films")


KNOWN = {
    dataset.name: dataset
    for dataset in (
        _movielens("ml-100k", "0e33842e24a9c977be4e0107933c0723", 100_000, "943 users and 1,682"),
        _movielens("ml-1m", "c4d9eecfca2ab87c1945afe126590906", 1_000_209, "6,040 users and 3,706"),
        _movielens("ml-20m", "cd245b17a1ae2cc31bb14903e1204af3", 20_000_263, "138,493 users and 26,744"),
        _movielens("ml-25m", "6b51fb2759a8657d3bfcbfc42b592ada", 25_000_095, "162,541 users and 59,047"),
        KnownDataset(
            name="gowalla",
            file_name="loc-gowalla_totalCheckins.txt.gz",
            url="https://snap.stanford.edu/data/loc-gowalla_totalCheckins.txt.gz",
            md5=None,
            rows=6_442_890,
            description="check-ins, 107,092 users and 1,280,969 places",
        ),
        KnownDataset(
            name="netflix",
            file_name="nf_prize_dataset.tar.gz",
            url=None,
            md5=None,
            rows=100_480_507,
            description="Netflix Prize, 480,189 users and 17,770 films",
        ),
    )
}


class ProgressBar(Protocol):
    """Receives the progress of a download."""

    total: int

    def update(self, n: int) -> object:
        """Add `n` received bytes."""

    def reset(self) -> object:
        """Start again from 0."""

    def close(self) -> object:
        """End the display."""


def fetch(name: str, folder: Path, *, url: str | None = None, progress: ProgressBar | None = None) -> Path:
    """Download a known dataset into `folder`, unless it is already there, and verify it.

    `url` is the address of a mirror; the checksum is still the publisher's. A failed download leaves nothing
    behind and can be repeated.
    """
    check_choice("dataset", name, tuple(KNOWN))
    dataset = KNOWN[name]
    target = folder / dataset.file_name
    address = url or dataset.url
    if target.is_dir():
        raise DownloadError(f"{target} is a folder, but the file needs that name. Pass another folder.")
    if target.exists() and dataset.md5 is None:
        return target
    if address is None:
        raise DownloadError(
            f"{name} is no longer published. Get {dataset.file_name} from someone who has it, put it "
            f"at {target} and run budgetrec prepare {target}."
        )
    pooch.get_logger().setLevel(logging.ERROR)
    made = not folder.exists()
    by_hand = f"Download {address} yourself, put it at {target} and run budgetrec prepare {target}."
    try:
        folder.mkdir(parents=True, exist_ok=True)
        pooch.retrieve(
            address,
            known_hash=f"md5:{dataset.md5}" if dataset.md5 else None,
            fname=dataset.file_name,
            path=folder,
            downloader=pooch.HTTPDownloader(progressbar=progress or False, timeout=30),
        )
    except requests.HTTPError as error:
        code = error.response.status_code if error.response is not None else "unknown"
        raise DownloadError(f"{address} answered with error {code}. {by_hand}") from error
    except _BAD_ADDRESS as error:
        raise ArgumentError(f"{address} is not a web address. Pass one that starts with https://.") from error
    except (requests.RequestException, requests.urllib3.exceptions.HTTPError) as error:  # type: ignore[attr-defined]
        reason = "the connection was lost" if isinstance(error, _CUT) else "there is no connection to it"
        raise DownloadError(f"{address} could not be fetched: {reason}. {by_hand}") from error
    except ValueError as error:  # pooch raises it for a wrong checksum
        raise DownloadError(
            f"the file from {address} is not {name}: its MD5 is not {dataset.md5}. It was deleted. {by_hand}"
        ) from error
    except OSError as error:
        raise DownloadError(
            f"{target} cannot be written: {error.strerror or error}. Pass another folder."
        ) from error
    finally:
        if made and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    return target
