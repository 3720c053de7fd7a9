"""One loop: it learns, it stops, it can be killed and taken up again to the bit."""

import functools
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import polars as pl
import pytest
import torch

from budgetrec.data import demo
from budgetrec.data.item_features import read_item_features
from budgetrec.data.prepare import prepare
from budgetrec.errors import ArgumentError, InterruptedRunError, TrainingError
from budgetrec.evaluation.evaluate import evaluate
from budgetrec.planner.following import resume, train
from budgetrec.ranking.metrics import ndcg
from budgetrec.ranking.ranks import rank_targets
from budgetrec.runs.checkpoint import load_checkpoint, save_checkpoint
from budgetrec.runs.layout import BEST, LAST
from budgetrec.runs.run import Run
from budgetrec.settings.sections import RunConfig
from budgetrec.training.tracking import Watcher
from tests.data.oracle import oracle

SMALL = {
    "dim": 16,
    "max_length": 20,
    "hidden_dim": 16,
    "num_negatives": 16,
    "batch_size": 32,
    "learning_rate": 1e-2,
    "epochs": 2,
    "validation_users": 100,
}


def config(**settings):
    """Return small settings, some of them changed."""
    return RunConfig().replaced({**SMALL, **settings})


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Prepare generated data: 300 users, 120 items."""
    folder = tmp_path_factory.mktemp("data")
    truth = demo.make_truth(num_users=300, num_items=120, seed=0)
    events = demo.generate_events(truth, num_rows=6000, seed=1)
    events.write_parquet(folder / "events.parquet")
    return prepare(folder / "events.parquet", folder / "dataset")


def weights(run, name=LAST):
    """Return the tensors of a checkpoint."""
    return load_checkpoint(run.folder / name)[0]


def same(first, second):
    """Say whether two checkpoints are equal bit for bit."""
    assert first.keys() == second.keys()
    return all(torch.equal(first[name], second[name]) for name in first)


def test_the_same_seed_gives_the_same_bits_and_another_does_not(dataset, tmp_path):
    """Two runs of one seed end with equal weights, and so does nothing with another seed."""
    first, second, other = (
        train(dataset, tmp_path / name, config(seed=seed, dropout=0.2))
        for name, seed in (("a", 3), ("b", 3), ("c", 4))
    )
    assert same(weights(first), weights(second))
    assert not torch.equal(weights(first)["model.items.weight"], weights(other)["model.items.weight"])


@pytest.mark.parametrize(
    "settings",
    [
        {"dropout": 0.2},
        {"optimizer": "momentum", "learning_rate": 0.1, "schedule": "cosine", "warmup_steps": 3},
        {"table_updates": "row-sparse", "optimizer": "adamw", "weight_decay": 0.01},
        {"table_updates": "row-sparse", "optimizer": "adagrad", "learning_rate": 0.1},
        {"model": "bert4rec"},
        {"sampler": "kernel", "sharing": "sequence", "num_negatives": 4},
        {"sampler": "in-batch", "sharing": "batch"},
        {"objective": "sce", "num_buckets": 4, "bucket_targets": 16, "bucket_items": 16},
        {"tied": False, "clip_norm": 0.5, "micro_batches": 3},
    ],
    ids=lambda settings: "-".join(str(value) for value in settings.values()),
)
def test_a_run_that_is_taken_up_again_ends_with_the_same_bits(dataset, tmp_path, settings):
    """Stopped after 7 of 20 steps and resumed, weights, optimiser and generators equal the unbroken run's."""
    whole = train(dataset, tmp_path / "whole", config(steps=20, epochs=None, **settings))
    if settings.get("schedule") == "cosine":  # the end decides the schedule, so stop by other means
        train_until(dataset, tmp_path / "broken", config(steps=20, epochs=None, **settings), 7)
        broken = resume(tmp_path / "broken")
    else:
        train(dataset, tmp_path / "broken", config(steps=7, epochs=None, **settings))
        broken = resume(tmp_path / "broken", steps=20)
    assert same(weights(whole), weights(broken))
    assert whole.metrics["step"][-1] == broken.metrics["step"][-1] == 20
    assert whole.metrics["val_loss"][-1] == broken.metrics["val_loss"][-1]


def train_until(dataset, folder, settings, last):
    """Train as if SIGTERM came at a step."""
    from budgetrec.training.tracking import Watcher

    class Killer(Watcher):
        def step(self, *, step: int, **seen) -> None:
            if step == last:
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(TrainingError, match=rf"step {last}; everything is saved\. Continue with: .*--resume"):
        train(dataset, folder, settings, watcher=Killer())


def saved_step(path):
    """Read the step of a checkpoint that may be replaced at any moment, from one look at the file."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return json.loads(header["__metadata__"]["budgetrec"])["step"]


def test_a_run_that_is_killed_goes_on_to_the_same_bits(dataset, tmp_path):
    """Kill -9 in the middle of training, then --resume: final weights equal those of the unbroken run."""
    arguments = [
        *("--dim", "16", "--max-length", "20", "--num-negatives", "16", "--batch-size", "8"),
        *("--epochs", "6", "--validation-users", "50", "--checkpoint-seconds", "0.01", "--seed", "5"),
    ]
    command = [sys.executable, "-m", "budgetrec", "train"]
    killed = tmp_path / "killed"
    started = subprocess.Popen(
        [*command, str(dataset.folder), "-o", str(killed), *arguments], stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if (killed / LAST).exists() and saved_step(killed / LAST) > 40:
            break
        time.sleep(0.02)
    started.kill()
    assert started.wait() == -signal.SIGKILL
    assert 40 < load_checkpoint(killed / LAST)[1]["step"] < 6 * 38
    subprocess.run([*command, "--resume", str(killed)], check=True, capture_output=True)
    whole = tmp_path / "whole"
    subprocess.run(
        [*command, str(dataset.folder), "-o", str(whole), *arguments], check=True, capture_output=True
    )
    assert same(load_checkpoint(killed / LAST)[0], load_checkpoint(whole / LAST)[0])
    assert same(load_checkpoint(killed / BEST)[0], load_checkpoint(whole / BEST)[0])
    timed = ["seconds", "evaluation_seconds", "peak_bytes", "training_bytes"]
    first, second = (pl.read_parquet(folder / "metrics.parquet").drop(timed) for folder in (killed, whole))
    assert first.equals(second)
    assert not [path for path in killed.rglob("*") if "partial" in path.name]


def test_sasrec_comes_near_the_oracle(tmp_path):
    """On demo data a small SASRec reaches 90% of the NDCG@10 of the best possible ranking."""
    truth = demo.make_truth(num_users=2000, num_items=1000, seed=0)
    demo.generate_events(truth, num_rows=80_000, seed=0).write_parquet(tmp_path / "events.parquet")
    dataset = prepare(tmp_path / "events.parquet", tmp_path / "dataset")
    settings = {
        "dim": 32,
        "max_length": 50,
        "dropout": 0.1,
        "num_negatives": 128,
        "batch_size": 64,
        "learning_rate": 3e-3,
        "epochs": 12,
        "evaluate_every": 6000,
        "validation_users": 500,
    }
    run = train(dataset, tmp_path / "run", RunConfig().replaced(settings))
    best = oracle(truth, dataset, dataset.test()).ndcg
    reached = ndcg(rank_targets(run.model, dataset, dataset.test()).ranks, 10).mean()
    assert reached >= 0.9 * best


def test_features_do_nearly_as_well_as_a_table(tmp_path):
    """Vectors made from the demo data's item features reach 80% of the trained table's NDCG@10."""
    truth = demo.make_truth(num_users=1000, num_items=300, seed=0)
    demo.generate_events(truth, num_rows=40_000, seed=0).write_parquet(tmp_path / "events.parquet")
    demo.item_features(truth, seed=0).write_parquet(tmp_path / "items.parquet")
    dataset = prepare(tmp_path / "events.parquet", tmp_path / "dataset")
    settings = RunConfig().replaced(
        {
            "dim": 32,
            "max_length": 50,
            "dropout": 0.1,
            "num_negatives": 64,
            "batch_size": 32,
            "learning_rate": 3e-3,
            "epochs": 12,
            "validation_users": 300,
            "evaluate_every": 6000,
        }
    )
    features = read_item_features(tmp_path / "items.parquet", dataset)
    reached = [
        float(ndcg(rank_targets(run.model, dataset, dataset.test()).ranks, 10).mean())
        for run in (
            train(dataset, tmp_path / "table", settings),
            train(dataset, tmp_path / "features", settings, features=features),
        )
    ]
    assert reached[1] >= 0.8 * reached[0]
    assert Run.open(tmp_path / "features").network.items.num_items == dataset.num_items


def test_a_run_stops_for_whichever_reason_comes_first(dataset, tmp_path):
    """Epochs, steps, seconds and patience each end a run."""
    steps_an_epoch = -(-300 // 32)
    assert train(dataset, tmp_path / "epochs", config(epochs=1)).metrics["step"][-1] == steps_an_epoch
    assert train(dataset, tmp_path / "steps", config(steps=3)).metrics["step"][-1] == 3
    timed = train(dataset, tmp_path / "seconds", config(seconds=0.001, epochs=None)).metrics
    assert timed["step"][-1] == 1
    stale = train(
        dataset,
        tmp_path / "patience",
        config(learning_rate=1e-9, patience=2, epochs=50, metric="hit_rate@10"),
    )
    assert stale.metrics.height == 3


def test_a_row_is_written_at_every_evaluation(dataset, tmp_path):
    """Rows are spaced in examples, begin before training, and count what was seen."""
    run = train(dataset, tmp_path / "run", config(evaluate_every=96, epochs=1))
    rows = run.metrics
    seen = rows["examples"].to_list()
    assert [count // 96 for count in seen] == [0, 1, 2, 3]
    assert all(count % 96 < 32 for count in seen)
    assert rows["train_loss"].null_count() == 1
    assert rows["logits"].to_list() == [16 * count for count in rows["targets"].to_list()]
    assert (rows["peak_bytes"] > 2**20).all()
    assert rows["val_loss"].is_finite().all()


def test_evaluations_become_rarer_with_growth(dataset, tmp_path):
    """Early ones are spaced evenly, late ones by a share of what was seen."""
    settings = config(evaluate_every=32, evaluation_growth=0.5, epochs=2, batch_size=8)
    places = train(dataset, tmp_path / "run", settings).metrics["examples"].to_list()
    assert places[:4] == [0, 32, 64, 96]
    assert len(places) > 6
    for before, after in itertools.pairwise(places[2:-1]):
        assert 1.5 * before <= after <= 1.5 * before + 8
    with pytest.raises(ArgumentError, match="evaluation_growth is -1; pass 0 or more"):
        config(evaluation_growth=-1.0)


@pytest.mark.parametrize("objective", ["sampled-softmax", "bce", "gbce", "full-softmax", "sce", "rece"])
def test_every_objective_trains(dataset, tmp_path, objective):
    """Each ranks better after three epochs on demo data than before."""
    sizes = {"num_buckets": 8, "bucket_targets": 64, "bucket_items": 60}
    rows = train(dataset, tmp_path / "run", config(objective=objective, **sizes, epochs=3)).metrics
    assert rows["ndcg@10"][-1] > rows["ndcg@10"][0]


@pytest.mark.parametrize(
    "settings",
    [{}, {"checkpoint_seconds": 1e-9}, {"evaluate_every": 1}, {"clip_norm": 1.0, "checkpoint_seconds": 1e-9}],
    ids=str,
)
def test_a_run_that_diverges_keeps_its_last_good_checkpoint(dataset, tmp_path, settings):
    """NaN stops the run with the step, the learning rate and advice; what was saved can be opened."""
    wild = {"optimizer": "sgd", "learning_rate": 1e20, **settings}
    with pytest.raises(
        TrainingError, match=r"step \d+ with learning rate 1e\+20\. Lower --learning-rate"
    ) as told:
        train(dataset, tmp_path / "run", config(**wild))
    assert "checkpoint is of step 0" in str(told.value)
    assert Run.open(tmp_path / "run").metrics["step"].to_list() == [0]
    assert load_checkpoint(tmp_path / "run" / LAST)[1]["step"] == 0
    saved = load_checkpoint(tmp_path / "run" / LAST)[0]
    assert saved["model.items.weight"].isfinite().all()


def test_cosine_runs_are_evaluated_as_they_are_trained(dataset, tmp_path):
    """With unit vectors and a temperature the validation loss is that of those logits."""
    run = train(dataset, tmp_path / "run", config(cosine=True, temperature=0.1, epochs=3))
    assert run.metrics["val_loss"][-1] < run.metrics["val_loss"][0] - 0.2
    states = run.model.predict(torch.tensor([[1, 2]]), torch.ones(1, 2, dtype=torch.bool))
    assert float(states.detach().norm()) == pytest.approx(10)


def test_what_cannot_change_in_the_middle_is_refused(dataset, refused, tmp_path):
    """A resumed run keeps its settings; only its end may move."""
    train(dataset, tmp_path / "run", config(steps=2))
    told = refused("train", "--resume", tmp_path / "run", "--batch-size", 64)
    assert f"batch_size is 64, and {tmp_path / 'run'} was trained with 32, which cannot change" in told


def test_a_damaged_checkpoint_is_told_from_a_run(dataset, tmp_path):
    """A truncated file, a foreign file and weights of another shape each get a sentence."""
    run = train(dataset, tmp_path / "run", config(steps=2))
    whole = (run.folder / BEST).read_bytes()
    (run.folder / BEST).write_bytes(whole[:1000])
    with pytest.raises(TrainingError, match="is damaged"):
        Run.open(run.folder)
    save_checkpoint(run.folder / BEST, {"model.items.weight": torch.zeros(3, 3)}, {})
    with pytest.raises(TrainingError, match="does not fit the model"):
        Run.open(run.folder)
    with pytest.raises(TrainingError, match="is not a run"):
        Run.open(tmp_path)


def test_tensorboard_is_asked_for_by_name_when_missing(dataset, tmp_path, monkeypatch):
    """Without the extra the sentence names it, and nothing is left behind."""
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(TrainingError, match=r"Install budgetrec\[tensorboard\]"):
        train(dataset, tmp_path / "run", config(tensorboard=True))
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, when it loads its compiler
def test_a_compiled_model_trains_to_the_same_loss(dataset, tmp_path, monkeypatch):
    """`compile` changes how a step is computed, not what; here without generating machine code."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    plain, compiled = (
        train(dataset, tmp_path / name, config(steps=2, dropout=0.0, compile=wanted))
        for name, wanted in (("plain", False), ("compiled", True))
    )
    assert compiled.metrics["val_loss"][-1] == pytest.approx(plain.metrics["val_loss"][-1], abs=1e-4)


def test_a_compiler_that_fails_is_told(dataset, tmp_path, monkeypatch):
    """Without a working compiler the sentence says to leave it out, and nothing is left behind."""

    def broken(model, **options):
        def forward(*inputs):
            raise RuntimeError("No working C++ compiler found")

        return forward

    monkeypatch.setattr(torch, "compile", broken)
    with pytest.raises(TrainingError, match=r"compiler found\. Leave out --compile"):
        train(dataset, tmp_path / "run", config(compile=True))
    assert not (tmp_path / "run").exists()


def test_a_run_knows_its_dataset(dataset, tmp_path):
    """Data of the same size that was made otherwise is refused, for going on as for opening."""
    train(dataset, tmp_path / "run", config(steps=2))
    truth = demo.make_truth(num_users=300, num_items=120, seed=0)
    demo.generate_events(truth, num_rows=6000, seed=2).write_parquet(tmp_path / "events.parquet")
    other = prepare(tmp_path / "events.parquet", tmp_path / "other")
    with pytest.raises(TrainingError, match="other data, filters or split"):
        Run.open(tmp_path / "run", dataset=other)
    with pytest.raises(TrainingError, match="other data, filters or split"):
        resume(tmp_path / "run", dataset=tmp_path / "other", steps=4)


def test_a_moved_dataset_can_be_named(dataset, tmp_path):
    """A run continues with its dataset at another place, and says so when it is gone."""
    shutil.copytree(dataset.folder, tmp_path / "here")
    train(tmp_path / "here", tmp_path / "run", config(steps=2))
    (tmp_path / "here").rename(tmp_path / "there")
    with pytest.raises(TrainingError, match=r"no longer at .*here"):
        resume(tmp_path / "run", steps=3)
    assert resume(tmp_path / "run", dataset=tmp_path / "there", steps=3).metrics["step"][-1] == 3


def test_a_run_that_has_ended_says_so(dataset, tmp_path):
    """Without new limits it is given back as it is; with limits that lie behind it, it is refused."""
    train(dataset, tmp_path / "run", config(steps=3))
    before = (tmp_path / "run" / "run.toml").read_text()
    assert resume(tmp_path / "run").metrics["step"][-1] == 3
    with pytest.raises(TrainingError, match="has 3 steps already, so with epochs 2, steps 2 nothing is left"):
        resume(tmp_path / "run", steps=2)
    assert (tmp_path / "run" / "run.toml").read_text() == before


def test_an_evaluation_does_not_outlive_its_weights(dataset, tmp_path):
    """Going on takes away what was evaluated before; coming back without a step leaves it."""
    run = train(dataset, tmp_path / "run", config(steps=3))
    evaluate(run).save(run.folder)
    resume(run.folder)
    assert list(run.folder.glob("evaluation-*"))
    resume(run.folder, steps=5)
    assert not list(run.folder.glob("evaluation-*"))


def test_patience_and_the_best_weights_survive_an_interrupt(dataset, tmp_path):
    """Stopped and resumed with patience, the run ends at the same row with the same best weights."""
    settings = config(epochs=30, patience=3, evaluate_every=96, learning_rate=3e-2)
    whole = train(dataset, tmp_path / "whole", settings)
    train_until(dataset, tmp_path / "broken", settings, 11)
    broken = resume(tmp_path / "broken")
    timed = ["seconds", "evaluation_seconds", "peak_bytes", "training_bytes"]
    assert whole.metrics.drop(timed).equals(broken.metrics.drop(timed))
    assert same(weights(whole, BEST), weights(broken, BEST))


def test_parts_that_were_asked_for_survive_a_kill_before_the_first_step(dataset, tmp_path):
    """A run whose checkpoint is of step 0 goes on with the parts of its settings, not with the fastest."""

    class Killed(Watcher):
        def watching(self, total_steps, seconds):
            raise KeyboardInterrupt

    settings = config(steps=3, micro_batches=4)
    with pytest.raises(InterruptedRunError, match="step 0 is saved"):
        train(dataset, tmp_path / "run", settings, watcher=Killed())
    run = resume(tmp_path / "run")
    assert load_checkpoint(run.folder / LAST)[1]["micro_batches"] == 4
    assert same(weights(run), weights(train(dataset, tmp_path / "whole", settings)))


def test_a_request_beyond_the_memory_gets_a_sentence(dataset, tmp_path):
    """Layers of hundreds of gigabytes are refused before any of them is made."""
    with pytest.raises(TrainingError, match="its layers alone take 192"):
        train(dataset, tmp_path / "run", config(dim=2**16, hidden_dim=None, num_blocks=2))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("name", "value"), [("dim", "8"), ("dim", 8.0), ("epochs", True), ("colour", 3)])
def test_settings_of_another_type_are_refused(dataset, tmp_path, name, value):
    """A setting of the wrong type is told before anything is trained."""
    with pytest.raises(ArgumentError, match=name):
        train(dataset, tmp_path / "run", RunConfig().replaced({name: value}))


def test_a_full_disk_is_told(dataset, tmp_path):
    """When nothing can be written, the sentence names the file and no run is left."""
    code = (
        "import resource, signal, sys; from budgetrec.cli import run\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        f"sys.exit(run(['train', {str(dataset.folder)!r}, '-o', {str(tmp_path / 'run')!r}, '--steps', '1']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "cannot be written" in done.stderr or "no room left" in done.stderr
    assert not (tmp_path / "run").exists()
