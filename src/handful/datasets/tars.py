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
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

from ..errors import HandfulError, Interrupted
from ..progress import messages
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
    try:
        with OPENERS[cast(str, tar_kind(path))](path) as content, tarfile.TarFile(fileobj=Bounded(content)) as tar:
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
    except (tarfile.TarError, lzma.LZMAError, EOFError, OSError, ValueError, RecursionError) as error:
        if isinstance(error, OSError) and error.errno is not None and not isinstance(error, gzip.BadGzipFile):
            raise  # of the disk, not of the archive
        raise HandfulError(f"{path} is not a tar archive, or a damaged one: {printable(str(error))}") from error
    if not seen:
        raise HandfulError(f"{path} is not a tar archive, or an empty one")


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
