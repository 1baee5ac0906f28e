"""Verify and prepare what a user has downloaded of a known data set: checksums, unpacking, numbers, fingerprints."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import HandfulError
from . import DATASETS, prepare_dataset
from .base import Bar, no_bar
from .known import KNOWN, Known
from .tars import holds, tar_kind, unpack

_BLOCK = 1 << 22


@dataclass(frozen=True)
class FileCheck:
    """A file of a known name: its checksum, and who publishes this one for it, or None if it is another."""

    name: str
    md5: str
    publisher: str | None


@dataclass(frozen=True)
class Fetched:
    """What was found in a user's files.

    Attributes:
        dataset: its name.
        data: the folder or archive to give as ``--data``.
        files: those with a known name.
        splits: rows of `prepare_dataset`, each with ``as_measured``: whether its images are those that our results were
            measured on; None if that is not known.
    """

    dataset: str
    data: str
    files: list[FileCheck]
    splits: list[dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def known_dataset(name: str) -> Known:
    """What is known of a data set that has to be downloaded; another name is an error."""
    if name in KNOWN:
        return KNOWN[name]
    if name in DATASETS:
        spec = DATASETS[name]
        why = "reads images of your own" if spec.needs_path else "is drawn on first use"
        raise HandfulError(f"there is nothing to fetch for '{name}': it {why}; choose one of {', '.join(KNOWN)}")
    raise HandfulError(f"unknown data set '{name}': choose one of {', '.join(KNOWN)}")


def fetch(name: str, path: Path, out: Path | None = None, *, bar: Bar = no_bar) -> Fetched:
    """Verify downloaded files and decode them into the cache; pickles inside a tar archive are unpacked to ``out``.

    Raises:
        HandfulError: if the files cannot be read, or do not hold the classes and images of the data set.
    """
    known = known_dataset(name)
    if not path.exists():
        raise HandfulError(f"no such file or folder: {path}; 'handful data fetch {name}' says where to get it")
    checks = check_files(known, path, bar)
    data = path
    if path.is_file() and tar_kind(path) is not None and known.packed and holds(path, known.packed):
        if out is None:
            raise HandfulError(
                f"{path} holds pickles, which are not read inside an archive: add --out FOLDER to unpack them"
            )
        unpack(path, known.packed, out, bar)
        checks += check_files(known, out, bar)
        data = out
    rows = prepare_dataset(name, data, {}, bar=bar)
    for row in rows:
        split, found = row["split"], (row["classes"], row["images"])
        if found != known.images[split]:
            classes, images = known.images[split]
            raise HandfulError(
                f"{data} is not the whole of {name}: its '{split}' split has {found[0]:,} classes and {found[1]:,} "
                f"images, where {classes:,} and {images:,} are expected; 'handful data check' says what is there"
            )
        row["as_measured"] = row["fingerprint"] == known.fingerprints[split] if known.fingerprints else None
    return Fetched(name, str(data), checks, rows)


def check_files(known: Known, path: Path, bar: Bar = no_bar) -> list[FileCheck]:
    """The checksums of files with a known name: the file itself, or those in a folder."""
    checks = []
    for file in known.files:
        found = path if path.name == file.name else path / file.name
        if found.is_file():
            md5 = _md5(found, bar)
            checks.append(FileCheck(file.name, md5, file.publisher if md5 == file.md5 else None))
    return checks


def _md5(path: Path, bar: Bar) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    tick = bar(f"checksum of {path.name}", path.stat().st_size >> 20)
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            tick(len(block) / (1 << 20))
    return digest.hexdigest()
