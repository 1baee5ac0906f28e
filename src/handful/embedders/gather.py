"""The images of a unit as vectors: the same function in a thread of this process and in a worker elsewhere."""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from ..datasets.base import Item
from ..datasets.images import BrokenImage, decode
from ..datasets.units import Damaged, unit_items
from .base import BATCH_PIXELS, Embedder, Vectors, checked_vectors
from .shards import Task


class Stopped(Exception):  # noqa: N818 - not an error
    """Nobody waits for the result any more."""


@dataclass
class Gathered:
    """Images of a unit that follow each other.

    Attributes:
        part: its number among the parts of the unit.
        last: whether it is the last one.
        seen: how many images were looked at.
        names: of those that can be read.
        digests: of their content.
        vectors: (n, dim) of them.
        broken: the others, with the reason.
        problem: why nothing more can be read of the source.
    """

    part: int
    dim: int
    last: bool = False
    seen: int = 0
    names: list[str] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    parts: list[Vectors] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)
    problem: str | None = None

    @property
    def vectors(self) -> Vectors:
        return np.concatenate([np.zeros((0, self.dim), dtype=np.float32), *self.parts])


class Gatherer:
    """Reads and embeds the images of units.

    Args:
        embedder: what gives the vectors. If it has ``embed_alone``, which any number of threads may call at once,
            each for itself, that is used; else one thread calls ``embed`` at a time.
        size: images of a part, at most, where nobody knows how many there are.
        tick: called with the number of images done.
        stop: set to give up.
    """

    def __init__(
        self,
        embedder: Embedder,
        size: int,
        tick: Callable[[int], None] | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        self.embedder, self.size, self._tick, self._stop = embedder, size, tick, stop
        alone: Callable[[Any], Vectors] | None = getattr(embedder, "embed_alone", None)
        self._embed, self._lock = alone or embedder.embed, threading.Lock() if alone is None else None
        self._batch = max(1, BATCH_PIXELS // embedder.image_size**2)

    def __call__(self, task: Task) -> Iterator[Gathered]:
        """The parts of a unit that are not done yet.

        Raises:
            OSError, HandfulError: if the source is out of reach, or the embedder fails.
        """
        items = _Items(unit_items(task.unit, task.skip))
        most = self.size if task.unit.images is None else sys.maxsize
        found = Gathered(task.part, self.embedder.dim)
        while batch := list(islice(items, min(self._batch, most - found.seen))):
            self._add(found, batch)
            if self._tick is not None:
                self._tick(len(batch))
            if found.seen >= most and not items.ended:
                yield found
                found = Gathered(found.part + 1, self.embedder.dim)
        found.last, found.problem = True, items.problem
        yield found

    def _add(self, found: Gathered, batch: list[Item]) -> None:
        names, digests, pixels = [], [], []
        decoded = partial(
            decode, size=self.embedder.image_size, channels=self.embedder.channels,
            crop=getattr(self.embedder, "crop", False),
        )  # fmt: skip
        for item in batch:
            if self._stop is not None and self._stop.is_set():
                raise Stopped
            found.seen += 1
            try:
                payload: Any = item.read()
                pixels.append(decoded(payload).pixels)
            except BrokenImage as error:
                found.broken[item.name] = str(error)
                continue
            names.append(item.name)
            digests.append(hashlib.sha256(payload).digest())
        if not names:
            return
        vectors = self._vectors(np.stack(pixels))
        finite = [bool(sound) for sound in np.atleast_1d(np.isfinite(vectors).all(1))]
        found.broken |= {
            name: f"the embedder {self.embedder.name} gives no finite vector for it"
            for name, sound in zip(names, finite, strict=True) if not sound
        }  # fmt: skip
        found.names += [name for name, sound in zip(names, finite, strict=True) if sound]
        found.digests += [digest for digest, sound in zip(digests, finite, strict=True) if sound]
        found.parts.append(vectors if all(finite) else vectors[finite])

    def _vectors(self, pixels: Any) -> Vectors:
        if self._lock is None:
            vectors = self._embed(pixels)
        else:
            with self._lock:
                vectors = self._embed(pixels)
        return checked_vectors(self.embedder, vectors, len(pixels))


class _Items:
    """Images as they come, one ahead, to know whether there are more; and why there are not, if that is damage."""

    def __init__(self, items: Iterator[Item]) -> None:
        self._items, self.ended = items, False
        self.problem: str | None = None
        self._next = self._advanced()

    def _advanced(self) -> Item | None:
        try:
            return next(self._items)
        except StopIteration:
            self.ended = True
        except Damaged as error:
            self.ended, self.problem = True, str(error)
        return None

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        if self._next is None:
            raise StopIteration
        found, self._next = self._next, self._advanced()
        return found
