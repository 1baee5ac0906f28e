"""tieredImageNet in each form in which it is handed around, written here in that very form."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from samples import pixels, png

from handful.datasets import ImageSet, load_dataset
from handful.errors import HandfulError

# (specific class, general class) of each image, and the classes' names, as in the original files.
LABELS = {"train": [0, 1, 1, 0, 2], "val": [0, 0], "test": [1, 0]}
NAMES = {"train": ["Yorkshire terrier", "space shuttle", "drake"], "val": ["coucal"], "test": ["otter", "quail"]}


def image_of(split: str, index: int) -> np.ndarray:
    return pixels(100 * len(split) + index)


def write_labels(folder: Path, protocol: int = 2, *, as_bytes: bool = False) -> None:
    key = str.encode if as_bytes else str
    for split, labels in LABELS.items():
        content = {
            key("label_specific"): np.array(labels), key("label_general"): np.zeros(len(labels), np.int64),
            key("label_specific_str"): [key(name) for name in NAMES[split]], key("label_general_str"): [key("thing")],
        }  # fmt: skip
        (folder / f"{split}_labels.pkl").write_bytes(pickle.dumps(content, protocol))


def expect(found: ImageSet, split: str) -> None:
    assert found.class_names == tuple(NAMES[split])
    assert found.labels.tolist() == LABELS[split]
    assert (found.images == np.stack([image_of(split, index) for index in range(len(LABELS[split]))])).all()


@pytest.mark.parametrize("shape", ["flat", "column", "bytes", "object array"])
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_png_images_in_pickles(tmp_path, shape, protocol):
    write_labels(tmp_path, protocol, as_bytes=protocol == 2)
    for split, labels in LABELS.items():
        files = [png(image_of(split, index)) for index in range(len(labels))]
        arrays = [np.frombuffer(file, np.uint8) for file in files]
        content = {
            "flat": arrays, "column": [array[:, None] for array in arrays], "bytes": files,
            "object array": np.array([*arrays, None], dtype=object)[:-1],
        }[shape]  # fmt: skip
        (tmp_path / f"{split}_images_png.pkl").write_bytes(pickle.dumps(content, protocol))
    for split in LABELS:
        expect(load_dataset("tiered-imagenet", split, tmp_path), split)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_files(tmp_path, save):
    write_labels(tmp_path)
    for split, labels in LABELS.items():
        save(tmp_path / f"{split}_images.npz", images=np.stack([image_of(split, i) for i in range(len(labels))]))
    for split in LABELS:
        expect(load_dataset("tiered-imagenet", split, tmp_path), split)


def test_labels_without_names(tmp_path):
    np.savez(tmp_path / "train_images.npz", images=np.stack([image_of("train", index) for index in range(4)]))
    (tmp_path / "train_labels.pkl").write_bytes(pickle.dumps({"labels": [3, 9, 9, 3]}))
    found = load_dataset("tiered-imagenet", "train", tmp_path)
    assert found.class_names == ("train 3", "train 9") and found.labels.tolist() == [0, 1, 1, 0]


def test_class_folders(tmp_path):
    for split, labels in LABELS.items():
        for index, label in enumerate(labels):
            folder = tmp_path / split / NAMES[split][label]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{index}.png").write_bytes(png(image_of(split, index)))
    found = load_dataset("tiered-imagenet", "train", tmp_path)
    assert found.class_names == tuple(sorted(NAMES["train"]))
    order = [0, 3, 4, 1, 2]  # by class name: Yorkshire terrier, drake, space shuttle
    assert (found.images == np.stack([image_of("train", index) for index in order])).all()
    assert found.labels.tolist() == [0, 0, 1, 2, 2]


@pytest.mark.parametrize("labels", [
    {"label_specific": np.array([0, 1])}, {"label_specific": [0, 1, "x", 2]}, {"label_specific": np.zeros((4, 1), int)},
    {"label_specific": np.array([0, 1, 2, 5]), "label_specific_str": ["a", "b", "c"]},
    {"label_specific": np.array([0, 1, 2, -1]), "label_specific_str": ["a", "b", "c"]},
    {"label_specific": np.zeros(4, int), "label_specific_str": [["a"]]}, {"label_specific": np.zeros(4)}, [1, 2], {},
])  # fmt: skip
def test_labels_that_make_no_sense_are_refused(tmp_path, labels):
    np.savez(tmp_path / "train_images.npz", images=np.zeros((4, 84, 84, 3), np.uint8))
    (tmp_path / "train_labels.pkl").write_bytes(pickle.dumps(labels))
    with pytest.raises(HandfulError, match=r"train_labels\.pkl"):
        load_dataset("tiered-imagenet", "train", tmp_path)


def test_a_broken_png_is_left_out(tmp_path):
    write_labels(tmp_path)
    files = [np.frombuffer(png(image_of("train", index)), np.uint8) for index in range(5)]
    files[1] = files[1][:200]
    files[3] = np.zeros(3)
    (tmp_path / "train_images_png.pkl").write_bytes(pickle.dumps(files))
    assert load_dataset("tiered-imagenet", "train", tmp_path).labels.tolist() == [0, 1, 2]


def test_missing_parts(tmp_path):
    with pytest.raises(HandfulError, match="holds no 'val' split of tieredImageNet"):
        load_dataset("tiered-imagenet", "val", tmp_path)
    (tmp_path / "val_images_png.pkl").write_bytes(pickle.dumps([]))
    with pytest.raises(HandfulError, match=r"val_images_png\.pkl but not val_labels\.pkl"):
        load_dataset("tiered-imagenet", "val", tmp_path)
