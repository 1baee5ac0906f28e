"""Tar archives: copied once into the cache as a zip archive that is not compressed, where any file can be read at once.

A tar archive can only be read from its start, and a compressed one not even skipped through. Nothing is written beside
the user's archive, and no name inside it becomes a path on disk.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from ..errors import HandfulError, Interrupted
from ..progress import messages
from ..publish import publishing
from .base import Bar, no_bar
from .cache import alone, cache_root, explained
from .images import EXTENSIONS, MOST_BYTES, printable

OPENERS: dict[str, Callable[[Path], Any]] = {
    ".tar": lambda path: path.open("rb"),
    ".tar.gz": gzip.open,
    ".tgz": gzip.open,
    ".tar.xz": lzma.open,
    ".txz": lzma.open,
    ".tar.bz2": bz2.open,
}
READ = (*sorted(EXTENSIONS), ".csv")  # what loaders read; other files are listed only
MOST_MEMBERS = 20_000_000
MOST_NAME = 4096
MOST_RATIO, FREE_OF_RATIO = 200, 1 << 30  # an archive of images does not grow by so much, once it is beyond this size
LEAST_FREE = 1 << 28  # bytes to leave on the disk of the cache


def tar_kind(path: Path) -> str | None:
    """Which of `OPENERS` a file is named for, or None."""
    return next((ending for ending in OPENERS if path.name.lower().endswith(ending)), None)


def as_zip(path: Path, digest: str) -> Path:
    """The zip archive in the cache with what loaders read of a tar archive of this digest; made if it is missing.

    A member that must not be read, or that nobody reads, is there without its content; its comment says why.
    """
    folder = cache_root() / "archives" / digest[:32]
    made = folder / "files.zip"
    if made.is_file():
        return made
    with alone(folder):
        if made.is_file():  # another process was faster
            return made
        messages.print(f"copying {path.name} into the cache, once", highlight=False, markup=False)
        part = folder / ".files.zip.part"
        try:
            with explained(folder), zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as target:
                _copy(path, target)
            with explained(folder):
                with part.open("rb+") as file:
                    os.fsync(file.fileno())
                part.replace(made)
        except KeyboardInterrupt:
            raise Interrupted(f"stopped while copying {path.name} into the cache; run the command again") from None
        finally:
            part.unlink(missing_ok=True)
    return made


def _copy(path: Path, target: zipfile.ZipFile) -> None:
    room = max(FREE_OF_RATIO, MOST_RATIO * path.stat().st_size)
    folder, unchecked, last = Path(cast(str, target.filename)).parent, 0, -1
    seen: dict[str, zipfile.ZipInfo] = {}
    with _opened(path) as tar:
        while (member := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # it would remember all of them
            if tar.offset > room or len(seen) >= MOST_MEMBERS:  # before anything is skipped or read
                raise HandfulError(f"{path} holds far more than an archive of its size should: unpack it by hand")
            if member.size < 0 or tar.offset <= last:
                raise tarfile.ReadError("its members lead in a circle")
            last = tar.offset
            if member.isdir():
                continue
            name = member.name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            if not 0 < len(name) <= MOST_NAME or "\0" in name:
                raise HandfulError(f"{path} has a member without a usable name: {printable(name):.60}")
            if name in seen:
                seen[name].comment = b"is in the archive more than once"
                continue
            reason = _reason(member)
            entry = seen[name] = zipfile.ZipInfo(name)
            entry.comment = reason.encode()
            with target.open(entry, "w") as copied:
                if not reason:
                    copied.write(cast(IO[bytes], tar.extractfile(member)).read())
            unchecked += member.size if not reason else 0
            if unchecked > LEAST_FREE // 4:
                unchecked = 0
                if shutil.disk_usage(folder).free < LEAST_FREE:
                    raise HandfulError(
                        f"there is too little room in {folder.parent} for what {path.name} holds: "
                        "set HANDFUL_CACHE to a folder on another disk"
                    )
    if not seen:
        raise HandfulError(f"{path} is not a tar archive, or an empty one")


@contextmanager
def _opened(path: Path) -> Iterator[tarfile.TarFile]:
    """A tar archive, to be read from its start; what is wrong with it is a `HandfulError`."""
    try:
        with OPENERS[cast(str, tar_kind(path))](path) as content, tarfile.TarFile(fileobj=Bounded(content)) as tar:
            yield tar
    except HandfulError:
        raise  # it has its sentence
    except (tarfile.TarError, lzma.LZMAError, EOFError, OSError, ValueError, RecursionError) as error:
        if isinstance(error, OSError) and error.errno is not None and not isinstance(error, gzip.BadGzipFile):
            raise  # of the disk, not of the archive
        raise HandfulError(f"{path} is not a tar archive, or a damaged one: {printable(str(error))}") from error


def _plain_files(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The members of an archive that are plain files, in their order, without remembering them."""
    last = -1
    while (member := tar.next()) is not None:
        tar.members.clear()  # type: ignore[attr-defined]
        if member.size < 0 or tar.offset <= last:
            raise tarfile.ReadError("its members lead in a circle")
        last = tar.offset
        if member.isreg() and not member.issparse():
            yield member


def holds(path: Path, names: Sequence[str]) -> bool:
    """Whether a tar archive has plain files of these names, in whatever folder; it is read up to the first image."""
    with _opened(path) as tar:
        for member in _plain_files(tar):
            if PurePosixPath(member.name).name in names:
                return True
            if member.name.lower().endswith(tuple(EXTENSIONS)):
                return False
    return False


def unpack(path: Path, names: Sequence[str], out: Path, bar: Bar = no_bar) -> None:
    """Unpack the plain files of these names into a folder, whatever folders they are in inside the archive.

    No other name of the archive becomes a path. If it fails, what was in ``out`` before stays as it was.
    """
    found: set[str] = set()
    with publishing(out) as stage, _opened(path) as tar:
        for member in _plain_files(tar):
            name = PurePosixPath(member.name).name
            if name not in names:
                continue
            if name in found:
                raise HandfulError(f"{path} holds {name} more than once: unpack it by hand")
            found.add(name)
            if shutil.disk_usage(stage).free < member.size + LEAST_FREE:
                raise HandfulError(f"there is too little room in {out} for {name}, {member.size / 2**30:.1f} GiB")
            tick, source = bar(f"unpacking {name}", member.size >> 20), cast(IO[bytes], tar.extractfile(member))
            with (stage / name).open("wb") as target:
                while block := source.read(1 << 22):
                    target.write(block)
                    tick(len(block) / (1 << 20))


def _reason(member: tarfile.TarInfo) -> str:
    """Why the content of a member is not read, or ""."""
    if member.issym() or member.islnk():
        return "is a link"
    if not member.isreg() or member.issparse():
        return "is not a plain file"
    if not member.name.lower().endswith(READ):
        return "is neither an image nor a table"
    return f"more than {MOST_BYTES >> 20} MiB" if member.size > MOST_BYTES else ""


class Bounded(io.RawIOBase):
    """A file that refuses to read very much at once: headers of an archive can ask for any amount of memory."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= MOST_BYTES + tarfile.BLOCKSIZE:
            raise tarfile.ReadError("a header asks for too much")
        return cast(bytes, self._file.read(size))

    def seek(self, position: int, whence: int = 0) -> int:
        return cast(int, self._file.seek(position, whence))

    def tell(self) -> int:
        return cast(int, self._file.tell())
