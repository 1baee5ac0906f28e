"""Embedders from timm and ONNX Runtime, each imported on first use, and embedders from any Python function."""

from __future__ import annotations

import hashlib
import importlib
import operator
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..datasets.images import printable
from ..errors import HandfulError
from ..machine import need_torch
from .base import MOST_SIZE, Pixels, Vectors, reason

if TYPE_CHECKING:
    from .networks import Network

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
ONNX_TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64,
              "tensor(uint8)": np.uint8}  # fmt: skip
PROVIDERS = {"cpu": ["CPU"], "cuda": ["CUDA", "ROCM"], "mps": ["CoreML"]}  # of ONNX Runtime, by PyTorch's devices


class Function:
    """A function from pixels to vectors, as an embedder."""

    def __init__(
        self, name: str, key: str, function: Callable[[Pixels], Any], image_size: Any = 224, channels: Any = 3
    ) -> None:
        self.name, self.key, self._function = name, key, function
        self.image_size, self.channels = _whole(image_size), _whole(channels)
        if not 1 <= self.image_size <= MOST_SIZE:
            raise HandfulError(
                f"the embedder {name} has image_size {image_size!r}: it should be a whole number from 1 to {MOST_SIZE}"
            )
        if self.channels not in (1, 3):
            raise HandfulError(f"the embedder {name} has channels {channels!r}: it should be 3, or 1 for grey images")
        self.dim = 0  # not known yet
        self.dim = self.embed(np.zeros((1, self.image_size, self.image_size, self.channels), dtype=np.uint8)).shape[1]

    def embed(self, images: Pixels) -> Vectors:
        try:
            vectors = np.asarray(self._function(images))
        except (Exception, SystemExit) as error:
            raise HandfulError(f"the embedder {self.name} fails: {reason(error)}") from error
        # Numbers only: texts and objects could be turned into some, and of complex ones a part would be lost.
        right = vectors.ndim == 2 and len(vectors) == len(images) and vectors.dtype.kind in "fiub" and vectors.size > 0
        if not right or (self.dim and vectors.shape[1] != self.dim):
            raise HandfulError(
                f"the embedder {self.name} should give numbers of shape ({len(images)}, {self.dim or 'dim'}) for "
                f"{len(images)} images, got {vectors.dtype} of shape {vectors.shape}"
            )
        with np.errstate(over="ignore"):  # what is too large for float32 is not finite there, and refused
            return vectors.astype(np.float32, copy=False)


def from_timm(model: str, device: str) -> Network:
    """``timm:NAME``: a pretrained model of timm, with the size and normalisation that it was trained with."""
    timm, name = imported("timm"), printable(f"timm:{model}")
    need_torch(name)
    from .networks import Network

    try:
        network = timm.create_model(model, pretrained=True, num_classes=0)
        config = timm.data.resolve_model_data_config(network)
        (channels, height, width), mean, std = config["input_size"], tuple(config["mean"]), tuple(config["std"])
    except Exception as error:  # an unknown name, no network, ...
        raise HandfulError(f"timm cannot give the model '{printable(model)}': {reason(error)}") from error
    if channels != 3 or height != width:
        raise HandfulError(f"{name} takes images of {height} x {width} x {channels}: only square RGB images will do")
    try:
        return Network(name, network, width, 3, normalised(mean, std), device, prepared=f"{mean}-{std}")
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise HandfulError(f"the embedder {name} fails: {reason(error)}") from error


def from_onnx(file: str, device: str) -> Function:
    """``onnx:FILE``: one input of square RGB images, (n, 3, size, size) or (n, size, size, 3), of any or a fixed n.

    Floats are normalised as is usual for ImageNet; uint8 gets the pixels as they are. Of the first output (n, dim),
    tokens (n, tokens, dim) and feature maps, (n, dim, height, width) or with the features last if those of the input
    are, are averaged.
    """
    runtime, name = imported("onnxruntime"), printable(f"onnx:{file}")
    if not _is_file(file):
        raise HandfulError(f"there is no ONNX file at {printable(file)}")
    providers = _providers(runtime.get_available_providers(), device)
    try:
        session = runtime.InferenceSession(file, providers=providers)
        inputs, output = session.get_inputs(), session.get_outputs()[0].name
    except Exception as error:
        raise HandfulError(f"{name} is not an ONNX model that onnxruntime can read: {reason(error)}") from error
    shapes = " and ".join(f"{found.type} {_shown(found.shape)}" for found in inputs) or "none"
    if len(inputs) != 1 or len(inputs[0].shape or ()) != 4 or inputs[0].type not in ONNX_TYPES:
        raise HandfulError(f"{name} should take one input (n, 3, size, size) of floats or uint8, got {shapes}")
    (source,) = inputs
    batch, *image = (side if isinstance(side, int) and side > 0 else None for side in source.shape)  # None: any
    channels_last = image[0] != 3 and image[2] == 3
    channels, height, width = (image[2], *image[:2]) if channels_last else image
    if channels not in (3, None) or (height or width) != (width or height):
        raise HandfulError(
            f"{name} should take square RGB images (n, 3, size, size) or (n, size, size, 3), got {shapes}"
        )
    mean, std = (np.array(values, dtype=np.float32) for values in (IMAGENET_MEAN, IMAGENET_STD))
    kind = ONNX_TYPES[source.type]

    def run(images: Pixels) -> Vectors:
        pixels = images if kind == np.uint8 else ((images.astype(np.float32) / 255 - mean) / std).astype(kind)
        pixels = np.ascontiguousarray(pixels if channels_last else pixels.transpose(0, 3, 1, 2))
        size = batch or len(pixels)
        padded = np.concatenate([pixels, np.zeros_like(pixels[:1]).repeat(-len(pixels) % size, axis=0)])
        found = []
        for start in range(0, len(padded), size):
            given = session.run([output], {source.name: padded[start : start + size]})[0]
            found.append(_pooled(given, size, channels_last))
        return np.concatenate(found)[: len(pixels)]

    return Function(name, f"onnx-{_weights(Path(file))}", run, height or width or 224)


def _providers(available: list[str], device: str) -> list[Any]:
    """What ONNX Runtime is to compute on, by PyTorch's name of the device; the processor does what that cannot."""
    if device == "auto":
        return available
    kind, _, number = device.partition(":")
    wanted = [f"{name}ExecutionProvider" for name in PROVIDERS.get(kind, [])]
    chosen = next((one for one in wanted if one in available), None)
    if chosen is None:
        there = ", ".join(one.removesuffix("ExecutionProvider") for one in available)
        raise HandfulError(
            f"onnxruntime cannot compute on '{printable(device)}', only on {there}: leave out --device, or install "
            "another onnxruntime"
        )
    return [(chosen, {"device_id": number}) if number else chosen, *["CPUExecutionProvider"] * (kind != "cpu")]


def _pooled(found: Any, count: int, channels_last: bool) -> Vectors:
    """Pool a network's output to (n, dim): the average over tokens (n, tokens, dim) or over a feature map."""
    over = {2: (), 3: (1,), 4: (1, 2) if channels_last else (2, 3)}
    if not isinstance(found, np.ndarray) or found.dtype.kind != "f" or found.ndim not in over:
        got = f"{found.dtype} of shape {found.shape}" if isinstance(found, np.ndarray) else f"a {type(found).__name__}"
        raise ValueError(f"its first output should be floats (n, dim), (n, tokens, dim) or a feature map, got {got}")
    if len(found) != count:
        raise ValueError(f"its first output has {len(found)} rows for {count} images")
    return np.asarray(found.astype(np.float32, copy=False).mean(axis=over[found.ndim]))


def _weights(file: Path) -> str:
    """Hash an ONNX file together with the external weight files that it refers to."""
    content = file.read_bytes()
    digest = hashlib.sha256(content)
    for match in re.finditer(rb"\x0a\x08location\x12([\x00-\x7f]|[\x80-\xff][\x00-\x7f])", content):
        length = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(match[1]))
        beside = file.parent / content[match.end() : match.end() + length].decode(errors="replace")
        if _is_file(str(beside)):
            with beside.open("rb") as opened:
                while block := opened.read(1 << 22):
                    digest.update(block)
    return digest.hexdigest()[:16]


def _shown(shape: Any) -> str:
    return "(" + ", ".join(str(side) if isinstance(side, int | str) else "?" for side in shape or ()) + ")"


def _whole(value: Any) -> int:
    """Convert a Python or NumPy integer to int; anything else, a bool included, gives -1."""
    try:
        return -1 if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        return -1


def _is_file(file: str) -> bool:
    try:
        return Path(file).is_file()
    except (OSError, ValueError):  # a name that no file can have
        return False


def normalised(mean: Any, std: Any, scale: float = 1 / 255) -> Callable[[Any], Any]:
    """A function of pixels (n, size, size, 3) uint8 that gives (scale * pixels - mean) / std, (n, 3, size, size)."""
    import torch

    shift, width = (torch.tensor(values)[:, None, None] for values in (mean, std))
    return lambda images: (
        (images.permute(0, 3, 1, 2).float() * scale - shift.to(images.device)) / width.to(images.device)
    )


def imported(package: str) -> Any:
    """A package that is no requirement of handful; what to install if it is not there."""
    try:
        return importlib.import_module(package)
    except Exception as error:  # also of a package that is there, and broken
        if isinstance(error, ModuleNotFoundError) and error.name == package:
            raise HandfulError(f"this embedder needs {package}: pip install {package}") from error
        raise HandfulError(f"cannot import {package}: {reason(error)}") from error
