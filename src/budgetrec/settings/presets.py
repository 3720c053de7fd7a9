"""Settings under a name: what published systems use, as far as they say, and what does well here.

Each names its source. Where a source leaves something out, the defaults of `config.py` stand.
"""

import difflib
from collections.abc import Mapping
from typing import Any

from budgetrec.errors import ArgumentError

_PUBLISHED_ADAM = {"optimizer": "adam", "learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.98}
_CCE = {
    **_PUBLISHED_ADAM,
    "dim": 256,
    "num_heads": 2,
    "dropout": 0.1,
    "norm": "query",
    "sharing": "target",
    "epochs": 20,
    "patience": 4,
}

_CROSS_ENTROPY = {
    **_PUBLISHED_ADAM,
    "num_heads": 1,
    "max_length": 200,
    "dropout": 0.1,
    "norm": "query",
    "batch_size": 128,
    "num_negatives": 3000,
    "sharing": "sequence",
    "correction": "none",
    "epochs": 100,
    "patience": 10,
}
_OURS_ML1M = {
    "dim": 64,
    "num_heads": 2,
    "hidden_dim": 256,
    "max_length": 200,
    "dropout": 0.2,
    "windows": "all",
    "batch_size": 64,
    "num_negatives": 512,
    "sharing": "sequence",
    "learning_rate": 2e-3,
    "schedule": "linear",
    "warmup_steps": 100,
    "validation_users": 2000,
    "evaluate_every": 20_000,
}

PRESETS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "sasrec-ml1m": (
        "MovieLens-1M: the best of this project so far (experiments/movielens-1m)",
        {**_OURS_ML1M, "epochs": 50},
    ),
    "bert4rec-ml1m": (
        "MovieLens-1M: BERT4Rec with the same objective (experiments/movielens-1m)",
        {**_OURS_ML1M, "model": "bert4rec", "activation": "gelu", "epochs": 60},
    ),
    "sasrec-published-ml1m": (
        "Klenitskiy and Vasilev, RecSys 2023: cross-entropy over 3,000 negatives, MovieLens-1M",
        {**_CROSS_ENTROPY, "dim": 64},
    ),
    "sasrec-published-ml20m": (
        "Klenitskiy and Vasilev, RecSys 2023: cross-entropy over 3,000 negatives, MovieLens-20M",
        {**_CROSS_ENTROPY, "dim": 256},
    ),
    "gsasrec-ml1m": (
        "Petrov and Macdonald, RecSys 2023: gBCE with 256 negatives per target, MovieLens-1M",
        {
            "optimizer": "adam",
            "learning_rate": 1e-3,
            "beta2": 0.999,
            "dim": 128,
            "num_heads": 1,
            "max_length": 200,
            "dropout": 0.5,
            "norm": "query",
            "tied": False,
            "objective": "gbce",
            "calibration": 0.75,
            "num_negatives": 256,
            "sharing": "target",
            "batch_size": 128,
            "patience": 200,
        },
    ),
    "sasrec-cosine-ml1m": (
        "The SASRec of Meta's generative recommenders: unit vectors, temperature 0.05, MovieLens-1M",
        {
            "learning_rate": 1e-3,
            "dim": 50,
            "num_heads": 1,
            "max_length": 200,
            "dropout": 0.2,
            "cosine": True,
            "temperature": 0.05,
            "correction": "none",
            "num_negatives": 128,
            "sharing": "target",
            "batch_size": 128,
            "epochs": 101,
        },
    ),
    "sasrec-gowalla": (
        "CE- of the CCE authors' repository, Gowalla: n = 512, L = 256, k = 512",
        {**_CCE, "max_length": 256, "batch_size": 512, "num_negatives": 512},
    ),
    "sasrec-ml20m": (
        "CE- of the CCE authors' repository, MovieLens-20M: n = 64, L = 512, k = 1,512",
        {**_CCE, "max_length": 512, "batch_size": 64, "num_negatives": 1512},
    ),
    "sce-gowalla": (
        "The SCE authors' repository, Gowalla: 882 buckets of 882 targets and 256 items, n = 2,048",
        {
            **_PUBLISHED_ADAM,
            "dim": 64,
            "num_heads": 1,
            "max_length": 200,
            "dropout": 0.3,
            "norm": "query",
            "objective": "sce",
            "num_buckets": 882,
            "bucket_targets": 882,
            "bucket_items": 256,
            "batch_size": 2048,
            "patience": 10,
        },
    ),
}


def preset(name: str) -> Mapping[str, Any]:
    """Look settings up by the name of their preset."""
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ArgumentError(f"preset is {name!r}; pass one of {', '.join(PRESETS)}.{hint}")
    return PRESETS[name][1]
