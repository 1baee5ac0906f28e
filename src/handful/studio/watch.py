"""Images that are changed, removed or put back while the studio is at work are noticed."""

from __future__ import annotations

import threading
from collections.abc import Callable

from .collection import Images
from .embedding import in_the_background

PAUSE = 30.0  # seconds between two looks at all files
SLICE, REST = 1000, 0.02  # files that are looked at before others have a turn, and seconds of that


class Watch(threading.Thread):
    """Compares size and time of all files with what they were, again and again; what they hold decides.

    Args:
        images: the images.
        tell: called with those that are other ones now, gone, or back: numbers, and what became of each.
    """

    def __init__(self, images: Images, tell: Callable[[dict[int, str]], None]) -> None:
        super().__init__(name="watch", daemon=True)
        self._images, self._tell = images, tell
        self._ended, self._alone = threading.Event(), threading.Lock()

    def end(self) -> None:
        self._ended.set()

    def run(self) -> None:
        in_the_background()
        while not self._ended.wait(PAUSE):
            for start in range(0, len(self._images), SLICE):
                self.look(range(start, min(start + SLICE, len(self._images))))
                if self._ended.wait(REST):
                    return

    def look(self, numbers: range | list[int]) -> None:
        """Look at some files, and tell what became of those that were touched."""
        touched = [number for number in numbers if self._images.touched(number)]
        if not touched:
            return
        with self._alone:
            found = {number: self._images.look_again(number) for number in touched if self._images.touched(number)}
        if news := {number: what for number, what in found.items() if what != "same"}:
            self._tell(news)
