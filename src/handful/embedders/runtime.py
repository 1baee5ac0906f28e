"""Embedders computed by ONNX Runtime on the processor: networks of this package, as graphs that it writes itself."""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np

from ..datasets.cache import cache_root, write_cache
from ..errors import HandfulError
from ..machine import may_have_graphics
from .base import Pixels, Vectors

FORMAT = 1  # part of every kept graph's name: raise it when the graphs that are written change
# Of the images of a call: with more, what passes between layers no longer fits a core's cache.
PIXELS_AT_ONCE = 4 * 224 * 224
CHECKSUM = 32  # bytes


class RuntimeNetwork:
    """A network in float32: one core for a few images, as many of these at once as there are cores.

    Args:
        name: as the user named it.
        weights: a checksum of them, equal to that of the form for PyTorch: their vectors go together.
        graph: an ONNX file from pixels (n, size, size, channels) uint8, called ``images``, to vectors (n, dim).
        runtime: the module ``onnxruntime``.
    """

    any_thread, crop = True, False

    def __init__(self, name: str, weights: str, graph: bytes, runtime: Any) -> None:
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = runtime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        self.name, self.weights, self.key = name, weights, f"{name}-onnx-{weights}"
        _, self.image_size, _, self.channels = self._session.get_inputs()[0].shape
        self.dim = self._session.get_outputs()[0].shape[1]

    def embed(self, images: Pixels) -> Vectors:
        parts = self._parts(images)
        threads = int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)
        if threads == 1 or len(parts) == 1:
            return self.embed_alone(images)
        with ThreadPoolExecutor(min(threads, len(parts))) as pool:
            return np.concatenate(list(pool.map(self._run, parts)))

    def embed_alone(self, images: Pixels) -> Vectors:
        """The same numbers, computed by the calling thread: for whoever has a thread for each batch."""
        return np.concatenate([self._run(part) for part in self._parts(images)])

    def _parts(self, images: Pixels) -> list[Pixels]:
        step = max(1, PIXELS_AT_ONCE // self.image_size**2)
        return [images[start : start + step] for start in range(0, len(images), step)]

    def _run(self, images: Pixels) -> Vectors:
        found: Vectors = self._session.run(None, {"images": np.ascontiguousarray(images)})[0]
        return found


def runtime_for(device: str) -> Any:
    """The module ``onnxruntime``, if it is there and this device is a processor."""
    if device != "cpu" and (device != "auto" or may_have_graphics()):
        return None
    try:
        return importlib.import_module("onnxruntime")
    except Exception:  # not there, or not for this machine
        return None


def kept_graph(name: str, weights: str, write: Callable[[], bytes]) -> bytes:
    """The graph of a network with these weights: written once, and kept in the cache behind its checksum."""
    path = cache_root() / "networks" / f"{name}-{weights}-{FORMAT}.onnx"
    with suppress(OSError):  # none is kept, or it may not be read
        content = path.read_bytes()
        if hashlib.sha256(content[CHECKSUM:]).digest() == content[:CHECKSUM]:
            return content[CHECKSUM:]
    graph = write()
    with suppress(HandfulError):  # a cache that cannot be written costs time, and nothing else
        write_cache(path, hashlib.sha256(graph).digest() + graph)
    return graph
