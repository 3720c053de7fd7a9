"""The registry builds every model from its own options."""

import pytest
import torch

from budgetrec.errors import ArgumentError
from budgetrec.models.registry import MODELS, ModelOptions
from budgetrec.models.specification import MaskingOptions


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_built_from_the_options_it_has(name):
    """Options of other models are ignored, and the weights are those of the class itself."""
    options = ModelOptions(dim=8, max_length=5, mask_rate=0.5)
    built = MODELS[name].build(options, 30, features=None, generator=torch.Generator().manual_seed(0))
    rates = {"mask_rate": 0.5, "activation": "relu", "dropout": 0.2} if name == "bert4rec" else {}
    kind = MODELS[name].load()
    direct = kind(30, dim=8, max_length=5, generator=torch.Generator().manual_seed(0), **rates)
    assert type(built) is kind
    for (left_name, left), (right_name, right) in zip(
        built.state_dict().items(), direct.state_dict().items(), strict=True
    ):
        assert left_name == right_name
        assert torch.equal(left, right)


def test_wrong_options_are_refused():
    """A rate above 1 is refused before any model is built."""
    with pytest.raises(ArgumentError, match=r"mask_rate is 1\.5; pass a share between 0 and 1"):
        MaskingOptions(mask_rate=1.5)
