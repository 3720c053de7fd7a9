"""`budgetrec train`, `evaluate` and `compare` from the shell."""

import json
import re

import polars as pl
import pytest

from budgetrec.data import demo
from budgetrec.data.prepare import prepare

FLAGS = ("--dim", 16, "--max-length", 20, "--num-negatives", 16, "--batch-size", 32, "--learning-rate", 0.01)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Prepare generated data with item features beside it."""
    folder = tmp_path_factory.mktemp("data")
    truth = demo.make_truth(num_users=200, num_items=80, seed=0)
    demo.generate_events(truth, num_rows=4000, seed=1).write_parquet(folder / "events.parquet")
    demo.item_features(truth, seed=0).write_parquet(folder / "items.parquet")
    prepare(folder / "events.parquet", folder / "dataset")
    return folder


def test_from_a_dataset_to_metrics(budgetrec, data, tmp_path):
    """Train, evaluate, compare: results on stdout, progress on stderr, files in the run's folder."""
    answer = budgetrec("train", data / "dataset", "-o", tmp_path / "run", *FLAGS, "--epochs", 2)
    assert answer.code == 0, answer.err
    assert "14 steps over 400 sequences (2.0 epochs)" in answer.out
    assert re.search(r"sequences a second, training adds [\d.]+ \w+, process [\d.]+ [MG]iB\.", answer.out)
    assert f"Next: budgetrec evaluate {tmp_path / 'run'}" in answer.out
    assert answer.err.count("val loss") == 3
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        "run.toml",
        "items.parquet",
        "metrics.parquet",
        "checkpoint",
        "environment.json",
    }
    answer = budgetrec("evaluate", tmp_path / "run", "--json")
    assert answer.code == 0, answer.err
    found = json.loads(answer.out)
    assert found["steps"] == 14
    assert 0 < found["ndcg@10"] <= found["hit_rate@10"] <= 1


def test_json_is_one_object(budgetrec, data, tmp_path):
    """`--json` prints the best and the last row."""
    answer = budgetrec("train", data / "dataset", "-o", tmp_path / "run", *FLAGS, "--steps", 3, "--json")
    found = json.loads(answer.out)
    assert found["last"]["step"] == 3
    assert found["best"]["ndcg@10"] >= found["last"]["ndcg@10"]


def test_a_run_goes_on_with_resume(budgetrec, data, tmp_path):
    """`--resume RUN --epochs 2` continues a run of one epoch, and takes nothing else."""
    budgetrec("train", data / "dataset", "-o", tmp_path / "run", *FLAGS, "--epochs", 1)
    answer = budgetrec("train", "--resume", tmp_path / "run", "--epochs", 2)
    assert answer.code == 0, answer.err
    assert pl.read_parquet(tmp_path / "run" / "metrics.parquet")["step"].to_list() == [0, 7, 14]


def test_what_a_run_says_itself_may_be_said_again_on_resume(budgetrec, refused, data, tmp_path):
    """The whole command line, its own file and 1024MiB for 1GiB are accepted, and the run goes on."""
    run, features = tmp_path / "run", ("--item-features", data / "items.parquet")
    line = ("train", data / "dataset", "-o", run, *FLAGS, "--threads", 1, *features)
    assert budgetrec(*line, "--memory", "1GiB", "--epochs", 1).code == 0
    again = (*line, "--memory", "1024MiB", "--config", run / "run.toml", "--resume", run)
    answer = budgetrec(*again, "--epochs", 2)
    assert answer.code == 0, answer.err
    assert pl.read_parquet(run / "metrics.parquet")["step"].to_list() == [0, 7, 14]
    (tmp_path / "other.toml").write_text("[model]\ndim = 8\n")
    items = pl.read_parquet(data / "items.parquet")
    mixed = pl.concat([items.select("item"), items.drop("item").reverse()], how="horizontal")
    mixed.write_parquet(tmp_path / "mixed.parquet")
    for arguments, sentence in (
        (("--threads", 2), f"threads is 2, and {run} was trained with 1, which cannot change"),
        (("--clip-norm", 1), f"clip_norm is 1.0, and {run} was trained with none"),
        (("--memory", "2GiB"), f"memory is 2GiB, and {run} was trained with 1GiB"),
        (("--config", tmp_path / "other.toml"), f"dim is 8, and {run} was trained with 16"),
        (("--preset", "bert4rec-ml1m"), f"dim is 64, and {run} was trained with 16"),
        (("--item-features", tmp_path / "mixed.parquet"), f"and {run} was trained with others"),
        (
            ("-o", tmp_path / "elsewhere"),
            f"--output is {tmp_path / 'elsewhere'}, and the run to resume {run}",
        ),
    ):
        assert sentence in refused("train", "--resume", run, *arguments), arguments


def test_a_run_can_be_repeated_from_its_own_file(budgetrec, data, tmp_path):
    """`--config run.toml` gives the same settings, and flags win over it."""
    budgetrec("train", data / "dataset", "-o", tmp_path / "first", *FLAGS, "--epochs", 1)
    again = ("train", "--config", tmp_path / "first" / "run.toml")
    assert budgetrec(*again, "-o", tmp_path / "second").code == 0
    assert budgetrec(*again, "-o", tmp_path / "third", "--epochs", 2).code == 0
    first, second, third = (
        pl.read_parquet(tmp_path / name / "metrics.parquet")["val_loss"].to_list()
        for name in ("first", "second", "third")
    )
    assert first == second == third[:2]


def test_item_features_take_the_place_of_the_table(budgetrec, data, tmp_path):
    """With --item-features no weight has a row an item."""
    answer = budgetrec(
        "train", data / "dataset", "-o", tmp_path / "run", *FLAGS, "--epochs", 1,
        "--item-features", data / "items.parquet",
    )  # fmt: skip
    assert answer.code == 0, answer.err
    assert (tmp_path / "run" / "features.safetensors").exists()
    assert budgetrec("evaluate", tmp_path / "run", "--json").code == 0


def test_a_preset_and_a_flag(budgetrec, data, tmp_path):
    """Flags win over a preset."""
    answer = budgetrec(
        "train",
        data / "dataset",
        "-o",
        tmp_path / "run",
        "--preset",
        "bert4rec-ml1m",
        "--steps",
        1,
        "--warmup-steps",
        0,
        "--dim",
        8,
    )
    assert answer.code == 0, answer.err
    text = (tmp_path / "run" / "run.toml").read_text()
    assert 'model = "bert4rec"' in text
    assert "dim = 8" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "a dataset and --output are needed"),
        (("{data}/nothing", "-o", "{out}/run"), "is not a prepared dataset"),
        (("{data}/dataset", "-o", "{out}/run", "--preset", "best"), "pass one of sasrec-ml1m"),
        (("{data}/dataset", "-o", "{out}/run", "--dim", "0"), "dim is 0"),
        (("{data}/dataset", "-o", "{out}/run", "--num-heads", "3"), "divides the width"),
        (("{data}/dataset", "-o", "{out}/run", "--learning-rate", "nan"), "above 0"),
        (("{data}/dataset", "-o", "{out}/run", "--seconds", "5", "--schedule", "cosine"), "epochs or"),
        (("{data}/dataset", "-o", "{out}/run", "--device", "cuda"), "torch sees no GPU here"),
        (("{data}/dataset", "-o", "{out}/run", "--sampler", "in-batch"), "Pass --sharing batch"),
        (
            (
                "{data}/dataset",
                "-o",
                "{out}/run",
                "--objective",
                "full-softmax",
                "--table-updates",
                "row-sparse",
            ),
            "each step touches every item",
        ),
        (
            ("{data}/dataset", "-o", "{out}/run", "--objective", "sce", "--micro-batches", "2"),
            "cannot be cut",
        ),
        (
            ("{data}/dataset", "-o", "{out}/run", "--objective", "bce", "--cosine"),
            "cosine has no effect on the objective bce",
        ),
        (("{data}/dataset", "-o", "{out}/run", "--item-features", "{data}/none.csv"), "does not exist"),
        (
            ("{data}/dataset", "-o", "{out}/run", "--item-features", "{data}/events.parquet"),
            "names an item twice",
        ),
        (
            ("{data}/dataset", "-o", "{out}/run", "--mask-rate", "0.3"),
            "mask_rate has no effect on the model sasrec",
        ),
        (
            ("{data}/dataset", "-o", "{out}/run", "--objective", "full-softmax", "--num-negatives", "9"),
            "num_negatives has no effect",
        ),
        (("{data}/dataset", "-o", "{out}/run", "--optimizer", "sgd", "--beta2", "0.9"), "adam or adamw"),
        (("--resume", "{out}/none"), "is not a run"),
        (("--resume", "{out}/none", "--overwrite"), "--overwrite would replace it"),
        (("--resume", "{out}/none", "--preset", "sasrec-ml1m"), "is not a run"),
        (("{data}/dataset", "-o", "{out}/run", "--temperature", "inf"), "temperature is inf"),
        (("{data}/dataset", "-o", "{out}/run", "--correction", "banana"), "pass one of none, theorem"),
    ],
)
def test_bad_requests_get_one_sentence(refused, data, tmp_path, arguments, words):
    """Exit code 2, one sentence, nothing left behind."""
    assert words in refused("train", *(part.format(data=data, out=tmp_path) for part in arguments))


def test_an_existing_run_is_not_overwritten_unless_asked(budgetrec, refused, data, tmp_path):
    """Without --overwrite it stays; with it, the new run takes its place."""
    arguments = ("train", data / "dataset", "-o", tmp_path / "run", *FLAGS, "--steps", 2)
    assert budgetrec(*arguments).code == 0
    assert "exists already" in refused(*arguments)
    assert budgetrec(*arguments, "--overwrite").code == 0


def test_tensorboard_events_are_written(budgetrec, data, tmp_path):
    """With --tensorboard each evaluation is an event."""
    answer = budgetrec(
        "train", data / "dataset", "-o", tmp_path / "run", *FLAGS, "--steps", 2, "--tensorboard"
    )
    assert answer.code == 0, answer.err
    assert list((tmp_path / "run" / "tensorboard").glob("events.*"))


def test_the_law_is_compared_with_a_trained_model(budgetrec, data, tmp_path):
    """`reproduce trained-noise` gives a row for each n, k and way of sharing; the law is near at each."""
    budgetrec("train", data / "dataset", "-o", tmp_path / "run", *FLAGS, "--epochs", 3)
    answer = budgetrec(
        "reproduce", "trained-noise", tmp_path / "run", "-o", tmp_path / "noise", "--scale", "smoke", "--json"
    )
    assert answer.code == 0, answer.err
    rows = json.loads(answer.out)["rows"]
    assert {(row["sharing"], row["num_groups"]) for row in rows} == {
        ("shared", 1), ("per sequence", 4), ("per target", 24),
    }  # fmt: skip
    assert all(abs(row["law_error"]) < 0.4 for row in rows)
    assert (tmp_path / "noise" / "noise.csv").exists()


def test_features_are_part_of_a_run(budgetrec, refused, data, tmp_path):
    """A run of features cannot be repeated from its file alone, and compares as another setting."""
    for name, extra in (("table", ()), ("features", ("--item-features", data / "items.parquet"))):
        answer = budgetrec("train", data / "dataset", "-o", tmp_path / name, *FLAGS, "--steps", 3, *extra)
        assert answer.code == 0, answer.err
    again = (
        "train",
        data / "dataset",
        "-o",
        tmp_path / "again",
        "--config",
        tmp_path / "features" / "run.toml",
    )
    assert "Pass them again with --item-features" in refused(*again)
    answer = budgetrec("compare", tmp_path / "table", tmp_path / "features", "--json")
    assert answer.code == 0, answer.err
    assert "item_features" in answer.out


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("item,x\n003,1\n004,2\n", "no row for 80 of 80 items"),
        ("item,title\nitem-1,good\n", "column 'title' of String"),
        ("item\nitem-1\n", "no column besides the items"),
        ("name,x\na,1\n", "no column of items"),
        ("item,x\nitem-1,\nitem-2,3\n", "missing, NaN or infinite"),
    ],
)
def test_wrong_item_features_are_told(refused, data, tmp_path, rows, words):
    """Each kind of wrong file gets its sentence."""
    (tmp_path / "items.csv").write_text(rows)
    features = ("--item-features", tmp_path / "items.csv")
    assert words in refused("train", data / "dataset", "-o", tmp_path / "run", *features)


def test_an_evaluation_never_overwrites_other_files(budgetrec, refused, data, tmp_path):
    """`--output` refuses a file that is there."""
    budgetrec("train", data / "dataset", "-o", tmp_path / "run", *FLAGS, "--steps", 1)
    assert "exists already" in refused(
        "evaluate", tmp_path / "run", "--output", tmp_path / "run" / "run.toml"
    )


def test_weights_that_never_got_better_are_told(budgetrec, data, tmp_path):
    """When the untrained model was the best, the command says so."""
    arguments = (
        "train",
        data / "dataset",
        "-o",
        tmp_path / "run",
        *FLAGS,
        "--steps",
        1,
        "--metric",
        "ndcg@10",
    )
    answer = budgetrec(*arguments, "--optimizer", "sgd", "--learning-rate", "1e-12")
    assert answer.code == 0, answer.err
    assert "No evaluation did better than the untrained model" in answer.out
