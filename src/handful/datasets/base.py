"""The interface of a data set: images and class ids of one split, and how a loader describes a user's files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import HandfulError
from .known import KNOWN

SPLITS = ("train", "val", "test")

Bar = Callable[[str, int], Callable[[float], None]]  # bar(what, total) opens a progress bar; its result moves it
Payload = bytes | NDArray[Any]  # an encoded image, or its pixels (height, width) or (height, width, channels)


def no_bar(what: str, total: int) -> Callable[[float], None]:
    """A progress bar that shows nothing."""
    return lambda done: None


@dataclass(frozen=True)
class ImageSet:
    """The images of one split. The classes of different splits are disjoint.

    Attributes:
        dataset: name of the data set.
        split: ``train``, ``val`` or ``test``.
        images: (n, height, width, channels) uint8; may be memory-mapped.
        labels: (n,) int64, from 0 to ``len(class_names) - 1``.
        class_names: one name per class id.
    """

    dataset: str
    split: str
    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]

    @property
    def image_size(self) -> int:
        return int(self.images.shape[1])

    @property
    def channels(self) -> int:
        return int(self.images.shape[3])

    def fingerprint(self) -> str:
        """A short hash of labels, names and about 1,000 images: enough to notice another data set or build."""
        digest = hashlib.sha256(repr((self.images.shape, self.class_names)).encode())
        digest.update(np.ascontiguousarray(self.labels, dtype="<i8").tobytes())
        step = max(1, len(self.images) // 1000)
        digest.update(np.ascontiguousarray(self.images[::step]).tobytes())
        return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Item:
    """One image of a listing: its name for messages, its class, and how to read it."""

    name: str
    label: int
    read: Callable[[], Payload]


@dataclass(frozen=True)
class Listing:
    """The images in the files of one split, in a fixed order.

    Attributes:
        class_names: one name per class id.
        count: number of images.
        items: ``items(start)`` gives the images from number ``start`` on.
        turns: number of classes made from each class by rotating its images by quarter turns (Omniglot: 4).
        ignored: names of files in class folders that are not images.
    """

    class_names: tuple[str, ...]
    count: int
    items: Callable[[int], Iterator[Item]]
    turns: int = 1
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """One split of a data set as a loader found it on disk.

    Attributes:
        layout: description of the recognised layout.
        digest: a hash of the content of the split's files.
        listing: opens the files; may take long, and may raise an error.
    """

    layout: str
    digest: Callable[[Bar], str]
    listing: Callable[[], Listing]


@dataclass(frozen=True)
class DatasetSpec:
    """An entry of the registry. It has either ``find`` or ``draw``.

    Attributes:
        name: as typed on the command line.
        summary: one line for ``handful datasets``.
        labelled_ratio: share of each class whose labels are known, as the literature uses it.
        channels: 1 for grey, 3 for colour.
        options: the data set's options and their defaults; all that read files have ``image_size``.
        find: ``find(split, path, options)`` finds a split in a user's files.
        draw: ``draw(split)`` generates the images of a data set that needs no files.
    """

    name: str
    summary: str
    labelled_ratio: float
    channels: int = 3
    options: dict[str, Any] = field(default_factory=dict)
    find: Callable[[str, Path, dict[str, Any]], Source] | None = None
    draw: Callable[[str], ImageSet] | None = None

    @property
    def needs_path(self) -> bool:
        """Whether the user must say where the files are."""
        return self.find is not None


def check_path(spec: DatasetSpec, path: str | Path | None) -> None:
    """Check that a path is given if and only if the data set needs one."""
    if path is not None and not Path(path).exists():
        raise HandfulError(f"no such file or folder: {path}; say where the files are with --data PATH")
    if path is not None and not spec.needs_path:
        raise HandfulError(f"the data set '{spec.name}' is embedded and reads no files: leave out --data")
    if path is None and spec.needs_path:
        where = f" ('handful data fetch {spec.name}' says where to get them)" if spec.name in KNOWN else ""
        raise HandfulError(f"the data set '{spec.name}' reads your files: say where they are with --data PATH{where}")


def find_source(spec: DatasetSpec, split: str, path: str | Path | None, options: dict[str, Any]) -> Source:
    """Find a split of a data set in a user's files."""
    check_path(spec, path)
    assert spec.find is not None and path is not None  # else it is embedded
    return spec.find(split, Path(path), options)
