"""Numbers printed in the paper, to compare ours with: learning rates and the main table."""

from dataclasses import dataclass

DATASETS = ("MovieLens-1M", "Gowalla", "Netflix", "MovieLens-20M")
ALLOCATIONS = ((32, 512), (64, 256), (128, 128))  # (n, k) of the main table
BUDGETS = (2**4, 2**6, 2**10, 2**14)  # B of the synthetic study
OPTIMIZERS = ("sgd", "adam")

LEARNING_RATES: dict[tuple[str, str], tuple[float, ...]] = {
    ("MovieLens-1M", "sgd"): (1e-1, 3e-1, 1.0, 2.0),
    ("MovieLens-1M", "adam"): (1e-3, 3e-3, 1e-2, 2e-2),
    ("Gowalla", "sgd"): (1e-2, 3e-2, 1e-1),
    ("Gowalla", "adam"): (1e-4, 3e-4, 1e-3),
    ("Netflix", "sgd"): (1e-2, 3e-2, 1e-1),
    ("Netflix", "adam"): (1e-4, 3e-4, 1e-3),
    ("MovieLens-20M", "sgd"): (1e-2,),
    ("MovieLens-20M", "adam"): (1e-4,),
}


@dataclass(frozen=True)
class Printed:
    """A row of the main table: test NDCG@10 and AUL in thousands, means and deviations over five seeds."""

    ndcg: float
    ndcg_deviation: float
    aul: float
    aul_deviation: float


def _rows(*rows: tuple[float, float, float, float]) -> dict[tuple[int, int], Printed]:
    return {pair: Printed(*row) for pair, row in zip(ALLOCATIONS, rows, strict=True)}


_TABLE = {
    ("MovieLens-1M", "sgd"): _rows(
        (0.0339, 0.0023, 46.5, 3.0), (0.0372, 0.0018, 58.8, 0.04), (0.0363, 0.0036, 61.8, 0.1)
    ),
    ("MovieLens-1M", "adam"): _rows(
        (0.0361, 0.0023, 43.8, 0.1), (0.0373, 0.0033, 50.6, 0.5), (0.0359, 0.0025, 41.1, 0.4)
    ),
    ("Gowalla", "sgd"): _rows(
        (0.0349, 0.0066, 194.8, 1.7), (0.0498, 0.0208, 116.9, 12.0), (0.0369, 0.0047, 71.9, 2.8)
    ),
    ("Gowalla", "adam"): _rows(
        (0.0649, 0.0031, 158.0, 0.1), (0.0858, 0.0041, 94.1, 0.1), (0.0889, 0.0037, 43.7, 0.1)
    ),
    ("Netflix", "sgd"): _rows(
        (0.0389, 0.0025, 989.9, 202.6), (0.0347, 0.0004, 791.9, 0.4), (0.0375, 0.0006, 353.7, 54.1)
    ),
    ("Netflix", "adam"): _rows(
        (0.0378, 0.0008, 1191.1, 194.7), (0.0377, 0.0012, 664.7, 51.3), (0.0388, 0.0019, 259.2, 96.7)
    ),
    ("MovieLens-20M", "sgd"): _rows(
        (0.0176, 0.0014, 233.1, 0.1), (0.0138, 0.0004, 121.0, 0.04), (0.0093, 0.0010, 61.5, 0.03)
    ),
    ("MovieLens-20M", "adam"): _rows(
        (0.0189, 0.0010, 414.1, 0.1), (0.0197, 0.0018, 218.6, 0.04), (0.0201, 0.0000, 111.6, 0.02)
    ),
}


def printed(dataset: str, optimizer: str, batch_size: int, num_negatives: int) -> Printed | None:
    """Return the paper's numbers, or None. The paper does not say for which loss they are.

    >>> printed("Gowalla", "adam", 128, 128).aul
    43.7
    """
    return _TABLE.get((dataset, optimizer), {}).get((batch_size, num_negatives))
