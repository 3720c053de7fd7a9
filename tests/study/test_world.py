import math
from dataclasses import replace

import torch

from budgetrec.study.synthetic.study import PLANS, configurations, evaluation_steps, make_cell
from budgetrec.study.synthetic.world import SyntheticWorld, WorldSettings, _draw_targets, open_world

SETTINGS = WorldSettings(
    num_examples=2000, num_validation=4000, num_items=300, dim=16, logit_scale=2.0, seed=3
)


def test_targets_follow_the_softmax():
    """40,000 draws over 7 classes, which do not fill whole runs, are within 4 standard errors of p."""
    logits = torch.tensor([[0.0, 1.0, -1.0, 2.0, 0.5, -3.0, 1.5]])
    count = 40_000
    drawn = _draw_targets(logits.repeat(count, 1), torch.Generator().manual_seed(0))
    p = torch.softmax(logits[0].double(), 0)
    share = torch.bincount(drawn, minlength=7) / count
    assert ((share - p).abs() < 4 * (p * (1 - p) / count).sqrt()).all()


def test_the_own_table_has_the_loss_that_theory_says():
    """With logits of deviation s the best loss is about log K - s^2 / 2, and a table of zeros has log K."""
    world = SyntheticWorld.draw(SETTINGS)
    assert abs(world.validation_loss(torch.zeros_like(world.table)) - math.log(300)) < 1e-4
    assert abs(world.validation_loss(world.table) - (math.log(300) - 2.0)) < 0.25
    assert world.validation_loss(world.table) < world.validation_loss(0.8 * world.table)


def test_a_world_is_kept_and_read_back(tmp_path):
    """The file holds what was drawn, and another seed is another file."""
    drawn, read = SyntheticWorld.draw(SETTINGS), open_world(SETTINGS, tmp_path)
    assert torch.equal(drawn.targets, read.targets)
    assert torch.equal(drawn.table, read.table)
    open_world(replace(SETTINGS, seed=4), tmp_path)
    assert len(list((tmp_path / "worlds").iterdir())) == 2


def test_every_scale_reaches_both_horizons():
    """Runs of a budget have its steps, small ones continue, and one example per step is one cell."""
    for plan in PLANS.values():
        for each in configurations(plan):
            steps = evaluation_steps(plan, each)
            assert steps[0] == 0
            assert {plan.steps[each.budget], math.ceil(plan.horizon_examples / each.batch_size)} <= set(steps)
            assert each.batch_size * each.num_negatives == each.budget
        ones = [each for each in configurations(plan) if each.batch_size == 1]
        cells = {make_cell(plan, each, rate=1.0, world_seed=0, seed=0).key for each in ones}
        assert 2 * len(cells) == len(ones)
