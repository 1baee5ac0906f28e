"""Results in a folder of the user's: built beside, put in place when whole; no file that is not ours is ever touched.

``.handful.json`` at the top of such a folder is the manifest: the files that we wrote there, with their checksums. A
file that it does not list, or that is no longer what we wrote, is the user's; where one is in the way, nothing is
written. A folder of results (``images/`` of ``handful label``) is replaced as one, by swapping two names. So a kill at
any moment leaves the former folder or the new one, whole, and the next command removes what is left of the other.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout

from .errors import HandfulError
from .io import flush_folder, read_json

MANIFEST, DRAFT, LOCK = ".handful.json", ".handful.json.part", ".handful.lock"
FORMAT = 1
_STAGE = re.compile(r"\.handful-[0-9a-f]+\.part")
_FORMER = ".former-"  # before the name of a folder that is being replaced, where two names cannot be swapped at once
_BEGINNING = b'{\n "format": 1,\n "files": {'  # of every manifest; of a half-written one, as much as there is
_BLOCK = 1 << 20
_WAIT_SECONDS = 5.0  # before it is said that another process is writing
_log = logging.getLogger(__name__)


@dataclass
class _Manifest:
    """What is ours in a folder.

    Attributes:
        files: by path from the top, with forward slashes: the checksum of what we wrote there or, for a link, where it
            leads. Two while a file is being replaced, as it may be either when the plug is pulled.
        stage: the folder that we build in, if any; it is ours with all that is in it,
        placing: unless this is set, when it may hold what was in place before.
    """

    format: int = FORMAT
    files: dict[str, list[str]] = field(default_factory=dict)
    stage: str | None = None
    placing: bool = False

    @classmethod
    def read(cls, out: Path) -> _Manifest:
        path = out / MANIFEST
        if not _exists(path):
            return cls()
        try:
            content = read_json(path)
            found = cls(**content)
            known = content.keys() == asdict(found).keys() and found.format == FORMAT
            known = known and all(isinstance(sums, list) for sums in found.files.values())
            sound = known and (found.stage is None or _STAGE.fullmatch(found.stage) is not None)
        except (HandfulError, TypeError, AttributeError):
            sound = False
        if not sound:
            raise HandfulError(
                f"{path} is not a list of files that handful wrote: move it away, or choose another --out"
            )
        return found

    def write(self, out: Path) -> None:
        """Under one temporary name, so that a kill leaves nothing that the next write does not replace."""
        if not self.files and not self.stage:
            (out / MANIFEST).unlink(missing_ok=True)
            return
        with (out / DRAFT).open("wb") as file:
            file.write(json.dumps(asdict(self), indent=1).encode())
            file.flush()
            os.fsync(file.fileno())
        (out / DRAFT).replace(out / MANIFEST)
        flush_folder(out)

    def lists(self, path: Path, name: str) -> bool:
        """Whether a file, which goes by this name, is still what we wrote."""
        known = self.files.get(name, [])
        return bool(known) and _describe(path) in known


def check_free(out: Path, files: Iterable[str] = (), folders: Iterable[str] = ()) -> None:
    """Check that results of these names would only replace what we wrote ourselves; changes nothing.

    Raises:
        HandfulError: if a file or link of the user's is in the way.
    """
    if out.exists() and not out.is_dir():
        raise HandfulError(f"{out} is a file: give a folder for --out")
    for name in (MANIFEST, DRAFT, LOCK, *files, *folders):
        if (out / name).is_symlink():
            raise HandfulError(f"{out / name} is a link: remove it, or choose another --out")
    for name, start in {DRAFT: _BEGINNING, LOCK: b""}.items():  # we would empty these
        if _exists(out / name) and not ((out / name).is_file() and start.startswith(_head(out / name))):
            raise _in_the_way(out / name, "is not a file that handful wrote")
    manifest = _Manifest.read(out)
    for name in files:
        if _exists(out / name):
            _check_ours(manifest, out / name, name)
    for name in folders:
        if _exists(out / name) and not (out / name).is_dir():
            raise _in_the_way(out / name, "is not a folder that handful made")
        for path in _leaves(out / name):
            _check_ours(manifest, path, path.relative_to(out).as_posix())


def _check_ours(manifest: _Manifest, path: Path, name: str) -> None:
    if not manifest.lists(path, name):
        listed = name in manifest.files
        raise _in_the_way(path, "was changed since handful wrote it" if listed else "is not a file that handful wrote")


def _in_the_way(path: Path, why: str) -> HandfulError:
    return HandfulError(f"{path} {why}: move it away, or choose another --out; nothing was changed")


@contextmanager
def publishing(out: Path) -> Iterator[Path]:
    """A new folder to build results in. When the block ends, its files and folders take their places in ``out``.

    One process at a time: another waits. If the block raises, or anything of the user's is in the way, what was there
    before stays as it was.
    """
    check_free(out)
    out.mkdir(parents=True, exist_ok=True)
    with _locked(out):
        manifest = _Manifest.read(out)
        _tidy(out, manifest)
        manifest.stage = f".handful-{secrets.token_hex(6)}.part"
        manifest.write(out)
        try:
            (out / manifest.stage).mkdir()
            yield out / manifest.stage
            _put_in_place(out, manifest)
        finally:
            _tidy(out, manifest)


def publish(out: Path, files: Mapping[str, bytes]) -> None:
    """Put files of these names and contents into ``out``."""
    with publishing(out) as stage:
        for name, content in files.items():
            (stage / name).write_bytes(content)


def _put_in_place(out: Path, manifest: _Manifest) -> None:
    stage = out / str(manifest.stage)
    entries = sorted(stage.iterdir())
    files, folders = ([path.name for path in entries if path.is_dir() is wanted] for wanted in (False, True))
    new = {path.relative_to(stage).as_posix(): [_describe(path)] for path in _leaves(stage)}
    for path in _leaves(stage):
        _flush(path)
    check_free(out, files, folders)
    former = manifest.files
    manifest.files = {name: [*former.get(name, []), *new.get(name, [])] for name in {**former, **new}}
    manifest.placing = True
    manifest.write(out)
    for name in folders:
        _replace_folder(stage, out, name)
    for name in files:
        (stage / name).replace(out / name)
    flush_folder(out)
    _tidy(out, manifest)
    replaced = tuple(f"{name}/" for name in folders)
    manifest.files = {name: sums for name, sums in former.items() if not name.startswith(replaced)} | new
    manifest.write(out)


def _replace_folder(stage: Path, out: Path, name: str) -> None:
    """``stage/name`` becomes ``out/name``, and what was there goes to the stage: at once, where the system can."""
    if not _exists(out / name):
        (stage / name).rename(out / name)
    elif not _swap(stage / name, out / name):
        (out / name).rename(stage / f"{_FORMER}{name}")  # a kill right here is mended by _tidy
        (stage / name).rename(out / name)


def _swap(one: Path, other: Path) -> bool:
    """Exchange two names in one step; False where the system or the disk's format has no such thing."""
    with suppress(AttributeError, OSError, TypeError):
        system = ctypes.CDLL(None, use_errno=True)
        names = os.fsencode(one), os.fsencode(other)
        if sys.platform == "linux":
            here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
            return int(system.renameat2(here, names[0], here, names[1], exchange)) == 0
        if sys.platform == "darwin":
            return int(system.renamex_np(*names, 2)) == 0  # RENAME_SWAP
    return False


def _tidy(out: Path, manifest: _Manifest) -> None:
    """Remove what is left in our stage: results that never came into place, and those that were replaced."""
    if manifest.stage is None:
        return
    stage = out / manifest.stage
    if stage.is_dir() and not stage.is_symlink():
        if manifest.placing:
            for path in sorted(stage.iterdir()):
                _put_away(path, out / path.name.removeprefix(_FORMER), manifest)
            stage.rmdir()
        else:
            shutil.rmtree(stage)
    manifest.stage, manifest.placing = None, False
    manifest.write(out)


def _put_away(path: Path, place: Path, manifest: _Manifest) -> None:
    """Remove what was in ``place``, or would have been, where it is still what we wrote; what is not is kept."""
    if path.name.startswith(_FORMER) and not _exists(place):
        path.rename(place)  # we were killed between two renames
        return
    for leaf in _leaves(path) if path.is_dir() else [path]:
        if manifest.lists(leaf, Path(place.name, leaf.relative_to(path)).as_posix()):
            leaf.unlink()
    for inner, _, _ in os.walk(path, topdown=False):
        with suppress(OSError):  # not empty
            Path(inner).rmdir()
    if _exists(path):
        number = 1
        while _exists(kept := place.with_name(f"{place.name}.kept-{number}")):
            number += 1
        path.rename(kept)
        _log.warning("%s was written to while it was being replaced: what handful did not write is in %s", place, kept)


def _leaves(folder: Path) -> Iterator[Path]:
    """All files and links below a folder; links are not followed."""

    def unreadable(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise HandfulError(f"cannot look into {error.filename}: {error.strerror}") from error

    for top, inner, files in os.walk(folder, onerror=unreadable):
        here = Path(top)
        yield from (here / name for name in inner if (here / name).is_symlink())
        yield from (here / name for name in files)


def _describe(path: Path) -> str:
    """A file in a few words: its checksum, where it leads, or that it is neither file nor link."""
    if path.is_symlink():
        return f"link to {path.readlink()}"
    if not stat.S_ISREG(path.lstat().st_mode):
        return "no file"
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _flush(path: Path) -> None:
    if not path.is_symlink():
        with path.open("rb+") as file:
            os.fsync(file.fileno())


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(len(_BEGINNING))


def _exists(path: Path) -> bool:
    return os.path.lexists(path)  # also a link that leads nowhere


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    lock = FileLock(out / LOCK)
    try:
        lock.acquire(timeout=_WAIT_SECONDS)
    except Timeout:
        _log.warning("waiting for another process that is writing to %s", out)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
