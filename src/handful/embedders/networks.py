"""Embedders that run a network of this package: backbones of runs, and EfficientNet-Lite with its public weights."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..datasets.images import printable
from ..errors import HandfulError
from ..machine import compute_device
from .backbones import for_inference, to_input
from .base import Pixels, Vectors, reason
from .efficientnet_lite import MEAN, SCALE, Variant
from .efficientnet_torch import EfficientNetLite, from_public_names
from .shipped import model_folder, models
from .trained import load_backbone

RUN_KINDS = ("run", "conv4")  # the second is the name from before there were other backbones


class Network:
    """A network that maps normalised pixels to vectors, as an embedder.

    On a processor that computes in bfloat16 it may: the vectors differ in the third digit, which changes no answer that
    could be trusted, and take less than half the time.
    """

    def __init__(
        self, name: str, network: nn.Module, image_size: int, channels: int, prepare: Callable[[Tensor], Tensor],
        device: str, *, bfloat16: bool = False, prepared: str = "",
    ) -> None:  # fmt: skip
        self.name, self.image_size, self.channels = name, image_size, channels
        self._device = compute_device(device)
        self._network = for_inference(network).to(self._device)
        self._prepare, self._half = prepare, bfloat16
        digest = _digest(network)
        self.weights = f"{prepared}-{digest}" if prepared else digest  # what vectors depend on but for rounding
        self.key = f"{name}-{prepared}-{'bfloat16' if bfloat16 else 'float32'}-{digest}"
        empty = np.zeros((1, image_size, image_size, channels), dtype=np.uint8)
        self.dim = int(self.embed(empty).shape[1])

    def embed(self, images: Pixels) -> Vectors:
        with torch.inference_mode(), torch.autocast(self._device.type, torch.bfloat16, enabled=self._half):
            vectors: Tensor = self._network(self._prepare(torch.from_numpy(images).to(self._device)))
        return vectors.float().cpu().numpy()


def trained_backbone(model: str, device: str) -> Network:
    """``run:NAME``: the backbone of a run folder, or of a model that comes with handful."""
    network, size, channels = load_backbone(_model_of(model))
    return Network(f"run:{model}", network, size, channels, to_input, device)


def run_of(embedder: str) -> Path | None:
    """The folder of the run behind ``run:NAME`` or ``conv4:NAME``; None if the embedder is not a run's.

    Example:
        >>> run_of("run:glyphs").name, run_of("conv4:tac-glyphs").name, run_of("efficientnet-lite0")
        ('tac-glyphs', 'tac-glyphs', None)
    """
    kind, _, model = embedder.partition(":")
    return _model_of(model) if kind in RUN_KINDS else None


def _model_of(name: str) -> Path:
    """The folder of a run, or of a model that comes with handful, where ``tac-`` may be left out."""
    if not name:
        raise HandfulError("run: needs a run folder or a model behind the colon, as in run:omniglot")
    shipped = f"tac-{name}"
    try:
        Path(name).stat()
    except (FileNotFoundError, NotADirectoryError):
        return model_folder(shipped if shipped in models() else name)
    except (OSError, ValueError) as error:  # a name that no folder can have, or one that may not be looked at
        raise HandfulError(f"run:{printable(name)} is not a run folder: {reason(error)}") from error
    return Path(name)


def lite_in_torch(name: str, weights: Mapping[str, NDArray[Any]], variant: Variant, device: str) -> Network:
    """EfficientNet-Lite by PyTorch: on a graphics card, or where there is no ONNX Runtime."""
    network = EfficientNetLite(variant)
    network.load_state_dict(from_public_names(weights, network))
    half = torch.backends.cpu.get_cpu_capability().startswith("AVX512") and compute_device(device).type == "cpu"
    return Network(name, network, variant.image_size, 3, _as_tensorflow, device, bfloat16=half)


def _as_tensorflow(images: Tensor) -> Tensor:
    """Pixels as the network was trained with them: (n, h, w, 3) uint8 -> (n, 3, h, w), about -1 to 1."""
    return images.permute(0, 3, 1, 2).float().sub_(MEAN).div_(SCALE)


def _digest(network: nn.Module) -> str:
    digest = hashlib.sha256()
    for value in network.state_dict().values():
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
