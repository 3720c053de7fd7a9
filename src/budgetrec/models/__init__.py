"""Models turn ids into hidden states and items into vectors; they know no loss and no optimiser."""

from typing import TYPE_CHECKING

from budgetrec.lazy import attributes

if TYPE_CHECKING:
    from budgetrec.models.bert4rec import Bert4Rec
    from budgetrec.models.contract import Inputs, SequenceModel
    from budgetrec.models.item_encoders import EncodedModel, FeatureEncoder, ItemTable
    from budgetrec.models.sasrec import SASRec

__all__ = ["Bert4Rec", "EncodedModel", "FeatureEncoder", "Inputs", "ItemTable", "SASRec", "SequenceModel"]

_HOMES = {
    "Bert4Rec": "budgetrec.models.bert4rec",
    "EncodedModel": "budgetrec.models.item_encoders",
    "FeatureEncoder": "budgetrec.models.item_encoders",
    "Inputs": "budgetrec.models.contract",
    "ItemTable": "budgetrec.models.item_encoders",
    "SASRec": "budgetrec.models.sasrec",
    "SequenceModel": "budgetrec.models.contract",
}
__getattr__ = attributes(__name__, _HOMES)
