"""``run:NAME``: the trained backbone of a run as an embedder.

CONV4 is computed by ONNX Runtime on a processor; on a graphics card, and for other backbones, PyTorch does it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from ..checkpoint import weight_fault
from ..errors import HandfulError
from ..machine import has_torch, need_torch
from .base import Embedder
from .conv4_graph import conv4_bytes, conv4_settings
from .runtime import RuntimeNetwork, kept_graph, runtime_for
from .shipped import run_folder
from .trained import PREFIX, run_arrays, run_settings


def from_run(model: str, device: str) -> Embedder:
    """The backbone of a run folder, or of a model that comes with handful, with its best weights."""
    folder, name = run_folder(model), f"run:{model}"
    settings = run_settings(folder)
    runtime = runtime_for(device if has_torch() or device != "auto" else "cpu")
    if runtime is not None and settings["backbone"] == "conv4":
        return _conv4(name, folder, settings, runtime)
    need_torch(f"{name} on {device}" if settings["backbone"] == "conv4" else f"the backbone of {folder}")
    from .networks import backbone_in_torch

    network: Embedder = backbone_in_torch(name, folder, device)
    return network


def _conv4(name: str, folder: Path, settings: dict[str, Any], runtime: Any) -> Embedder:
    found = conv4_settings(settings["channels"], settings["image_size"], settings["backbone_options"])
    weights = {key.removeprefix(PREFIX): value for key, value in run_arrays(folder).items() if key.startswith(PREFIX)}
    shapes = found.shapes()
    if unknown := sorted(weights.keys() ^ shapes.keys()):
        raise HandfulError(f"the weights in {folder} do not fit its settings: {unknown[0]} is one of them only")
    for key, shape in shapes.items():
        if (given := weights[key].shape) != shape:
            raise HandfulError(
                f"the weights in {folder} do not fit its settings: {key} has the shape {given}, not {shape}"
            )
        if fault := weight_fault(key, weights[key], learned=key.endswith(("weight", "bias", "directions", "gains"))):
            raise HandfulError(
                f"the weights in {folder} are nonsense ({key} {fault}): they were damaged, or the training diverged; "
                "train it anew"
            )
    digest = hashlib.sha256()
    for key in shapes:  # as PyTorch's form has it: their vectors go together
        digest.update(np.ascontiguousarray(weights[key]).tobytes())
    checksum = digest.hexdigest()[:16]
    # The same weights may stand for other networks: with other poolings, or for images of another size.
    about = f"conv4-{found.image_size}-{found.average_pool:d}{found.linear_output:d}" + "m" * found.mirror
    return RuntimeNetwork(name, checksum, kept_graph(about, checksum, lambda: conv4_bytes(weights, found)), runtime)
