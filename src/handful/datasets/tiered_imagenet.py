"""tieredImageNet (Ren et al. 2018): 608 classes of ImageNet, 779,165 photographs, 84 x 84, split by category.

Reads the original files (PNG images in a pickle), the .npz files that are made from them, and class folders.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import HandfulError
from .arrays import open_npz
from .base import DatasetSpec, Item, Listing, Payload, Source
from .files import file_digest, open_files
from .folder import class_folders, split_folders, top_folder
from .images import BrokenImage, printable
from .pickles import load_pickle, text, text_keys

MOST_LETTERS = 10_000_000  # of all class names: a pickle can name a long one again and again


def find(split: str, path: Path, options: dict[str, Any]) -> Source:
    """One split, from the first of the known layouts that is there."""
    labels, pickled, arrays = (path / f"{split}_{part}" for part in ("labels.pkl", "images_png.pkl", "images.npz"))
    for images, listing, layout in (
        (pickled, _pickled, "PNG images in pickles"),
        (arrays, _arrays, "images in .npz files"),
    ):
        if images.is_file():
            if not labels.is_file():
                raise HandfulError(f"{path} holds {images.name} but not {labels.name}")
            digest = partial(file_digest, path, [images.name, labels.name])
            return Source(layout, digest, partial(listing, images, labels, split))
    files = open_files(path, unwrap=False)
    splits = split_folders(files, top_folder(files))
    if split in splits:
        return class_folders(files, splits[split])
    raise HandfulError(
        f"{path} holds no '{split}' split of tieredImageNet: neither {pickled.name} nor {arrays.name} with "
        f"{labels.name}, nor a folder {split}/ of class folders"
    )


def _pickled(path: Path, labels_path: Path, split: str) -> Listing:
    images = load_pickle(path)
    if isinstance(images, np.ndarray) and images.ndim:
        images = list(images)
    if not isinstance(images, list):
        raise HandfulError(f"{path} does not hold a list of PNG images")
    labels, names = _labels(labels_path, split, len(images))

    def items(start: int) -> Iterator[Item]:
        for index in range(start, len(images)):
            yield Item(f"{path.name}, image {index}", int(labels[index]), partial(_encoded, images, index))

    return Listing(names, len(images), items)


def _encoded(images: Sequence[Any], index: int) -> Payload:
    image = images[index]
    if isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.size == max(image.shape, default=0):
        return image.tobytes()  # OpenCV gives the bytes of a file as an array (n,) or (n, 1)
    if isinstance(image, bytes | memoryview):
        return bytes(image)
    raise BrokenImage("not the bytes of an image file")


def _arrays(path: Path, labels_path: Path, split: str) -> Listing:
    found = open_npz(path)
    if len(found) != 1:
        raise HandfulError(f"{path} holds {len(found)} arrays instead of one, 'images'")
    (images,) = found.values()
    labels, names = _labels(labels_path, split, len(images))

    def items(start: int) -> Iterator[Item]:
        for index, row in enumerate(images.rows(start), start):
            yield Item(f"{path.name}, image {index}", int(labels[index]), partial(np.asarray, row))

    return Listing(names, len(images), items)


def _labels(path: Path, split: str, count: int) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Class ids and names: ``label_specific`` and ``label_specific_str``, or ``labels`` alone."""
    content = text_keys(load_pickle(path))
    labels = content.get("label_specific", content.get("labels"))
    if isinstance(labels, list) and all(isinstance(label, int) and abs(label) < 2**31 for label in labels):
        labels = np.array(labels, dtype=np.int64)
    if not isinstance(labels, np.ndarray) or labels.ndim != 1 or labels.dtype.kind not in "iu" or not len(labels):
        raise HandfulError(f"{path} does not hold label_specific, one class id per image")
    if len(labels) != count:
        raise HandfulError(f"{path} labels {len(labels):,} images, but there are {count:,}")
    strings = content.get("label_specific_str")
    if strings is None:
        ids, labels = np.unique(labels, return_inverse=True)
        return labels.astype(np.int64), tuple(f"{split} {number}" for number in ids)
    strings = strings.tolist() if isinstance(strings, np.ndarray) else strings
    strings = strings if isinstance(strings, list | tuple) else ()
    if (length := sum(len(name) for name in strings if isinstance(name, str | bytes | memoryview))) > MOST_LETTERS:
        raise HandfulError(f"{path} has class names of {length:,} letters in all")
    names = [text(name) for name in strings]
    if labels.min() < 0 or labels.max() >= len(names) or not all(isinstance(name, str) for name in names):
        raise HandfulError(
            f"{path} has class ids from {labels.min()} to {labels.max()}, but {len(names):,} class names"
        )
    return labels.astype(np.int64), tuple(map(printable, names))


SPEC = DatasetSpec(
    "tiered-imagenet",
    "photographs, 84 x 84: 608 classes (351 / 97 / 160), 779,165 images",
    labelled_ratio=0.1,
    options={"image_size": 84},
    find=find,
)
