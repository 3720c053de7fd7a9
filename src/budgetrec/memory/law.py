"""From a few small steps to a function: the bytes in use at each moment of a step, for steps of any size.

Steps of different sizes take the same path through the code, so at each moment the bytes in use are a sum of
sizes of tensors, each of which is linear in a few products of the step's sizes. Coefficients are found from
small steps by non-negative least squares; the peak of a large step is the largest of these
functions.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Law:
    """Bytes in use at some moments, by kind: coefficients (moments, kinds, features)."""

    coefficients: Floats

    def peaks(self, features: Floats) -> Floats:
        """Return the most bytes in use, (...), for features (..., F)."""
        totals: Floats = (features @ self.coefficients.sum(1).T).max(-1)
        return totals

    def kinds_at_peak(self, features: Floats) -> Floats:
        """Return the bytes of each kind, (kinds,), at the moment when most are in use, for features (F,)."""
        moments = self.coefficients @ features
        kinds: Floats = moments[moments.sum(1).argmax()]
        return kinds


def fit(live: list[NDArray[np.int64]], features: Floats) -> Law:
    """Find the law from `live` bytes (moments, kinds) of several runs and their features (runs, F).

    Where runs had different numbers of moments, only the moment of each one's peak is kept.

    >>> runs = [np.array([[4 * size], [10 * size + 3], [0]]) for size in (1, 2)]
    >>> fit(runs, np.array([[1.0, 1.0], [1.0, 2.0]])).peaks(np.array([1.0, 100.0])).round(6)
    np.float64(1003.0)
    """
    if len({len(run) for run in live}) > 1:
        live = [run[[run.sum(1).argmax()]] for run in live]
    values = np.stack(live).astype(np.float64)  # (runs, moments, kinds)
    totals = values.sum(2)
    # A moment can be the peak of some size only if no neighbour is higher in every run.
    rises = np.diff(totals, axis=1, prepend=0, append=0)
    candidates = (rises[:, :-1] > 0).any(0) & (rises[:, 1:] < 0).any(0)
    if not candidates.any():
        candidates[0] = True
    values = values[:, candidates]
    scale = features.max(0)
    scale = np.where(scale > 0, scale, 1.0)
    coefficients = np.zeros((values.shape[1], values.shape[2], features.shape[1]))
    known: dict[bytes, Floats] = {}
    for moment, kind in np.ndindex(values.shape[1:]):
        column = values[:, moment, kind]
        key = column.tobytes()
        if key not in known:
            known[key] = nnls(features / scale, column)[0] / scale if column.any() else np.zeros(len(scale))
        coefficients[moment, kind] = known[key]
    return Law(coefficients[_undominated(coefficients.sum(1))])


def _undominated(rows: Floats) -> NDArray[np.int64]:
    """Return the places of rows that no other row is above in every column."""
    kept: list[int] = []
    for place in np.argsort(-rows.sum(1), kind="stable"):
        if not kept or not (rows[kept] >= rows[place] - 1e-6 * abs(rows[place])).all(1).any():
            kept.append(int(place))
    return np.array(kept, np.int64)
