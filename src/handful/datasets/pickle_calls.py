"""What a pickle may call: the functions that numpy, Python and `collections` write into pickles of plain data.

Nothing here is the function that the pickle names. Each is looked up in `CALLS` and builds an array, a dtype, bytes or
a dict from operands that are checked; any other name is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np


class Refused(Exception):  # noqa: N818 - never leaves the reader
    """What the pickle asked for and does not get."""


class Damaged(Exception):  # noqa: N818 - never leaves the reader
    """Not a pickle, or not all of one."""


class Global:
    """A function or class that the pickle names; `CALLS` says what a call of it means."""

    def __init__(self, name: str) -> None:
        self.name = name


class Dtype:
    """A numpy dtype before its byte order is known."""

    def __init__(self, code: Any) -> None:
        self.code, self.order = name_text(code), "|"

    def to_numpy(self) -> np.dtype[Any]:
        kind, size = self.code[:1], self.code[1:]
        if kind == "O":
            return np.dtype(object)
        if kind not in "biufSU" or not size.isdecimal() or len(size) > 6 or (kind in "biuf" and int(size) > 8):
            raise Refused(f"an array of type '{self.code}'")
        return np.dtype(self.order + self.code)


class Array:
    """An array between the instruction that announces it and the one that fills it."""

    memo: int | None = None


def text(value: Any) -> Any:
    """A string of any Python as ``str``; anything else as it is."""
    if isinstance(value, bytes | memoryview):
        return bytes(value).decode("utf-8", "backslashreplace")
    return value


def name_text(value: Any) -> str:
    """What should be a name, as text."""
    value = text(value)
    if not isinstance(value, str):
        raise Damaged("a name is missing")
    return value


def make_array(elements: Any, dtype: Any, shape: Any, order: Any = "C") -> np.ndarray[Any, Any]:
    """An array of numbers or text on the bytes of its elements, or one of objects on a list of them."""
    if not isinstance(dtype, Dtype) or not isinstance(shape, tuple) or len(shape) > 8 or order not in ("C", "F"):
        raise Damaged("an array that is none")
    if not all(isinstance(side, int) and side >= 0 for side in shape):
        raise Damaged("an array with a shape that is none")
    if 0 in shape and max(shape) > 1 << 16:  # a loop over nothing, for ever
        raise Damaged("an empty array of many rows")
    kind = dtype.to_numpy()
    if kind == np.dtype(object):
        if not isinstance(elements, list) or len(elements) != math.prod(shape):
            raise Damaged("an array of objects that is none")
        if any(isinstance(element, np.ndarray) and element.dtype == object for element in elements):
            raise Refused("an array of objects inside another")  # numpy frees them by recursion, until the stack ends
        array = np.empty(len(elements), dtype=object)
        for index, element in enumerate(elements):
            array[index] = element
    else:
        if not isinstance(elements, bytes | memoryview) or len(elements) != math.prod(shape) * kind.itemsize:
            raise Damaged("an array whose size is not that of its elements")
        array = np.frombuffer(elements, dtype=kind) if kind.itemsize and len(elements) else np.empty(0, kind)
        if kind.kind == "U" and array.view(kind.str[0] + "u4").max(initial=0) > 0x10FFFF:
            raise Damaged("text of characters that do not exist")
    return array.reshape(shape, order=order)


def _scalar(dtype: Dtype, elements: Any) -> Any:
    return make_array(elements, dtype, ()).item()


def _encode(value: Any, encoding: Any = "latin1") -> bytes:
    """Python 3 writes bytes in the protocols of Python 2 as text to be encoded."""
    if not isinstance(value, str) or encoding not in ("latin1", "latin-1"):
        raise Refused("text in another encoding than latin1")
    return value.encode("latin1")


CALLS: dict[str, Callable[..., Any]] = {
    **{f"numpy.{core}.multiarray._reconstruct": lambda *_: Array() for core in ("core", "_core")},
    **{f"numpy.{core}.multiarray.scalar": _scalar for core in ("core", "_core")},
    **{f"numpy.{core}.numeric._frombuffer": make_array for core in ("core", "_core")},
    "numpy.dtype": lambda code, *_: Dtype(code),
    "_codecs.encode": _encode,
    "collections.OrderedDict": lambda: {},
    "collections.defaultdict": lambda *_: {},
    **{f"{module}.bytes": lambda: b"" for module in ("builtins", "__builtin__")},
}
# Named by the calls above, never called themselves.
NAMES = {"numpy.ndarray", "builtins.list", "__builtin__.list", "builtins.int", "__builtin__.int"}
