"""The trained backbone of a run, read from its folder without the rest of the run.

A run folder is written by :mod:`handful.runs`, which stands above embedders; all that is needed of it here is four of
its settings and the tensors of its backbone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..checkpoint import load_checkpoint, load_weights, weight_fault
from ..errors import HandfulError
from ..io import read_object
from .backbones import build_backbone
from .base import MOST_SIZE, reason

_PREFIX, _REFERENCES = "model.backbone.", "model.method.references"
_NEEDED: dict[str, Any] = {"backbone": str, "backbone_options": dict, "channels": int, "image_size": int}


def load_backbone(folder: Path) -> tuple[nn.Module, int, int]:
    """The backbone of a run folder with its best weights; the size and the channels of the images that it takes."""
    settings = _settings(folder)
    size, channels = settings["image_size"], settings["channels"]
    if size > MOST_SIZE:
        raise HandfulError(f"{folder} takes images of {size}, more than the {MOST_SIZE} of an embedder")
    try:
        backbone = build_backbone(settings["backbone"], channels, size, **settings["backbone_options"])
    except HandfulError:
        raise
    except Exception as error:  # settings that no network can have: a width of -3 or of ten million, ...
        raise HandfulError(f"{folder} is no run that can be used: {reason(error)}") from error
    tensors = {name: value for name, value in _tensors(folder).items() if name.startswith(_PREFIX)}
    load_weights(backbone, tensors, _PREFIX, folder)
    return backbone, size, channels


def learned_references(folder: Path) -> Tensor | None:
    """The reference vectors (ways, dim) that the method of a run has learned, if it has any."""
    return _tensors(folder).get(_REFERENCES)


def _settings(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise HandfulError(f"{folder} is not a run folder: it has no config.json")
    content = read_object(path)
    for name, kind in _NEEDED.items():
        value = content.get(name)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise HandfulError(f"{path} is not the settings of a run: {name} should be {kind.__name__}")
    return content


def _tensors(folder: Path) -> dict[str, Tensor]:
    if not (folder / "checkpoint" / "best.json").exists():
        raise HandfulError(f"{folder} has no weights (checkpoint/best.json is missing): train it")
    tensors, _ = load_checkpoint(folder / "checkpoint", "best")
    for name, value in tensors.items():
        if name.startswith(_PREFIX):
            continue  # held to more when they are loaded
        if fault := weight_fault(name, value, learned=name == _REFERENCES):
            raise HandfulError(f"the weights in {folder} are nonsense ({name} {fault}): train it anew")
    return tensors
