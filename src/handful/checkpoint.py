"""Checkpoints: safetensors plus JSON, whole or not there.

A checkpoint ``last`` is ``last.json`` and the tensors file it names. The tensors are written first, the JSON after,
both under a temporary name, flushed to disk and renamed. The JSON is the moment of truth: until it is renamed, the
former checkpoint is in force, and its tensors are still there.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from .errors import HandfulError
from .io import read_object, write_atomic, write_json

if TYPE_CHECKING:
    from torch import Tensor, nn

T = TypeVar("T")
# What no sound model has. Adam moves a weight by about its rate in a step: at a rate of 1, this takes a million steps.
# Buffers hold means and variances, which go with the square of the weights.
MOST_WEIGHT, MOST_BUFFER = 1e6, 1e12


def save_checkpoint(folder: Path, name: str, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Write checkpoint ``name`` (tensors and a JSON state) so that a kill at any moment leaves a whole one."""
    from safetensors.torch import save as tensors_to_bytes  # with PyTorch, without which checkpoints are only read

    content = tensors_to_bytes({key: value.detach().cpu().contiguous() for key, value in tensors.items()})
    digest = _digest(content, state)
    file = f"{name}-{digest[:12]}.safetensors"
    write_atomic(folder / file, content)
    write_json(folder / f"{name}.json", {"tensors": file, "sha256": digest, "state": state})
    ours = re.compile(re.escape(name) + r"-[0-9a-f]{12}\.safetensors")  # best-of-all.safetensors is somebody else's
    for old in folder.iterdir():
        if ours.fullmatch(old.name) and old.name != file and old.is_file():
            old.unlink(missing_ok=True)


def load_checkpoint(folder: Path, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a checkpoint back. Nothing in it is ever run: tensors are raw numbers, the state is JSON."""
    from safetensors.torch import load

    return _load(folder, name, load)


def load_arrays(folder: Path, name: str) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read a checkpoint back as NumPy's arrays, without PyTorch."""
    from safetensors.numpy import load

    return _load(folder, name, load)


def _load(folder: Path, name: str, read: Callable[[bytes], dict[str, T]]) -> tuple[dict[str, T], dict[str, Any]]:
    head = read_object(folder / f"{name}.json")
    try:
        file, digest, state = head["tensors"], head["sha256"], head["state"]
        path = folder / Path(file).name  # a name, never a way out of the folder
        content = path.read_bytes()
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise HandfulError(f"the checkpoint {folder / name}.json is damaged or its tensors are missing") from error
    if _digest(content, state) != digest:
        raise HandfulError(f"the checkpoint {path} is damaged: its contents do not match its checksum")
    if not isinstance(state, dict):
        raise HandfulError(f"the checkpoint {folder / name}.json is damaged: its state is not an object")
    try:
        return read(content), state
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:  # of unknown types and odd shapes, others
        raise HandfulError(f"the checkpoint {path} is damaged: {error}") from error


def checksum(folder: Path, name: str) -> str:
    """What tells a checkpoint from every other; that its tensors match it is checked when they are loaded."""
    digest = read_object(folder / f"{name}.json").get("sha256")
    if not isinstance(digest, str):
        raise HandfulError(f"the checkpoint {folder / name}.json is damaged: it has no checksum")
    return digest


def _digest(content: bytes, state: dict[str, Any]) -> str:
    return hashlib.sha256(content + json.dumps(state, sort_keys=True).encode()).hexdigest()


def load_weights(module: nn.Module, tensors: dict[str, Tensor], prefix: str, where: Path) -> None:
    """Put tensors under their names behind a prefix into a module; weights that compute nothing are refused."""
    try:
        module.load_state_dict({key.removeprefix(prefix): value for key, value in tensors.items()})
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise HandfulError(f"the weights in {where} do not fit its settings: {reason}") from error
    learned = {name for name, _ in module.named_parameters()}
    for name, value in module.state_dict().items():
        if fault := weight_fault(name, value.detach().cpu().double().numpy(), name in learned):
            raise HandfulError(
                f"the weights in {where} are nonsense ({name} {fault}): they were damaged, or the training diverged; "
                "train it anew"
            )


def weight_fault(name: str, value: NDArray[Any], learned: bool) -> str | None:
    """What is wrong with the numbers of a model; a checksum may match, and still they may be nonsense."""
    if not np.isfinite(value).all():
        return "has numbers that are not finite"
    if value.size and float(np.abs(value).max()) > (most := MOST_WEIGHT if learned else MOST_BUFFER):
        return f"has numbers beyond {most:g}"
    if name.endswith("running_var") and float(value.min()) < 0:
        return "has negative variances"
    # Shifts start at zero, and a single number (such as the logarithm of a scale) may be it. All other weights start
    # random, or at one, and no step of training makes all of them nothing.
    if learned and not name.endswith("bias") and value.size > 1 and not value.any():
        return "is all zeros"
    return None
