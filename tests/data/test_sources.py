"""Downloads are checked, and failures say what to do by hand; all against a server on loopback."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from budgetrec.data import sources

CONTENT = b"1\t1\t5\t100\n" * 5000
_MD5 = hashlib.new("md5", CONTENT, usedforsecurity=False).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    """Serves the file, a wrong one, a cut connection, or an error, by the path."""

    def do_GET(self):
        if self.path == "/missing":
            self.send_error(404)
            return
        body = CONTENT if self.path != "/wrong" else b"something else"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if self.path == "/cut" else body)

    def log_message(self, *arguments):
        """Stay quiet."""


@pytest.fixture
def server(monkeypatch):
    """Serve on loopback, and let ml-100k be the file that is served."""
    served = sources.KnownDataset("ml-100k", "u.data", None, _MD5, 5000, "served on loopback")
    monkeypatch.setitem(sources.KNOWN, "ml-100k", served)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_address[1]}"
        http.shutdown()
        thread.join()


def test_a_dataset_is_fetched_checked_and_prepared(server, budgetrec, tmp_path):
    """The file arrives whole, is not fetched twice, and is what prepare takes."""
    answer = budgetrec(
        "data", "get", "ml-100k", "-o", tmp_path / "raw", "--url", f"{server}/u.data", "--json"
    )
    assert answer.code == 0, answer.err
    result = json.loads(answer.out)
    assert (tmp_path / "raw" / "u.data").read_bytes() == CONTENT
    assert result["sha256"] == hashlib.sha256(CONTENT).hexdigest()
    # Again, from an address that fails: the file is there and right, so nothing is fetched.
    again = budgetrec("data", "get", "ml-100k", "-o", tmp_path / "raw", "--url", f"{server}/missing")
    assert again.code == 0
    assert "matches the publisher's checksum" in again.out
    assert budgetrec("prepare", result["path"], "-o", tmp_path / "d").code == 0


@pytest.mark.parametrize(
    ("path", "reason"),
    [("wrong", "its MD5 is not"), ("cut", "the connection was lost"), ("missing", "error 404")],
)
def test_a_failed_download_leaves_nothing_and_says_what_to_do(server, refused, tmp_path, path, reason):
    """A wrong checksum, a cut connection and an error page; the manual way is named."""
    sentence = refused("data", "get", "ml-100k", "-o", tmp_path / "raw", "--url", f"{server}/{path}")
    assert reason in sentence
    assert f"put it at {tmp_path / 'raw' / 'u.data'}" in sentence


def test_a_failed_download_can_be_started_again(server, budgetrec, refused, tmp_path):
    """After a cut connection the next try gets the whole file."""
    refused("data", "get", "ml-100k", "-o", tmp_path / "raw", "--url", f"{server}/cut")
    assert budgetrec("data", "get", "ml-100k", "-o", tmp_path / "raw", "--url", f"{server}/x").code == 0
    assert (tmp_path / "raw" / "u.data").read_bytes() == CONTENT


def test_a_damaged_file_is_downloaded_again(server, budgetrec, tmp_path):
    """A file of the right name and the wrong content is replaced."""
    (tmp_path / "u.data").write_text("half")
    assert budgetrec("data", "get", "ml-100k", "-o", tmp_path, "--url", f"{server}/x").code == 0
    assert (tmp_path / "u.data").read_bytes() == CONTENT


def test_no_network_names_the_file_and_the_place(refused, tmp_path):
    """Nothing listens there: one sentence that names what to download and where to put it."""
    url = "http://127.0.0.1:9/ml-1m.zip"
    sentence = refused("data", "get", "ml-1m", "-o", tmp_path / "raw", "--url", url)
    assert "no connection" in sentence
    assert f"Download {url} yourself, put it at {tmp_path / 'raw' / 'ml-1m.zip'}" in sentence


def test_what_cannot_be_fetched_is_told(refused, tmp_path):
    """Netflix has no public address; an unknown name lists the known ones."""
    assert "nf_prize_dataset.tar.gz" in refused("data", "get", "netflix", "-o", tmp_path / "raw")
    assert "ml-1m" in refused("data", "get", "imdb", "-o", tmp_path / "raw")


def test_known_datasets_are_listed(budgetrec):
    """Every known dataset is in the list, as a table and as JSON."""
    table = budgetrec("data", "list").out
    listed = [entry["name"] for entry in json.loads(budgetrec("data", "list", "--json").out)["datasets"]]
    assert listed == list(sources.KNOWN)
    assert all(name in table for name in listed)
