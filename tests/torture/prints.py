"""What a folder holds, bit for bit, without clocks and machine."""

import hashlib
import json
from pathlib import Path

_CLOCKS = ("seconds", "evaluation_seconds", "peak_bytes", "training_bytes")
# Parts of a plan that come from measurements of this machine at this moment.
_MEASURED = {
    "step_seconds",
    "gradient",
    "noise",
    "because",
    "assumptions",
    "candidates",
    "seconds_model",
    "overhead_bytes",
    "predicted_bytes",
}


def fingerprint(path: Path, here: Path) -> dict[str, str]:
    """Return a hash for each file at or under `path`, by its name; folders have none."""
    files = sorted(path.rglob("*")) if path.is_dir() and not path.is_symlink() else [path]
    return {
        str(file.relative_to(here)): "folder" if file.is_dir() else _hash(file, here)
        for file in files
        if file.exists() and file.suffix != ".lock"  # an empty file that who comes next takes over
    }


def _hash(file: Path, here: Path) -> str:
    if file.name == "environment.json":  # command and time
        return str(sorted(json.loads(file.read_text())))
    if file.name in ("plan.svg", "plan.png", "report.html"):  # they show seconds
        return "something" if file.stat().st_size > 1000 else "too little"
    if file.name == "plan.toml":
        return _digest(json.dumps(_plan(file), sort_keys=True).encode())
    if file.name.startswith("evaluation-") and file.suffix == ".json":
        found = json.loads(file.read_text())
        kept = {name: value for name, value in found.items() if "second" not in name and name != "peak_bytes"}
        return _digest(json.dumps(kept, sort_keys=True).encode())
    if file.suffix == ".safetensors":
        return _checkpoint(file)
    if file.name == "metrics.parquet":
        import polars as pl

        frame = pl.read_parquet(file)
        return _digest(frame.drop(_CLOCKS, strict=False).write_json().encode())
    return _digest(file.read_bytes().replace(str(here).encode(), b"HERE"))


def _plan(file: Path) -> dict[str, object]:
    from budgetrec.planner.plan import Plan

    document = Plan.read(file).to_dict()
    return {name: value for name, value in document.items() if name not in _MEASURED}


def _checkpoint(file: Path) -> str:
    from budgetrec.runs.checkpoint import load_checkpoint

    tensors, state = load_checkpoint(file)
    state.pop("seconds", None)
    digest = hashlib.sha256(json.dumps(state, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
