"""Tar archives read once, from their start to their end, as WebDataset lays them out: nothing is copied or unpacked."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, cast

from .base import Item
from .files import is_clutter, is_image, leads_out
from .images import MOST_BYTES, printable
from .remote import last_name, opened
from .stream_items import Damaged, ready, refused
from .tars import FREE_OF_RATIO, MOST_NAME, MOST_RATIO, Bounded, tar_kind

UNPACKED: dict[str, Callable[[IO[bytes]], Any]] = {
    ".tar": lambda file: file,
    ".tar.gz": gzip.open,
    ".tgz": gzip.open,
    ".tar.xz": lzma.open,
    ".txz": lzma.open,
    ".tar.bz2": bz2.open,
}
_DAMAGE = (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, ValueError, RecursionError, gzip.BadGzipFile)


def tar_items(place: str, size: int, skip: int = 0) -> Iterator[Item]:
    """The images of a tar archive of this size in bytes, in its order, but the first ``skip`` of them.

    Raises:
        Damaged: where it is cut off or damaged, after the images before that place; or if it unpacks to far more than
            an archive of its size should.
    """
    name, seen = printable(last_name(place)), 0
    kind = cast(str, tar_kind(Path(last_name(place))))
    room = max(FREE_OF_RATIO, MOST_RATIO * size)
    try:
        with opened(place) as file:
            content = Bounded(UNPACKED[kind](file))
            with tarfile.TarFile(fileobj=content) as tar:
                for member in _members(tar, name, room):
                    if not is_image(member.name) or member.isdir() or is_clutter(member.name.replace("../", "")):
                        continue
                    item = _item(tar, member) if seen >= skip else None
                    seen += 1
                    if item is not None:
                        yield item
                _check_end(content, tar.offset)
    except _DAMAGE as error:
        if isinstance(error, Damaged):
            raise
        raise Damaged(f"{name} is damaged or cut off after {seen:,} images: {printable(str(error)):.120}") from error


def _members(tar: tarfile.TarFile, name: str, room: int) -> Iterator[tarfile.TarInfo]:
    last = -1
    while (member := tar.next()) is not None:
        tar.members.clear()  # type: ignore[attr-defined]  # it would remember all of them
        if tar.offset > room:  # before anything is skipped or read
            raise Damaged(f"{name} unpacks to far more than an archive of its size should: it was left there")
        if member.size < 0 or tar.offset <= last:
            raise tarfile.ReadError("its members lead in a circle")
        last = tar.offset
        if not 0 < len(member.name) <= MOST_NAME or "\0" in member.name:
            raise tarfile.ReadError("a member without a usable name")
        yield member


def _item(tar: tarfile.TarFile, member: tarfile.TarInfo) -> Item:
    name = member.name.encode("utf-8", "surrogateescape").decode("utf-8", "replace").removeprefix("./")
    if leads_out(name):
        return refused(name, "has a path that leads out of the archive")
    if member.issym() or member.islnk():
        return refused(name, "is a link")
    if not member.isreg() or member.issparse():
        return refused(name, "is not a plain file")
    if member.size > MOST_BYTES:
        return refused(name, f"more than {MOST_BYTES >> 20} MiB")
    content = cast(IO[bytes], tar.extractfile(member)).read()
    if len(content) != member.size:
        raise tarfile.ReadError("unexpected end of data")
    return ready(name, content)


def _check_end(content: Bounded, offset: int) -> None:
    """A whole archive ends in zeros. One that is cut between two members, or before a damaged one, does not."""
    content.seek(offset)
    if content.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError("its end is missing")
