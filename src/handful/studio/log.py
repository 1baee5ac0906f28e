"""What the studio keeps on disk: a log of actions that only grows, and the images that they are about.

SQLite, since it comes with Python and is proven against kills and power cuts: in WAL mode with ``synchronous=FULL`` a
commit is one append to one file, followed by fsync. An action is one row; labels are what the rows add up to, so undo
and redo are rows as well. Images have an id that is theirs for good; name and digest say which file it is.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from ..errors import HandfulError
from ..labelling.book import Action, Class

FILE, LOCK = "studio.sqlite", ".studio.lock"
FORMAT = 1
_TABLES = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS images (
    id INTEGER PRIMARY KEY, name BLOB NOT NULL, stamp TEXT NOT NULL, digest BLOB, gone INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS actions (
    number INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, time REAL NOT NULL, what TEXT NOT NULL,
    classes TEXT NOT NULL, images BLOB NOT NULL, before BLOB NOT NULL, after BLOB NOT NULL
) STRICT;
"""


@dataclass(frozen=True)
class KnownImage:
    """An image as it was when it was last seen.

    Attributes:
        id: for good.
        name: path from the top of the images.
        stamp: size and times of the file: as long as it is the same, the content is taken to be.
        digest: of the content; None if it was never read.
        gone: whether it was not there when the studio was last started.
    """

    id: int
    name: str
    stamp: str
    digest: bytes | None
    gone: bool


class Log:
    """The log in a folder, for one process at a time."""

    def __init__(self, out: Path) -> None:
        self.out = out
        try:
            out.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(out / LOCK)
            self._lock.acquire(blocking=False)
        except Timeout:
            raise HandfulError(
                f"another studio is at work in {out}: use its page, or end it before you start this one"
            ) from None
        except OSError as error:
            raise HandfulError(f"cannot write to {out} ({error.strerror}): choose another --out") from error
        self._alone = threading.Lock()  # one connection, several threads
        try:
            self._opened()
        except BaseException:
            self._lock.release()
            raise

    def _opened(self) -> None:
        path = self.out / FILE
        with self._explained():
            self._base = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            mode = self._base.execute("PRAGMA journal_mode=WAL").fetchone()[0]
            self._base.execute("PRAGMA synchronous=FULL")
            with self._transaction():
                for statement in _TABLES.split(";\n"):
                    self._base.execute(statement)
        if mode != "wal":
            raise HandfulError(f"{path} cannot be written to safely: choose an --out on a local disk")
        found = self.fact("format")
        if found is None:
            self.set_fact("format", FORMAT)
        elif found != FORMAT:
            raise HandfulError(f"{path} was written by another version of handful: choose another --out")

    def fact(self, name: str) -> Any:
        """Something that is remembered under a name; None if it is not."""
        with self._explained(), self._alone:
            row = self._base.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else json.loads(row[0])

    def set_fact(self, name: str, value: Any) -> None:
        with self._explained(), self._alone:
            self._base.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, json.dumps(value)))

    def record(self, kind: str, action: Action) -> None:
        """Append an action; it is on disk when this returns. Undo and redo need no content: they repeat an action."""
        empty = kind != "do"
        arrays = [b"" if empty else one.astype("<i4").tobytes() for one in (action.images, action.before, action.after)]
        classes = [] if empty else [[one and asdict(one) for one in pair] for pair in action.classes]
        row = (kind, time.time(), action.what, json.dumps(classes), *arrays)
        with self._explained(), self._alone:
            self._base.execute(
                "INSERT INTO actions (kind, time, what, classes, images, before, after) VALUES (?, ?, ?, ?, ?, ?, ?)",
                row,
            )

    def actions(self) -> Iterator[tuple[str, Action]]:
        """All actions in order; those of undo and redo are empty."""
        with self._explained(), self._alone:
            rows = self._base.execute("SELECT kind, what, classes, images, before, after FROM actions ORDER BY number")
            for kind, what, classes, *arrays in rows:
                pairs = tuple(tuple(one and Class(**one) for one in pair) for pair in json.loads(classes))
                images, before, after = (np.frombuffer(part, dtype="<i4") for part in arrays)
                yield kind, Action(what, images, before, after, pairs)  # type: ignore[arg-type]

    def images(self) -> list[KnownImage]:
        with self._explained(), self._alone:
            rows = self._base.execute("SELECT id, name, stamp, digest, gone FROM images ORDER BY id").fetchall()
        return [KnownImage(number, os.fsdecode(name), stamp, digest, bool(gone))
                for number, name, stamp, digest, gone in rows]  # fmt: skip

    def save_images(self, images: Iterable[KnownImage]) -> None:
        rows = [(one.id, os.fsencode(one.name), one.stamp, one.digest, int(one.gone)) for one in images]
        with self._explained(), self._transaction():
            self._base.executemany("INSERT OR REPLACE INTO images VALUES (?, ?, ?, ?, ?)", rows)

    def close(self) -> None:
        with self._alone:
            self._base.close()
        self._lock.release()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._alone:
            self._base.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._base.execute("COMMIT")
            except BaseException:
                if self._base.in_transaction:
                    self._base.execute("ROLLBACK")
                raise

    @contextmanager
    def _explained(self) -> Iterator[None]:
        path = self.out / FILE
        try:
            yield
        except sqlite3.OperationalError as error:  # a full disk, a folder that may not be written
            raise HandfulError(f"cannot write {path} ({error}): nothing was changed") from error
        except (sqlite3.DatabaseError, ValueError, TypeError) as error:
            raise HandfulError(f"{path} is damaged ({error}): move it away, or choose another --out") from error
