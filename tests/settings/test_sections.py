"""Settings: what is unknown is named, what is wrong is refused, what is written is read back equal."""

import dataclasses
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from budgetrec.errors import ArgumentError, ConfigError
from budgetrec.settings.build import build_model
from budgetrec.settings.presets import PRESETS, preset
from budgetrec.settings.sections import RunConfig, all_settings, read_toml


def test_no_two_sections_share_a_name():
    """A setting is known by its name alone, so names are distinct."""
    names = [item.name for _, item, _ in all_settings()]
    assert len(names) == len(set(names))
    assert all(item.metadata["help"] for _, item, _ in all_settings())


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "dim": st.integers(1, 256).map(lambda half: 2 * half),  # two heads
            "num_negatives": st.integers(1, 10**6),
            "learning_rate": st.floats(1e-8, 10),
            "epochs": st.integers(1, 1000),
            "seed": st.integers(0, 2**63 - 1),
            "tied": st.booleans(),
            "sharing": st.sampled_from(["batch", "sequence", "target"]),
            "clip_norm": st.floats(0.001, 1000),
        },
    )
)
def test_settings_survive_toml(tmp_path_factory, settings):
    """What is written is read back equal, and what is left open stays open."""
    path = tmp_path_factory.mktemp("toml") / "run.toml"
    config = RunConfig().replaced(settings)
    config.write(path)
    assert RunConfig.from_dict(read_toml(path), "run.toml") == config


def test_an_unknown_key_suggests_the_nearest_one():
    """A slip of the hand is answered with the name that was meant."""
    with pytest.raises(ConfigError, match=r"\[objective\] has unknown key .* mean 'num_negatives'"):
        RunConfig.from_dict({"objective": {"num_negative": 3}}, "run.toml")
    with pytest.raises(ConfigError, match="Did you mean 'training'"):
        RunConfig.from_dict({"trainings": {}}, "run.toml")


@pytest.mark.parametrize(
    ("section", "key", "value", "words"),
    [
        ("model", "dim", "wide", r"dim is 'wide'\. Pass int"),
        ("model", "dim", True, "Pass int"),
        ("model", "tied", 1, "Pass bool"),
        ("optimizer", "learning_rate", 0, "above 0"),
        ("training", "seed", -1, "from 0 to"),
        ("objective", "sharing", "users", "batch, sequence, target"),
        ("training", "precision", "8-bit", "32-true, bf16-mixed"),
    ],
)
def test_wrong_values_are_refused_with_the_file_and_the_section(section, key, value, words):
    """The sentence says where the value stands and what is allowed."""
    with pytest.raises(ConfigError, match=words) as told:
        RunConfig.from_dict({section: {key: value}}, "run.toml")
    assert f"run.toml [{section}]" in str(told.value)


def test_a_file_that_is_no_toml_is_told(tmp_path):
    """A missing and a broken file each get a sentence."""
    with pytest.raises(ConfigError, match="does not exist"):
        read_toml(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("a = = 3")
    with pytest.raises(ConfigError, match="cannot be read as TOML"):
        read_toml(tmp_path / "bad.toml")


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_valid(name):
    """A preset names settings that are read, builds a model, and says where it comes from."""
    config = RunConfig().replaced(preset(name))
    config.refuse_unused(preset(name))
    model = build_model(
        dataclasses.replace(config.model, max_length=10), 50, features=None, generator=torch.Generator()
    )
    assert model.item_table().shape == (50, config.model.dim)
    assert len(PRESETS[name][0]) > 20


def test_an_unknown_preset_lists_the_known_ones():
    """The sentence names them all."""
    with pytest.raises(ArgumentError, match=r"sasrec-ml1m, bert4rec-ml1m.* Did you mean 'sasrec-ml1m'"):
        preset("sasrec-ml1")


@pytest.mark.parametrize(
    "settings",
    [
        {"num_blocks": 100_000_000},
        {"threads": 10**8},
        {"batch_size": 10**20},
        {"num_negatives": 10**20},
        {"dim": 10**9},
        {"max_length": 10**9},
        {"epochs": 10**20},
        {"evaluate_every": 10**20},
        {"warmup_steps": -1},
        {"popularity_power": 1e20},
        {"momentum": 1.0},
        {"dropout": 1.0},
        {"dropout": float("nan")},
        {"dim": 65},
        {"num_negatives": 1, "sampler": "mixed"},
    ],
)
def test_what_no_machine_can_do_is_refused_where_it_is_said(settings):
    """Each by its name, in the record that holds it, before anything is read or built."""
    with pytest.raises(ArgumentError, match=f"{next(iter(settings))} is "):
        RunConfig().replaced(settings)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"sampler": "in-batch"}, "Pass --sharing batch"),
        ({"objective": "sce", "micro_batches": 2}, "cannot be cut"),
        ({"objective": "full-softmax", "table_updates": "row-sparse"}, "each step touches every item"),
        ({"schedule": "cosine", "patience": 3}, "nothing says when that is"),
        ({"schedule": "linear", "steps": 10, "warmup_steps": 20}, "steps is 10 with 20 warmup_steps"),
    ],
)
def test_settings_that_exclude_each_other_are_refused(settings, told):
    """One sentence names both."""
    with pytest.raises(ArgumentError, match=told):
        RunConfig().replaced(settings).refuse_contradictions()


def test_what_a_plan_decides_contradicts_nothing():
    """In-batch negatives need one set for the batch, which a plan may choose; a fixed one is held to it."""
    config = RunConfig().replaced({"sampler": "in-batch"})
    config.refuse_contradictions(undecided={"sharing"})
    with pytest.raises(ArgumentError, match="Pass --sharing batch"):
        config.refuse_contradictions(undecided={"objective"})


@pytest.mark.parametrize("command", ["train", "plan", "fit"])
def test_settings_are_refused_before_torch_is_imported_and_data_is_read(command):
    """65 numbers cannot be shared by two heads: no command imports torch to see that."""
    code = (
        "import sys; from budgetrec.cli import run\n"
        f"code = run(['{command}', '/nowhere', '--memory', '64MiB', '-o', '/nowhere/run', '--dim', '65'])\n"
        "print(code, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "2 False\n"
    assert done.stderr.startswith("budgetrec: dim is 65 and num_heads is 2; pass a number of heads")
