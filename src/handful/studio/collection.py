"""The images of a studio: their numbers, which of them are known from before, and what became of the others.

An image is known by its content. A file whose name, size and times are those from before is taken to have the same
content; of others the content is read. So a label follows an image that was renamed or moved; where a file was replaced
by another image, the label stays with the former one, and counts again if that comes back.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..datasets.cache import WORKERS
from ..datasets.files import Archive, Files, find_images
from ..datasets.images import BrokenImage, printable
from .log import KnownImage, Log


class Images:
    """The images in a folder or archive, by number, from 0 in the order of their names.

    Attributes:
        files: where they are.
        names: as the system has them.
        shown: the same, made printable.
        ids: (n,) of each, for good.
        digests: of the content, None where it is not known yet.
        broken: those that cannot be read, with the reason.
        known: how many ids there are, of images that are gone as well.
        gone: ids of images that are no longer there.
    """

    def __init__(self, photos: Path, log: Log | None = None) -> None:
        listed = find_images(photos)
        self.files, self.names, self.skipped = listed.files, listed.names, listed.skipped
        self.shown = [printable(name) for name in self.names]
        self.broken: dict[int, str] = {}
        self._log = log
        before = log.images() if log is not None else []
        self._stamps = [stamp(self.files, name) for name in self.names]
        found, fresh = [], count(len(before))
        for one in self._matched(before):
            found.append(replace(one, id=next(fresh)) if one.id < 0 else one)
        self.ids = np.array([one.id for one in found], dtype=np.int64)
        self.digests: list[bytes | None] = [one.digest for one in found]
        there = set(self.ids.tolist())
        self.known, self.gone = next(fresh), [one.id for one in before if one.id not in there]
        self.replaced = [number for number, one in enumerate(found) if one.id >= len(before) and one.gone]
        former = {one.id: one for one in before}
        lost = [replace(former[number], gone=True) for number in self.gone]
        kept = [replace(one, gone=False) if one.gone else one for one in found]
        if log is not None:
            log.save_images([one for one in [*lost, *kept] if former.get(one.id) != one])
        self.numbers: NDArray[np.int64] = np.full(self.known, -1)  # by id; -1 for those that are gone
        self.numbers[self.ids] = np.arange(len(self.ids))

    def __len__(self) -> int:
        return len(self.names)

    def read(self, number: int) -> bytes:
        """The content of an image; raises `BrokenImage`."""
        return self.files.read(self.names[number])

    def tag(self, number: int) -> str:
        """Changes when the file does."""
        text = f"{self.names[number]}\0{self._stamps[number]}"
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    def touched(self, number: int) -> bool:
        """Whether size or time of a file are other ones than when it was last looked at; cheap."""
        return stamp(self.files, self.names[number]) != self._stamps[number]

    def look_again(self, number: int) -> str:
        """What became of a file that was touched, by its content: "same", "other", "gone", or "back" after that.

        Another image gets an id of its own, or the one that it had before; the label stays with the former image.
        """
        self._stamps[number] = stamp(self.files, self.names[number])
        before, (digest,) = self.digests[number], self._digests([number])
        if digest is None:
            self.broken[number] = "the file is no longer there, or can no longer be read"
            return "gone"
        was_gone = self.broken.pop(number, None) is not None
        if before in (None, digest):
            self.learned({number: digest})
            return "back" if was_gone else "same"
        self._replace(number, digest)
        return "other"

    def _replace(self, number: int, digest: bytes) -> None:
        known = self._log.images() if self._log is not None else []
        taken = set(self.ids.tolist())
        found = next((one.id for one in known if one.digest == digest and one.id not in taken), self.known)
        former = replace(self._known(number), gone=True)
        self.known = max(self.known, found + 1)
        numbers = np.full(self.known, -1)
        numbers[: len(self.numbers)] = self.numbers
        numbers[former.id], numbers[found] = -1, number
        self.numbers = numbers
        self.ids[number], self.digests[number] = found, digest
        if self._log is not None:
            self._log.save_images([former, self._known(number)])

    def learned(self, digests: dict[int, bytes]) -> None:
        """Keep digests of images by number; who sees one here finds it on disk."""
        if self._log is not None:
            self._log.save_images(replace(self._known(number), digest=digest) for number, digest in digests.items())
        for number, digest in digests.items():
            self.digests[number] = digest

    def _known(self, number: int) -> KnownImage:
        return KnownImage(
            int(self.ids[number]), self.names[number], self._stamps[number], self.digests[number], gone=False
        )

    def _matched(self, before: list[KnownImage]) -> Iterator[KnownImage]:
        """Each image as one of those from before; with a negative id if it is new, ``gone`` if it replaced another."""
        by_name = {one.name: one for one in before if not one.gone}
        same = {
            number: by_name[name] for number, name in enumerate(self.names)
            if name in by_name and by_name[name].stamp == self._stamps[number]
        }  # fmt: skip
        others = [number for number in range(len(self.names)) if number not in same]
        taken = {one.id for one in same.values()}
        free: dict[bytes, list[KnownImage]] = {}
        for one in before:
            if one.id not in taken and one.digest is not None:
                free.setdefault(one.digest, []).append(one)
        digests = dict(zip(others, self._digests(others), strict=True)) if before else {}
        for number, name in enumerate(self.names):
            if number in same:
                yield same[number]
                continue
            digest, here = digests.get(number), by_name.get(name)
            if here is not None and here.digest is None and here.id not in taken:  # never read: the name is all we know
                match: KnownImage | None = here
            else:
                candidates = free.get(digest or b"", [])
                match = here if here in candidates else next(iter(candidates), None)
                if match is not None:
                    candidates.remove(match)
            if match is not None:
                taken.add(match.id)
                yield KnownImage(match.id, name, self._stamps[number], digest, gone=False)
            else:
                yield KnownImage(-1, name, self._stamps[number], digest, gone=here is not None)

    def _digests(self, numbers: Iterable[int]) -> list[bytes | None]:
        def one(number: int) -> bytes | None:
            try:
                return hashlib.sha256(self.read(number)).digest()
            except BrokenImage:
                return None

        with ThreadPoolExecutor(WORKERS) as pool:
            return list(pool.map(one, numbers))


def changes(images: Images, files: dict[int, str]) -> list[str]:
    """What became of files, in a sentence for each kind."""
    words = {"other": "was replaced by another image, which has no label yet", "gone": "is no longer there",
             "back": "is there again"}  # fmt: skip
    found = []
    for kind, text in words.items():
        names = [images.shown[number] for number, what in files.items() if what == kind]
        if names:
            more = f" (and {len(names) - 1:,} more)" if len(names) > 1 else ""
            found.append(f"{names[0]}{more} {text}.")
    return found


def stamp(files: Files, name: str) -> str:
    """Size and time of a file, or size and checksum of a member of an archive: changes when the content does."""
    if isinstance(files, Archive):
        return f"{files.members[name].file_size} {files.members[name].CRC}"
    try:
        found = os.stat(f"{files.path}/{name}")  # noqa: PTH116 - a path each takes ten times as long, of 100,000
    except OSError as error:
        return f"unreadable {error.errno}"
    return f"{found.st_size} {found.st_mtime_ns}"
