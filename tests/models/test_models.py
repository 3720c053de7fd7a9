"""What every model promises, and what each one does."""

import pytest
import torch

from budgetrec.data.batches import Batch
from budgetrec.errors import ArgumentError
from budgetrec.models import Bert4Rec, ItemTable, SASRec
from budgetrec.models.activations import gelu
from budgetrec.models.bert4rec import HIDDEN
from budgetrec.models.item_encoders import RowGradients
from budgetrec.models.layers import Dropout, seed_dropout

NUM_ITEMS = 30
KINDS = {
    "sasrec": lambda **s: SASRec(NUM_ITEMS, **s),
    "sasrec-query-norm": lambda **s: SASRec(NUM_ITEMS, norm="query", **s),
    "sasrec-untied": lambda **s: SASRec(NUM_ITEMS, tied=False, **s),
    "sasrec-features": lambda **s: SASRec(NUM_ITEMS, features=features(), **s),
    "bert4rec": lambda **s: Bert4Rec(NUM_ITEMS, **s),
    "bert4rec-untied": lambda **s: Bert4Rec(NUM_ITEMS, tied=False, **s),
}


def features(num_items=NUM_ITEMS, seed=1):
    """Draw five features per item."""
    return torch.randn(num_items, 5, generator=torch.Generator().manual_seed(seed))


def make(kind, **settings):
    """Make a small model that drops nothing."""
    generator = torch.Generator().manual_seed(0)
    return KINDS[kind](
        **{"dim": 8, "max_length": 10, "dropout": 0.0, "generator": generator, **settings}
    ).eval()


def sequences(width=6, seed=2):
    """Draw four sequences of different lengths."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(NUM_ITEMS, (4, width), generator=generator)
    lengths = torch.tensor([width, 3, 1, width - 1])
    return ids, torch.arange(width) < lengths[:, None]


@pytest.mark.parametrize("kind", KINDS)
def test_ids_go_in_and_states_come_out(kind):
    """A model returns a state for each position and a vector for each item, all finite."""
    model = make(kind)
    ids, mask = sequences()
    assert model(ids, mask).shape == (4, 6, 8)
    assert model.predict(ids, mask).shape == (4, 8)
    assert model.item_table().shape == (NUM_ITEMS, 8)
    assert model(ids, mask)[mask].isfinite().all()
    some = torch.tensor([[3, 3, 7]])
    torch.testing.assert_close(model.item_vectors(some), model.item_table()[some])


@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_nothing(kind):
    """States of real positions are the same whatever ids the padding holds, and however much there is."""
    model = make(kind)
    ids, mask = sequences()
    states, predicted = model(ids, mask), model.predict(ids, mask)
    other = torch.where(mask, ids, torch.randint(NUM_ITEMS, ids.shape))
    torch.testing.assert_close(model(other, mask)[mask], states[mask])
    torch.testing.assert_close(model.predict(other, mask), predicted)
    wider = torch.cat([ids, torch.zeros(4, 3, dtype=torch.int64)], 1)
    wider_mask = torch.cat([mask, torch.zeros(4, 3, dtype=torch.bool)], 1)
    torch.testing.assert_close(model(wider, wider_mask)[:, :6][mask], states[mask])
    torch.testing.assert_close(model.predict(wider, wider_mask), predicted)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("sasrec")])
def test_a_later_item_never_changes_an_earlier_state(kind):
    """Changing or appending items leaves all earlier states unchanged bit for bit."""
    model = make(kind)
    ids, mask = sequences()
    mask = torch.ones_like(mask)
    states = model(ids, mask)
    for place in range(1, 6):
        changed = ids.clone()
        changed[:, place:] = (changed[:, place:] + 1) % NUM_ITEMS
        assert torch.equal(model(changed, mask)[:, :place], states[:, :place])
        assert not torch.allclose(model(changed, mask)[:, place], states[:, place])
        torch.testing.assert_close(model(ids[:, :place], mask[:, :place]), states[:, :place])


def test_bert4rec_sees_both_sides():
    """A later item does change an earlier state of BERT4Rec."""
    model = make("bert4rec")
    ids, mask = sequences()
    mask = torch.ones_like(mask)
    changed = ids.clone()
    changed[:, -1] = (changed[:, -1] + 1) % NUM_ITEMS
    assert not torch.allclose(model(changed, mask)[:, 0], model(ids, mask)[:, 0])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("sasrec")])
def test_prediction_is_the_state_at_the_last_item(kind):
    """The shortcut that computes only the last position of the last block returns the same state."""
    model = make(kind)
    ids, mask = sequences()
    whole = model(ids, mask)[torch.arange(4), mask.sum(1) - 1]
    torch.testing.assert_close(model.predict(ids, mask), whole)


def test_bert4rec_predicts_a_hidden_item_after_the_history():
    """Its prediction is the state of a hidden item put at the end."""
    model = make("bert4rec")
    ids = torch.tensor([[4, 9, 2]])
    mask = torch.ones_like(ids, dtype=torch.bool)
    longer = torch.cat([ids, torch.tensor([[HIDDEN]])], 1)
    whole = model(longer, torch.ones_like(longer, dtype=torch.bool))[:, -1]
    torch.testing.assert_close(model.predict(ids, mask), whole)


def batch():
    """Draw a batch of training sequences."""
    ids, mask = sequences(width=8)
    targets = torch.randint(NUM_ITEMS, ids.shape, generator=torch.Generator().manual_seed(5))
    return Batch(ids * mask, targets * mask, mask)


def test_bert4rec_hides_what_it_asks_for():
    """Hidden places hold the id of a hidden item, targets are what stood there, each sequence has one."""
    model = make("bert4rec", mask_rate=0.3, last_rate=0.0)
    given = batch()
    inputs = model.training_inputs(given, torch.Generator().manual_seed(3))
    full = torch.cat([given.ids[:, :1], given.targets], 1)
    assert inputs.target_mask.any(1).all()
    hidden = inputs.ids == HIDDEN
    assert torch.equal(hidden.sum(1), inputs.target_mask.sum(1))
    assert torch.equal(inputs.ids[~hidden], full[~hidden])
    for row in range(4):
        places = inputs.places[row][inputs.target_mask[row]]
        assert hidden[row, places].all()
        assert torch.equal(inputs.targets[row][inputs.target_mask[row]], full[row, places])


def test_bert4rec_hides_the_share_that_was_asked():
    """Over many sequences the share of hidden items is mask_rate, to two standard errors and a bit."""
    model = make("bert4rec", mask_rate=0.25, last_rate=0.0, max_length=200)
    ids = torch.zeros(200, 200, dtype=torch.int64)
    inputs = model.training_inputs(Batch(ids, ids, torch.ones_like(ids, dtype=torch.bool)), torch.Generator())
    assert float((inputs.ids == HIDDEN).float().mean()) == pytest.approx(0.25, abs=0.006)


@pytest.mark.parametrize("kind", ["sasrec", "bert4rec"])
def test_last_only_asks_for_one_item_per_sequence(kind):
    """With targets "last" each sequence has one target, its last item."""
    model = make(kind)
    given = batch()
    inputs = model.training_inputs(given, torch.Generator(), last_only=True)
    last = given.targets[torch.arange(4), given.mask.sum(1) - 1]
    assert inputs.targets.shape == (4, 1)
    assert torch.equal(inputs.targets[:, 0], last)


def test_features_make_parameters_independent_of_the_catalogue():
    """A model of features has as many weights for 30 items as for 3,000, a table does not."""
    generator = torch.Generator()
    sizes = [
        sum(p.numel() for p in SASRec(n, dim=8, features=features(n), generator=generator).parameters())
        for n in (30, 3000)
    ]
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", [SASRec, Bert4Rec])
def test_unknown_items_are_read_and_scored_from_their_features(kind, tied):
    """An item that nobody trained on gets the vector of its features, in histories and in the table."""
    model = kind(
        NUM_ITEMS,
        dim=8,
        dropout=0.0,
        features=features(),
        tied=tied,
        generator=torch.Generator().manual_seed(0),
    )
    before = model.item_table()
    ids, mask = torch.tensor([[4, 0]]), torch.ones(1, 2, dtype=torch.bool)
    known = model.predict(ids, mask)
    model.extend_items(torch.cat([features()[:1], features(1, seed=9)]))
    assert model.num_items == NUM_ITEMS + 2
    torch.testing.assert_close(model.item_table()[:NUM_ITEMS], before)
    torch.testing.assert_close(model.item_table()[NUM_ITEMS], before[0])
    assert not torch.allclose(model.item_table()[NUM_ITEMS + 1], before[0])
    torch.testing.assert_close(model.predict(torch.tensor([[4, NUM_ITEMS]]), mask), known)
    with pytest.raises(ArgumentError, match="5 features per item"):
        model.extend_items(torch.zeros(1, 4))


def test_a_table_cannot_be_extended():
    """Without features there is nothing to make a new item's vector from."""
    with pytest.raises(ArgumentError, match="train it with item features"):
        make("sasrec").extend_items(features())


@pytest.mark.parametrize("dim", [8, 64, 256])
def test_every_item_is_about_as_likely_as_any_other_at_first(dim):
    """The first loss is near log K, with a table and with features of any scale."""
    ids, mask = sequences()
    for given in (None, 100 * features() + 7):
        model = SASRec(
            NUM_ITEMS, dim=dim, num_heads=1, features=given, generator=torch.Generator().manual_seed(0)
        ).eval()
        logits = model.predict(ids, mask) @ model.item_table().T
        loss = -logits.log_softmax(1)[:, 0].mean()
        assert float(loss.detach()) == pytest.approx(3.40, abs=0.35)  # log 30


@pytest.mark.parametrize("sparse", [False, True])
def test_gathered_gradients_are_torchs_own(sparse):
    """Gradients added up in place equal those of an ordinary embedding, over several gathers."""
    table = ItemTable(NUM_ITEMS, 4)
    torch.nn.init.normal_(table.weight)
    uses = [torch.tensor([[1, 5], [5, 7]]), torch.tensor([7, 2]), torch.tensor([2, 2])]
    weights = [torch.randn(*ids.shape, 4) for ids in uses]

    def backward():
        for ids, weight in zip(uses, weights, strict=True):
            (table(ids) * weight).sum().backward()

    backward()
    wanted = table.weight.grad
    table.gradients = RowGradients(table.weight, sparse=sparse)
    for _ in range(2):  # a second step starts from nothing
        table.gradients.begin()
        backward()
        table.gradients.finish()
        assert table.weight.grad.is_sparse == sparse
        torch.testing.assert_close(table.weight.grad.to_dense(), wanted)
    if sparse:
        assert sorted(table.weight.grad.indices()[0].tolist()) == [1, 2, 5, 7]


def test_dropout_keeps_the_mean_and_the_share():
    """About a fifth is dropped, the mean stays, the gradient has the mask of the value."""
    layer = Dropout(0.2)
    seed_dropout(layer, torch.Generator().manual_seed(0))
    x = torch.ones(1000, 101, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    assert float((y.detach() == 0).float().mean()) == pytest.approx(51 / 256, abs=0.004)
    assert float(y.detach().mean()) == pytest.approx(1, abs=0.005)
    assert torch.equal(x.grad, y.detach())
    assert torch.equal(layer.eval()(x), x)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_heads": 3}, "divides the width"),
        ({"norm": "post"}, "pre, query"),
        ({"activation": "tanh"}, "relu, gelu, silu"),
        ({"dropout": 1.0}, "below 1"),
        ({"dim": 0}, "dim is 0; pass a number above 0"),
        ({"features": torch.zeros(7, 2)}, "7 items have features"),
    ],
)
def test_wrong_settings_are_refused(settings, words):
    """A model that cannot be built says what to change."""
    with pytest.raises(ArgumentError, match=words):
        SASRec(NUM_ITEMS, **{"dim": 8, "generator": torch.Generator(), **settings})


def test_a_sequence_that_is_too_long_is_refused():
    """More positions than the model has are an error, not a silent cut."""
    model = make("sasrec", max_length=3)
    with pytest.raises(ArgumentError, match="6 positions and the model has 3"):
        model(*sequences())


def test_gelu_is_torchs():
    """Value and gradient agree with torch's own, in float64."""
    x = torch.linspace(-6, 6, 101, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(101, dtype=torch.float64)
    ours, theirs = gelu(x), torch.nn.functional.gelu(x)
    torch.testing.assert_close(ours, theirs)
    for mine, wanted in zip(
        torch.autograd.grad(ours, x, weights), torch.autograd.grad(theirs, x, weights), strict=True
    ):
        torch.testing.assert_close(mine, wanted)
