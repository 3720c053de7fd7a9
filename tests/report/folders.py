"""Folders of runs and studies as the other commands leave them, without any training."""

import json
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import polars as pl
import tomli_w

from budgetrec.display.colours import BLUE, ORANGE
from budgetrec.display.tables import StudyTable, Text
from budgetrec.runs.environment import write_environment
from budgetrec.study.engine.outputs import write_study
from budgetrec.study.engine.scale import Scale
from budgetrec.study.lognormal import draw_densities, study_lognormal
from budgetrec.study.variance.figures import draw_noise

PLAN: dict[str, Any] = {
    "batch_size": 64,
    "num_negatives": 128,
    "sharing": "sequence",
    "lean": False,
    "goal": "time",
    "budget_bytes": 640 * 2**20,
    "margin": 0.1,
    "step_seconds": 0.066,
    "predicted_bytes": {"total": 300 * 2**20, "parts": {"weights": 100 * 2**20, "logits": 200 * 2**20}},
    "noise": {"total": 0.05, "example": 0.03, "shared_class": 0.015, "target_class": 0.005, "bias": 0.0},
    "because": {"batch_size": "Examples give most of the noise.", "sharing": "One gather a sequence."},
    "candidates": [
        {"batch_size": 64, "num_negatives": 128, "score": 1.0, "why": "chosen"},
        {"batch_size": 8, "num_negatives": 1024, "score": 1.7, "why": "more noise"},
        {"batch_size": 256, "num_negatives": 32, "score": 1.3, "why": "slower"},
    ],
    "assumptions": {"mean_length": "40 items"},
    "constants": {"example": 3.25, "inner": {"rho": 7}},
}


def make_run(
    folder: Path,
    *,
    plan: dict[str, Any] | None = PLAN,
    evaluated: bool = True,
    text: str = "item-1",
    seed: int = 0,
    num_negatives: int = 128,
) -> Path:
    """Write a run's folder; `text` is what users and items are called, and what free texts say."""
    folder.mkdir(parents=True)
    document = {
        "budgetrec": "0.1.0",
        "dataset": {"path": f"/data/of/somebody/{text.replace('/', '-')}", "identity": "a4b0191dd6853460"},
        "model": {"model": "sasrec", "dim": 32, "max_length": 50},
        "objective": {"objective": "sampled-softmax", "num_negatives": num_negatives, "sampler": text},
        "optimizer": {"optimizer": "adam", "learning_rate": 0.003},
        "training": {"batch_size": 64, "seed": seed},
    }
    (folder / "run.toml").write_text(tomli_w.dumps(document), "utf-8")
    steps = np.arange(7) * 32
    losses = 5.5 + 1.4 * np.exp(-steps / 90) + 0.01 * seed
    pl.DataFrame(
        {
            "step": steps,
            "examples": steps * 64,
            "seconds": steps * 0.07,
            "train_loss": [None, *(losses[1:] + 0.1)],
            "val_loss": losses,
            "ndcg@10": (6.9 - losses) / 10,
            "peak_bytes": np.full(7, 900 * 2**20),
            "training_bytes": np.full(7, 462 * 2**20),
        }
    ).write_parquet(folder / "metrics.parquet")
    if evaluated:
        users = 200
        values = np.random.default_rng(seed).random(users)
        summary = {
            "run": folder.name,
            "part": "test",
            "num_users": users,
            "num_items": 1000,
            "cutoffs": [5, 10],
            "keep_seen": False,
            "ndcg@5": 0.1536,
            "ndcg@10": float(values.mean()),
            "coverage@10": 0.213,
            "mrr": 0.16,
            "test_loss": 5.6673,
            "intervals": {"ndcg@10": [0.163, 0.1903], "test_loss": [5.5943, 5.7341]},
        }
        (folder / "evaluation-test.json").write_text(json.dumps(summary), "utf-8")
        names = [f"{text}{number}" for number in range(users)]
        frame = {"user": names, "item": names, "ndcg@10": values, "loss": values + 1}
        pl.DataFrame(frame).write_parquet(folder / "evaluation-test.parquet")
        lists = {"user": names[:4], "rank": [1, 2, 1, 2], "item": [text] * 4, "score": [4.2, 3.9, 4.1, 0.5]}
        pl.DataFrame(lists).write_parquet(folder / "recommendations.parquet")
    if plan is not None:
        (folder / "plan.toml").write_text(tomli_w.dumps(plan), "utf-8")
    write_environment(folder, ["/opt/bin/budgetrec", "train", text])
    return folder


def worded_plan(text: str) -> dict[str, Any]:
    """Return a plan that says `text` wherever it has words."""
    return {
        **PLAN,
        "sharing": text,
        "because": dict.fromkeys(PLAN["because"], text),
        "candidates": [{**each, "why": text} for each in PLAN["candidates"]],
        "assumptions": {"mean_length": text},
    }


def make_study(folder: Path, *, name: str = "noise", text: str = "shared", captioned: bool = False) -> Path:
    """Write a study's folder with a table and a chart; a captioned one says what they are."""
    folder.mkdir(parents=True)
    frame = pl.DataFrame(
        {"sharing": [text, text, "other", "other"], "k": [8, 32, 8, 32], "noise": [4.0, 2, 3, 1]}
    )
    colours = alt.Scale(domain=[text, "other"], range=[BLUE, ORANGE])
    chart = (
        alt.Chart(frame)
        .mark_line(point=True)
        .encode(x="k:Q", y="noise:Q", color=alt.Color("sharing:N", scale=colours))
    )
    settings: dict[str, Any] = {"study": name, "scale": "smoke", "seed": 0}
    if captioned:
        captions = dict.fromkeys(("noise", "gone"), text)
        settings["shown"] = {"title": text, "text": [text, text], "charts": captions, "tables": captions}
        rows = [(Text(text), Text("1,024.5 ± 2", bold=True)), (Text(text), Text("3"))]
        (folder / "noise.md").write_text(StudyTable(("sharing", "noise"), rows, frame).to_markdown(), "utf-8")
    write_study(
        folder, settings=settings, tables={"noise": frame}, charts={"noise": chart.properties(title=text)}
    )
    return folder


def make_paper_study(folder: Path) -> Path:
    """Write a study with the charts that the paper's studies draw: panels of layers, and facets."""
    folder.mkdir(parents=True)
    study = study_lognormal(scale=Scale.SMOKE, seed=0)
    cells = [
        {
            "features": features,
            "sharing": sharing,
            "batch_size": n,
            "num_negatives": k,
            "law": n / k,
            "measured": n / k,
        }
        for features in ("mean 0", "concentrated")
        for sharing in ("shared", "grouped", "per target")
        for n in (8, 32)
        for k in (8, 32, 128)
    ]
    charts = {"densities": draw_densities(study.densities), "noise": draw_noise(pl.DataFrame(cells))}
    write_study(folder, settings={"study": "paper"}, tables={"distances": study.distances}, charts=charts)
    return folder
