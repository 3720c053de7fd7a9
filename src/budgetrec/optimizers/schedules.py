"""Learning-rate schedules: a warm-up, then a constant rate or a decay."""

import math
from collections.abc import Iterable

from torch.optim import Optimizer

from budgetrec.errors import ArgumentError
from budgetrec.options import check_choice, check_not_negative

SCHEDULES = ("constant", "linear", "cosine", "inverse-sqrt")


def learning_rate_factor(
    step: int, *, schedule: str, warmup_steps: int = 0, total_steps: int | None = None
) -> float:
    r"""Return the factor of the learning rate at a step, counted from 0.

    With $W$ warm-up steps out of $N$, the factor at step $t < W$ is $(t + 1) / W$. After that it is 1 for
    "constant", $(N - t) / (N - W)$ for "linear", $\frac{1}{2}(1 + \cos \pi \frac{t - W}{N - W})$ for "cosine"
    and $\sqrt{W / (t + 1)}$ for "inverse-sqrt", with $W = 1$ if there is no warm-up. "linear" and "cosine"
    reach 0 at step $N$, one after the last.

    >>> [learning_rate_factor(t, schedule="linear", warmup_steps=2, total_steps=6) for t in range(7)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    >>> [learning_rate_factor(t, schedule="inverse-sqrt", warmup_steps=4) for t in (0, 3, 15)]
    [0.25, 1.0, 0.5]
    >>> round(learning_rate_factor(2, schedule="cosine", total_steps=6), 9)
    0.75
    """
    check_choice("schedule", schedule, SCHEDULES)
    check_not_negative(step=step, warmup_steps=warmup_steps)
    if schedule in ("linear", "cosine"):
        if total_steps is None:
            raise ArgumentError(
                f"schedule {schedule!r} falls to 0 at the end of training, but total_steps is None; "
                "pass epochs or steps, or choose constant or inverse-sqrt."
            )
        if total_steps < max(1, warmup_steps):
            raise ArgumentError(
                f"total_steps is {total_steps} with {warmup_steps} warmup_steps; "
                "train longer or warm up for fewer steps."
            )
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if schedule == "constant":
        return 1.0
    if schedule == "inverse-sqrt":
        return math.sqrt(max(1, warmup_steps) / (step + 1))
    assert total_steps is not None  # noqa: S101 - for the type checker; checked above
    if step >= total_steps:
        return 0.0
    left = (total_steps - step) / (total_steps - warmup_steps)
    return left if schedule == "linear" else 0.5 * (1 - math.cos(math.pi * left))


def set_learning_rate(optimizers: Iterable[Optimizer], learning_rate: float) -> None:
    """Set the learning rate of the next step."""
    check_not_negative(learning_rate=learning_rate)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
