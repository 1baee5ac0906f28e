"""Files that are either whole or not there: atomic writes, and checkpoints of safetensors plus JSON.

A checkpoint ``last`` is ``last.json`` and the tensors file it names. The tensors are written first, the JSON after,
both under a temporary name, flushed to disk and renamed. The JSON is the moment of truth: until it is renamed, the
former checkpoint is in force, and its tensors are still there.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from .errors import TacitError

DEEPEST = 32  # levels of the JSON that is read; our own files have eight at most


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file under a temporary name, flush it to disk and rename it: readers see the old or the new, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A name may be as long as a name can be: the temporary one is not longer.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.umask(mask := os.umask(0))
        Path(temporary).chmod(0o666 & ~mask)  # mkstemp's files are private; ours are as any other
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    flush_folder(path.parent)


def refuse_links(folder: Path, *names: str) -> None:
    """Raise if any of these folders in a folder that we write to is a link: what is written would end up elsewhere."""
    for path in (folder / name for name in names):
        if path.is_symlink():
            raise TacitError(f"{path} is a link, and files would be written to where it leads: remove it")


def flush_folder(folder: Path) -> None:
    """Flush to disk which names a folder holds: a rename lives there."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_json(path: Path, content: Any) -> None:
    write_atomic(path, (json.dumps(content, indent=2) + "\n").encode())


def read_json(path: Path) -> Any:
    """Parse a JSON file, or say which file is broken; NaN, infinities and endless nesting are as broken as no JSON."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_float=_finite, parse_constant=_finite)
    except OSError as error:
        raise TacitError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise TacitError(f"{path} is not valid JSON: the file is damaged") from error
    level = [content]
    for _ in range(DEEPEST):
        level = [value for entry in level if isinstance(entry, dict | list) for value in _inside(entry)]
    if level:
        raise TacitError(f"{path} is nested more than {DEEPEST} levels deep: the file is damaged")
    return content


def read_object(path: Path) -> dict[str, Any]:
    """Parse a JSON file that should hold an object."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise TacitError(f"{path} is not a JSON object: the file is damaged")
    return content


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is no JSON number that a float can hold")
    return number


def _inside(entry: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return entry.values() if isinstance(entry, dict) else entry


def save_checkpoint(folder: Path, name: str, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Write checkpoint ``name`` (tensors and a JSON state) so that a kill at any moment leaves a whole one."""
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
    head = read_object(folder / f"{name}.json")
    try:
        file, digest, state = head["tensors"], head["sha256"], head["state"]
        path = folder / Path(file).name  # a name, never a way out of the folder
        content = path.read_bytes()
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise TacitError(f"the checkpoint {folder / name}.json is damaged or its tensors are missing") from error
    if _digest(content, state) != digest:
        raise TacitError(f"the checkpoint {path} is damaged: its contents do not match its checksum")
    if not isinstance(state, dict):
        raise TacitError(f"the checkpoint {folder / name}.json is damaged: its state is not an object")
    try:
        return tensors_from_bytes(content), state
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:  # of unknown types and odd shapes, others
        raise TacitError(f"the checkpoint {path} is damaged: {error}") from error


def checksum(folder: Path, name: str) -> str:
    """What tells a checkpoint from every other; that its tensors match it is checked when they are loaded."""
    digest = read_object(folder / f"{name}.json").get("sha256")
    if not isinstance(digest, str):
        raise TacitError(f"the checkpoint {folder / name}.json is damaged: it has no checksum")
    return digest


def _digest(content: bytes, state: dict[str, Any]) -> str:
    return hashlib.sha256(content + json.dumps(state, sort_keys=True).encode()).hexdigest()
