"""Where tensors live: on the processor or on a GPU."""

import torch

from budgetrec.errors import TrainingError
from budgetrec.settings.sections import TrainingConfig


def training_device(training: TrainingConfig) -> torch.device:
    """Say where a run trains."""
    if training.device == "cuda" and not torch.cuda.is_available():
        raise TrainingError("device is cuda, but torch sees no GPU here. Pass --device cpu or auto.")
    cuda = training.device == "cuda" or (training.device == "auto" and torch.cuda.is_available())
    return torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
