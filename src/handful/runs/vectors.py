"""Vectors of whole splits, kept on disk: a second evaluation of the same weights and images embeds nothing.

There is a file per model and split in the folder ``evaluated`` of the cache (``HANDFUL_CACHE``, or the system's place
for caches). The folder holds at most `MOST_BYTES`: what was not used for longest goes first. It can be deleted at any
time. The name of a file is a checksum of all that decides the numbers to the last bit, and the file begins with one of
its content: vectors that are damaged are computed again.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..datasets.cache import cache_root
from ..io import write_atomic
from ..progress import messages

FORMAT = 1  # part of every name: raise it when the files, or what becomes of pixels before the network, change
MOST_BYTES = 2 << 30  # of all files together
_HEAD = struct.Struct("<32sqq")  # checksum of what follows it and of the name; rows; numbers in each


def kept_vectors(backbone: nn.Module, images: NDArray[np.uint8], compute: Callable[[], Tensor]) -> Tensor:
    """What ``compute`` gives for images (n, height, width, channels), from the disk if it was computed before."""
    device = next(backbone.parameters()).device
    path = folder() / f"{_key(backbone, images, device)}.bin"
    known = _read(path)
    if known is not None and len(known) == len(images):
        return known.to(device)
    vectors = compute()
    if vectors.dtype == torch.float32:
        with suppress(OSError):  # a full disk, or a cache that may not be written: there is nothing to keep then
            _write(path, vectors.cpu().numpy())
    return vectors


def folder() -> Path:
    return cache_root() / "evaluated"


def _key(backbone: nn.Module, images: NDArray[np.uint8], device: torch.device) -> str:
    """A checksum of all that decides the vectors: network, weights, pixels, and in which order numbers are summed."""
    machine = (device.type, torch.__version__, torch.get_num_threads(), torch.backends.cpu.get_cpu_capability())
    found = hashlib.sha256(repr((FORMAT, str(backbone), machine, torch.get_default_dtype(), images.shape)).encode())
    for name, value in backbone.state_dict().items():
        found.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        found.update(value.detach().cpu().contiguous().numpy().tobytes())
    step = max(1, (1 << 24) // max(1, images[:1].nbytes))
    for start in range(0, len(images), step):  # all of them: a fingerprint looks at a thousand only
        found.update(np.ascontiguousarray(images[start : start + step]).data)
    return found.hexdigest()[:32]


def _read(path: Path) -> Tensor | None:
    """The vectors in a file; None if there is none, or a damaged one."""
    try:
        content = bytearray(path.read_bytes())
    except OSError:
        return None
    if len(content) >= _HEAD.size:
        digest, rows, dim = _HEAD.unpack_from(content)
        sound = digest == _checksum(path, memoryview(content)[32:]) and len(content) == _HEAD.size + 4 * rows * dim
        if sound:
            with suppress(OSError):
                os.utime(path)
            return torch.frombuffer(content, dtype=torch.float32, offset=_HEAD.size).reshape(rows, dim)
    messages.print(f"the vectors in {path} are damaged: the images are embedded again", soft_wrap=True)
    return None


def _write(path: Path, vectors: NDArray[np.float32]) -> None:
    if vectors.nbytes > MOST_BYTES:
        return
    body = _HEAD.pack(b"", *vectors.shape)[32:] + np.ascontiguousarray(vectors, dtype="<f4").tobytes()
    write_atomic(path, _checksum(path, memoryview(body)) + body)
    there = sorted(((entry.stat().st_mtime, entry.stat().st_size, entry) for entry in path.parent.glob("*.bin")),
                   reverse=True)  # fmt: skip
    total = 0
    for _, size, entry in there:
        total += size
        if total > MOST_BYTES and entry != path:
            entry.unlink(missing_ok=True)


def _checksum(path: Path, body: memoryview) -> bytes:
    """Of the name as well: a file under the name of another is damaged."""
    found = hashlib.sha256(path.name.encode())
    found.update(body)
    return found.digest()
