"""The ways to take a step that a plan chooses among, apart from n and k."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from budgetrec.errors import PlanError
from budgetrec.settings.sections import RunConfig

Floats = NDArray[np.float64]

SAMPLED = ("sampled-softmax", "bce", "gbce")
SHARINGS = ("sequence", "batch", "target")
# What a plan may choose, and a person may fix.
PLANNED = (
    "batch_size",
    "num_negatives",
    "sharing",
    "objective",
    "lean",
    "micro_batches",
    "table_updates",
)
# What says something of drawn negatives and nothing of a full softmax, and is no part of a plan.
DRAWN_ONLY = ("sampler", "popularity_power", "correction")
_MODEL = ("model", "dim", "num_blocks", "num_heads", "max_length", "tied")
_GIVEN = (*_MODEL, "optimizer", "precision", "targets", "windows")


def given(config: RunConfig, *, full: bool) -> dict[str, int | str | bool]:
    """Return what a plan takes as it is, and what its bytes and its noise hold for."""
    found = {name: config[name] for name in (*_GIVEN, *(() if full else ("sampler",)))}
    return {**found, "hidden_dim": config.model.hidden_dim or config.model.dim}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One way to take a step: what is minimised, who shares negatives, and three ways to save memory."""

    objective: str
    sharing: str
    lean: bool
    table_updates: str
    micro_batches: int | None = None

    @property
    def full(self) -> bool:
        """Whether every item is scored, so that nothing is drawn."""
        return self.objective == "full-softmax"

    def num_groups(self, batch_size: Floats, mean_targets: float) -> Floats:
        """Count the independent sets of negatives of a step."""
        if self.sharing == "sequence":
            return batch_size
        return np.ones_like(batch_size) if self.sharing == "batch" else batch_size * mean_targets

    def configure(self, config: RunConfig, batch_size: int = 1, num_negatives: int = 1) -> RunConfig:
        """Return settings that train in this way."""
        settings: dict[str, Any] = {
            "objective": self.objective,
            "lean": self.lean,
            "table_updates": self.table_updates,
            "micro_batches": self.micro_batches,
            "batch_size": batch_size,
        }
        if not self.full:
            settings |= {"sharing": self.sharing, "num_negatives": num_negatives}
        return config.replaced(settings)

    def describe(self) -> str:
        """Name it in a few words."""
        if self.full:
            name = "full softmax"
        else:
            name = {"batch": "one set", "sequence": "one set per sequence", "target": "one set per target"}[
                self.sharing
            ]
        extras = ["lean"] if self.lean else []
        extras += [f"{self.micro_batches} micro-batches"] if self.micro_batches else []
        extras += ["row-sparse"] if self.table_updates == "row-sparse" else []
        return ", ".join([name, *extras])


def possible_kinds(
    config: RunConfig,
    fixed: Mapping[str, Any],
    *,
    num_items: int,
    has_features: bool,
    measured: bool = True,
    drawn: bool = False,
) -> list[Kind]:
    """List what may be chosen, given what a person has fixed; micro-batches are left to the search.

    Where steps are not `measured`, nothing speaks against the leaner way of each kind. With `drawn` something
    was asked for that a full softmax does not have.
    """
    objectives = [config.objective.objective]
    if not drawn and "objective" not in fixed and not {"num_negatives", "sharing"} & fixed.keys():
        objectives = [*dict.fromkeys([config.objective.objective, "full-softmax"])]
    for objective in objectives:
        if objective in ("sce", "rece"):
            raise PlanError(
                f"the noise law does not cover the objective {objective}, so there is nothing to plan by. "
                "Pass --objective sampled-softmax, or train without a plan."
            )
    sharings = [fixed["sharing"]] if "sharing" in fixed else list(SHARINGS)
    if config.objective.sampler in ("in-batch", "mixed"):
        sharings = ["batch"]
    leans = [fixed["lean"]] if "lean" in fixed else [False, True] if measured else [True]
    found = []
    for objective in objectives:
        full = objective == "full-softmax"
        for sharing in ["batch"] if full else sharings:
            for lean in leans:
                for updates in _table_updates(config, fixed, num_items, dense_only=full or has_features):
                    kind = Kind(objective=objective, sharing=sharing, lean=lean, table_updates=updates)
                    found.append(dataclasses.replace(kind, micro_batches=fixed.get("micro_batches")))
    return found


# In numbers: below, a dense step costs less than the fixed cost of a row-sparse one; above, no step touches
# enough rows to make a dense one worth while.
_SMALL_TABLE, _LARGE_TABLE = 2**18, 2**25


def _table_updates(
    config: RunConfig, fixed: Mapping[str, Any], num_items: int, *, dense_only: bool
) -> list[str]:
    wanted = fixed.get("table_updates", "auto")
    if wanted != "auto":
        if dense_only and wanted == "row-sparse":
            return []
        return [wanted]
    if dense_only or num_items * config.model.dim <= _SMALL_TABLE:
        return ["dense"]
    return ["row-sparse"] if num_items * config.model.dim >= _LARGE_TABLE else ["dense", "row-sparse"]
