"""Write networks as ONNX files: nodes, weights, and the few messages of the format (protobuf) that they need.

An ONNX file is a protobuf message: fields of a number and a kind, one after the other. Writing the dozen fields that a
chain of convolutions needs takes less than the package that knows all of them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

IR_VERSION, OPSET = 8, 17
FLOAT, UINT8, INT64 = 1, 2, 7  # element types
_TYPES = {np.dtype(np.float32): FLOAT, np.dtype(np.uint8): UINT8, np.dtype(np.int64): INT64}
Shape = Sequence[int | str]  # a name stands for any length


class Graph:
    """A network that is built node by node; the last tensor is the result.

    Args:
        shape, kind: of the input, which is called ``images``.
    """

    def __init__(self, shape: Shape, kind: int) -> None:
        self.last = "images"
        self._input = _value("images", kind, shape)
        self._nodes: list[bytes] = []
        self._weights: list[bytes] = []

    def constant(self, values: NDArray[Any]) -> str:
        """Weights; the name by which nodes refer to them."""
        name = f"w{len(self._weights)}"
        dims = b"".join(_number(1, side) for side in values.shape)
        raw = np.ascontiguousarray(values).tobytes()
        self._weights.append(dims + _number(2, _TYPES[values.dtype]) + _text(8, name) + _bytes(9, raw))
        return name

    def add(
        self, operation: str, *inputs: str, of: str | None = None, **attributes: int | float | Sequence[int]
    ) -> str:
        """A node on a tensor (the last one), and on further inputs; the name of its result."""
        self.last, before = f"t{len(self._nodes)}", of or self.last
        node = b"".join(_text(1, name) for name in (before, *inputs)) + _text(2, self.last) + _text(4, operation)
        self._nodes.append(node + b"".join(_bytes(5, _attribute(name, value)) for name, value in attributes.items()))
        return self.last

    def to_bytes(self, shape: Shape) -> bytes:
        """The file; ``shape`` is that of the result."""
        graph = (
            b"".join(_bytes(1, node) for node in self._nodes)
            + _text(2, "handful")
            + b"".join(_bytes(5, tensor) for tensor in self._weights)
            + _bytes(11, self._input)
            + _bytes(12, _value(self.last, FLOAT, shape))
        )
        return _number(1, IR_VERSION) + _text(2, "handful") + _bytes(7, graph) + _bytes(8, _number(2, OPSET))


def _value(name: str, kind: int, shape: Shape) -> bytes:
    sides = (_text(2, side) if isinstance(side, str) else _number(1, side) for side in shape)
    tensor = _number(1, kind) + _bytes(2, b"".join(_bytes(1, side) for side in sides))
    return _text(1, name) + _bytes(2, _bytes(1, tensor))


def _attribute(name: str, value: int | float | Sequence[int]) -> bytes:
    if isinstance(value, float):
        return _text(1, name) + _varint(2 << 3 | 5) + struct.pack("<f", value) + _number(20, 1)
    if isinstance(value, int):
        return _text(1, name) + _number(3, value) + _number(20, 2)
    return _text(1, name) + b"".join(_number(8, entry) for entry in value) + _number(20, 7)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    """A number in groups of seven bits, the lowest first; negative ones as 64 bits.

    >>> _varint(300).hex()
    'ac02'
    """
    value &= (1 << 64) - 1
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])
