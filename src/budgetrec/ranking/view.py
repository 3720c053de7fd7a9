"""A model as ranking sees it: the products of its states and vectors are the logits that were trained."""

from torch import Tensor, nn
from torch.nn import functional

from budgetrec.models import SequenceModel
from budgetrec.settings.sections import ObjectiveConfig


class ScoringView(nn.Module):
    """A model whose states and vectors are made so that their products are the logits that were trained."""

    def __init__(self, model: SequenceModel, *, temperature: float, cosine: bool) -> None:
        super().__init__()
        self.model = model
        self.temperature = temperature
        self.cosine = cosine

    @property
    def max_length(self) -> int:
        """How many items of a history are read."""
        return self.model.max_length

    def predict(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the states (n, d) that predict what follows each history."""
        states = self.model.predict(ids, mask)
        return (functional.normalize(states, dim=-1) if self.cosine else states) / self.temperature

    def item_table(self) -> Tensor:
        """Return the vectors (K, d) of all items."""
        table = self.model.item_table()
        return functional.normalize(table, dim=-1) if self.cosine else table


def scoring_view(model: SequenceModel, config: ObjectiveConfig) -> SequenceModel | ScoringView:
    """Return the model as ranking must see it, for the objective that it was trained with."""
    if not config.cosine and config.temperature == 1:
        return model
    return ScoringView(model, temperature=config.temperature, cosine=config.cosine)
