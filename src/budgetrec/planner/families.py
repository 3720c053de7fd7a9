"""The ways to take a step that a plan chooses among, apart from n and k: allocations with n = k = 1."""

from itertools import product

from budgetrec.allocation import Allocation
from budgetrec.errors import PlanError
from budgetrec.objectives.registry import OBJECTIVES
from budgetrec.planner.request import Request

_EVERY_ITEM = "full-softmax"  # what is tried beside the objective that was asked for
_SHARINGS = ("sequence", "batch", "target")
# In numbers: below, updating the whole table takes a few milliseconds, about what row-sparse updates take for
# sorting rows; above, no step touches enough rows to make a dense one worth while.
_SMALL_TABLE, _LARGE_TABLE = 2**21, 2**25


def possible_families(
    request: Request, *, num_items: int, has_features: bool, measured: bool = True
) -> list[Allocation]:
    """List what may be chosen, given what a person has fixed; other micro-batches are left to the search.

    Where steps are not `measured`, nothing speaks against the leaner way of each family.
    """
    config, fixed = request.config.objective, request.options
    objectives = [config.objective]
    if not (fixed.drawn or fixed.objective or fixed.num_negatives or fixed.sharing):
        objectives = [*dict.fromkeys([config.objective, _EVERY_ITEM])]
    for objective in objectives:
        if OBJECTIVES[objective].law is None:
            raise PlanError(
                f"the noise law does not cover the objective {objective}, so there is nothing to plan by. "
                "Pass --objective sampled-softmax, or train without a plan."
            )
    sampler = config.sampler_specification
    if sampler is not None and sampler.why_no_proposal is not None:
        raise PlanError(
            f"the sampler {sampler.name} cannot be planned with: {sampler.why_no_proposal}. Pass another "
            "--sampler, or train with --batch-size and --num-negatives of your own."
        )
    sharings = [fixed.sharing] if fixed.sharing else list(_SHARINGS)
    if sampler is not None and sampler.whole_batch:
        sharings = ["batch"]
    leans = [fixed.lean] if fixed.lean is not None else [False, True] if measured else [True]
    found = []
    for objective in objectives:
        draws = OBJECTIVES[objective].draws
        updates = _table_updates(request, num_items, dense_only=not draws or has_features)
        for sharing, lean, way in product(sharings if draws else ["batch"], leans, updates):
            found.append(
                Allocation(
                    batch_size=1,
                    num_negatives=1,
                    objective=objective,
                    sharing=sharing,
                    lean=lean,
                    table_updates=way,
                    micro_batches=fixed.micro_batches,
                )
            )
    return found


def _table_updates(request: Request, num_items: int, *, dense_only: bool) -> list[str]:
    wanted = request.options.table_updates or "auto"
    if wanted != "auto":
        return [] if dense_only and wanted == "row-sparse" else [wanted]
    numbers = num_items * request.config.model.dim
    if dense_only or numbers <= _SMALL_TABLE:
        return ["dense"]
    return ["row-sparse"] if numbers >= _LARGE_TABLE else ["dense", "row-sparse"]
