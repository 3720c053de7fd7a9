"""The measured noise as a flat record for a file, and back."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from budgetrec.errors import PlanError
from budgetrec.planner.assumed import Vanishing
from budgetrec.theory.noise import NoiseConstants, Saturating, Tabulated
from budgetrec.theory.raggedness import Raggedness

_RECORDS: dict[str, Any] = {
    "saturating": Saturating,
    "tabulated": Tabulated,
    "vanishing": Vanishing,
    "raggedness": Raggedness,
}
_KINDS = {curve: kind for kind, curve in _RECORDS.items()}


def noise_record(constants: NoiseConstants) -> dict[str, Any]:
    """Return the law's constants as numbers, lists and words.

    >>> noise_record(NoiseConstants.saturating(example=1.0, target_class=2.0, shared_class=3.0))["bias"]
    {'kind': 'saturating', 'coefficient': 0.0, 'rho': 0.0}
    """
    return {item.name: _value(getattr(constants, item.name)) for item in dataclasses.fields(constants)}


def _value(value: Any) -> Any:
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    fields = dataclasses.asdict(value)
    listed = {name: [*each] if isinstance(each, tuple) else each for name, each in fields.items()}
    return {"kind": _KINDS[type(value)], **listed}


def constants_of(record: Mapping[str, Any], source: str) -> NoiseConstants:
    """Take a record apart that `noise_record` returned; `source` is named in errors."""
    try:
        return NoiseConstants(**{name: _record(value) for name, value in record.items()})
    except (KeyError, TypeError, ValueError) as error:
        raise PlanError(f"the noise constants in {source} are damaged: {error}. Plan again.") from error


def _record(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return float(value)
    fields = {name: tuple(each) if isinstance(each, list) else each for name, each in value.items()}
    return _RECORDS[str(fields.pop("kind"))](**fields)
