"""A folder of results that grows shard by shard, each written whole: killed and started again, it goes on.

A shard is two files of one name: the content (``.npy`` for vectors, ``.parquet`` or ``.csv`` for predictions), and a
JSON file with the names of its images, the digests of their content, checksums, and the images that could not be read.
The JSON file is written last and makes the shard valid. ``shards.json`` says what the folder is of, and never grows.

The name of a shard says which part of which unit it is, and whether that is the last one. So resuming reads a list of
names, and no file of what is done, however much that is.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ..datasets.units import Unit
from ..errors import HandfulError
from ..io import read_object, write_atomic, write_json

MANIFEST, LOCK = "shards.json", ".shards.lock"
FORMAT = 1
LAST, DAMAGED = "z", "x"  # after the number of a unit's last part; and if it ends where the source is damaged
_NAME = re.compile(r"(?P<slug>[\w-]+)-(?P<number>\d{6,})-(?P<key>[0-9a-f]{16})-(?P<part>\d{4})(?P<last>[zx]?)")


@dataclass(frozen=True)
class Part:
    """What became of some images of a unit that follow each other.

    Attributes:
        unit: its key.
        name: of the shard, without an ending.
        content: of the first file.
        about: for the JSON file: ``seen`` (how many images were looked at), ``names``, ``broken``, ``problem``, ...
    """

    unit: str
    name: str
    content: bytes
    about: dict[str, Any]


@dataclass(frozen=True)
class Task:
    """A unit, and how much of it is done already: parts, and images."""

    unit: Unit
    part: int = 0
    skip: int = 0


def shard_name(unit: Unit, part: int, end: str = "") -> str:
    """The name of a part; ``end`` is `LAST` or `DAMAGED` if it is the last one."""
    return f"{unit.slug}-{unit.number:06d}-{unit.key[:16]}-{part:04d}{end}"


class ShardFolder:
    """A folder of shards that is written to.

    Args:
        path: the folder; it is made if it is missing.
        ending: of the content of a shard, as ``.npy``.
        about: what all shards have in common; a folder of anything else is refused.
    """

    def __init__(self, path: Path, ending: str, about: dict[str, Any]) -> None:
        self.path, self.ending = path, ending
        self.about = {"format": FORMAT, "ending": ending, **about}
        self.check()

    def check(self) -> None:
        """Check that shards can go here, beside nothing of the user's and nothing else of ours; changes nothing."""
        if self.path.exists() and not self.path.is_dir():
            raise HandfulError(f"{self.path} is a file: give a folder for --out")
        known = self.path / MANIFEST
        if not known.exists():
            if self.path.is_dir() and any(one.name != LOCK for one in self.path.iterdir()):
                raise HandfulError(f"{self.path} holds other files: choose a new or an empty folder for --out")
            return
        found = read_object(known)
        for name, wanted in self.about.items():
            if found.get(name) != wanted:
                raise HandfulError(
                    f"{self.path} was made with another {name} ({_short(found.get(name))}, not {_short(wanted)}): "
                    "choose another --out"
                )

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the folder's lock while it is written to."""
        self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path / LOCK)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            raise HandfulError(f"another process is writing to {self.path}: wait for it") from None
        try:
            self.check()
            for left in self.path.glob(".*.part"):  # of a process that was killed
                left.unlink(missing_ok=True)
            if not (self.path / MANIFEST).exists():
                write_json(self.path / MANIFEST, self.about)
            yield
        finally:
            lock.release()

    def names(self) -> list[str]:
        """Of the shards that are whole, sorted."""
        return shard_names(self.path)

    def waiting(self, units: list[Unit]) -> list[Task]:
        """What is left to do of these units."""
        parts: dict[str, list[str]] = {}
        for name, unit in self._ours():
            parts.setdefault(unit, []).append(name)
        return [task for unit in units if (task := self._task(unit, parts.get(_identity(unit), []))) is not None]

    def problems(self, units: list[Unit]) -> dict[str, str]:
        """Sources of these units that were found to be damaged before, with a sentence."""
        sources = {_identity(unit): unit.source for unit in units}
        return {
            sources[unit]: str(read_object(self.path / f"{name}.json").get("problem"))
            for name, unit in self._ours() if name.endswith(DAMAGED) and unit in sources
        }  # fmt: skip

    def _task(self, unit: Unit, done: list[str]) -> Task | None:
        """From where on a unit is to be done: after the parts that are there without a gap; None if all are there."""
        ends = [name.rpartition("-")[2] for name in done]
        whole = 0
        while whole < len(ends) and int(ends[whole][:4]) == whole:
            if ends[whole].endswith((LAST, DAMAGED)):
                return None
            whole += 1
        seen = (int(read_object(self.path / f"{name}.json")["seen"]) for name in done[:whole])
        return Task(unit, whole, sum(seen))

    def _ours(self) -> Iterator[tuple[str, str]]:
        """The shards, and the identity of the unit that each is of."""
        for name in self.names():
            if found := _NAME.fullmatch(name):
                yield name, f"{found['slug']} {found['key']}"

    def write(self, part: Part) -> None:
        self.write_to(self.path, self.ending, part)

    @staticmethod
    def write_to(path: Path, ending: str, part: Part) -> None:
        """Write a shard to a folder: the content, then the JSON file that makes it valid."""
        write_atomic(path / f"{part.name}{ending}", part.content)
        about = part.about | {"sha256": hashlib.sha256(part.content).hexdigest()}
        write_json(path / f"{part.name}.json", about)

    def tidy(self, units: list[Unit]) -> int:
        """Remove shards of units that these sources no longer have, as their images changed; how many."""
        slugs, keep = {unit.slug for unit in units}, set(map(_identity, units))
        gone = [name for name, unit in self._ours() if unit.partition(" ")[0] in slugs and unit not in keep]
        for name in gone:
            self.remove(name)
        return len(gone)

    def remove(self, name: str) -> None:
        """Remove a shard; without its JSON file it is none any more."""
        for ending in (".json", self.ending):
            (self.path / f"{name}{ending}").unlink(missing_ok=True)


def shard_names(path: Path) -> list[str]:
    """Names of the shards in a folder that are whole, sorted, without an ending."""
    try:
        return sorted(entry.name[:-5] for entry in path.iterdir() if entry.name.endswith(".json") and _is_shard(entry))
    except OSError as error:
        raise HandfulError(f"cannot read {path}: {error.strerror}") from error


def _is_shard(entry: Path) -> bool:
    return entry.name != MANIFEST and not entry.name.startswith(".")


def _identity(unit: Unit) -> str:
    return f"{unit.slug} {unit.key[:16]}"


def _short(value: Any) -> str:
    if isinstance(value, dict) and "name" in value:
        return f"{value['name']}, {value.get('weights') or value.get('dim')}"
    return str(value)[:60]
