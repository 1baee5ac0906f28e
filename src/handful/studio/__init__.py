"""``handful studio``: label images in a browser, where each label teaches the rest; `Session`: the same in Python."""

from ..labelling.session import Session

__all__ = ["Session"]
