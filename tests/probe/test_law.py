"""The law against the independent simulation of benchmarks/law.py, small and fast."""

import runpy
from pathlib import Path

import pytest

SIMULATION = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "law.py"))
POPULATION = {"num_sequences": 400, "num_items": 500, "dim": 12, "mean_length": 5}
WORLDS = ("ragged, skewed, drawn by popularity", "ragged, concentrated")


@pytest.mark.parametrize("name", WORLDS)
def test_the_law_is_that_of_an_independent_simulation(name):
    """Within 10% and three standard errors at n = 8, 16 and 64 for every sharing, whatever the lengths.

    Without unequal lengths in the law it was up to 13% low at n = 8, and curves from too few pairs were up
    to 14% off for a concentrated softmax.
    """
    world = SIMULATION["make_world"](**POPULATION, **SIMULATION["WORLDS"][name])
    truth, probe = world.gradient(), SIMULATION["probe"](world)
    for sharing in SIMULATION["SHARINGS"]:
        for n, repeats in ((8, 150), (16, 100), (64, 40)):
            point = {"batch_size": n, "sharing": sharing, "num_negatives": 32}
            measured, error = SIMULATION["measure"](world, truth, repeats=repeats, seed=n, **point)
            law = SIMULATION["predict"](probe, **point)
            assert law == pytest.approx(measured, abs=0.1 * measured + 3 * error), (sharing, n)
            assert error < 0.06 * measured
