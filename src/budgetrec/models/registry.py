"""Every model by its name. To add one, write a file with its class and add one line to `MODELS`."""

from budgetrec.models.bert4rec import Bert4Rec
from budgetrec.models.sasrec import SASRec
from budgetrec.models.specification import MaskingOptions, ModelSpecification

MODELS: dict[str, ModelSpecification] = {
    each.name: each
    for each in (
        ModelSpecification(name="sasrec", title="SASRec", make=SASRec),
        ModelSpecification(name="bert4rec", title="BERT4Rec", make=Bert4Rec, options=MaskingOptions),
    )
}
