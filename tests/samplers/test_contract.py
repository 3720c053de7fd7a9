"""What every sampler promises."""

import pytest
import torch

from budgetrec.errors import ArgumentError

from .conftest import NUM_ITEMS, Case, chi_square_p_value

GROUPS = 200


def test_ids_are_a_row_of_items_for_each_group(case: Case):
    """Shape (G, k), int64, inside the catalogue; log q broadcasts and is a log-probability."""
    generator = torch.Generator().manual_seed(0)
    targets = case.targets(GROUPS, 3, generator)
    negatives = case.sampler.draw(targets, generator)
    assert negatives.ids.dtype == torch.int64
    assert negatives.num_groups == GROUPS
    assert int(negatives.ids.min()) >= 0
    assert int(negatives.ids.max()) < NUM_ITEMS
    log_q = negatives.log_q.expand(negatives.ids.shape)
    assert bool(log_q.isfinite().all())
    assert bool((log_q <= 0).all())
    assert negatives.log_q_targets.expand(targets.shape).shape == targets.shape


def test_draws_follow_log_q(case: Case):
    """A chi-square test of the draws of many calls against the probabilities that came with them."""
    generator = torch.Generator().manual_seed(1)
    observed, q, slots = torch.zeros(NUM_ITEMS), torch.zeros(NUM_ITEMS), 0
    for _ in range(case.calls):
        negatives = case.sampler.draw(case.targets(GROUPS, 3, generator), generator)
        observed += torch.bincount(negatives.ids.flatten(), minlength=NUM_ITEMS)
        q[negatives.ids] = negatives.log_q.exp().expand(negatives.ids.shape)
        slots += negatives.ids.numel()
    assert float(q.sum()) == pytest.approx(1, abs=0.02)
    assert chi_square_p_value(observed / case.repeats, slots * q / case.repeats) > 1e-4


def test_the_generator_alone_decides(case: Case):
    """The same seed gives the same draws, and the global stream of random numbers is left alone."""
    targets = case.targets(GROUPS, 3, torch.Generator().manual_seed(2))
    before = torch.get_rng_state()
    first, second = (case.sampler.draw(targets, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first.ids, second.ids)
    assert torch.equal(before, torch.get_rng_state())


def test_a_drawn_target_has_one_probability(case: Case):
    """Where a draw is a target of its group, log q says the same on both sides."""
    generator = torch.Generator().manual_seed(4)
    targets = case.targets(GROUPS, 3, generator)
    negatives = case.sampler.draw(targets, generator)
    shape = (*targets.shape, negatives.num_negatives)
    drawn = negatives.log_q.expand(negatives.ids.shape)[:, None].expand(shape)
    own = negatives.log_q_targets.expand(targets.shape)[..., None].expand(shape)
    met = negatives.ids[:, None] == targets[..., None]
    torch.testing.assert_close(drawn[met], own[met])


def test_distinct_draws_do_not_repeat(case: Case):
    """Without replacement no class occurs twice in a group."""
    generator = torch.Generator().manual_seed(7)
    ids = case.sampler.draw(case.targets(GROUPS, 3, generator), generator).ids.sort(1).values
    if case.distinct:
        assert not bool((ids[:, 1:] == ids[:, :-1]).any())
    else:
        assert bool((ids[:, 1:] == ids[:, :-1]).any())


def test_padding_under_the_mask_is_never_looked_at(case: Case):
    """Any number may stand at a masked place, and it is not drawn, counted or forced in."""
    generator = torch.Generator().manual_seed(8)
    targets = case.targets(GROUPS, 3, generator).clone()
    mask = torch.ones_like(targets, dtype=torch.bool)
    mask[:, 0] = False
    draws = []
    for padding in (-100, NUM_ITEMS + 5):
        targets[:, 0] = padding
        draws.append(case.sampler.draw(targets, torch.Generator().manual_seed(9), mask=mask))
    assert torch.equal(draws[0].ids, draws[1].ids)
    assert int(draws[0].ids.max()) < NUM_ITEMS


def test_wrong_targets_are_one_sentence_with_the_numbers_seen(case: Case):
    """Ids outside the catalogue are refused by every sampler that looks at them."""
    targets = case.targets(GROUPS, 3, torch.Generator().manual_seed(10)).clone()
    targets[0, 0] = NUM_ITEMS
    if case.sampler.__class__.__name__ == "Uniform" and not case.sampler.exclude_targets:
        case.sampler.draw(targets, torch.Generator())  # never looks
        return
    with pytest.raises(ArgumentError, match=f"run from 0 to {NUM_ITEMS}|to {NUM_ITEMS} but there are"):
        case.sampler.draw(targets, torch.Generator())
