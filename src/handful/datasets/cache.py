"""Images decoded once: a memory-mapped array on disk per data set, split, settings and content.

A cache is a folder. While it is built, ``images.bin`` grows and ``progress.json`` says how far it can be trusted; a
killed build resumes from there and ends with the same bytes. ``meta.json`` is written last and makes the cache valid.
The building process holds a lock; others wait for it and then use its result.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import struct
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from ..errors import HandfulError, Interrupted
from ..io import read_json, write_atomic, write_json
from ..progress import messages
from .base import Bar, DatasetSpec, ImageSet, Item, Listing, Source
from .images import BrokenImage, Picture, decode, quiet

FORMAT = 1  # part of every cache's name: raise it when the files or the decoding change
CHUNK = 1024  # images between two moments that a killed build can go back to
WORKERS = min(4, os.cpu_count() or 1)  # each may hold a decoded photograph, half a gigabyte at the limit
SMALL = 1 << 14  # bytes of an image file from which on another thread pays: below, threads only wait for each other
HUGE = 1 << 25  # bytes from which on image files do not wait for a thread: so many would fill the memory


@dataclass(frozen=True)
class Cached:
    """A finished cache: the images, the files that could not be read (name, reason), and the folder it lives in."""

    images: ImageSet
    broken: list[tuple[str, str]]
    folder: Path


@dataclass
class _Progress:
    """The state of an unfinished build: items seen, images in ``images.bin``, items that could not be read."""

    seen: int
    images: int
    broken: list[tuple[str, str]]


def cache_root() -> Path:
    """The folder of all caches: ``HANDFUL_CACHE``, or the system's cache folder."""
    return Path(os.environ.get("HANDFUL_CACHE") or platformdirs.user_cache_dir("handful", appauthor=False))


def write_cache(path: Path, content: bytes) -> None:
    """Write a file to the cache atomically; raise a `HandfulError` if it cannot be written."""
    with explained(path):
        write_atomic(path, content)


def load_cached(
    spec: DatasetSpec, split: str, source: Source, options: dict[str, Any], bar: Bar, *, verify: bool = False
) -> Cached:
    """The images of a split from the cache, which is built if it is missing, or if ``verify`` finds it damaged."""
    size, digest = options["image_size"], source.digest(bar)
    settings = {"format": FORMAT, "dataset": spec.name, "split": split, "channels": spec.channels, **options}
    key = hashlib.sha256(json.dumps([settings, digest], sort_keys=True).encode()).hexdigest()
    folder = cache_root() / "datasets" / f"{spec.name}-{split}-{size}-{key[:16]}"
    found = _read(folder, spec, split)
    if found is not None and not verify:
        return found
    with alone(folder):
        found = _read(folder, spec, split)  # another process may have been faster
        if found is None or _damaged(folder):
            what = f"preparing {spec.name} ({split})"
            listing = source.listing()
            if not listing.count:
                raise HandfulError(f"the '{split}' split has no images: look at it with 'handful data check'")
            try:
                with explained(folder):
                    _build(folder, listing, size, spec.channels, what, bar)
            except KeyboardInterrupt:
                raise Interrupted(f"stopped while {what}; to go on, run the same command") from None
            if source.digest(bar) != digest:
                (folder / "meta.json").unlink()
                raise HandfulError("the files changed while they were read: run the command again")
            found = _read(folder, spec, split)
    if found is None:
        raise HandfulError(f"the cache {folder} was damaged while it was written: run the command again")
    return found


def _damaged(folder: Path) -> bool:
    """Whether a finished cache has changed since it was built; if so, it counts as not built."""
    digest = hashlib.sha256()
    with (folder / "images.bin").open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    damaged = bool(read_json(folder / "meta.json")["sha256"] != digest.hexdigest())
    if damaged:
        messages.print(f"the cache {folder} is damaged: building it again", highlight=False, markup=False)
        for name in ("progress.json", "meta.json"):
            (folder / name).unlink(missing_ok=True)
    return damaged


def pictures(
    listing: Listing, size: int, channels: int, start: int = 0, *, crop: bool = False
) -> Iterator[tuple[Item, Picture | str]]:
    """Every image of a listing from number ``start`` on, decoded, in order; or the reason why it cannot be decoded."""
    read = partial(decode, size=size, channels=channels, crop=crop)
    with quiet(), ThreadPoolExecutor(WORKERS) as pool:
        waiting: deque[tuple[Item, Future[Picture] | Picture | str]] = deque()
        for item in listing.items(start):
            try:
                payload = item.read()
                if not SMALL <= len(payload) <= HUGE:
                    waiting.append((item, read(payload)))
                else:
                    waiting.append((item, pool.submit(read, payload)))
            except BrokenImage as error:
                waiting.append((item, str(error)))
            if len(waiting) > 2 * WORKERS:
                yield _finished(*waiting.popleft())
        while waiting:
            yield _finished(*waiting.popleft())


def _finished(item: Item, picture: Future[Picture] | Picture | str) -> tuple[Item, Picture | str]:
    try:
        return item, picture.result() if isinstance(picture, Future) else picture
    except BrokenImage as error:
        return item, str(error)


def _read(folder: Path, spec: DatasetSpec, split: str) -> Cached | None:
    """A finished cache, or None."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        shape, names = tuple(meta["shape"]), tuple(meta["class_names"])
        content = (folder / "labels.npy").read_bytes()
        if hashlib.sha256(content).hexdigest() != meta["labels_sha256"]:
            return None
        labels = np.load(io.BytesIO(content), allow_pickle=False)
        if (folder / "images.bin").stat().st_size != np.prod(shape) or labels.shape != shape[:1]:
            return None
        images: NDArray[np.uint8] = np.memmap(folder / "images.bin", dtype=np.uint8, mode="r", shape=shape)
        broken = [(name, reason) for name, reason in meta["broken"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Cached(ImageSet(spec.name, split, images, labels, names), broken, folder)


def _build(folder: Path, listing: Listing, size: int, channels: int, what: str, bar: Bar) -> None:
    row = size * size * channels
    state = _progress(folder, row)
    need = (listing.count * listing.turns - state.images) * row
    if shutil.disk_usage(folder).free < need:
        raise HandfulError(
            f"{what} needs {need / 2**30:.1f} GiB in {folder.parent}, which has less: "
            "set HANDFUL_CACHE to a folder on another disk"
        )
    if not messages.is_terminal:
        messages.print(f"{what}: {listing.count:,} images, once", highlight=False)
    tick = bar(what, listing.count)
    tick(state.seen)
    with (folder / "images.bin").open("r+b") as images, (folder / "labels.bin").open("r+b") as labels:
        digest = hashlib.sha256()
        for _ in range(state.images):
            digest.update(images.read(row))
        labels.seek(state.images * 8)
        for file in (images, labels):
            file.truncate()
        due = state.seen + CHUNK
        for item, picture in pictures(listing, size, channels, state.seen):
            state.seen += 1
            if isinstance(picture, str):
                state.broken.append((item.name, picture))
            else:
                for turn in range(listing.turns):
                    content = np.rot90(picture.pixels, turn).tobytes()
                    images.write(content)
                    digest.update(content)
                    labels.write(struct.pack("<q", item.label * listing.turns + turn))
                state.images += listing.turns
            tick(1)
            if state.seen in (due, listing.count):
                due = state.seen + max(CHUNK, len(state.broken))  # a long list is not written again and again
                for file in (images, labels):
                    file.flush()
                    os.fsync(file.fileno())
                write_json(folder / "progress.json", asdict(state))
    if not state.images:
        (folder / "progress.json").unlink()
        name, reason = state.broken[0]
        raise HandfulError(f"none of {listing.count:,} images can be read; the first: {name}: {reason}")
    # A class none of whose images can be read is no class.
    present, ids = np.unique(np.fromfile(folder / "labels.bin", dtype="<i8"), return_inverse=True)
    names = [_turned(name, turn) for name in listing.class_names for turn in range(listing.turns)]
    buffer = io.BytesIO()
    np.save(buffer, ids.astype(np.int64))
    write_atomic(folder / "labels.npy", buffer.getvalue())
    meta = {
        "shape": [state.images, size, size, channels],
        "class_names": [names[index] for index in present],
        "broken": state.broken,
        "sha256": digest.hexdigest(),
        "labels_sha256": hashlib.sha256(buffer.getvalue()).hexdigest(),
    }
    write_json(folder / "meta.json", meta)
    for left in ("progress.json", "labels.bin"):
        (folder / left).unlink(missing_ok=True)


def _turned(name: str, turn: int) -> str:
    return f"{name}, turned {90 * turn} degrees" if turn else name


def _progress(folder: Path, row: int) -> _Progress:
    """The state of a killed build; an empty one if nothing of it can be used."""
    try:
        state = _Progress(**json.loads((folder / "progress.json").read_text(encoding="utf-8")))
        there = (folder / "images.bin").stat().st_size // row, (folder / "labels.bin").stat().st_size // 8
        if min(there) >= state.images:
            return state
    except (OSError, ValueError, TypeError):
        pass
    for name in ("images.bin", "labels.bin"):  # removed, not emptied: another process may have the old ones mapped
        (folder / name).unlink(missing_ok=True)
        (folder / name).touch()
    return _Progress(0, 0, [])


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the lock of a cache folder; remove unfinished files of a killed build."""
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock")
        try:
            lock.acquire(blocking=False)
        except Timeout:
            messages.print(f"another process is preparing {folder.name}: waiting for it", highlight=False)
            lock.acquire()
    try:
        for part in folder.glob(".*.part"):
            part.unlink(missing_ok=True)
        yield
    finally:
        lock.release()


@contextmanager
def explained(path: Path, act: str = "write") -> Iterator[None]:
    """Turn errors in writing to the cache, or in reading from it, into a `HandfulError`."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise HandfulError(f"cannot {act} {path} ({reason}): set HANDFUL_CACHE to another folder") from error
