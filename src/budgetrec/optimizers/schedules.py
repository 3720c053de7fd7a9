"""Learning rates over the steps of a run: a warm-up, then constant or a decay."""

import math
from collections.abc import Iterable

from torch.optim import Optimizer

from budgetrec.errors import ArgumentError
from budgetrec.optimizers.checks import check_learning_rate, check_word

SCHEDULES = ("constant", "linear", "cosine", "inverse-sqrt")


def learning_rate_factor(
    step: int, *, schedule: str, warmup_steps: int = 0, total_steps: int | None = None
) -> float:
    r"""Return the share of the full learning rate that a step takes; steps count from 0.

    With $W$ warm-up steps out of $N$, step $t < W$ takes $(t + 1) / W$. After that "constant" stays at 1,
    "linear" takes $(N - t) / (N - W)$, "cosine" $\frac{1}{2}(1 + \cos \pi \frac{t - W}{N - W})$, and
    "inverse-sqrt" $\sqrt{W / (t + 1)}$, with $W = 1$ when there is no warm-up. The two decays that end reach
    0 at step $N$, one after the last.

    >>> [learning_rate_factor(t, schedule="linear", warmup_steps=2, total_steps=6) for t in range(7)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    >>> [learning_rate_factor(t, schedule="inverse-sqrt", warmup_steps=4) for t in (0, 3, 15)]
    [0.25, 1.0, 0.5]
    >>> round(learning_rate_factor(2, schedule="cosine", total_steps=6), 9)
    0.75
    """
    check_word("schedule", schedule, SCHEDULES)
    if step < 0 or warmup_steps < 0:
        raise ArgumentError(f"step is {step} and warmup_steps {warmup_steps}; pass 0 or more for both.")
    if schedule in ("linear", "cosine"):
        if total_steps is None:
            raise ArgumentError(
                f"schedule {schedule!r} falls to 0 at the end of training, and total_steps is None; "
                "give epochs or steps, or choose constant or inverse-sqrt."
            )
        if total_steps < max(1, warmup_steps):
            raise ArgumentError(
                f"total_steps is {total_steps} with {warmup_steps} warmup_steps; "
                "train for longer or warm up for less."
            )
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if schedule == "constant":
        return 1.0
    if schedule == "inverse-sqrt":
        return math.sqrt(max(1, warmup_steps) / (step + 1))
    assert total_steps is not None  # noqa: S101 - for the type checker, refused above
    if step >= total_steps:
        return 0.0
    left = (total_steps - step) / (total_steps - warmup_steps)
    return left if schedule == "linear" else 0.5 * (1 - math.cos(math.pi * left))


def set_learning_rate(optimizers: Iterable[Optimizer], learning_rate: float) -> None:
    """Set the learning rate of the next step."""
    check_learning_rate(learning_rate)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
