"""A user's files: a folder, or a zip or tar archive that is read without unpacking, under one interface.

Names are relative, with forward slashes. A loader can only read names that were listed, so that no name inside an
archive or a table can point outside it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import zipfile
from bisect import bisect_left
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol

from ..errors import HandfulError
from .base import Bar, no_bar
from .cache import WORKERS, cache_root, write_cache
from .images import EXTENSIONS, MOST_BYTES, BrokenImage, printable
from .tars import OPENERS, as_zip, tar_kind

METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others unpack a whole member at once, however large it gets
CLUTTER = ("__MACOSX", "Thumbs.db", "desktop.ini", "lost+found", "$RECYCLE.BIN", "System Volume Information")
_BLOCK = 1 << 22
_UNREADABLE = "unreadable"


class Files(Protocol):
    """The interface of a folder or an archive for loaders."""

    path: Path
    top: str  # the single folder of an archive that names leave out, or ""

    def folders(self, parent: str = "") -> list[str]:
        """Names of the folders directly in ``parent`` ("" is the top), sorted."""

    def files(self, parent: str = "") -> list[str]:
        """Names of the files directly in ``parent``, sorted."""

    def under(self, parent: str, skipped: dict[str, str] | None = None) -> list[str]:
        """Names of all files in ``parent`` and its folders, with their path from the top, sorted.

        Links to folders and folders that cannot be listed go to ``skipped``, with the reason. Without it, a link is
        listed like a file, which nobody will be able to read, and a folder that cannot be listed is an error.
        """

    def read(self, name: str) -> bytes:
        """The content of a file; raises `BrokenImage` if it cannot be read."""

    def digest(self, names: Sequence[str], bar: Bar) -> str:
        """A hash of the files' names and contents."""


def open_files(path: Path, *, unwrap: bool = True) -> Files:
    """The files at a path: a folder, or a .zip or tar archive (.tar, .tar.gz, .tgz, .tar.xz, .txz, .tar.bz2).

    With ``unwrap``, an archive of a single folder is that folder; loaders of data sets look for their layouts anywhere.
    """
    if path.is_dir():
        return Folder(path)
    if path.suffix.lower() == ".zip" and path.is_file():
        return Archive(path, unwrap=unwrap)
    if tar_kind(path) is not None and path.is_file():
        return TarArchive(path, unwrap=unwrap)
    raise HandfulError(f"{path} is neither a folder nor a .zip archive nor one of {', '.join(OPENERS)}")


def is_image(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in EXTENSIONS


@dataclass(frozen=True)
class Images:
    """The images in a folder or archive: their names, sorted; other files; and skipped folders, with the reason."""

    files: Files
    names: list[str]
    others: list[str]
    skipped: dict[str, str]


def find_images(path: Path) -> Images:
    """The images at a path; if there is no such folder or archive, or no image in it, that is an error."""
    if not path.exists():
        raise HandfulError(f"no such folder or archive: {path}")
    files, skipped = open_files(path), dict[str, str]()
    everything = files.under("", skipped)
    names = [name for name in everything if is_image(name)]
    if not names:
        missing = "".join(f"; {printable(name)} is {reason}" for name, reason in list(skipped.items())[:1])
        raise HandfulError(f"{path} holds no images (.jpg, .png, .webp, .bmp, .tif, .gif){missing}")
    return Images(files, names, [name for name in everything if not is_image(name)], skipped)


def leads_out(name: str) -> bool:
    """Whether the name of a member of an archive would lead out of it: ``../x``, ``/x``, ``C:/x``."""
    return any(part in ("", "..") or (part[1:2] == ":" and part[0].isalpha()) for part in name.split("/"))


def is_clutter(name: str) -> bool:
    """Whether a name is a file of the operating system: ``.DS_Store``, ``__MACOSX/``, ``Thumbs.db``."""
    return any(part[:1] == "." or part in CLUTTER for part in name.split("/"))


class Folder:
    """The files in a folder. Links to folders are followed at the top of what is asked for, not below."""

    top = ""

    def __init__(self, path: Path) -> None:
        self.path = path

    def folders(self, parent: str = "") -> list[str]:
        return _names(self.path / parent, lambda entry: entry.is_dir())

    def files(self, parent: str = "") -> list[str]:
        return _names(self.path / parent, lambda entry: entry.is_file())

    def under(self, parent: str, skipped: dict[str, str] | None = None) -> list[str]:
        names, folders = [], [parent]
        while folders:  # not os.walk, which says nothing of what it cannot list, and is recursive
            folder = folders.pop()
            try:
                with os.scandir(self.path / folder) as entries:
                    inside = [entry for entry in entries if not is_clutter(entry.name)]
            except OSError as error:
                if skipped is None or folder == parent:
                    raise HandfulError(f"cannot read {printable(str(self.path / folder))}: {error.strerror}") from error
                skipped[folder] = f"a folder that cannot be listed: {error.strerror}"
                continue
            for entry in inside:
                name = f"{folder}/{entry.name}" if folder else entry.name
                kind = _kind(entry)
                if kind == "folder":
                    folders.append(name)
                elif kind == "link to a folder" and skipped is not None:
                    skipped[name] = "a link to a folder, which is not followed"
                else:
                    names.append(name)
        return sorted(names)

    def read(self, name: str) -> bytes:
        path = self.path / name
        try:
            found = path.stat()
            if not stat.S_ISREG(found.st_mode):  # a pipe or a device may never end
                raise BrokenImage("not a file but a pipe, a device or a folder")
            if found.st_size > MOST_BYTES:
                raise BrokenImage(f"more than {MOST_BYTES >> 20} MiB")
            with path.open("rb") as file:
                return file.read(found.st_size)
        except OSError as error:
            if error.errno in (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE, errno.ENFILE):
                # Not the file's fault: it may well be readable tomorrow, and must not count as broken for ever.
                raise HandfulError(f"cannot read {printable(str(path))}: {error.strerror}") from error
            raise BrokenImage(error.strerror or str(error)) from error

    def digest(self, names: Sequence[str], bar: Bar) -> str:
        return file_digest(self.path, names, bar)


def _kind(entry: os.DirEntry[str]) -> str:
    try:
        if not entry.is_dir():
            return "file"
        junction = hasattr(entry, "is_junction") and entry.is_junction()  # Python 3.12, on Windows
        return "link to a folder" if entry.is_symlink() or junction else "folder"
    except OSError:  # a link in a circle, or to where nobody may look: whoever reads it will say so
        return "file"


def _names(folder: Path, wanted: Callable[[os.DirEntry[str]], bool]) -> list[str]:
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    if not is_clutter(entry.name) and wanted(entry):
                        found.append(entry.name)
                except OSError as error:  # of a link; one in a circle is nothing, others might be a class
                    if error.errno != errno.ELOOP:
                        raise HandfulError(f"cannot read {printable(entry.path)}: {error.strerror}") from error
    except OSError as error:
        raise HandfulError(f"cannot read {printable(str(folder))}: {error.strerror}") from error
    return sorted(found)


class Archive:
    """The files in a zip archive. Members with a path outside the archive are never read.

    Those of an archive that holds nothing but one folder are named from that folder on, if it is to be unwrapped.
    """

    def __init__(self, path: Path, *, unwrap: bool = False, file: IO[bytes] | None = None) -> None:
        self.path, self.top = path, ""
        self.members: dict[str, zipfile.ZipInfo] = {}
        self.doubtful: dict[str, str] = {}  # members that are not read, and why
        try:
            self._zip = zipfile.ZipFile(file or path)
            members = self._zip.infolist()
        except Exception as error:  # of damaged archives: BadZipFile, struct.error, UnicodeDecodeError, ...
            raise HandfulError(f"{path} is not a zip archive, or a damaged one: {printable(str(error))}") from error
        for member in members:
            # Some programs write ./ in front, others backslashes.
            name = member.filename.replace("\\", "/").removeprefix("./")
            if member.is_dir() or name.endswith("/") or is_clutter(name.replace("../", "")):
                continue
            if name in self.members:
                self.doubtful[name] = "is in the archive more than once"
            elif leads_out(name):
                self.doubtful[name] = "has a path that leads out of the archive"
            elif member.compress_type not in METHODS:
                self.doubtful[name] = "is packed by a method that is not read"
            self.members[name] = member
        by_place = sorted(self.members.items(), key=lambda entry: entry[1].header_offset)
        for (name, member), (_, following) in pairwise(by_place):  # small archives of endless content share it
            if member.header_offset + member.compress_size > following.header_offset:
                self.doubtful.setdefault(name, "overlaps with another member")
        tops = {name.partition("/")[0] if "/" in name else "" for name in self.members} if unwrap else set()
        if len(tops) == 1 and not tops & {"", ".", ".."}:
            (self.top,) = tops
            cut = len(self.top) + 1
            self.members = {name[cut:]: member for name, member in self.members.items()}
            self.doubtful = {name[cut:]: reason for name, reason in self.doubtful.items()}
        self._names = sorted(self.members)

    def folders(self, parent: str = "") -> list[str]:
        prefix, found = f"{parent}/" if parent else "", []
        at = bisect_left(self._names, prefix)
        while at < len(self._names) and self._names[at].startswith(prefix):
            folder, slash, _ = self._names[at][len(prefix) :].partition("/")
            if slash and folder not in ("", ".", ".."):
                found.append(folder)
            at = bisect_left(self._names, f"{prefix}{folder}0") if slash else at + 1  # 0 is what follows /
        return sorted(found)  # "cat-2/" comes before "cat/", but "cat" before "cat-2": as in a folder

    def files(self, parent: str = "") -> list[str]:
        prefix = f"{parent}/" if parent else ""
        return [name[len(prefix) :] for name in self.under(parent) if "/" not in name[len(prefix) :]]

    def under(self, parent: str, skipped: dict[str, str] | None = None) -> list[str]:
        if not parent:
            return self._names
        return self._names[bisect_left(self._names, f"{parent}/") : bisect_left(self._names, f"{parent}0")]

    def read(self, name: str) -> bytes:
        if name in self.doubtful:
            raise BrokenImage(self.doubtful[name])
        member = self.members[name]
        if member.file_size > MOST_BYTES:
            raise BrokenImage(f"more than {MOST_BYTES >> 20} MiB")
        try:
            with self._zip.open(member) as file:
                content = file.read(member.file_size)  # not more, whatever the member turns out to be
        except Exception as error:  # damaged or encrypted: BadZipFile, zlib.error, RuntimeError, EOFError, ...
            raise BrokenImage(printable(str(error)) or type(error).__name__) from error
        return content

    def digest(self, names: Sequence[str], bar: Bar) -> str:
        """Of the archive as a whole: its own checksums of the members are the same if their content is damaged."""
        whole = file_digest(self.path.parent, [self.path.name], bar)
        return hashlib.sha256(_bytes((whole, names))).hexdigest()


class TarArchive(Archive):
    """The files in a tar archive, read from its copy in the cache. Links and other special members are never read."""

    def __init__(self, path: Path, *, unwrap: bool = False) -> None:
        copy = as_zip(path, file_digest(path.parent, [path.name], no_bar))
        try:
            super().__init__(copy, unwrap=unwrap)
        except HandfulError as error:
            raise HandfulError(f"the copy of {path} in the cache is damaged: remove {copy.parent}") from error
        self.path, self.copy = path, copy
        for name, member in self.members.items():
            if member.comment:
                self.doubtful[name] = member.comment.decode("utf-8", "replace")

    def read(self, name: str) -> bytes:
        try:
            return super().read(name)
        except BrokenImage as error:
            if name in self.doubtful:
                raise
            raise HandfulError(  # the archive's own damage shows when it is copied
                f"the copy of {self.path} in the cache is damaged: remove {self.copy.parent}"
            ) from error


def file_digest(root: Path, names: Sequence[str], bar: Bar) -> str:
    """A hash of files' names and contents; remembered until the path, size, time or inode of a file changes."""
    stats = []
    for name in names:
        try:
            found = (root / name).stat()
            stats.append((name, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino))
        except OSError as error:  # a link that leads nowhere, which whoever reads it will name
            stats.append((name, 0, error.errno or 0, 0, 0))
    seen = hashlib.sha256(_bytes((str(root.resolve()), stats))).hexdigest()
    memory = cache_root() / "digests" / seen
    try:
        known = memory.read_text(encoding="ascii")
        if len(known) == 64:
            return known
    except (OSError, ValueError):
        pass
    tick = bar("looking at the files (MiB)", sum(size for _, size, *_ in stats) >> 20)
    total = hashlib.sha256()
    readable = True
    with ThreadPoolExecutor(WORKERS) as pool:
        for name, digest in zip(names, pool.map(lambda name: _content_digest(root / name, tick), names), strict=True):
            total.update(_bytes((name, digest)))
            readable = readable and not digest.startswith(_UNREADABLE)
    if readable:  # else it may be another time
        write_cache(memory, total.hexdigest().encode())
    return total.hexdigest()


def _content_digest(path: Path, tick: Any) -> str:
    digest = hashlib.sha256()
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) or (is_image(path.name) and found.st_size > MOST_BYTES):
            return "never read"
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
                tick(len(block) / 2**20)
    except OSError as error:
        return f"{_UNREADABLE}: {error.strerror}"
    return digest.hexdigest()


def _bytes(value: Any) -> bytes:
    return repr(value).encode("utf-8", "surrogatepass")
