"""Images are embedded in the background, a batch at a time, while the page is at work."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ..datasets.base import Item
from ..datasets.images import BrokenImage
from ..embedders import Embedder, Precomputed, embed_images
from ..embedders.store import Store
from ..errors import HandfulError
from .collection import Images

FIRST, MOST = 32, 512  # images in the first batch, and in later ones
READ = 4096  # kept vectors that are read at a time


@dataclass(frozen=True)
class Progress:
    """How far it is."""

    state: str  # looking, embedding, done, failed
    what: str
    done: int
    total: int
    problem: str | None = None


Batch = tuple[NDArray[np.int64], NDArray[np.float32]]  # numbers, and their vectors


class Embedding(threading.Thread):
    """Embeds all images of a collection.

    Args:
        images: the images; what is learned of them is kept there: digests, and why some cannot be read.
        embedder: maps them to vectors.
        deliver: takes numbers (m,) and vectors (m, dim).
        tell: takes the progress.
    """

    def __init__(
        self,
        images: Images,
        embedder: Embedder | Precomputed,
        deliver: Callable[[NDArray[np.int64], NDArray[np.float32]], None],
        tell: Callable[[Progress], None],
    ) -> None:
        super().__init__(name="embedding", daemon=True)
        self._images, self._embedder, self._deliver, self._tell = images, embedder, deliver, tell
        self._ended = threading.Event()
        # Vectors that do not fit the images are an error at once, not in the background.
        self._given = embedder.rows(images.names) if isinstance(embedder, Precomputed) else None

    @property
    def given(self) -> bool:
        """Whether the vectors were computed elsewhere."""
        return self._given is not None

    def end(self) -> None:
        self._ended.set()

    def again(self, numbers: list[int]) -> None:
        """Embed some images once more, in the background: their files are others now."""
        if numbers and not isinstance(self._embedder, Precomputed):
            threading.Thread(target=self._once_more, args=(self._embedder, numbers), name="again", daemon=True).start()

    def _once_more(self, embedder: Embedder, numbers: list[int]) -> None:
        in_the_background()
        self.join()  # after all the others
        for start in range(0, len(numbers), MOST):
            if self._ended.is_set():
                return
            try:
                self._deliver(*self._embedded(embedder, numbers[start : start + MOST], lambda done: None))
            except Exception as error:  # of an embedder of the user's
                self._tell(Progress("failed", "", 0, len(self._images), f"{type(error).__name__}: {error}"[:500]))
                return
        count = len(self._images)
        self._tell(Progress("done", f"embedding with {getattr(embedder, 'name', '')}", count, count))

    def run(self) -> None:
        in_the_background()
        name = getattr(self._embedder, "name", "given vectors")
        now = Progress("embedding", f"embedding with {name}", 0, len(self._images))
        try:
            self._tell(now)
            for numbers, vectors, seen in self._batches(lambda more: self._tell(replace(now, done=now.done + more))):  # noqa: B023 - as far as it is then
                if self._ended.is_set():
                    return
                self._deliver(numbers, vectors)
                now = replace(now, done=now.done + seen)
                self._tell(now)
            self._tell(replace(now, state="done"))
            if isinstance(self._embedder, Precomputed):
                self._look()
        except HandfulError as error:
            self._tell(replace(now, state="failed", problem=str(error)))
        except Exception as error:  # of an embedder of the user's
            self._tell(replace(now, state="failed", problem=f"{type(error).__name__}: {error}"[:500]))

    def _batches(self, tick: Callable[[int], None]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32], int]]:
        """Numbers, vectors, and how many images were looked at for them."""
        images, embedder = self._images, self._embedder
        if isinstance(embedder, Precomputed):
            assert self._given is not None
            for start in range(0, len(images), READ):
                numbers = np.arange(start, min(start + READ, len(images)))
                yield numbers, np.asarray(self._given[start : start + READ]), len(numbers)
            return
        missing = list(range(len(images)))
        if embedder.key:
            store, known = Store(embedder), [number for number in missing if images.digests[number]]
            kept: set[int] = set()
            for start in range(0, len(known), READ):
                part = known[start : start + READ]
                vectors, sound = store.read([images.digests[number] or b"" for number in part])
                numbers = np.array(part)[sound]
                kept.update(numbers.tolist())
                yield numbers, vectors[sound], len(numbers)
            missing = [number for number in missing if number not in kept]
        size = FIRST
        while missing and not self._ended.is_set():
            part, missing, size = missing[:size], missing[size:], min(2 * size, MOST)
            yield (*self._embedded(embedder, part, tick), len(part))

    def _embedded(self, embedder: Embedder, part: list[int], tick: Callable[[int], None]) -> Batch:
        digests: dict[int, bytes] = {}
        finished = 0

        def read(number: int) -> bytes:
            content = self._images.read(number)
            digests[number] = hashlib.sha256(content).digest()
            return content

        def bar(what: str, total: int) -> Callable[[float], None]:
            def moved(done: float) -> None:
                nonlocal finished
                if what.startswith("embedding"):
                    finished += int(done)
                    tick(finished)

            return moved

        items = [Item(self._images.names[number], 0, partial(read, number)) for number in part]
        vectors, broken = embed_images(embedder, items, bar)
        self._images.broken.update({part[place]: reason for place, reason in broken.items()})
        self._images.learned(digests)
        return np.array([number for place, number in enumerate(part) if place not in broken]), vectors

    def _look(self) -> None:
        """Vectors that were computed elsewhere need no image; whether it is the same later on does."""
        for start in range(0, len(self._images), MOST):
            digests: dict[int, bytes] = {}
            for number in range(start, min(start + MOST, len(self._images))):
                if self._ended.is_set():
                    return
                if self._images.digests[number] is None:
                    try:
                        digests[number] = hashlib.sha256(self._images.read(number)).digest()
                    except BrokenImage as error:
                        self._images.broken[number] = str(error)
            if digests:
                self._images.learned(digests)


def in_the_background() -> None:
    """Let this thread, and those that it starts, wait for all others, where the system can."""
    with suppress(AttributeError, OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
