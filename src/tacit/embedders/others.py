"""Embedders that need more than tacit: timm and ONNX. Imported only when asked for. And any function as an embedder."""

from __future__ import annotations

import hashlib
import importlib
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..datasets.images import printable
from ..errors import TacitError
from .base import MOST_SIZE, Pixels, Vectors, reason
from .networks import Network

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Function:
    """A function from pixels to vectors, as an embedder."""

    def __init__(
        self, name: str, key: str, function: Callable[[Pixels], Any], image_size: Any = 224, channels: Any = 3
    ) -> None:
        self.name, self.key, self._function = name, key, function
        self.image_size, self.channels = _whole(image_size), _whole(channels)
        if not 1 <= self.image_size <= MOST_SIZE:
            raise TacitError(
                f"the embedder {name} has image_size {image_size!r}: it should be a whole number from 1 to {MOST_SIZE}"
            )
        if self.channels not in (1, 3):
            raise TacitError(f"the embedder {name} has channels {channels!r}: it should be 3, or 1 for grey images")
        self.dim = 0  # not known yet
        self.dim = self.embed(np.zeros((1, self.image_size, self.image_size, self.channels), dtype=np.uint8)).shape[1]

    def embed(self, images: Pixels) -> Vectors:
        try:
            vectors = np.asarray(self._function(images))
        except (Exception, SystemExit) as error:
            raise TacitError(f"the embedder {self.name} fails: {reason(error)}") from error
        # Numbers only: texts and objects could be turned into some, and of complex ones a part would be lost.
        right = vectors.ndim == 2 and len(vectors) == len(images) and vectors.dtype.kind in "fiub" and vectors.size > 0
        if not right or (self.dim and vectors.shape[1] != self.dim):
            raise TacitError(
                f"the embedder {self.name} should give numbers of shape ({len(images)}, {self.dim or 'dim'}) for "
                f"{len(images)} images, got {vectors.dtype} of shape {vectors.shape}"
            )
        with np.errstate(over="ignore"):  # what is too large for float32 is not finite there, and refused
            return vectors.astype(np.float32, copy=False)


def from_timm(model: str, device: str) -> Network:
    """``timm:NAME``: a pretrained model of timm, with the size and normalisation that it was trained with."""
    timm, name = _imported("timm"), printable(f"timm:{model}")
    try:
        network = timm.create_model(model, pretrained=True, num_classes=0)
        config = timm.data.resolve_model_data_config(network)
        (channels, height, width), mean, std = config["input_size"], tuple(config["mean"]), tuple(config["std"])
    except Exception as error:  # an unknown name, no network, ...
        raise TacitError(f"timm cannot give the model '{printable(model)}': {reason(error)}") from error
    if channels != 3 or height != width:
        raise TacitError(f"{name} takes images of {height} x {width} x {channels}: only square RGB images will do")
    try:
        return Network(name, network, width, 3, _normalised(mean, std), device, prepared=f"{mean}-{std}")
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise TacitError(f"the embedder {name} fails: {reason(error)}") from error


def from_onnx(file: str, device: str) -> Function:
    """``onnx:FILE``: one input (n, 3, size, size), normalised as is usual for ImageNet; the first output is taken."""
    runtime = _imported("onnxruntime")
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


def _whole(value: Any) -> int:
    """A whole number, also of numpy's; -1 for all else, True among it."""
    try:
        return -1 if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        return -1


def _normalised(mean: Any, std: Any) -> Callable[[Any], Any]:
    import torch

    shift, scale = (torch.tensor(values)[:, None, None] for values in (mean, std))
    return lambda images: (images.permute(0, 3, 1, 2).float() / 255 - shift.to(images.device)) / scale.to(images.device)


def _imported(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except Exception as error:  # also of a package that is there, and broken
        if isinstance(error, ModuleNotFoundError) and error.name == package:
            raise TacitError(f"this embedder needs {package}: pip install {package}") from error
        raise TacitError(f"cannot import {package}: {reason(error)}") from error
