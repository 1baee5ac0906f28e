"""CONV4 for ONNX Runtime: what the network is, and its graph with the weights of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import HandfulError
from .onnx_graph import FLOAT, UINT8, Graph

BLOCKS = 4
MOST_WIDTH = 1 << 16  # more filters than this is damage
EPSILON = 1e-5  # of its batch norms, as PyTorch has it
# Of a block, in PyTorch's order: the convolution's filters, and the batch norm's gains, shifts, means and variances.
PARTS = ("0.weight", "1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked")


class Conv4Settings(NamedTuple):
    """The arguments of :class:`.conv4.Conv4`, checked."""

    channels: int
    image_size: int
    width: int = 64
    average_pool: bool = False
    linear_output: bool = False
    mirror: bool = False
    whiten: int = 0

    def side(self) -> int:
        """The side of the feature maps that a vector flattens: four poolings, rounding down, and perhaps a fifth.

        Raises:
            HandfulError: if there is no such network.
        """
        if self.channels not in (1, 3):
            raise HandfulError(f"conv4 takes images of 1 or 3 channels, got {self.channels}")
        side = self.image_size // 16 // (2 if self.average_pool else 1)
        if self.image_size < 28 or side < 1:
            least, size = 32 if self.average_pool else 28, self.image_size
            raise HandfulError(f"conv4 takes images of {least} x {least} or more, got {size} x {size}")
        if self.whiten and not 0 < self.whiten <= (most := self.width * side * side):
            raise HandfulError(f"conv4 can whiten from 0 to {most} directions here, got {self.whiten}")
        return side

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every weight by its name, in the order of PyTorch's ``state_dict``.

        Example:
            >>> Conv4Settings(1, 28).shapes()["blocks.0.0.weight"]
            (64, 1, 3, 3)
        """
        found: dict[str, tuple[int, ...]] = {}
        for block in range(BLOCKS):
            inputs = self.width if block else self.channels
            for part in PARTS:
                shape = {"0.weight": (self.width, inputs, 3, 3), "1.num_batches_tracked": ()}.get(part, (self.width,))
                found[f"blocks.{block}.{part}"] = shape
        if self.whiten:
            found["whitening.directions"] = (self.whiten, self.width * self.side() ** 2)
            found["whitening.gains"] = (self.whiten,)
        return found


def conv4_settings(channels: int, image_size: int, options: Mapping[str, Any]) -> Conv4Settings:
    """The settings of a run's backbone; options of a wrong name or type are refused."""
    kinds = {"width": int, "average_pool": bool, "linear_output": bool, "mirror": bool, "whiten": int}
    for name, value in options.items():
        if name not in kinds:
            raise HandfulError(f"the backbone 'conv4' has no option '{name}': choose from {', '.join(kinds)}")
        if type(value) is not kinds[name]:
            raise HandfulError(f"the option '{name}' of conv4 should be {kinds[name].__name__}, got {value!r:.40}")
    found = Conv4Settings(channels, image_size, **options)
    if not 1 <= found.width <= MOST_WIDTH:
        raise HandfulError(f"conv4 has from 1 to {MOST_WIDTH} filters, got a width of {found.width}")
    found.side()
    return found


def conv4_bytes(weights: Mapping[str, NDArray[Any]], settings: Conv4Settings) -> bytes:
    """The network as an ONNX file: pixels (n, size, size, channels) uint8 -> vectors (n, dim).

    The batch norms are folded into the convolutions before them, and the scale of the pixels, 0 to 255 as -1 to 1, is
    part of the graph.
    """
    size = settings.image_size
    graph = Graph(("n", size, size, settings.channels), UINT8)
    if settings.mirror:  # after the images, their mirror images
        back = (graph.constant(np.array([entry], dtype=np.int64)) for entry in (-1, -size - 1, 2, -1))
        graph.add("Concat", graph.add("Slice", *back), of="images", axis=0)
    graph.add("Cast", to=FLOAT)
    graph.add("Div", graph.constant(np.array([127.5], dtype=np.float32)))
    graph.add("Sub", graph.constant(np.array([1.0], dtype=np.float32)))
    graph.add("Transpose", perm=(0, 3, 1, 2))
    for block in range(BLOCKS):
        filters, gain, shift, mean, variance = (
            np.asarray(weights[f"blocks.{block}.{part}"], dtype=np.float64) for part in PARTS[:-1]
        )
        gain = gain / np.sqrt(variance + EPSILON)
        folded = (filters * gain[:, None, None, None]).astype(np.float32), (shift - mean * gain).astype(np.float32)
        graph.add("Conv", *map(graph.constant, folded), kernel_shape=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1))
        graph.add("MaxPool", kernel_shape=(2, 2), strides=(2, 2))
        if block < BLOCKS - 1 or not settings.linear_output:
            graph.add("Relu")
    if settings.average_pool:
        graph.add("AveragePool", kernel_shape=(2, 2), strides=(2, 2))
    graph.add("Flatten", axis=1)
    dim = settings.width * settings.side() ** 2
    if settings.mirror:
        _join(graph, dim)
    if settings.whiten:
        directions, gains = (np.asarray(weights[f"whitening.{part}"], np.float32) for part in ("directions", "gains"))
        vectors = graph.last
        graph.add("MatMul", graph.constant(np.ascontiguousarray(directions.T * (gains - 1))))
        graph.add("MatMul", graph.constant(directions))
        graph.add("Add", vectors)
    return graph.to_bytes(("n", dim))


def _join(graph: Graph, dim: int) -> None:
    """Vectors (2 n, dim) of images and of their mirror images -> (n, dim): mean direction times mean length."""
    both = graph.add("Reshape", graph.constant(np.array([2, -1, dim], dtype=np.int64)))
    lengths = graph.add("ReduceL2", axes=(2,), keepdims=1)
    least = graph.constant(np.array(np.finfo(np.float32).tiny))
    graph.add("Div", graph.add("Clip", least), of=both)
    direction = graph.add("ReduceMean", axes=(0,), keepdims=0)
    graph.add("ReduceMean", of=lengths, axes=(0,), keepdims=0)
    graph.add("Mul", direction)
