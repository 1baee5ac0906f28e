"""Images that are read on the way: with their content, or with the reason why it is refused."""

from __future__ import annotations

from functools import partial

from ..errors import HandfulError
from .base import Item
from .images import BrokenImage


class Damaged(HandfulError):  # noqa: N818 - reads better
    """A source that cannot be read further, for good: its images up to there are sound."""


def ready(name: str, content: bytes) -> Item:
    """An image whose content is at hand."""
    return Item(name, 0, partial(_given, content))


def refused(name: str, reason: str) -> Item:
    """An image that is not read."""
    return Item(name, 0, partial(_raise, reason))


def _given(content: bytes) -> bytes:
    return content


def _raise(reason: str) -> bytes:
    raise BrokenImage(reason)
