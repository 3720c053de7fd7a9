"""Two values of one setting of the main table against each other: paired over seeds, all else equal."""

from collections.abc import Mapping
from typing import Any

import polars as pl

from budgetrec.display.tables import StudyTable, Text
from budgetrec.study.engine.paired import compare_pairs
from budgetrec.study.engine.tabulating import Column, known, tabulate

SHARINGS = {"batch": "shared", "sequence": "per sequence"}
_SETTINGS = ("optimizer", "loss", "sharing")
_ALLOCATION = ["batch_size", "num_negatives"]
_ALL = "all together"


def compare(
    rows: pl.DataFrame, *, by: str, first: str, second: str, metrics: Mapping[str, str]
) -> StudyTable | None:
    """Compare two values of the setting `by` in each configuration that has both.

    To these come averages over all configurations of a dataset and optimiser. `metrics` are columns and
    their titles. Nothing comes back where no configuration has two seeds of both.
    """
    other = next(name for name in reversed(_SETTINGS) if name != by)
    names = ["dataset", "optimizer", other, *_ALLOCATION]
    groups: list[tuple[dict[str, Any], pl.DataFrame]] = [
        (dict(zip(names, key, strict=True)), group)
        for key, group in rows.group_by(names, maintain_order=True)
    ]
    groups += [
        ({**dict.fromkeys(names), "dataset": key[0], "optimizer": key[1]}, group)
        for key, group in _complete(rows, names, by).group_by(names[:2], maintain_order=True)
    ]
    found = compare_pairs(
        [
            (
                {**about, "metric": metric},
                _by_seed(group, by, first, metric),
                _by_seed(group, by, second, metric),
            )
            for metric in metrics
            for about, group in groups
        ]
    )
    if not found:
        return None
    columns: dict[str, Column] = {
        "dataset": "{dataset}",
        "optimizer": "{optimizer}",
        "negatives" if other == "sharing" else other: lambda row: _words(row[other]),
        "(n, k)": known("({batch_size}, {num_negatives})", "batch_size"),
        "metric": lambda row: metrics[row["metric"]],
        _words(first): "{first:.4f}",
        _words(second): "{second:.4f}",
        "difference": "{difference:+.4f}",
        "95% interval": "{low:+.4f} to {high:+.4f}",
        "effect d_z": known("{effect:+.1f}", "effect"),
        "p": "{p_value:.2g}",
        "p, Holm": lambda row: Text(f"{row['p_adjusted']:.2g}", row["p_adjusted"] < 0.05),
    }
    return tabulate(pl.DataFrame(found, infer_schema_length=None), columns, num_words=5)


def _words(value: str | None) -> str:
    """Name a value of a setting, or say that it is an average over all."""
    return _ALL if value is None else SHARINGS.get(value, value)


def tell(tested: pl.DataFrame, *, second: str, metrics: Mapping[str, tuple[str, bool]]) -> str:
    """Say in how many configurations the `second` is better, and how often that cannot be chance.

    `second` is how the sentence begins; `metrics` gives a title and whether more is better.
    """
    single = tested.filter(pl.col("batch_size").is_not_null())
    counts = []
    for metric, (title, largest) in metrics.items():
        differences = single.filter(metric=metric)["difference"]
        better = int((differences > 0 if largest else differences < 0).sum())
        counts.append(f"{better} of {len(differences)} by {title}")
    return (
        f"{second} is better in {' and in '.join(counts)}. The two differ at the level of 5% in "
        f"{int((tested['p_adjusted'] < 0.05).sum())} of {len(tested)} comparisons after Holm's adjustment, "
        f"in {int((tested['p_value'] < 0.05).sum())} without it."
    )


def _complete(rows: pl.DataFrame, names: list[str], by: str) -> pl.DataFrame:
    """Keep the configurations whose runs all ended well, so that averages over them are of the same ones."""
    # The planner may have chosen as the paper did.
    rows = rows.unique([*names, by, "seed"], maintain_order=True)
    most = rows.group_by([*names, by]).len()["len"].max()
    counts = rows.group_by(names).len().filter(pl.col("len") == 2 * (most or 0))  # type: ignore[operator]
    return rows.join(counts.select(names), on=names, how="semi", maintain_order="left")


def _by_seed(group: pl.DataFrame, by: str, value: str, metric: str) -> dict[int, float]:
    """Return the mean of each seed over the configurations of a group."""
    means = group.filter(pl.col(by) == value).group_by("seed", maintain_order=True).agg(pl.col(metric).mean())
    return dict(means.iter_rows())
