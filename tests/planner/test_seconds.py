"""The fit of seconds: exact on exact times, and no cost lost to noise."""

import dataclasses
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from budgetrec.allocation import Allocation
from budgetrec.planner.assumed import assumed_seconds
from budgetrec.planner.clock import QuietClock
from budgetrec.planner.seconds import StepSeconds, TimedStep, fit_seconds, seconds_of, seconds_row
from budgetrec.planner.timed_steps import POINTS
from budgetrec.settings.sections import RunConfig

TASKSET = shutil.which("taskset") or ""
MEAN_TARGETS, NUM_ITEMS = 10.0, 5000
FAMILIES = [
    Allocation(batch_size=1, num_negatives=1, sharing=sharing, lean=lean, table_updates=updates)
    for updates in ("dense", "row-sparse")
    for sharing in ("sequence", "batch", "target")
    for lean in (False, True)
]
COUNTED = {
    family: assumed_seconds(
        family, RunConfig(), num_items=NUM_ITEMS, mean_targets=MEAN_TARGETS, device_type="cpu"
    )
    for family in FAMILIES
}


def truth_of(family: Allocation) -> StepSeconds:
    """Return a machine whose costs differ from the counted ones by factors from 0.4 to 3."""
    counted = COUNTED[family]
    return dataclasses.replace(
        counted,
        fixed=3 * counted.fixed,
        sequence=0.4 * counted.sequence,
        pair=2 * counted.pair,
        negative=0.5 * counted.negative,
        touched=1.5 * counted.touched,
        part=0.0,
    )


def timed_steps(noise: float, seed: int = 0) -> list[TimedStep]:
    """Return the points that a plan times, each with its true seconds times a random factor."""
    random = np.random.default_rng(seed)
    found = []
    for family in FAMILIES:
        for targets, k in POINTS[family.sharing]:
            n = targets / MEAN_TARGETS
            seconds = float(truth_of(family)(n, k)) * float(np.exp(noise * random.normal()))
            found.append(TimedStep(family=family, batch_size=n, num_negatives=k, seconds=seconds))
    return found


@pytest.mark.parametrize("family", FAMILIES, ids=Allocation.describe)
def test_exact_times_are_predicted_at_other_n_and_k(family):
    """Costs that differ from the counted ones several times over come back within 10% elsewhere."""
    fitted = fit_seconds(timed_steps(0.0), COUNTED)[family]
    n, k = np.array([50, 200, 400, 1000]), np.array([64, 512, 128, 1024])
    assert np.allclose(fitted(n, k), truth_of(family)(n, k), rtol=0.1)
    assert seconds_of(seconds_row(family, fitted)) == (family, fitted)


def test_no_fit_loses_the_cost_of_negatives_to_noise():
    """With 20% of timing noise, none of 60 fits of 12 families foresees less than 0.4 of a large step."""
    for seed in range(60):
        fitted = fit_seconds(timed_steps(0.2, seed), COUNTED)
        for family in FAMILIES:
            n = np.array([400, 1400])
            assert (fitted[family](n, 1024) > 0.4 * truth_of(family)(n, 1024)).all()


def test_a_contender_that_was_timed_as_it_would_be_trained_is_predicted_as_timed():
    """Where one step takes three times what was foreseen, its prediction follows within a quarter."""
    family = FAMILIES[0]
    real = 3 * float(truth_of(family)(800, 2048))
    step = TimedStep(family=family, batch_size=800, num_negatives=2048, seconds=real, weight=10)
    fitted = fit_seconds([*timed_steps(0.0), step], COUNTED)[family]
    assert float(fitted(800, 2048)) == pytest.approx(real, rel=0.25)


def test_no_cost_comes_out_negative():
    """Noisy times that seem to fall with k give a cost of zero or more."""
    family = FAMILIES[0]
    points = zip((4, 32, 4, 32), (16, 16, 256, 256), (0.02, 0.1, 0.015, 0.08), strict=True)
    timed = [TimedStep(family=family, batch_size=n, num_negatives=k, seconds=t) for n, k, t in points]
    fitted = fit_seconds(timed, COUNTED)[family]
    assert min(fitted.fixed, fitted.sequence, fitted.pair, fitted.touched) >= 0
    assert float(fitted(1, 10**6)) > 0


@pytest.mark.skipif(not TASKSET, reason="only Linux counts the wait, and taskset pins processes there")
def test_other_work_is_taken_off_and_noticed():
    """Work that shares its processor with other work is timed as if it were alone, and the clock says so."""
    mine = 0.4
    place = str(min(os.sched_getaffinity(0)))
    busy = [TASKSET, "-c", place, sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(busy) for _ in range(2)]
    code = (
        "import time\n"
        "from budgetrec.planner.clock import QuietClock\n"
        "def spin():\n"
        f"    end = time.thread_time() + {mine}\n"
        "    while time.thread_time() < end: pass\n"
        "clock = QuietClock(); seconds = clock.time(spin); print(seconds, clock.busy_share)"
    )
    try:
        answer = subprocess.run(
            [TASKSET, "-c", place, sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
    finally:
        for other in others:
            other.kill()
            other.wait()
    seconds, share = map(float, answer.stdout.split())
    assert seconds == pytest.approx(mine, rel=0.15)
    assert share > 0.4


def test_an_idle_clock_has_waited_for_nothing():
    """Before anything is timed, no share of the time was lost."""
    assert QuietClock().busy_share == 0.0
