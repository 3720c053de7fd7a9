"""Train budgetrec's SASRec on an interactions file, and time its evaluation when asked to.

The whole file is given, as `budgetrec prepare` leaves the last two rows of each user out by itself.
"""

from pathlib import Path

import torch
from measuring import Clock, parse_arguments, print_report


def train(data: Path, clock: Clock, *, sharing: str, epochs: int, steps: int | None, dropout: float) -> None:
    """Train with `clock.begin()` before the first step and `clock.step(mask)` after each."""
    raise SystemExit("budgetrec has no training yet: run the peers alone with --only RecTools RePlay")


def main() -> None:
    """Train, measure, print."""
    parser = parse_arguments(__doc__)
    parser.add_argument("--sharing", choices=("batch", "sequence"), default="batch")
    parser.add_argument("--evaluate", type=int, default=0, metavar="TIMES", help="then time the evaluation")
    parser.add_argument("--row-sparse", action="store_true", help="touch only the rows of a step")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    clock = Clock(asked.warm_up_steps)
    train(
        asked.data,
        clock,
        sharing=asked.sharing,
        epochs=asked.epochs,
        steps=asked.steps,
        dropout=asked.dropout,
    )
    print_report(clock.report(), "budgetrec", "torch", "numpy", "polars")


if __name__ == "__main__":
    main()
