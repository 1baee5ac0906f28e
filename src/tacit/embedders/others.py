"""Embedders that need more than tacit: timm, ONNX, and a function of the user's own. Imported only when asked for.

A function of your own takes images (n, size, size, 3) uint8 and gives vectors (n, dim). It may have attributes
``image_size`` (224 if not), ``channels`` (3) and ``version``: change it when the vectors change, as they are kept.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import TacitError
from .base import Pixels, Vectors
from .networks import Network

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Function:
    """A function from pixels to vectors, as an embedder."""

    def __init__(
        self, name: str, key: str, function: Callable[[Pixels], Any], image_size: int = 224, channels: int = 3
    ) -> None:
        self.name, self.key, self.image_size, self.channels = name, key, image_size, channels
        self._function = function
        self.dim = self.embed(np.zeros((1, image_size, image_size, channels), dtype=np.uint8)).shape[1]

    def embed(self, images: Pixels) -> Vectors:
        vectors = np.asarray(self._function(images), dtype=np.float32)
        if vectors.ndim != 2 or len(vectors) != len(images):
            raise TacitError(
                f"the embedder {self.name} should give ({len(images)}, dim) vectors for {len(images)} images, got "
                f"{vectors.shape}"
            )
        return vectors


def own(module: str, attribute: str) -> Function:
    """``module:callable``, looked for where Python looks for modules, and in the current folder."""
    name = f"{module}:{attribute}"
    if (here := os.getcwd()) not in sys.path:  # noqa: PTH109 - sys.path is of strings
        sys.path.append(here)
    try:
        function = getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise TacitError(f"cannot import the embedder {name}: {error}") from error
    except AttributeError:
        raise TacitError(f"the module {module} has no '{attribute}'") from None
    version = getattr(function, "version", "")
    return Function(
        name, f"{name}-{version}", function, getattr(function, "image_size", 224), getattr(function, "channels", 3)
    )


def from_timm(model: str, device: str) -> Network:
    """``timm:NAME``: a pretrained model of timm, with the size and normalisation that it was trained with."""
    timm = _imported("timm", "timm")
    try:
        network = timm.create_model(model, pretrained=True, num_classes=0)
        config = timm.data.resolve_model_data_config(network)
    except Exception as error:  # an unknown name, no network, ...
        raise TacitError(f"timm cannot give the model '{model}': {str(error).splitlines()[0]}") from error
    prepare = _normalised(config["mean"], config["std"])
    return Network(f"timm:{model}", network, config["input_size"][-1], 3, prepare, device)


def from_onnx(file: str, device: str) -> Function:
    """``onnx:FILE``: one input (n, 3, size, size), normalised as is usual for ImageNet; the first output is taken."""
    runtime = _imported("onnxruntime", "onnxruntime")
    if not Path(file).is_file():
        raise TacitError(f"there is no ONNX file at {file}")
    try:
        session = runtime.InferenceSession(file, providers=runtime.get_available_providers())
    except Exception as error:
        raise TacitError(f"{file} is not an ONNX model that onnxruntime can read: {error}") from error
    (source, *others) = session.get_inputs()
    size = source.shape[-1] if isinstance(source.shape[-1], int) else 224
    if others or len(source.shape) != 4 or source.shape[1] != 3:
        raise TacitError(f"{file} should take one input of shape (n, 3, size, size), got {source.shape}")
    mean, std = (np.array(values, dtype=np.float32)[:, None, None] for values in (IMAGENET_MEAN, IMAGENET_STD))

    def run(images: Pixels) -> Vectors:
        pixels = (images.transpose(0, 3, 1, 2).astype(np.float32) / 255 - mean) / std
        found = np.asarray(session.run(None, {source.name: pixels})[0], dtype=np.float32)
        return found.reshape(len(found), -1) if found.ndim == 2 else found.mean(axis=tuple(range(2, found.ndim)))

    weights = hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]
    return Function(f"onnx:{file}", f"onnx-{weights}", run, size)


def _normalised(mean: Any, std: Any) -> Callable[[Any], Any]:
    import torch

    shift, scale = (torch.tensor(values)[:, None, None] for values in (mean, std))
    return lambda images: (images.permute(0, 3, 1, 2).float() / 255 - shift.to(images.device)) / scale.to(images.device)


def _imported(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise TacitError(f"this embedder needs {package}: pip install {package}") from error
