"""What is read of a run folder for its trained backbone: four of the settings, and the weights; without PyTorch.

A run folder is written by :mod:`handful.runs`, which stands above embedders.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checkpoint import load_arrays, weight_fault
from ..errors import HandfulError
from ..io import read_object
from .base import MOST_SIZE

PREFIX, REFERENCES = "model.backbone.", "model.method.references"
_NEEDED: dict[str, Any] = {"backbone": str, "backbone_options": dict, "channels": int, "image_size": int}


def run_settings(folder: Path) -> dict[str, Any]:
    """The settings of a run that its backbone depends on."""
    path = folder / "config.json"
    if not path.is_file():
        raise HandfulError(f"{folder} is not a run folder: it has no config.json")
    content = read_object(path)
    for name, kind in _NEEDED.items():
        value = content.get(name)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise HandfulError(f"{path} is not the settings of a run: {name} should be {kind.__name__}")
    if (size := content["image_size"]) > MOST_SIZE:
        raise HandfulError(f"{folder} takes images of {size}, more than the {MOST_SIZE} of an embedder")
    return {name: content[name] for name in _NEEDED}


def learned_references(folder: Path) -> NDArray[np.float32] | None:
    """The reference vectors (ways, dim) that the method of a run has learned, if it has any."""
    return run_arrays(folder).get(REFERENCES)


def run_arrays(folder: Path) -> dict[str, NDArray[Any]]:
    """All tensors of a run's best checkpoint."""
    if not (folder / "checkpoint" / "best.json").exists():
        raise HandfulError(f"{folder} has no weights (checkpoint/best.json is missing): train it")
    arrays, _ = load_arrays(folder / "checkpoint", "best")
    for name, value in arrays.items():
        if name.startswith(PREFIX):
            continue  # held to more when they are used
        if fault := weight_fault(name, value, learned=name == REFERENCES):
            raise HandfulError(f"the weights in {folder} are nonsense ({name} {fault}): train it anew")
    return arrays
