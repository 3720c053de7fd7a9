"""The columns of users, items, times and ratings."""

from dataclasses import dataclass
from pathlib import Path

from budgetrec.errors import DataError

# Usual names, compared without case, spaces, dashes, underscores and RecBole's `:type` suffixes.
_USUAL_NAMES = {
    "user": "user userid uid customer customerid visitorid member memberid reviewerid account accountid "
    "session sessionid",
    "item": "item itemid iid movie movieid product productid article articleid track trackid song songid "
    "asin parentasin sku location locationid venue venueid business businessid book bookid",
    "time": "timestamp time ts datetime date eventtime createdat unixreviewtime reviewtime tdat",
    "rating": "rating stars score overall",
}


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The names of the columns to read; None means guess from the usual names."""

    user: str | None = None
    item: str | None = None
    time: str | None = None
    rating: str | None = None


def choose_columns(
    found: list[str], asked: Columns, shown: Path | str, *, with_time: bool, with_ratings: bool
) -> dict[str, str]:
    """Return the column of each role: the requested one, or the first with a usual name."""
    normal = {_normalise(name): name for name in reversed(found)}
    chosen: dict[str, str] = {}
    for role in ("user", "item", "time", "rating"):
        if (role == "time" and not with_time) or (role == "rating" and not with_ratings):
            continue
        name = getattr(asked, role)
        if name is not None and name not in found:
            raise DataError(
                f"{shown} has no column {name!r} (found: {', '.join(found)}). "
                f"Pass --{role}-column with one of those."
            )
        if name is None:
            name = next((normal[usual] for usual in _USUAL_NAMES[role].split() if usual in normal), None)
        if name is None:
            hint = ", or --file-order if the rows are already in order" if role == "time" else ""
            raise DataError(
                f"{shown} has no column that looks like the {role} (found: {', '.join(found)}). "
                f"Pass --{role}-column NAME{hint}."
            )
        if name in chosen.values():
            other = next(each for each, column in chosen.items() if column == name)
            raise DataError(
                f"{shown} has one column {name!r} for both the {other} and the {role}. Pass "
                f"--{other}-column and --{role}-column with different ones of: {', '.join(found)}."
            )
        chosen[role] = name
    return chosen


def _normalise(name: str) -> str:
    return "".join(c for c in name.split(":")[0].lower() if c.isalnum())
