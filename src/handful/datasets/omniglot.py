"""Omniglot (Lake et al. 2015): 1,623 handwritten characters of 50 alphabets, 20 drawings each.

Reads the official archives ``images_background.zip`` and ``images_evaluation.zip``, or the folders they unpack to.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import HandfulError
from .base import Bar, DatasetSpec, Item, Listing, Source
from .files import Archive, Files, Folder, is_image
from .images import printable

PARTS = {"images_background": 964, "images_evaluation": 659}  # characters in each
TRAINING_CHARACTERS = 1200  # Ren et al. 2018: of all characters, by alphabet; the other 423 are for testing
VALIDATION_ALPHABETS = ("Armenian", "Bengali", "Early_Aramaic", "Hebrew", "Mkhedruli_(Georgian)")

Character = tuple[str, str]  # alphabet, character


def find(split: str, path: Path, options: dict[str, Any]) -> Source:
    """One split of Omniglot; ``options["split"]`` is ``ren`` or ``background``."""
    if options["split"] not in ("ren", "background"):
        raise HandfulError(f"omniglot has the splits 'ren' and 'background', got '{options['split']}'")
    parts, kinds = zip(*(_part(path, name) for name in PARTS), strict=True)
    drawings: dict[Character, list[tuple[Files, str]]] = {}
    belongs: dict[Character, str] = {}
    for (files, names), part in zip(parts, PARTS, strict=True):
        for name in names:
            character = tuple(name.split("/")[-3:-1])
            drawings.setdefault(character, []).append((files, name))
            belongs[character] = part
    for part, expected in PARTS.items():
        there = sum(found == part for found in belongs.values())
        if there != expected:
            raise HandfulError(f"{part} in {path} holds {there} characters instead of {expected:,}: get it again")
    chosen = choose(belongs, split, options["split"])
    entries = [(files, name, label) for label, character in enumerate(chosen) for files, name in drawings[character]]

    def items(start: int) -> Iterator[Item]:
        for files, name, label in entries[start:]:
            yield Item(printable(name), label, partial(files.read, name))

    def listing() -> Listing:
        names = tuple(printable("/".join(character)) for character in chosen)
        return Listing(names, len(entries), items, turns=4 if options["rotations"] else 1)

    def digest(bar: Bar) -> str:
        return "-".join(files.digest([name for f, name, _ in entries if f is files], bar) for files, _ in parts)

    return Source(" and ".join(dict.fromkeys(kinds)), digest, listing)


def choose(belongs: dict[Character, str], split: str, scheme: str) -> list[Character]:
    """The characters of a split, in order of alphabet and number; ``belongs`` says which archive holds each.

    ``ren``: 1,028 / 172 / 423. ``background``: the background archive for training and validation, the evaluation
    archive for testing, 792 / 172 / 659. The validation alphabets are the same five.
    """
    ordered = sorted(belongs)
    if scheme == "ren":
        early, late = ordered[:TRAINING_CHARACTERS], ordered[TRAINING_CHARACTERS:]
    else:
        early, late = ([c for c in ordered if belongs[c] == part] for part in PARTS)
    if split == "test":
        return late
    return [character for character in early if (character[0] in VALIDATION_ALPHABETS) == (split == "val")]


def _part(path: Path, part: str) -> tuple[tuple[Files, list[str]], str]:
    """The drawings of one archive, packed or not, in ``path`` or where the project's repository keeps it."""
    for folder in (path, path / "python"):
        files: Files
        if (folder / part).is_dir():
            files, kind = Folder(folder), "unpacked archives"
            names = files.under(part)
        elif (folder / f"{part}.zip").is_file():
            files, kind = Archive(folder / f"{part}.zip"), "official archives"
            names = files.under("")
        else:
            continue
        return (files, [name for name in names if is_image(name) and name.count("/") >= 2]), kind
    raise HandfulError(f"{path} holds neither {part}.zip nor a folder {part}: give the folder that holds both parts")


SPEC = DatasetSpec(
    "omniglot",
    "handwritten characters of 50 alphabets, 28 x 28 grey: 1,623 (1,028 / 172 / 423), x 4 by rotation, of 20 drawings",
    labelled_ratio=0.1,
    channels=1,
    options={"image_size": 28, "rotations": True, "split": "ren"},
    find=find,
)
