"""A run folder that is trained in: who may write there, what a kill left behind, metrics and labelled images."""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from ..datasets import ImageSet
from ..errors import HandfulError
from ..io import refuse_links, write_atomic
from ..sampling import LabelledSplit
from .config import RunConfig, read_config

LOCK = ".lock"
METRICS = "metrics.jsonl"
# What a kill leaves of a file before it is renamed: the name of one of ours, and eight characters of mkstemp.
_PART = re.compile(
    r"\.((config|classes|cell|best|last|[\w.-]+-[0-9a-f]{8})\.json|labelled\.npz|metrics\.jsonl(\.damaged(-\d+)?)?|"
    r"(best|last)-[0-9a-f]{12}\.safetensors)\.[a-z0-9_]{8}\.part"
)


def check_folder(config: RunConfig, folder: Path, resume: bool) -> None:
    """Whether this run may write here; changes nothing."""
    refuse_links(folder, "checkpoint")
    if not (folder / "config.json").exists():
        if folder.exists() and (not folder.is_dir() or any(not _is_ours(path) for path in folder.iterdir())):
            raise HandfulError(f"{folder} exists and is not a run folder: choose another --out")
        return
    differences = read_config(folder).differences(config)
    if differences:
        raise HandfulError(
            f"{folder} holds another run, which differs in {differences[0]}: choose another --out"
            + (", or give the same settings" if resume else "")
        )
    if not resume:
        raise HandfulError(f"{folder} already holds this run: add --resume to continue it, or choose another --out")


def _is_ours(path: Path) -> bool:
    """The lock, or what a kill left of a file before it was renamed."""
    if path.is_symlink() or not path.is_file():
        return False
    return path.stat().st_size == 0 if path.name == LOCK else _PART.fullmatch(path.name) is not None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Nobody else trains in this folder meanwhile; what a killed run left half-written is removed, and nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / LOCK).is_symlink():
        raise HandfulError(f"{folder / LOCK} is a link, and the lock of a run is a file: remove the link")
    try:
        with FileLock(folder / LOCK, blocking=False):
            for place in (folder, folder / "checkpoint", folder / "results"):
                for part in place.iterdir() if place.is_dir() and not place.is_symlink() else ():
                    if _PART.fullmatch(part.name) and _is_ours(part):
                        part.unlink(missing_ok=True)
            yield
    except Timeout as error:
        raise HandfulError(f"another process is training in {folder}: wait for it, or choose another --out") from error


def store_split(folder: Path, **splits: tuple[LabelledSplit, ImageSet]) -> None:
    """Which images counted as labelled, as one mask per split of the data set."""
    buffer = BytesIO()
    masks: dict[str, Any] = {name: split.mask(len(images.labels)) for name, (split, images) in splits.items()}
    np.savez_compressed(buffer, **masks)
    write_atomic(folder / "labelled.npz", buffer.getvalue())


def trim_metrics(folder: Path, episode: int) -> None:
    """Drop lines of episodes that will be trained again, and damaged ones, of which a copy of the file is kept.

    A kill cuts off the last line, and resuming writes it again. A line that is damaged before it was another's doing:
    it is lost to whoever reads the metrics, so a warning says where it is.
    """
    path = folder / METRICS
    if not path.exists():
        return
    content = path.read_bytes()
    lines = [line for line in content.split(b"\n") if line.strip()]
    episodes = [_episode_of(line) for line in lines]
    kept = [
        line + b"\n" for line, number in zip(lines, episodes, strict=True) if number is not None and number <= episode
    ]
    if None in episodes:
        copies = (path.with_name(f"{METRICS}.damaged" + (f"-{count}" if count else "")) for count in itertools.count())
        copy = next(copy for copy in copies if not os.path.lexists(copy))
        write_atomic(copy, content)
        if None in episodes[:-1]:
            number = episodes.index(None) + 1
            logging.getLogger(__name__).warning(
                "line %d of %s is damaged and was left out; the file as it was is %s", number, path, copy.name
            )
    if b"".join(kept) != content:
        write_atomic(path, b"".join(kept))


def _episode_of(line: bytes) -> int | None:
    """The episode that a line of metrics is of; None for a damaged line."""
    try:
        episode = json.loads(line.decode("utf-8"))["episode"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return episode if isinstance(episode, int) and not isinstance(episode, bool) else None
