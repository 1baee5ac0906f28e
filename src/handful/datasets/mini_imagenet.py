"""miniImageNet (Vinyals et al. 2016; split of Ravi and Larochelle 2017): 100 classes of 600 photographs, 84 x 84.

Reads the common archive layouts (pickles, .npz files, tables, class folders) and detects which one is present.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import HandfulError
from .arrays import open_npz
from .base import Bar, DatasetSpec, Item, Listing, Source
from .files import Files, file_digest, is_image, open_files
from .folder import class_folders, split_folders, top_folder
from .images import BrokenImage, printable
from .pickles import load_pickle, text_keys


def find(split: str, path: Path, options: dict[str, Any]) -> Source:
    """One split, from the first of the known layouts that is there."""
    names = ("val", "validation") if split == "val" else (split,)
    for name in names:
        pickled, arrays = path / f"mini-imagenet-cache-{name}.pkl", path / f"{name}.npz"
        if pickled.is_file():
            return Source("cached pickles", partial(file_digest, path, [pickled.name]), partial(_pickled, pickled))
        if arrays.is_file():
            return Source("one array per class", partial(file_digest, path, [arrays.name]), partial(_arrays, arrays))
    files = open_files(path, unwrap=False)
    top = top_folder(files)
    if f"{split}.csv" in files.files(top) and "images" in files.folders(top):
        return _table(files, f"{top}/" if top else "", f"{split}.csv")
    splits = split_folders(files, top)
    if split in splits:
        return class_folders(files, splits[split])
    raise HandfulError(
        f"{path} holds no '{split}' split of miniImageNet: none of mini-imagenet-cache-{split}.pkl, {split}.npz, "
        f"{split}.csv with images/, or a folder {split}/ of class folders"
    )


def _pickled(path: Path) -> Listing:
    """``image_data`` (n, 84, 84, 3) and ``class_dict``, name -> indices."""
    content = text_keys(load_pickle(path))
    images, classes = content.get("image_data"), text_keys(content.get("class_dict"))
    if not isinstance(images, np.ndarray) or images.ndim != 4 or images.dtype != np.uint8 or not classes:
        raise HandfulError(f"{path} does not hold image_data (n, height, width, channels) of uint8 and class_dict")
    members, taken = [], np.zeros(len(images), dtype=bool)
    for name in sorted(classes, key=str):
        rows = _indices(classes[name], len(images))
        if rows is None or taken[rows].any() or len(np.unique(rows)) != len(rows):
            raise HandfulError(
                f"class '{printable(str(name))}' in {path} names rows of image_data that are not its own"
            )
        taken[rows] = True
        members.append(rows)
    order = np.concatenate(members)
    labels = np.repeat(np.arange(len(members)), [len(rows) for rows in members])

    def items(start: int) -> Iterator[Item]:
        for row, label in zip(order[start:], labels[start:], strict=True):
            yield Item(f"{path.name}, image {row}", int(label), partial(images.__getitem__, row))

    return Listing(tuple(printable(str(name)) for name in sorted(classes, key=str)), len(order), items)


def _indices(value: Any, limit: int) -> np.ndarray[Any, Any] | None:
    """A list, tuple or array of row numbers below a limit, or None if it is something else."""
    if isinstance(value, list | tuple) and all(isinstance(entry, int) for entry in value):
        value = np.array(value) if all(0 <= entry < limit for entry in value) else None
    if not isinstance(value, np.ndarray) or value.ndim != 1:
        return None
    if len(value) == 0:
        return np.empty(0, dtype=np.int64)
    fits = value.dtype.kind in "iu" and value.min() >= 0 and value.max() < limit
    return value.astype(np.int64) if fits else None


def _arrays(path: Path) -> Listing:
    """TapNet's files: one array of images per class."""
    found = open_npz(path)
    names = sorted(found)

    def items(start: int) -> Iterator[Item]:
        for label, name in enumerate(names):
            for index, row in enumerate(found[name].rows(start)):
                yield Item(f"{path.name}, {printable(name)}, image {start + index}", label, partial(np.asarray, row))
            start = max(0, start - len(found[name]))

    return Listing(tuple(map(printable, names)), sum(map(len, found.values())), items)


def _table(files: Files, top: str, table: str) -> Source:
    """``filename,label`` lines; the files lie in ``images/``, all of it in the folder ``top``."""

    def entries() -> list[tuple[str, str]]:
        try:
            content = files.read(top + table).decode("utf-8-sig")
            rows = csv.DictReader(io.StringIO(content, newline=""))
            if not {"filename", "label"} <= set(rows.fieldnames or ()):
                raise HandfulError(f"{table} in {files.path} should begin with a line filename,label")
            found = [((row["filename"] or "").removeprefix("images/"), row["label"] or "") for row in rows]
            if incomplete := [line for line, entry in enumerate(found, 2) if not all(entry)]:
                raise HandfulError(f"line {incomplete[0]} of {table} in {files.path} lacks a filename or a label")
            return found
        except (BrokenImage, UnicodeDecodeError, csv.Error) as error:
            raise HandfulError(f"cannot read {table} in {files.path}: {error}") from error

    def there() -> dict[str, str]:
        prefix = f"{top}images/"
        return {name.removeprefix(prefix): name for name in files.under(f"{top}images") if is_image(name)}

    def listing() -> Listing:
        rows, known = entries(), there()
        names = sorted({label for _, label in rows})
        labels = {label: index for index, label in enumerate(names)}

        def read(filename: str) -> bytes:
            if filename not in known:
                raise BrokenImage("is not in images/")
            return files.read(known[filename])

        def items(start: int) -> Iterator[Item]:
            for filename, label in rows[start:]:
                yield Item(printable(f"images/{filename}"), labels[label], partial(read, filename))

        return Listing(tuple(map(printable, names)), len(rows), items)

    def digest(bar: Bar) -> str:
        known = there()
        return files.digest([top + table, *(known[name] for name, _ in entries() if name in known)], bar)

    return Source("images/ and tables", digest, listing)


SPEC = DatasetSpec(
    "mini-imagenet",
    "photographs, 84 x 84: 100 classes (64 / 16 / 20) of 600 images",
    labelled_ratio=0.4,
    options={"image_size": 84},
    find=find,
)
