"""Models turn ids into hidden states and items into vectors; they know no loss and no optimiser."""

from budgetrec.models.bert4rec import Bert4Rec
from budgetrec.models.contract import Inputs, SequenceModel
from budgetrec.models.item_encoders import EncodedModel, FeatureEncoder, ItemTable
from budgetrec.models.sasrec import SASRec

__all__ = ["Bert4Rec", "EncodedModel", "FeatureEncoder", "Inputs", "ItemTable", "SASRec", "SequenceModel"]
