"""What can be said of images without labels, computed in the background once they are embedded."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..datasets.images import BrokenImage, decode
from .collection import Images
from .embedding import in_the_background
from .layout import Groups, flat, grouped, in_common_axes, near_duplicates, spread_out
from .line import in_line

FEWEST = 2
SIDE, SAME = 32, 0.97  # two images are the same if their grey pixels at this size correlate so much


class Surroundings(threading.Thread):
    """Likeness, groups, near-duplicates and the map of the images.

    Attributes:
        points, place: (m, reduced) the vectors on common axes, and (n,) the row of each image in them, -1 for none.
        groups: None as long as there are none.
        line: (n,) the place of each image in a line on which neighbours are alike; None as long as there is none.
        sets, duplicate: near-duplicates; (n,) the first of those that an image belongs to, -1 for none.
        map: (n, 2), NaN for images without a vector.
        version, map_version: count up when groups, line and duplicates, or the map, are other ones.
    """

    def __init__(
        self,
        images: Images,
        have: Callable[[], tuple[NDArray[np.int64], NDArray[np.float32]]],
        tell: Callable[[str], None],
    ) -> None:
        super().__init__(name="surroundings", daemon=True)
        self._images, self._have, self._tell = images, have, tell
        self._wake, self._due, self._ended, self.busy = threading.Condition(), False, False, False
        self.points: NDArray[np.float32] | None = None
        self.place = np.full(len(images), -1)
        self.groups: Groups | None = None
        self.line: NDArray[np.int64] | None = None
        self.sets: list[list[int]] = []
        self.duplicate = np.full(len(images), -1)
        self.map: NDArray[np.float32] | None = None
        self.version = self.map_version = 0

    def begin(self) -> None:
        """Compute everything anew from the vectors that there are."""
        with self._wake:
            self._due = True
            self._wake.notify_all()

    def end(self) -> None:
        with self._wake:
            self._ended = True
            self._wake.notify_all()

    def run(self) -> None:
        in_the_background()
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._due or self._ended)
                if self._ended:
                    return
                self._due, self.busy = False, True
            self._compute()
            self.busy = False

    def likeness(self, number: int) -> NDArray[np.float32] | None:
        """(n,) cosines with an image; None as long as it has no place."""
        points, place = self.points, self.place
        if points is None or place[number] < 0:
            return None
        cosines = np.append(points @ points[place[number]], np.float32(np.nan))
        found: NDArray[np.float32] = cosines[place]
        return found

    def _compute(self) -> None:
        rows, vectors = self._have()
        if len(rows) < FEWEST:
            return
        count = len(self._images)
        points = in_common_axes(vectors)
        place = np.full(count, -1)
        place[rows] = np.arange(len(rows))
        self.place, self.points = place, points
        self._put_map(rows, flat(points))
        self.groups = grouped(points, rows, count)
        self.version += 1
        self._tell("groups")
        line = np.full(count, count)
        line[rows] = in_line(points)
        self.line = line
        pixels: dict[int, NDArray[np.float32]] = {}

        def same(one: int, other: int) -> bool:
            for number in (one, other):
                if number not in pixels:
                    pixels[number] = _pixels(self._images, number)
            return not self._ended and bool(pixels[one] @ pixels[other] >= SAME)

        self.sets = near_duplicates(points, rows, self.groups, self._images.digests, same)
        duplicate = np.full(count, -1)
        for one in self.sets:
            duplicate[one] = one[0]
        self.duplicate = duplicate
        self.version += 1
        self._tell("groups")
        self._put_map(rows, spread_out(points))

    def _put_map(self, rows: NDArray[np.int64], places: NDArray[np.float32]) -> None:
        found = np.full((len(self._images), 2), np.nan, dtype=np.float32)
        found[rows] = places
        self.map = found
        self.map_version += 1
        self._tell("map")


def _pixels(images: Images, number: int) -> NDArray[np.float32]:
    """The grey pixels of an image as a vector of length 1 around 0; zeros if it cannot be read."""
    try:
        found = decode(images.read(number), SIDE, 1).pixels.astype(np.float32).ravel()
    except BrokenImage:
        return np.zeros(SIDE * SIDE, dtype=np.float32)
    found -= found.mean()
    return found / max(float(np.linalg.norm(found)), 1e-6)
