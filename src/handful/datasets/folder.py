"""A user's own images: one folder per class, in a folder or a .zip or tar archive.

``train/ val/ test/`` with class folders are used as they are; the classes of a folder without them are assigned to the
splits by a seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from ..errors import HandfulError
from .base import SPLITS, DatasetSpec, Item, Listing, Source
from .files import Files, is_image, open_files
from .images import printable

SPLIT_NAMES = {"train": ("train", "training"), "val": ("val", "valid", "validation"), "test": ("test", "testing")}
SHARES = {"val": 0.16, "test": 0.20}  # of the classes, as in miniImageNet; the rest is for training


def find(split: str, path: Path, options: dict[str, Any]) -> Source:
    """One split of a folder or archive of class folders."""
    files = open_files(path, unwrap=False)
    top = top_folder(files)
    splits = split_folders(files, top)
    if splits:
        if split not in splits:
            there = " and ".join(splits)
            raise HandfulError(
                f"{path} has a folder for {there} but none for '{split}': move some of the classes there"
            )
        return class_folders(files, splits[split])
    classes = [name for name in files.folders(top) if any(map(is_image, files.under(_join(top, name))))]
    if len(classes) < len(SPLITS):
        raise HandfulError(
            f"{path} holds {len(classes)} folders with images: give train/, val/ and test/ with a folder per class in "
            "each, or at least three class folders, to be split"
        )
    chosen = deal(classes, options["split_seed"])[split]
    return class_folders(files, top, chosen, f", split by class with seed {options['split_seed']}")


def deal(classes: list[str], seed: int) -> dict[str, list[str]]:
    """Assign classes to splits, by a hash of each name and the seed, so that adding a class moves few of the others.

    >>> {split: len(names) for split, names in deal([f"class {i}" for i in range(100)], seed=0).items()}
    {'train': 64, 'val': 16, 'test': 20}
    """
    drawn = sorted(classes, key=lambda name: hashlib.sha256(f"{seed}/{name}".encode("utf-8", "surrogatepass")).digest())
    val, test = (max(1, round(SHARES[split] * len(classes))) for split in ("val", "test"))
    parts = {"train": drawn[val + test :], "val": drawn[:val], "test": drawn[val : val + test]}
    return {split: sorted(names) for split, names in parts.items()}


def split_folders(files: Files, top: str = "") -> dict[str, str]:
    """The folders named after splits, if any: split -> folder.

    A single one is a split only if it holds folders: else it is a class, such as that of trains.
    """
    there = {name.lower(): name for name in files.folders(top)}
    found = {split: next((there[n] for n in names if n in there), None) for split, names in SPLIT_NAMES.items()}
    splits = {split: _join(top, name) for split, name in found.items() if name is not None}
    return splits if len(splits) > 1 or any(map(files.folders, splits.values())) else {}


def class_folders(files: Files, top: str, classes: list[str] | None = None, note: str = "") -> Source:
    """Every folder in ``top`` (or only those named) is a class; its images may lie in folders of their own."""
    packed = "zip" if files.path.suffix.lower() == ".zip" else "tar"
    kind = "class folders" if files.path.is_dir() else f"class folders in a {packed} archive"

    @cache
    def names() -> dict[str, list[str]]:
        chosen = files.folders(top) if classes is None else classes
        if not chosen:
            raise HandfulError(f"{printable(top)}/ in {files.path} holds no class folders: give each class a folder")
        return {name: files.under(_join(top, name)) for name in chosen}

    def listing() -> Listing:
        found = names()
        entries = [
            (name, label) for label, inside in enumerate(found.values()) for name in inside if is_image(name)
        ]  # fmt: skip
        others = [printable(name) for inside in found.values() for name in inside if not is_image(name)]
        if classes is None:  # what lies beside the class folders belongs to no class, image or not
            others += [printable(_join(top, name)) for name in files.files(top)]
        return Listing(
            class_names=tuple(map(printable, found)),
            count=len(entries),
            items=partial(_items, files, entries),
            ignored=tuple(others),
        )

    def digest(bar: Any) -> str:
        return files.digest([name for inside in names().values() for name in inside if is_image(name)], bar)

    return Source(kind + note, digest, listing)


def _items(files: Files, entries: list[tuple[str, int]], start: int) -> Iterator[Item]:
    for name, label in entries[start:]:
        yield Item(printable(name), label, partial(files.read, name))


def top_folder(files: Files) -> str:
    """The folder that counts: archives often hold a single folder with everything in it."""
    top = ""
    while len(inside := files.folders(top)) == 1 and files.folders(_join(top, inside[0])):
        if split_folders(files, top):
            break
        top = _join(top, inside[0])
    return top


def _join(parent: str, name: str) -> str:
    return f"{parent}/{name}" if parent else name


SPEC = DatasetSpec(
    "folder",
    "your own images: a folder, .zip or .tar(.gz, .xz) of class folders, or train/ val/ test/ of them",
    labelled_ratio=0.4,
    options={"image_size": 84, "split_seed": 0},
    find=find,
)
