"""Folders are written whole or not at all, one process at a time, and nothing of others is deleted."""

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from budgetrec import files
from budgetrec.errors import DataError
from budgetrec.files import check_plain, claim, new_folder, remove_partial, write_whole

_WRITER = """
import sys, time
from pathlib import Path
from budgetrec.files import new_folder, write_whole

def wait(path):
    path.write_text("half")
    print("ready", flush=True)
    time.sleep(60)

target = Path(sys.argv[2])
if sys.argv[1] == "folder":
    with new_folder(target, overwrite=False, files=["m"]) as folder:
        wait(folder / "m")
else:
    write_whole(target, wait)
"""


@pytest.fixture
def writer():
    """Start a process that is in the middle of writing a folder or a file; it ends with the test."""
    started = []

    def start(kind: str, target: Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", _WRITER, kind, str(target)], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def _write(folder: Path, text: str = "new") -> None:
    (folder / "m").write_text(text)


def test_a_failure_leaves_nothing_behind(tmp_path):
    """An error halfway removes the temporary folder."""
    with pytest.raises(RuntimeError), new_folder(tmp_path / "out", overwrite=False, files=["m"]) as folder:
        (folder / "half").write_text("1")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_a_failure_keeps_the_old_folder(tmp_path):
    """What stood there before stays until the new one is whole."""
    with new_folder(tmp_path / "out", overwrite=False, files=["m"]) as folder:
        (folder / "m").write_text("old")
    with pytest.raises(RuntimeError), new_folder(tmp_path / "out", overwrite=True, files=["m"]) as folder:
        (folder / "m").write_text("new")
        raise RuntimeError
    assert (tmp_path / "out" / "m").read_text() == "old"
    with new_folder(tmp_path / "out", overwrite=True, files=["m"]) as folder:
        (folder / "m").write_text("new")
    assert (tmp_path / "out" / "m").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_what_is_not_ours_is_never_replaced(tmp_path, kind):
    """A folder without our marker, a file and a link are refused even with overwrite."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.txt").write_text("years of work")
    target = {"folder": home, "file": home / "thesis.txt", "link": tmp_path / "link"}[kind]
    if kind == "link":
        target.symlink_to(home)
    with pytest.raises(DataError, match="not replaced"), new_folder(target, overwrite=True, files=["m"]):
        pass
    assert (home / "thesis.txt").read_text() == "years of work"


def test_missing_parents_are_made(tmp_path):
    """`-o runs/first` works without a folder runs."""
    with new_folder(tmp_path / "a" / "b", overwrite=False, files=["m"]) as folder:
        (folder / "m").write_text("1")
    assert (tmp_path / "a" / "b" / "m").exists()


def test_what_a_killed_writer_left_is_swept_by_the_next(tmp_path, writer):
    """After SIGKILL a hidden folder and a free lock are left; the next call for that name takes both away."""
    process = writer("folder", tmp_path / "out")
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert sorted(path.name for path in tmp_path.iterdir())[0].startswith(".out.")
    with new_folder(tmp_path / "out", overwrite=False, files=["m"]) as folder:
        _write(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_second_process_is_refused_and_takes_nothing_from_the_first(tmp_path, writer):
    """While one process writes a folder, the next gets one sentence, and the first one's work stays."""
    writer("folder", tmp_path / "out")
    before = sorted(tmp_path.rglob("*"))
    with (
        pytest.raises(DataError, match=r"out is being written by another process\. Wait until it is done"),
        new_folder(tmp_path / "out", overwrite=False, files=["m"]),
    ):
        pass
    assert sorted(tmp_path.rglob("*")) == before
    with new_folder(tmp_path / "out.b", overwrite=False, files=["m"]) as folder:  # another name is free
        _write(folder)


def test_another_thread_is_refused_and_a_claim_within_a_claim_is_granted(tmp_path):
    """`fit` claims its run and trains into it; a second thread is as much another as a second process."""
    told = []

    def second() -> None:
        try:
            with claim(tmp_path / "out"):
                told.append("granted")
        except DataError as error:
            told.append(str(error))

    with claim(tmp_path / "out"), claim(tmp_path / "x" / ".." / "out"):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    assert len(told) == 1
    assert "another process" in told[0]
    second()
    assert told[1] == "granted"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_a_kill_moved_aside_comes_back(tmp_path):
    """Killed between the two renames of an overwrite, the old folder is restored by the next call."""
    aside = tmp_path / ".out.partial-abcdefgh-old"
    aside.mkdir()
    _write(aside, "old")
    with claim(tmp_path / "out"):
        assert (tmp_path / "out" / "m").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_names_that_only_look_like_ours_are_not_swept(tmp_path):
    """A folder of another target, a file and a longer ending stay."""
    kept = [
        ".out.b.partial-abcdefgh",
        ".out.partial-abcdefghi",
        ".out.partial-ABCDEFGH",
        "out.partial-abcdefgh",
    ]
    for name in kept:
        (tmp_path / name).mkdir()
    (tmp_path / ".out.partial-abcdefgh").write_text("a file of somebody")
    with claim(tmp_path / "out"):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {*kept, ".out.partial-abcdefgh"}


def test_without_locks_all_goes_on_as_it_did(tmp_path, monkeypatch):
    """Where the file system has no locks, nobody is refused, and nothing of others is taken away."""

    def refuse(handle: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    (tmp_path / ".out.partial-abcdefgh").mkdir()
    monkeypatch.setattr(files.fcntl, "flock", refuse)
    with new_folder(tmp_path / "out", overwrite=False, files=["m"]) as folder:
        write_whole(folder / "m", lambda path: path.write_text("1"))
    assert (tmp_path / "out" / "m").read_text() == "1"
    assert (tmp_path / ".out.partial-abcdefgh").exists()


def test_a_file_being_written_is_never_removed_and_a_dead_one_is(tmp_path, writer):
    """`remove_partial` leaves the file of a live process, and takes that of a killed one."""
    process = writer("file", tmp_path / "f")
    remove_partial(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(list(tmp_path.iterdir())) == 1
    write_whole(tmp_path / "f", lambda path: path.write_text("whole"))  # writes over what is dead
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    process = writer("file", tmp_path / "g")
    process.kill()
    process.wait()
    remove_partial(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_writers_of_one_file_wait_for_each_other(tmp_path):
    """Eight threads that write the same file 20 times leave one of their texts, and nothing else."""

    def write(text: str) -> None:
        for _ in range(20):
            write_whole(tmp_path / "f", lambda path: path.write_text(text * 1000))

    threads = [threading.Thread(target=write, args=(str(number),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    text = (tmp_path / "f").read_text()
    assert text == text[0] * 1000
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_a_name_as_long_as_a_file_system_takes_is_written(tmp_path):
    """255 bytes of a name leave no room for a longer temporary one."""
    name = "x" * 255
    write_whole(tmp_path / name, lambda path: path.write_text("1"))
    with new_folder(tmp_path / ("y" * 255), overwrite=False, files=["m"]) as folder:
        _write(folder)
    assert {path.name for path in tmp_path.iterdir()} == {name, "y" * 255}


def test_pipes_and_devices_are_not_read(tmp_path):
    """They may never end."""
    os.mkfifo(tmp_path / "pipe")
    for path, kind in ((tmp_path / "pipe", "a named pipe"), (Path("/dev/zero"), "a device")):
        with pytest.raises(DataError, match=f"is {kind}, not a file"):
            check_plain(path)
