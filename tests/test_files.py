"""Folders are written whole or not at all, and nothing of others is deleted."""

import pytest

from budgetrec.errors import DataError
from budgetrec.files import new_folder


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
