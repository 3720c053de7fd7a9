"""The probe on models and data: against gradients that were drawn, and without traces."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from budgetrec.data import demo
from budgetrec.data.batches import TrainingBatches
from budgetrec.data.prepare import prepare
from budgetrec.errors import ArgumentError
from budgetrec.models import Bert4Rec, SASRec, SequenceModel
from budgetrec.planner.following import train
from budgetrec.probe import NoiseProbe, measure_noise
from budgetrec.samplers import Popularity
from budgetrec.settings.sections import RunConfig
from budgetrec.theory.noise import predict_noise

NUM_ITEMS = 500


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Prepare generated data: 600 users, 500 items, sequences of very different lengths."""
    folder = tmp_path_factory.mktemp("data")
    truth = demo.make_truth(num_users=600, num_items=NUM_ITEMS, seed=0)
    demo.generate_events(truth, num_rows=15_000, seed=1).write_parquet(folder / "events.parquet")
    return prepare(folder / "events.parquet", folder / "dataset")


SETTINGS = {
    "dim": 16,
    "hidden_dim": 16,
    "max_length": 40,
    "num_negatives": 64,
    "batch_size": 32,
    "learning_rate": 1e-2,
    "epochs": 4,
    "validation_users": 50,
}


@pytest.fixture(scope="module")
def model(dataset, tmp_path_factory):
    """Train a small SASRec for four epochs."""
    run = train(
        dataset,
        tmp_path_factory.mktemp("runs") / "run",
        RunConfig().replaced(SETTINGS),
    )
    return run.model


@pytest.fixture(scope="module")
def probe(model, dataset) -> NoiseProbe:
    """Probe the trained model."""
    return measure_noise(model, dataset, num_targets=2048, generator=torch.Generator().manual_seed(0))


def sequences_of(model, dataset):
    """Return states and targets of every training sequence, all positions."""
    batches = TrainingBatches(dataset, batch_size=64, max_length=model.max_length)
    found = []
    with torch.inference_mode():
        for batch in batches.epoch(torch.Generator().manual_seed(0)):
            hidden = model(batch.ids, batch.mask)
            found += [
                (hidden[row, :length].double().numpy(), batch.targets[row, :length].numpy())
                for row, length in enumerate(batch.mask.sum(1).tolist())
            ]
    return found


def step_gradient(x, y, table, groups, num_negatives, generator):
    """Draw uniform negatives for each group of targets and return the corrected gradient of the table."""
    num_items = len(table)
    drawn = generator.integers(0, num_items, (groups.max() + 1, num_negatives))[groups]
    logits = x @ table.T
    scores = np.take_along_axis(logits, drawn, 1) + np.log(num_items / num_negatives)
    scores[drawn == y[:, None]] = -np.inf
    rows = np.arange(len(y))
    scores = np.concatenate([logits[rows, y][:, None], scores], 1)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    weights[:, 0] -= 1
    residual = np.zeros((len(y), num_items))
    np.add.at(residual, (rows[:, None], np.concatenate([y[:, None], drawn], 1)), weights)
    return residual.T @ x / len(y)


def test_the_law_predicts_the_noise_of_drawn_steps(model, dataset, probe):
    """Steps of 16 sequences of a trained model: within 20% at k = 128, however negatives are shared."""
    population = sequences_of(model.eval(), dataset)
    table = model.item_table().detach().double().numpy()
    x, y = (np.concatenate(parts) for parts in zip(*population, strict=True))
    shares = np.exp(x @ table.T)
    shares /= shares.sum(1, keepdims=True)
    shares[np.arange(len(y)), y] -= 1
    truth = shares.T @ x / len(y)
    assert probe.mean_targets.value == pytest.approx(len(y) / len(population), rel=0.1)
    generator = np.random.default_rng(3)
    for sharing, repeats in (("shared", 250), ("sequence", 80), ("target", 50)):
        noise = []
        for _ in range(repeats):
            chosen = [population[i] for i in generator.integers(0, len(population), 16)]
            features, targets = (np.concatenate(parts) for parts in zip(*chosen, strict=True))
            owner = np.repeat(np.arange(16), [len(each[1]) for each in chosen])
            groups = {"shared": owner * 0, "sequence": owner, "target": np.arange(len(targets))}[sharing]
            noise.append(
                np.square(step_gradient(features, targets, table, groups, 128, generator) - truth).sum()
            )
        count = 16 * probe.mean_targets.value
        law = predict_noise(
            probe.constants,
            batch_size=16,
            num_targets=count,
            num_negatives=128,
            num_groups={"shared": 1, "sequence": 16, "target": count}[sharing],
        )
        assert float(law.total) == pytest.approx(np.mean(noise), rel=0.2), sharing


def test_a_probe_tells_what_it_saw(probe):
    """Numbers of targets and classes, intervals around values, checks at three k, JSON and a table."""
    assert 2048 <= probe.num_targets < 2048 + 16
    assert probe.num_sequences >= 128
    assert probe.num_classes == probe.num_items == NUM_ITEMS
    assert all(each.low < each.value < each.high for each in probe.estimates.values())
    assert probe.sequence_class.value > probe.shared_class.value > 0
    assert 1 < probe.rho_median < probe.rho.value < NUM_ITEMS
    assert [each.num_negatives for each in probe.check] == [32] * 3 + [128] * 3 + [512] * 3
    assert max(abs(each.relative_error) for each in probe.check) < 0.25
    document = json.loads(json.dumps(probe.to_dict(), allow_nan=False))
    assert document["target_class"]["value"] == probe.target_class.value
    assert document["check"][0]["relative_error"] == probe.check[0].relative_error
    lines = str(probe).splitlines()
    assert lines[0] == f"{probe.num_targets:,} targets of {probe.num_sequences} sequences, all items"
    assert len(lines) == 2 + 8 + 1 + 1 + 9


def test_a_probe_leaves_no_traces(model, dataset):
    """Modes and torch's global generator do not change; the same seed returns the same numbers."""
    model.train()
    frozen = next(module for module in model.modules() if module is not model)
    frozen.eval()
    modes = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    heard = []
    first, second = (
        measure_noise(
            model, dataset, num_targets=64, generator=torch.Generator().manual_seed(4), report=heard.append
        )
        for _ in range(2)
    )
    assert modes == [module.training for module in model.modules()]
    assert torch.equal(state, torch.get_rng_state())
    assert first.to_dict() == second.to_dict()
    assert len(heard) == 10
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    model.eval()


def test_only_the_last_position_makes_one_target_a_sequence(model, dataset):
    """One target a sequence: nothing is shared within one, and C_y of a sequence is that of a target."""
    probe = measure_noise(
        model, dataset, num_targets=256, last_only=True, generator=torch.Generator().manual_seed(1)
    )
    assert probe.num_targets == probe.num_sequences == 256
    assert probe.mean_targets.value == 1
    assert probe.sequence_class.value == 0
    assert float(probe.constants.sequence_class(64)) == 0
    assert probe.example_sequence.value == pytest.approx(probe.example_target.value, rel=1e-4)
    assert {each.part for each in probe.check} == {"shared_class", "target_class"}


def test_bert4rec_is_probed_on_what_it_hides(dataset):
    """A fifth of the items is hidden, at least one in a sequence; q by popularity, classes sampled."""
    model = Bert4Rec(
        NUM_ITEMS, dim=16, num_blocks=1, max_length=40, generator=torch.Generator().manual_seed(0)
    )
    proposal = Popularity(dataset.train_counts, 16, smoothing=1.0)
    probe = measure_noise(
        model,
        dataset,
        num_targets=128,
        log_q=proposal.log_q,
        max_classes=400,
        generator=torch.Generator().manual_seed(1),
    )
    mean_length = np.minimum(np.diff(dataset.offsets) - 2, 41).mean()
    assert 0.1 * mean_length < probe.mean_targets.value < 0.35 * mean_length
    assert (probe.num_classes, probe.num_items) == (400, NUM_ITEMS)
    assert 0 < probe.rho.class_error < probe.rho.error
    assert "400 of 500 items" in str(probe)


class TinyGRU(SequenceModel):
    """A model of one's own."""

    def __init__(self, num_items):
        super().__init__()
        self.num_items, self.max_length = num_items, 12
        self.items = nn.Embedding(num_items, 8)
        self.gru = nn.GRU(8, 8, batch_first=True)

    def forward(self, ids, mask):
        """Read from left to right."""
        return self.gru(self.items(ids))[0]

    def item_vectors(self, ids):
        """Return the embeddings."""
        return self.items(ids)


def test_a_model_of_ones_own_is_probed(dataset):
    """Two methods are enough; a shorter max_length and all windows are read."""
    model = TinyGRU(NUM_ITEMS)
    probe = measure_noise(
        model,
        dataset,
        num_targets=96,
        max_length=5,
        windows="all",
        generator=torch.Generator().manual_seed(1),
    )
    assert 1 < probe.mean_targets.value <= 5
    assert probe.target_class.value > 0
    assert model.training


def test_requests_that_make_no_sense_are_told(dataset):
    """Too few targets, too many positions and a dataset of other items are refused in a sentence."""
    model = TinyGRU(NUM_ITEMS)
    generator = torch.Generator()
    with pytest.raises(ArgumentError, match="num_targets is 8; pass at least 32"):
        measure_noise(model, dataset, num_targets=8, generator=generator)
    with pytest.raises(ArgumentError, match="max_length is 13; the model reads 1 to 12 positions"):
        measure_noise(model, dataset, max_length=13, generator=generator)
    with pytest.raises(ArgumentError, match="the model has 7 items and the dataset has 500"):
        measure_noise(TinyGRU(7), dataset, generator=generator)
    other = SASRec(NUM_ITEMS, dim=8, max_length=9, generator=generator)
    with pytest.raises(ArgumentError, match="windows is 'first'; pass one of last, all"):
        measure_noise(other, dataset, windows="first", generator=generator)
