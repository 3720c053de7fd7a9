"""Datasets that everyone knows: where they are published, and a download that is checked."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pooch
import requests

from budgetrec.errors import ArgumentError, DownloadError

_GROUPLENS = "https://files.grouplens.org/datasets/movielens"


@dataclass(frozen=True)
class KnownDataset:
    """A public dataset: its file, the publisher's checksum where there is one, and its size."""

    name: str
    file_name: str
    url: str | None  # None: its publisher withdrew it, so it is fetched by hand
    md5: str | None
    rows: int
    description: str


KNOWN = {
    dataset.name: dataset
    for dataset in (
        KnownDataset(
            "ml-100k",
            "ml-100k.zip",
            f"{_GROUPLENS}/ml-100k.zip",
            "0e33842e24a9c977be4e0107933c0723",
            100_000,
            "MovieLens, 943 users and 1,682 films",
        ),
        KnownDataset(
            "ml-1m",
            "ml-1m.zip",
            f"{_GROUPLENS}/ml-1m.zip",
            "c4d9eecfca2ab87c1945afe126590906",
            1_000_209,
            "MovieLens, 6,040 users and 3,706 films",
        ),
        KnownDataset(
            "ml-20m",
            "ml-20m.zip",
            f"{_GROUPLENS}/ml-20m.zip",
            "cd245b17a1ae2cc31bb14903e1204af3",
            20_000_263,
            "MovieLens, 138,493 users and 26,744 films",
        ),
        KnownDataset(
            "ml-25m",
            "ml-25m.zip",
            f"{_GROUPLENS}/ml-25m.zip",
            "6b51fb2759a8657d3bfcbfc42b592ada",
            25_000_095,
            "MovieLens, 162,541 users and 59,047 films",
        ),
        KnownDataset(
            "gowalla",
            "loc-gowalla_totalCheckins.txt.gz",
            "https://snap.stanford.edu/data/loc-gowalla_totalCheckins.txt.gz",
            None,
            6_442_890,
            "check-ins, 107,092 users and 1,280,969 places",
        ),
        KnownDataset(
            "netflix",
            "nf_prize_dataset.tar.gz",
            None,
            None,
            100_480_507,
            "Netflix Prize, 480,189 users and 17,770 films",
        ),
    )
}


class ProgressBar(Protocol):
    """What a download tells as it goes."""

    total: int

    def update(self, n: int) -> object:
        """Say that `n` more bytes came."""

    def reset(self) -> object:
        """Begin anew."""

    def close(self) -> object:
        """Say that the download ended."""


def fetch(name: str, folder: Path, *, url: str | None = None, progress: ProgressBar | None = None) -> Path:
    """Download a known dataset into `folder`, unless it is there already, and check it.

    `url` takes it from a mirror instead; the checksum stays the publisher's. A download that fails leaves
    nothing behind and can be started again.
    """
    dataset = KNOWN.get(name)
    if dataset is None:
        raise ArgumentError(f"there is no known dataset {name!r}. Known are {', '.join(KNOWN)}.")
    target = folder / dataset.file_name
    address = url or dataset.url
    if target.is_dir():
        raise DownloadError(f"{target} is a folder and the file shall have that name. Pass another folder.")
    if target.exists() and dataset.md5 is None:
        return target
    if address is None:
        raise DownloadError(
            f"{name} has no public address any more. Get {dataset.file_name} from someone who has it, put it "
            f"at {target} and run budgetrec prepare {target}."
        )
    pooch.get_logger().setLevel(logging.ERROR)
    made = not folder.exists()
    by_hand = f"Fetch {address} by hand, put it at {target} and run budgetrec prepare {target}."
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
    except (
        requests.exceptions.MissingSchema,
        requests.exceptions.InvalidSchema,
        requests.exceptions.InvalidURL,
    ) as error:
        raise ArgumentError(
            f"{address} is not an address of the web. Pass one that begins with https://."
        ) from error
    except (requests.RequestException, requests.urllib3.exceptions.HTTPError) as error:  # type: ignore[attr-defined]
        reason = "the connection was cut" if _was_cut(error) else "there is no connection to it"
        raise DownloadError(f"{address} could not be fetched: {reason}. {by_hand}") from error
    except ValueError as error:  # pooch's word for a wrong checksum
        raise DownloadError(
            f"what {address} sent is not {name}: its MD5 is not {dataset.md5}. Nothing was kept. {by_hand}"
        ) from error
    except OSError as error:
        raise DownloadError(f"{target} cannot be written: {error.strerror or error}.") from error
    finally:
        if made and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    return target


def _was_cut(error: Exception) -> bool:
    return isinstance(error, requests.exceptions.ChunkedEncodingError | requests.exceptions.ReadTimeout)
