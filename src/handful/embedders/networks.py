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

from ..checkpoint import load_weights
from ..errors import HandfulError
from ..machine import compute_device
from .backbones import build_backbone, for_inference, to_input
from .base import Pixels, Vectors, reason
from .efficientnet_lite import MEAN, SCALE, Variant
from .efficientnet_torch import EfficientNetLite, from_public_names
from .trained import PREFIX, run_arrays, run_settings


class Network:
    """A network that maps normalised pixels to vectors, as an embedder.

    On a processor that computes in bfloat16 it may: the vectors differ in the third digit, which changes no answer that
    could be trusted, and take less than half the time.
    """

    any_thread, crop = True, False

    def __init__(
        self, name: str, network: nn.Module, image_size: int, channels: int, prepare: Callable[[Tensor], Tensor],
        device: str, *, bfloat16: bool = False, prepared: str = "",
    ) -> None:  # fmt: skip
        self.name, self.image_size, self.channels = name, image_size, channels
        self._device = compute_device(device)
        self._network = for_inference(network).to(self._device)
        self._prepare, self.bfloat16 = prepare, bfloat16
        digest = _digest(network)
        self.weights = f"{prepared}-{digest}" if prepared else digest  # what vectors depend on but for rounding
        self.key = f"{name}-{prepared}-{'bfloat16' if bfloat16 else 'float32'}-{digest}"
        empty = np.zeros((1, image_size, image_size, channels), dtype=np.uint8)
        self.dim = int(self.embed(empty).shape[1])

    def embed(self, images: Pixels) -> Vectors:
        with torch.inference_mode(), torch.autocast(self._device.type, torch.bfloat16, enabled=self.bfloat16):
            vectors: Tensor = self._network(self._prepare(torch.from_numpy(images).to(self._device)))
        return vectors.float().cpu().numpy()


def backbone_in_torch(name: str, folder: Path, device: str) -> Network:
    """The backbone of a run by PyTorch: on a graphics card, or of a kind that has no other form."""
    settings = run_settings(folder)
    size, channels = settings["image_size"], settings["channels"]
    try:
        backbone = build_backbone(settings["backbone"], channels, size, **settings["backbone_options"])
    except HandfulError:
        raise
    except Exception as error:  # settings that no network can have: a width of -3 or of ten million, ...
        raise HandfulError(f"{folder} is no run that can be used: {reason(error)}") from error
    tensors = {key: torch.tensor(value) for key, value in run_arrays(folder).items() if key.startswith(PREFIX)}
    load_weights(backbone, tensors, PREFIX, folder)
    return Network(name, backbone, size, channels, to_input, device)


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
