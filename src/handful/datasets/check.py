"""Read every image of a data set once, and report problems that a user should know before a long training."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import HandfulError
from .base import SPLITS, Bar, DatasetSpec, ImageSet, Item, Listing, Source, check_path, find_source, no_bar
from .cache import pictures

FEW = 10  # a class with fewer images is named: with 40 % of them labelled, 1 support and 3 query images are left


@dataclass
class SplitReport:
    """The content of one split.

    Attributes:
        layout: how its files are laid out, in words.
        classes, images: how many there are; images that can be read.
        turns: number of classes made from each class by rotation.
        per_class: fewest, median and most images of a class.
        sizes: width x height -> how many images, the most frequent first.
        broken: name -> why it cannot be read.
        near_empty: class -> number of images, for classes with few.
        ignored: files in the class folders that are not images.
    """

    layout: str
    classes: int = 0
    images: int = 0
    turns: int = 1
    per_class: tuple[int, float, int] = (0, 0, 0)
    sizes: dict[str, int] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    near_empty: dict[str, int] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)


@dataclass
class Report:
    """The content of a data set, split by split, and its problems.

    Attributes:
        missing: split -> why it cannot be read at all.
        shared_classes: class -> the splits it is in; there must be none.
        duplicates: groups of images with the same pixels in different splits, each image as ``split: name``.
        errors, warnings: sentences.
    """

    dataset: str
    data: str | None
    options: dict[str, Any]
    splits: dict[str, SplitReport] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    shared_classes: dict[str, list[str]] = field(default_factory=dict)
    duplicates: list[list[str]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {"ok": not self.errors, **asdict(self)}


def check_dataset(
    spec: DatasetSpec, path: Path | None, options: dict[str, Any], *, strict: bool = False, bar: Bar = no_bar
) -> Report:
    """Read every image of every split; nothing is written.

    Problems that make training or its result wrong are errors: classes shared between splits, a split that cannot be
    read, with ``strict`` also images that cannot be read. Other problems are warnings.
    """
    check_path(spec, path)
    started = time.perf_counter()
    report = Report(spec.name, None if path is None else str(path), options)
    seen: dict[bytes, list[str]] = {}  # hash of the pixels -> the images that have them
    classes: dict[str, list[str]] = {}
    for split in SPLITS:
        try:
            if spec.draw is not None:
                images = spec.draw(split)
                source, size = _drawn(images), images.image_size
            else:
                source, size = find_source(spec, split, path, options), options["image_size"]
            listing = source.listing()
            report.splits[split] = _look(split, source.layout, listing, size, spec.channels, seen, bar)
        except HandfulError as error:
            report.missing[split] = str(error)
            continue
        for name in listing.class_names:
            classes.setdefault(name, []).append(split)
    if not report.splits:
        raise HandfulError(next(iter(report.missing.values())))
    report.shared_classes = {name: splits for name, splits in classes.items() if len(splits) > 1}
    report.duplicates = [names for names in seen.values() if len({name.partition(":")[0] for name in names}) > 1]
    _judge(report, strict)
    report.seconds = round(time.perf_counter() - started, 2)
    return report


def _look(
    split: str, layout: str, listing: Listing, size: int, channels: int, seen: dict[bytes, list[str]], bar: Bar
) -> SplitReport:
    found = SplitReport(layout, len(listing.class_names), turns=listing.turns, ignored=list(listing.ignored))
    tick = bar(f"checking {split}", listing.count)
    counts = np.zeros(len(listing.class_names), dtype=np.int64)
    sizes: Counter[str] = Counter()
    for item, picture in pictures(listing, size, channels):
        if isinstance(picture, str):
            found.broken[item.name] = picture
        else:
            counts[item.label] += 1
            sizes[f"{picture.width} x {picture.height}"] += 1
            digest = hashlib.blake2b(picture.pixels.tobytes(), digest_size=16).digest()
            seen.setdefault(digest, []).append(f"{split}: {item.name}")
        tick(1)
    found.images = int(counts.sum())
    found.sizes = dict(sizes.most_common())
    if len(counts):
        found.per_class = int(counts.min()), float(np.median(counts)), int(counts.max())
    found.near_empty = {listing.class_names[i]: int(counts[i]) for i in np.flatnonzero(counts < FEW)}
    return found


def _judge(report: Report, strict: bool) -> None:
    errors, warnings = report.errors, report.warnings
    errors += [f"{split}: {reason}" for split, reason in report.missing.items()]
    if shared := report.shared_classes:
        first, splits = next(iter(shared.items()))
        number = "a class is" if len(shared) == 1 else f"{len(shared):,} classes are"
        errors.append(f"{number} in more than one split, such as '{first}' in {' and '.join(splits)}")
    for split, found in report.splits.items():
        if not found.images:
            errors.append(f"{split}: no image can be read")
        if found.broken:
            name, reason = next(iter(found.broken.items()))
            number = "a file" if len(found.broken) == 1 else f"{len(found.broken):,} files"
            (errors if strict else warnings).append(f"{split}: {number} cannot be read, such as {name}: {reason}")
        if found.near_empty:
            name, images = min(found.near_empty.items(), key=lambda entry: entry[1])
            number = "a class has" if len(found.near_empty) == 1 else f"{len(found.near_empty):,} classes have"
            warnings.append(f"{split}: {number} fewer than {FEW} images, such as '{name}' with {images}")
        if found.ignored:
            number = "a file is" if len(found.ignored) == 1 else f"{len(found.ignored):,} files are"
            warnings.append(f"{split}: {number} no image, such as {found.ignored[0]}")
    if report.duplicates:
        number = "an image is" if len(report.duplicates) == 1 else f"{len(report.duplicates):,} images are"
        warnings.append(f"{number} in more than one split, such as {one_of_each_split(report.duplicates[0])}")


def one_of_each_split(names: list[str]) -> str:
    """Of images with the same pixels, the first in each split: there may be thousands, and all of one split first.

    >>> one_of_each_split(["train: a.png", "train: b.png", "val: c.png"])
    'train: a.png = val: c.png'
    """
    first: dict[str, str] = {}
    for name in names:
        first.setdefault(name.partition(":")[0], name)
    return " = ".join(first.values())


def _drawn(images: ImageSet) -> Source:
    """The listing of a data set that needs no files, so that it can be checked like the others."""

    def items(start: int) -> Any:
        for index in range(start, len(images.images)):
            yield Item(f"image {index}", int(images.labels[index]), partial(images.images.__getitem__, index))

    listing = Listing(images.class_names, len(images.images), items)
    return Source("drawn by handful", lambda bar: images.fingerprint(), lambda: listing)
