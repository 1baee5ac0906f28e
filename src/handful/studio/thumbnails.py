"""Small and large pictures for the page: made anew from the pixels, so that nothing of a file but these gets there."""

from __future__ import annotations

import io
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from ..datasets.images import BrokenImage, within
from .collection import Images

SMALL, LARGE = (96, 192, 320), (640, 1280, 2048)  # longest sides that can be asked for
QUALITY = 82
AT_ONCE = 2  # pictures that are decoded at a time
FILE = "thumbnails.sqlite"


class Thumbnails:
    """Pictures of images by number; small ones are kept in a file, which can be deleted at any time.

    ``look`` is called with the number of an image before a picture of it is given.
    """

    def __init__(self, images: Images, folder: Path, look: Callable[[list[int]], None] | None = None) -> None:
        self._images, self._path, self._look = images, folder / FILE, look
        self._few, self._alone = threading.Semaphore(AT_ONCE), threading.Lock()
        self._base = self._opened()

    def _opened(self) -> sqlite3.Connection | None:
        """The file with what is kept, emptied if it is damaged; None if there cannot be any."""
        for _ in range(2):
            with suppress(sqlite3.Error, OSError):
                base = sqlite3.connect(self._path, check_same_thread=False, isolation_level=None)
                base.execute("PRAGMA journal_mode=WAL")
                base.execute("PRAGMA synchronous=OFF")  # what is lost is made again
                base.execute("CREATE TABLE IF NOT EXISTS pictures (tag TEXT, size INTEGER, jpeg BLOB, "
                             "PRIMARY KEY (tag, size))")  # fmt: skip
                base.execute("SELECT count(*) FROM pictures").fetchone()
                return base
            for end in ("", "-wal", "-shm"):
                with suppress(OSError):
                    self._path.with_name(f"{self._path.name}{end}").unlink()
        return None

    def picture(self, number: int, longest: int) -> bytes:
        """A JPEG file of an image; raises `BrokenImage` with the reason, and lists the image as broken."""
        try:
            return self._picture(number, longest)
        except BrokenImage as error:
            self._images.broken[number] = str(error)  # it may have been removed since it was listed
            raise

    def _picture(self, number: int, longest: int) -> bytes:
        if self._look is not None:
            self._look([number])  # it may be another image by now
        if (reason := self._images.broken.get(number)) is not None:
            raise BrokenImage(reason)
        tag = self._images.tag(number)
        kept = self._kept(tag, longest) if longest in SMALL else None
        if kept is not None:
            return kept
        with self._few:
            content = self._images.read(number)
            try:
                image = within(content, longest)
                buffer = io.BytesIO()
                image.save(buffer, "JPEG", quality=QUALITY)
            except BrokenImage:
                raise
            except Exception as error:  # Pillow cannot write what it has read
                raise BrokenImage(type(error).__name__) from error
        if longest in SMALL:
            self._keep(tag, longest, buffer.getvalue())
        return buffer.getvalue()

    def close(self) -> None:
        if self._base is not None:
            with self._alone, closing(self._base):
                self._base = None

    def _kept(self, tag: str, longest: int) -> bytes | None:
        with self._alone, suppress(sqlite3.Error):
            if self._base is not None:
                query = "SELECT jpeg FROM pictures WHERE tag = ? AND size = ?"
                row = self._base.execute(query, (tag, longest)).fetchone()
                return None if row is None or not isinstance(row[0], bytes) else row[0]
        return None

    def _keep(self, tag: str, longest: int, content: bytes) -> None:
        with self._alone, suppress(sqlite3.Error):
            if self._base is not None:
                self._base.execute("INSERT OR REPLACE INTO pictures VALUES (?, ?, ?)", (tag, longest, content))
