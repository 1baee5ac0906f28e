"""Read weights in PyTorch's files (.pth, .pt) as arrays: without PyTorch, and without executing anything in them.

There are two layouts. The older is five pickles in a row (a magic number, a version, facts of the machine, the object,
the names of the storages) and then the storages, each with its length before it. The newer one is a zip with the
object's pickle and a member per storage. In both, the object holds tensors as calls that name a storage, an offset, a
shape and strides.
"""

from __future__ import annotations

import math
import mmap
import zipfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from ..datasets.pickle_calls import CALLS, NAMES, Damaged, Global, Refused
from ..datasets.pickles import Machine, run_machine
from ..errors import HandfulError

MAGIC = 0x1950A86A20F9469CFC6C
KINDS: dict[str, np.dtype[Any]] = {
    "torch.FloatStorage": np.dtype("<f4"), "torch.DoubleStorage": np.dtype("<f8"), "torch.HalfStorage": np.dtype("<f2"),
    "torch.LongStorage": np.dtype("<i8"), "torch.IntStorage": np.dtype("<i4"), "torch.ByteStorage": np.dtype("u1"),
    "torch.BoolStorage": np.dtype("?"),
}  # fmt: skip
LONGEST = 1 << 30  # bytes of a storage in a zip, which may be compressed


@dataclass(frozen=True)
class _Storage:
    key: str
    kind: np.dtype[Any]
    count: int


@dataclass(frozen=True)
class _Tensor:
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements

    def of(self, elements: NDArray[Any]) -> NDArray[Any]:
        steps = [step * elements.itemsize for step in self.strides]
        return as_strided(elements[self.offset :], self.shape, steps, writeable=False)


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> _Tensor:
    if not isinstance(storage, _Storage) or not isinstance(shape, tuple) or not isinstance(strides, tuple):
        raise Damaged("a tensor that is none")
    if len(shape) != len(strides) or len(shape) > 8:
        raise Damaged("a tensor with a shape that is none")
    if not all(isinstance(number, int) and 0 <= number < 1 << 40 for number in (offset, *shape, *strides)):
        raise Damaged("a tensor with a shape that is none")
    last = offset + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
    if 0 in shape or last >= storage.count or math.prod(shape) > storage.count:
        raise Damaged("a tensor beyond its storage")
    return _Tensor(storage, offset, shape, strides)


class _Weights(Machine):
    """A machine that also knows tensors, and ordered dicts of them."""

    calls: ClassVar[Mapping[str, Callable[..., Any]]] = {
        **CALLS,
        "torch._utils._rebuild_tensor_v2": _tensor,
        "torch._utils._rebuild_parameter": lambda tensor, *_: tensor,
    }
    names: ClassVar[Collection[str]] = {*NAMES, *KINDS}

    def refer(self) -> None:
        named = self.pop()
        if not isinstance(named, tuple) or len(named) < 5 or named[0] != "storage" or not isinstance(named[1], Global):
            raise Refused("a persistent id that is no storage")
        if (kind := KINDS.get(named[1].name)) is None:
            raise Refused(f"a storage of '{named[1].name}'")
        if not isinstance(named[2], str) or not isinstance(named[4], int) or named[4] < 0:
            raise Damaged("a storage without a name or length")
        self.push(_Storage(named[2], kind, named[4]))

    def build(self) -> None:
        if isinstance(self.stack[-2], dict):  # facts about a module, of which weights need none
            self.pop()
            return
        super().build()


def load_weights(path: Path) -> dict[str, NDArray[Any]]:
    """The tensors of a file by name, in its order.

    Raises:
        HandfulError: if the file holds anything else than a dict of tensors, or is damaged.
    """
    try:
        with path.open("rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        raise HandfulError(f"cannot read {path}: {error}") from error
    try:
        found, elements = _from_zip(path) if bytes(data[:2]) == b"PK" else _from_pickles(path, data)
        return {name: tensor.of(elements[tensor.storage]) for name, tensor in found.items()}
    except HandfulError:
        raise
    except (KeyError, ValueError, OSError, zipfile.BadZipFile, MemoryError) as error:
        raise HandfulError(f"{path} is damaged or holds no weights: {error or type(error).__name__}") from error


Content = tuple[dict[str, _Tensor], dict[_Storage, NDArray[Any]]]


def _from_pickles(path: Path, data: memoryview) -> Content:
    at, parts = 0, []
    for _ in range(5):
        machine = _Weights(data, at)
        parts.append(run_machine(machine, path))
        at = machine.at
    if parts[0] != MAGIC or not isinstance(parts[4], list):
        raise ValueError("it does not begin as such files do")
    found = _tensors(parts[3])
    storages = {tensor.storage.key: tensor.storage for tensor in found.values()}
    elements = {}
    for key in parts[4]:
        storage = storages.get(key)
        count = int.from_bytes(data[at : at + 8], "little")
        if storage is None or count != storage.count:
            raise ValueError(f"there is no tensor of the storage {key!r:.40} with {count} elements")
        at += 8
        elements[storage] = np.frombuffer(data, storage.kind, count, at)
        at += count * storage.kind.itemsize
    return found, elements


def _from_zip(path: Path) -> Content:
    with zipfile.ZipFile(path) as archive:
        (pickle,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
        found = _tensors(run_machine(_Weights(memoryview(_member(archive, pickle, LONGEST))), path))
        top = pickle.removesuffix("data.pkl")
        elements = {}
        for storage in {tensor.storage for tensor in found.values()}:
            content = _member(archive, f"{top}data/{storage.key}", storage.count * storage.kind.itemsize)
            elements[storage] = np.frombuffer(content, storage.kind, storage.count)
    return found, elements


def _member(archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    if archive.getinfo(name).file_size > min(most, LONGEST):
        raise ValueError(f"{name} is longer than it should be")
    return archive.read(name)


def _tensors(value: Any) -> dict[str, _Tensor]:
    if not isinstance(value, dict) or not all(isinstance(k, str) and isinstance(v, _Tensor) for k, v in value.items()):
        raise ValueError("it holds something else than a dict of tensors")
    return value
