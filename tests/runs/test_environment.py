"""What is recorded of a machine: versions and command, no host and no home."""

import json
import platform
from pathlib import Path

from budgetrec import __version__
from budgetrec.runs.environment import describe_environment, write_environment


def test_versions_and_command_are_recorded(tmp_path):
    """The file reads back as what was described."""
    write_environment(tmp_path, ["/usr/bin/budgetrec", "train", "films", "--dim", "32"])
    found = json.loads((tmp_path / "environment.json").read_text("utf-8"))
    assert found["command"] == ["budgetrec", "train", "films", "--dim", "32"]
    assert found["budgetrec"] == __version__
    assert found["python"] == platform.python_version()
    assert found["cores"] >= 1
    assert found["memory_bytes"] > 2**27


def test_neither_host_nor_home_is_recorded(monkeypatch):
    """A page with it can be shown to others."""
    monkeypatch.setattr(Path, "home", lambda: Path("/home/ada"))
    monkeypatch.setattr(platform, "node", lambda: "her-laptop")
    found = describe_environment(["budgetrec", "train", "/home/ada/films", "--config=/home/ada/run.toml"])
    assert found["command"] == ["budgetrec", "train", "~/films", "--config=~/run.toml"]
    assert "ada" not in json.dumps(found)
    assert "her-laptop" not in json.dumps(found)
