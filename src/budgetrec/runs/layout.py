"""What the files of a run's folder are called.

::

    run.toml                     the dataset and every setting
    items.parquet                row i: what the source calls item i, and how often it was trained on
    metrics.parquet              one row per evaluation
    checkpoint/best.safetensors  the weights that did best on the validation part
    checkpoint/last.safetensors  everything needed to resume
    features.safetensors         item features, where they stand in for a table
    plan.toml                    the plan that it followed, if there was one
    environment.json             machine, versions and command
    evaluation-PART.json         what `evaluate` found, and evaluation-PART.parquet for each user
    recommendations.parquet      lists that `recommend` was asked to put there
    report.html                  the page about all of this
"""

MARKER = "run.toml"
ITEMS = "items.parquet"
METRICS_FILE = "metrics.parquet"
BEST = "checkpoint/best.safetensors"
LAST = "checkpoint/last.safetensors"
FEATURES = "features.safetensors"
PLAN = "plan.toml"
ENVIRONMENT = "environment.json"
RECOMMENDATIONS = "recommendations.parquet"
# Parts of a dataset that a run can be evaluated on.
PARTS = ("test", "validation")
# What such a folder holds, and may be replaced with it.
FILES = (
    MARKER,
    ITEMS,
    METRICS_FILE,
    "checkpoint",
    FEATURES,
    "tensorboard",
    "evaluation-*",
    "report.html",
    ENVIRONMENT,
    RECOMMENDATIONS,
    "plan.*",
    ".*.partial-*",
)


def evaluation_summary(part: str) -> str:
    """Return the name of the file with the averages of an evaluation."""
    return f"evaluation-{part}.json"


def evaluation_users(part: str) -> str:
    """Return the name of the file with what an evaluation found for each user."""
    return f"evaluation-{part}.parquet"
