"""The bytes of a training step, and of a run, predicted without data or device."""

from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from budgetrec.errors import ArgumentError
from budgetrec.memory.dry_run import Asked, Setting, StepLaws, find_laws
from budgetrec.memory.evaluating import EvaluationLaws, find_evaluation_laws
from budgetrec.memory.fixed import (
    Fixed,
    FreshGradients,
    UpdateBytes,
    count_fixed,
    count_own,
    measure_updates,
)
from budgetrec.memory.heap import LARGE_BYTES
from budgetrec.memory.rehearsal import STAGES, Stand
from budgetrec.memory.run_parts import (
    frequencies_of,
    is_separable,
    is_sparse,
    objective_for,
    optimizer_maker,
    own_stand,
    stand_for,
    windows_of,
)
from budgetrec.memory.shapes import Shapes, Windows, cutting_for, draw_shapes, grid, largest
from budgetrec.memory.step_features import BLOCKS, Features
from budgetrec.models.contract import SequenceModel
from budgetrec.models.item_encoders import ROW_GROWTH
from budgetrec.models.own_model import fill_in, width_of
from budgetrec.objectives.contract import Objective
from budgetrec.ranking.histories import ENCODED_AT_ONCE
from budgetrec.ranking.scorer import BLOCK_BYTES, BLOCK_USERS
from budgetrec.ranking.view import scoring_view
from budgetrec.settings.build import build_model
from budgetrec.settings.sections import RunConfig
from budgetrec.stepping.gradients import CPU_POSITIONS

Floats = NDArray[np.float64]
PARTS = ("weights", "gradients", "optimizer_state", "encoder", "rows", "logits", "workspace")
_KIND_OF = {
    "batch": "workspace",
    "encoder": "encoder",
    "rows": "rows",
    "logits": "logits",
    "loss_backward": "logits",
    "encoder_backward": "encoder",
}
_BACKWARD = ("loss_backward", "encoder_backward")
_BATCH_BYTES = 17  # a position of a batch as it is gathered: two ids and a mask
_WINDOW_BYTES = (
    18  # of a window for the whole run: where it begins, its length, its place in the epoch's order
)
_OWN_HOLES = 0.1  # of activations: 0 to 0.19 with a GRU and 52 to 700 sequences of up to 200 items
_MANY_PARTS, _MOST_HOLES = 8, 2.25  # fitted to benchmarks/memory.py: from 0.7 to 3 with 2 to 13 parts


@dataclass(frozen=True)
class RunMemory:
    """The most bytes that a run has in use, as a function of batch size and negatives.

    Made by `dry_run` from settings, or by `of_model` for a model and a training loop of your own.
    """

    features: Features
    laws: StepLaws
    evaluation: EvaluationLaws
    fixed: Fixed
    updates: UpdateBytes | None  # None where updates are dense
    tied: bool
    windows: Windows
    max_length: int
    whole: bool  # whether a batch is one part unless micro-batches are asked for
    on_host: bool
    fresh: FreshGradients | None = None  # of a loop of one's own
    features_width: int = 0  # of items, where features stand in for a table
    overhead: int = 0
    evaluation_block_bytes: int = BLOCK_BYTES
    _shapes: dict[int | None, list[Shapes]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def dry_run(
        cls,
        config: RunConfig,
        *,
        num_items: int,
        lengths: NDArray[np.int64],
        features_width: int | None = None,
        train_counts: NDArray[np.int64] | None = None,
        device_type: str = "cpu",
        overhead: int = 0,
        evaluation_block_bytes: int = BLOCK_BYTES,
    ) -> Self:
        """Run small steps of the model and objective that `config` names, and find the bytes of larger ones.

        `lengths` are the targets of each training window (`TrainingBatches.lengths`). Batch size,
        micro-batches and negatives of `config` are ignored; `table_updates` must be "dense" or "row-sparse".
        `train_counts` (K,) say how often popular items are drawn; without them, all count alike.
        `overhead` is what `measure_overhead` found.
        """
        sparse = is_sparse(config, with_features=features_width is not None)
        models: dict[int, Stand] = {}

        def build(count: int) -> SequenceModel:
            features = None if features_width is None else torch.rand(count, features_width)
            return build_model(config.model, count, features=features, generator=torch.Generator())

        def setting(asked: Asked) -> tuple[Stand, Objective]:
            if asked.num_items not in models:
                models[asked.num_items] = stand_for(build(asked.num_items), config, sparse=sparse)
            stand = models[asked.num_items]
            return stand, objective_for(asked, config, stand.model)

        views = [(scoring_view(build(count), config.objective), count) for count in (64, 128)]
        evaluation = find_evaluation_laws(views, max_length=config.model.max_length)
        probe = _Probe(build(64), 64, config.model.dim, config.model.max_length, config.model.tied)
        found = cls._find(config, probe, setting, evaluation, num_items, lengths, device_type, sparse=sparse)
        return replace(
            found,
            features=replace(found.features, frequencies=frequencies_of(config, train_counts)),
            features_width=features_width or 0,
            overhead=overhead,
            evaluation_block_bytes=evaluation_block_bytes,
        )

    @classmethod
    def of_model(
        cls,
        model: nn.Module,
        config: RunConfig,
        *,
        lengths: NDArray[np.int64],
        device_type: str = "cpu",
        overhead: int = 0,
        evaluation_block_bytes: int = BLOCK_BYTES,
    ) -> Self:
        """Do as `dry_run` does with a model of your own, trained in a loop of your own.

        Each step of that loop reads a whole padded batch, asks the objective for one loss and goes back once,
        and torch's optimiser, which `config` names with all else but the model, makes the update. The model
        takes small steps as it is, without its weights being changed; gradients that it holds are dropped.
        """
        if config.optimizer.table_updates == "row-sparse":
            raise ArgumentError("table_updates is row-sparse, which is for our own loop; pass dense or auto.")
        model = fill_in(model, num_items=None, max_length=config.model.max_length)
        modes = [(part, part.training) for part in model.modules()]
        stand = own_stand(model, config)
        count, dim = model.num_items, width_of(model)

        def setting(asked: Asked) -> tuple[Stand, Objective]:
            return stand, objective_for(asked, config, model)

        try:
            view = scoring_view(model, config.objective)
            evaluation = find_evaluation_laws([(view, count)], max_length=model.max_length)
            probe = _Probe(model, count, dim, model.max_length, tied=True, fixed_items=count)
            found = cls._find(config, probe, setting, evaluation, count, lengths, device_type, sparse=False)
        finally:
            for part, mode in modes:
                part.training = mode
            model.zero_grad()
        make = optimizer_maker(config.optimizer, "dense", fused=False)
        fixed, fresh = count_own(model, make, at_once=device_type != "cpu")
        return replace(
            found,
            fixed=fixed,
            fresh=fresh,
            whole=True,
            overhead=overhead,
            evaluation_block_bytes=evaluation_block_bytes,
        )

    @classmethod
    def _find(
        cls,
        config: RunConfig,
        probe: "_Probe",
        setting: Setting,
        evaluation: EvaluationLaws,
        num_items: int,
        lengths: NDArray[np.int64],
        device_type: str,
        *,
        sparse: bool,
    ) -> Self:
        objective, last_only = config.objective, config.training.targets == "last"
        specification, half_precision = objective.specification, config.training.precision != "32-true"
        features = Features(
            objective.sharing if specification.draws else None,
            objective.lean,
            probe.dim,
            num_items,
            specification.block_bytes,
            tiles=objective.lean and specification.in_tiles(num_items, half_precision),
        )
        windows = windows_of(probe.model, np.asarray(lengths, np.int64), last_only)
        make = optimizer_maker(config.optimizer, "row-sparse" if sparse else "dense")
        return cls(
            features=features,
            laws=find_laws(
                setting,
                features,
                max_length=probe.max_length,
                targets_share=float(windows.targets.sum() / windows.positions.sum()),
                fixed_items=probe.fixed_items,
                floor=specification.step_floor(objective),
            ),
            evaluation=evaluation,
            fixed=count_fixed(probe.model, make, sparse=sparse, num_items=probe.num_items),
            updates=measure_updates(probe.dim, make) if sparse else None,
            tied=probe.tied,
            windows=windows,
            max_length=probe.max_length,
            whole=device_type != "cpu" or not is_separable(config),
            on_host=device_type == "cpu",
        )

    def sharing_shapes(self, other: "RunMemory") -> "RunMemory":
        """Look at the same drawn batches as `other`, of the same windows: drawing them takes time."""
        return replace(self, _shapes=other._shapes)

    def total(
        self, batch_size: ArrayLike, num_negatives: ArrayLike, micro_batches: int | None = None
    ) -> Floats:
        """Return the predicted peak in bytes; arrays of batch sizes and negatives broadcast."""
        sizes, negatives = np.broadcast_arrays(
            np.asarray(batch_size, np.float64), np.asarray(num_negatives, np.float64)
        )
        if sizes.size == 0:
            return np.zeros(sizes.shape)
        if sizes.min() < 1 or negatives.min() < 0:
            raise ArgumentError(
                f"batch_size goes down to {sizes.min():g} and num_negatives to {negatives.min():g}; pass at "
                "least 1 sequence and 0 negatives."
            )
        points = grid(int(sizes.max()))
        flat_sizes, flat_negatives = sizes.ravel(), negatives.ravel()
        above = np.searchsorted(points, flat_sizes)
        below = np.maximum(above - 1, 0)
        totals = np.zeros((2, len(flat_sizes)))
        for place in np.unique(np.concatenate([above, below])):
            for row, places in enumerate((below, above)):
                chosen = places == place
                if chosen.any():
                    totals[row, chosen] = self._at(int(place), flat_negatives[chosen], micro_batches)
        share = _share(flat_sizes, points[below].astype(np.float64), points[above].astype(np.float64))
        result: Floats = (totals[0] * (1 - share) + totals[1] * share).reshape(sizes.shape)
        return result

    def parts(self, batch_size: int, num_negatives: int, micro_batches: int | None = None) -> dict[str, int]:
        """Split the predicted peak into what it is made of."""
        points = grid(batch_size)
        above = int(np.searchsorted(points, batch_size))
        below = max(above - 1, 0)
        ends = points[[below, above]].astype(np.float64)
        share = float(_share(np.array(batch_size, np.float64), ends[0], ends[1]))
        low, high = (self._parts_at(place, num_negatives, micro_batches) for place in (below, above))
        split = {name: round(low[name] * (1 - share) + high[name] * share) for name in PARTS}
        whole = round(float(self.total(batch_size, num_negatives, micro_batches)))
        split["workspace"] += whole - sum(split.values())
        return split

    def evaluation_bytes(self) -> int:
        """Return what an evaluation takes on top of weights, gradients and the state of the optimisers."""
        return round(
            self.evaluation.total(
                num_items=self.features.num_items,
                dim=self.features.dim,
                batch_size=ENCODED_AT_ONCE.get("cpu", BLOCK_USERS) if self.on_host else BLOCK_USERS,
                length=self.max_length,
                block_bytes=self.evaluation_block_bytes,
                num_targets=len(self.windows),
            )
        )

    def _at(self, place: int, num_negatives: Floats, micro_batches: int | None) -> Floats:
        """Return totals at a point of the grid."""
        shapes = self._shapes_at(place, micro_batches)
        kept, before, _ = self._batch_bytes(shapes, num_negatives)
        rows, growing, update = self._row_bytes(shapes, num_negatives)
        part = self._part_bytes(shapes, num_negatives).max(0)
        weights, gradients, state = self._fixed_bytes()
        fixed = weights + gradients + state + self._lasting()
        steady = np.maximum(np.maximum(kept + part, before), update) + rows
        first = kept + part + rows + growing - state
        holes = self._holes(shapes, micro_batches) + self._block_holes(shapes, num_negatives)
        step = np.maximum(steady, first) + holes
        # Holes of the heap are given back before an evaluation, and before the run is opened.
        run = np.maximum(step, self.evaluation_bytes() + rows)
        peak: Floats = np.maximum(fixed + run, self._opening() + self._lasting())
        return peak

    def _parts_at(self, place: int, num_negatives: int, micro_batches: int | None) -> dict[str, float]:
        shapes, negatives = self._shapes_at(place, micro_batches), np.array(num_negatives, np.float64)
        rows = float(self._row_bytes(shapes, negatives)[0])
        weights, gradients, state = self._fixed_bytes()
        split = dict.fromkeys(PARTS, 0.0)
        split |= {"weights": weights, "gradients": gradients + rows, "optimizer_state": state}
        worst = int(self._part_bytes(shapes, negatives).argmax())
        features = self.features.of_part(shapes.parts[worst], negatives)
        fresh = 0.0 if self.fresh is None else float(self.fresh.gradients)
        for name, size in zip(STAGES, self.laws.part.kinds_at_peak(features), strict=True):
            gradients = min(fresh, float(size)) if name in _BACKWARD else 0.0
            fresh -= gradients
            split["gradients"] += gradients
            split[_KIND_OF[name]] += float(size) - gradients
        return split

    def _fixed_bytes(self) -> tuple[float, float, float]:
        count = self.features.num_items
        weights, gradients, state = (
            constant + per_item * count
            for constant, per_item in (self.fixed.weights, self.fixed.gradients, self.fixed.state)
        )
        return weights, gradients, state

    def _opening(self) -> float:
        """Return what opening the run at its end takes, all else released: a new model and its file.

        A model with item features reads those too, and makes its table once to find the scale of its weights.
        """
        count = self.features.num_items
        table = float(self.evaluation.table.peaks(np.array([1.0, count]))) if self.features_width else 0.0
        return 2 * self._fixed_bytes()[0] + 4.0 * self.features_width * count + table

    def _lasting(self) -> float:
        """Return the bytes of the data's own arrays, and the overhead."""
        if not self.on_host:
            return self.overhead
        mapped = 4 * float(self.windows.targets.sum() + 2 * len(self.windows))
        return self.overhead + _WINDOW_BYTES * len(self.windows) + mapped

    def _holes(self, shapes: Shapes, micro_batches: int | None) -> float:
        """Return what the heap holds besides tensors, where a step is cut for the cache or one's own.

        Such parts have from 512 to 2,048 positions, so many of their tensors lie below `LARGE_BYTES` and
        share a heap. Parts of other widths leave holes there that the next ones do not fill: from about the
        activations of one part, where there are few, to `_MOST_HOLES` of it with `_MANY_PARTS`.
        """
        own_loop = self.fresh is not None
        if not self.on_host or (not own_loop and (micro_batches is not None or self.whole)):
            return 0.0
        features = self.features.of_part(shapes.parts, np.zeros(len(shapes.parts)))
        kinds = [place for place, name in enumerate(STAGES) if _KIND_OF[name] == "encoder"]
        encoder = (features @ self.laws.part.coefficients[:, kinds].sum(1).T).max(1)
        if own_loop:
            return _OWN_HOLES * float(encoder.max())
        tensor = 4 * self.features.dim * np.maximum(shapes.parts[:, 1], 1)
        in_heap = float((encoder * np.minimum(1, LARGE_BYTES / tensor)).max())
        share = min(1.0, float(shapes.batch[3]) / (CPU_POSITIONS * _MANY_PARTS))
        return in_heap * (1 + (_MOST_HOLES - 1) * share)

    def _block_holes(self, shapes: Shapes, num_negatives: Floats) -> Floats:
        """Return what blocks of lean mode leave in the heap: about as much as one holds of logits and rows.

        Measured: from 0.6 to 2 times that, with three kinds of run and two of a loop of one's own.
        """
        if not self.features.lean or self.features.sharing is None or not self.on_host:
            return np.zeros(np.shape(num_negatives))
        parts = shapes.parts.reshape(-1, *(1,) * np.ndim(num_negatives), 4)
        features = self.features.of_part(parts, num_negatives)
        rows, logits = (features[..., place] for place in BLOCKS[:2])
        held: Floats = 4 * (rows * self.features.dim + logits).max(0)
        return held

    def _batch_bytes(self, shapes: Shapes, num_negatives: Floats) -> tuple[Floats, Floats, Floats]:
        features = self.features.of_batch(shapes.batch, num_negatives)
        held = np.full(np.shape(num_negatives), _BATCH_BYTES * shapes.batch[1])
        return self.laws.kept.peaks(features) + held, self.laws.before.peaks(features) + held, held

    def _part_bytes(self, shapes: Shapes, num_negatives: Floats) -> Floats:
        """Return the peak of each part that may be the largest, (parts, ...)."""
        parts = shapes.parts.reshape(-1, *(1,) * np.ndim(num_negatives), 4)
        return self.laws.part.peaks(self.features.of_part(parts, num_negatives))

    def _row_bytes(self, shapes: Shapes, num_negatives: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the row-sparse sums, what their growth needs in the first step, and what updates need."""
        nothing = np.zeros(np.shape(num_negatives))
        if self.updates is None:
            update = 0 if self.fresh is None else self.fresh.gradients + self.fresh.update
            return nothing, nothing, nothing + update
        num_items = self.features.num_items
        read = min(num_items, shapes.batch[3] + shapes.batch[0])
        drawn = self.features.distinct(self.features.slots(shapes.batch, num_negatives))
        both = read + (1 - read / num_items) * drawn
        counts = [both] if self.tied else [nothing + read, both]
        width = 4 * self.features.dim
        room = [np.minimum(ROW_GROWTH * count, num_items) * width for count in counts]
        update = np.maximum.reduce([self.updates(count) for count in counts])
        return np.sum(room, axis=0), np.maximum.reduce(room), update

    def _shapes_at(self, place: int, micro_batches: int | None) -> Shapes:
        """Draw batches at points of the grid up to `place`; each takes over what smaller ones may meet."""
        known = self._shapes.setdefault(micro_batches, [])
        points = grid(1 << 40)
        while len(known) <= place:
            cutting = cutting_for(micro_batches, whole=self.whole)
            drawn = draw_shapes(self.windows, int(points[len(known)]), cutting)
            if known:
                last = known[-1]
                drawn = Shapes(
                    np.maximum(last.batch, drawn.batch), largest(np.concatenate([last.parts, drawn.parts]))
                )
            known.append(drawn)
        return known[place]


def _share(size: Floats, below: Floats, above: Floats) -> Floats:
    span = np.maximum(above - below, 1)
    share: Floats = np.where(above > below, (size - below) / span, 1.0)
    return share


@dataclass(frozen=True)
class _Probe:
    """A model to look at, and what it is like; `fixed_items` where its catalogue cannot be varied."""

    model: SequenceModel
    num_items: int
    dim: int
    max_length: int
    tied: bool
    fixed_items: int | None = None
