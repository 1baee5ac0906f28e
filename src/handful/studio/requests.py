"""What a request asks, read as strangers' input: each value of the right kind and size, or one sentence."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from ..errors import HandfulError
from .look import Query

SHOWN = ("all", "given", "found", "doubtful", "none", "changed", "unlabelled", "duplicates", "waiting", "broken")
SORTS = ("name", "number", "class", "alike", "rival", "doubt", "sure", "like", "none", "group", "changed", "duplicates")
MOST_IMAGES = 100_000  # named in one request
MOST_LETTERS = 200  # of a name or a search
_WHERE = {"show", "class", "group", "surer", "like", "alike", "text"}


class WrongKind(HandfulError):  # noqa: N818
    """A body that is not JSON."""


async def read_body(request: Request, allowed: set[str], required: set[str] = frozenset()) -> dict[str, Any]:  # type: ignore[assignment]
    """The JSON object of a request, with these fields."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise WrongKind("the body should be JSON, with the header Content-Type: application/json")
    try:
        content = json.loads(await request.body(), parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise HandfulError("the body is not valid JSON") from None
    if not isinstance(content, dict):
        raise HandfulError("the body should be a JSON object")
    if missing := required - content.keys():
        raise HandfulError(f"the body lacks '{min(missing)}'")
    if other := content.keys() - allowed:
        raise HandfulError(f"the body has an unknown field '{min(other)[:80]}': known are {', '.join(sorted(allowed))}")
    return content


def read_where(content: Any, sort: str = "name") -> Query:
    """A filter, from the query of an address (all strings) or from a body."""
    if not isinstance(content, Mapping):
        raise HandfulError("'where' should be an object")
    if other := content.keys() - _WHERE:
        raise HandfulError(f"unknown filter '{min(other)[:80]}': known are {', '.join(sorted(_WHERE))}")
    text = content.get("text")
    if text is not None and (not isinstance(text, str) or len(text) > MOST_LETTERS):
        raise HandfulError(f"'text' should be at most {MOST_LETTERS} letters")
    return Query(
        show=one_of(content, "show", SHOWN, "all"), sort=sort, class_id=whole(content, "class"),
        group=whole(content, "group"), surer=share(content, "surer", 0), like=whole(content, "like"),
        alike=share(content, "alike", -1), text=text or None,
    )  # fmt: skip


def read_query(request: Request, *more: str) -> Query:
    """Filter and order in the query of an address."""
    values = dict(request.query_params)
    sort = one_of(values, "sort", SORTS, "name")
    return read_where({name: value for name, value in values.items() if name not in ("sort", *more)}, sort)


def whole(values: Mapping[str, Any], name: str, default: int | None = None, least: int = 0, most: int = 1 << 31) -> Any:
    """A whole number among values; the default if it is not there."""
    found = values.get(name)
    if found is None:
        return default
    if isinstance(found, str) and found.isascii() and found.isdigit() and len(found) < 12:
        found = int(found)
    if not isinstance(found, int) or isinstance(found, bool) or not least <= found <= most:
        raise HandfulError(f"'{name}' should be a whole number from {least} to {most}")
    return found


def share(values: Mapping[str, Any], name: str, least: float) -> float | None:
    """A number up to 1 among values; None if it is not there."""
    found = values.get(name)
    if found is None:
        return None
    try:
        number = float(found) if isinstance(found, str | int | float) and not isinstance(found, bool) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not least <= number <= 1:
        raise HandfulError(f"'{name}' should be a number from {least} to 1")
    return number


def one_of(values: Mapping[str, Any], name: str, choices: tuple[str, ...], default: str | None) -> str:
    found = values.get(name, default)
    if found not in choices:
        raise HandfulError(f"'{name}' should be one of {', '.join(choices)}")
    return str(found)


def truth(values: Mapping[str, Any], name: str) -> bool:
    found = values.get(name, False)
    if found in ("true", "1", True):
        return True
    if found in ("false", "0", "", False):
        return False
    raise HandfulError(f"'{name}' should be true or false")


def numbers(content: Mapping[str, Any], name: str = "images") -> list[int]:
    """A list of numbers of images."""
    found = content.get(name)
    if not isinstance(found, list) or not all(type(one) is int and 0 <= one < 1 << 31 for one in found):
        raise HandfulError(f"'{name}' should be a list of numbers of images")
    if len(found) > MOST_IMAGES:
        raise HandfulError(f"'{name}' has more than {MOST_IMAGES:,} numbers: use /api/labels/matching")
    return found


def text(content: Mapping[str, Any], name: str) -> str:
    """A name, without blanks around it."""
    found = content.get(name)
    if not isinstance(found, str) or not found.strip() or len(found) > 4 * MOST_LETTERS:
        raise HandfulError(f"'{name}' should be a name")
    return found.strip()


def _no_number(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
