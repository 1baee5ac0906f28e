"""miniImageNet in each form in which it is handed around, written here in that very form."""

from __future__ import annotations

import csv
import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from samples import pixels, png

from handful.datasets import ImageSet, load_dataset
from handful.errors import HandfulError

CLASSES = {"train": ["n01532829", "n01558993"], "val": ["n01855672"], "test": ["n01930112"]}
PER_CLASS = 3


def image_of(name: str, index: int, size: int = 84) -> np.ndarray:
    return pixels(int(name[1:]) + index, size)


def expect(found: ImageSet, split: str) -> None:
    assert found.class_names == tuple(CLASSES[split])
    assert found.labels.tolist() == np.repeat(range(len(CLASSES[split])), PER_CLASS).tolist()
    expected = np.stack([image_of(name, index) for name in CLASSES[split] for index in range(PER_CLASS)])
    assert (found.images == expected).all()


@pytest.mark.parametrize("val_name", ["val", "validation"])
@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("keys", ["text", "bytes"])
def test_cached_pickles(tmp_path, val_name, protocol, keys):
    key = str.encode if keys == "bytes" else str
    for split, names in CLASSES.items():
        images = np.concatenate([[image_of(name, index) for index in range(PER_CLASS)] for name in names])
        shuffle = np.random.default_rng(0).permutation(len(images))  # the rows of a class need not be together
        place = np.argsort(shuffle)
        rows = {key(name): place[PER_CLASS * i : PER_CLASS * (i + 1)].tolist() for i, name in enumerate(names)}
        content = {key("image_data"): images[shuffle], key("class_dict"): rows}
        name = val_name if split == "val" else split
        (tmp_path / f"mini-imagenet-cache-{name}.pkl").write_bytes(pickle.dumps(content, protocol))
    for split in CLASSES:
        expect(load_dataset("mini-imagenet", split, tmp_path), split)


@pytest.mark.parametrize("rows", [list, tuple, np.array, lambda rows: list(np.array(rows))])
def test_rows_of_a_class_in_any_container(tmp_path, rows):
    content = {"image_data": np.stack([pixels(i) for i in range(3)]), "class_dict": {"a": rows([2, 0]), "b": rows([1])}}
    (tmp_path / "mini-imagenet-cache-train.pkl").write_bytes(pickle.dumps(content))
    found = load_dataset("mini-imagenet", "train", tmp_path)
    assert found.labels.tolist() == [0, 0, 1] and (found.images == content["image_data"][[2, 0, 1]]).all()


@pytest.mark.parametrize("change", [
    lambda c: c.pop("image_data"),
    lambda c: c.pop("class_dict"),
    lambda c: c.update(image_data=c["image_data"][0]),
    lambda c: c.update(image_data=c["image_data"].astype(np.float32)),
    lambda c: c.update(class_dict={}),
    lambda c: c["class_dict"].update(n1=[99]),
    lambda c: c["class_dict"].update(n1=[-1]),
    lambda c: c["class_dict"].update(n1=[2.5]),
    lambda c: c["class_dict"].update(n1=[1, 1]),
    lambda c: c["class_dict"].update(n2=[0]),
    lambda c: c["class_dict"].update(n1=np.array([[0]])),
])  # fmt: skip
def test_pickles_that_make_no_sense_are_refused(tmp_path, change):
    content = {"image_data": np.zeros((4, 84, 84, 3), np.uint8), "class_dict": {"n1": [0, 1], "n2": np.array([2, 3])}}
    change(content)
    (tmp_path / "mini-imagenet-cache-train.pkl").write_bytes(pickle.dumps(content))
    with pytest.raises(HandfulError):
        load_dataset("mini-imagenet", "train", tmp_path)


def test_images_and_tables(tmp_path):
    (tmp_path / "images").mkdir()
    for split, names in CLASSES.items():
        with (tmp_path / f"{split}.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["filename", "label"])
            for name in names:
                for index in range(PER_CLASS):
                    filename = f"{name}{index:08}.png"
                    (tmp_path / "images" / filename).write_bytes(png(image_of(name, index)))
                    table.writerow([filename, name])
    for split in CLASSES:
        expect(load_dataset("mini-imagenet", split, tmp_path), split)


def test_images_and_tables_in_an_archive_with_a_folder_around(tmp_path):
    with zipfile.ZipFile(tmp_path / "mini.zip", "w") as archive:
        archive.writestr("mini-imagenet/images/a.png", png(pixels(1)))
        archive.writestr("mini-imagenet/train.csv", "\ufefffilename,label\r\nimages/a.png,n01\r\n")
        archive.writestr("mini-imagenet/val.csv", "filename,label\na.png,n02\na.png,\n")
    assert (load_dataset("mini-imagenet", "train", tmp_path / "mini.zip").images[0] == pixels(1)).all()
    with pytest.raises(HandfulError, match=r"line 3 of val\.csv in .* lacks a filename or a label"):
        load_dataset("mini-imagenet", "val", tmp_path / "mini.zip")


def test_tables_read_nothing_outside_of_images(tmp_path, capsys):
    (tmp_path / "data" / "images").mkdir(parents=True)
    (tmp_path / "secret.png").write_bytes(png(pixels(1)))
    (tmp_path / "data" / "images" / "good.png").write_bytes(png(pixels(2)))
    (tmp_path / "data" / "train.csv").write_text(
        f"filename,label\n../../secret.png,a\n{tmp_path}/secret.png,a\ngood.png,a\nmissing.png,b\n"
    )
    found = load_dataset("mini-imagenet", "train", tmp_path / "data")
    assert len(found.images) == 1 and (found.images[0] == pixels(2)).all()
    assert "3 of the train images cannot be read" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    "content", [b"name,class\nx,y\n", b"\xff\xfe\x00", b"", b'filename,label\n"\0', b"a" * 300_000]
)
def test_bad_tables(tmp_path, content):
    (tmp_path / "images").mkdir()
    (tmp_path / "train.csv").write_bytes(content)
    with pytest.raises(HandfulError):
        load_dataset("mini-imagenet", "train", tmp_path)


def test_class_folders(tmp_path):
    for split, names in CLASSES.items():
        for name in names:
            (tmp_path / split / name).mkdir(parents=True)
            for index in range(PER_CLASS):
                (tmp_path / split / name / f"{name}_{index}.png").write_bytes(png(image_of(name, index)))
    for split in CLASSES:
        expect(load_dataset("mini-imagenet", split, tmp_path), split)


@pytest.mark.parametrize("form", ["uint8", "channels first", "float to 1", "float to 255", "compressed", "int64"])
def test_one_array_per_class(tmp_path, form):
    for split, names in CLASSES.items():
        arrays = {name: np.stack([image_of(name, index) for index in range(PER_CLASS)]) for name in names}
        convert = {
            "channels first": lambda a: a.transpose(0, 3, 1, 2), "float to 1": lambda a: a / np.float32(255),
            "float to 255": lambda a: a.astype(np.float32), "int64": lambda a: a.astype(np.int64),
        }.get(form, lambda a: a)  # fmt: skip
        save = np.savez_compressed if form == "compressed" else np.savez
        save(tmp_path / f"{split}.npz", **{name: convert(array) for name, array in arrays.items()})
    for split in CLASSES:
        expect(load_dataset("mini-imagenet", split, tmp_path), split)


@pytest.mark.parametrize("top", [1, 255])
def test_a_black_first_image_does_not_decide_the_scale(tmp_path, top):
    images = np.stack([np.zeros((84, 84, 3), np.uint8), pixels(1)])
    np.savez(tmp_path / "train.npz", n01=images.astype(np.float32) * top / 255)
    assert np.abs(load_dataset("mini-imagenet", "train", tmp_path).images.astype(int) - images).max() <= 1


@pytest.mark.parametrize("array", [
    np.array([{"a": 1}]), np.zeros((3, 84, 84), np.uint8), np.asfortranarray(np.zeros((2, 84, 84, 3), np.uint8)),
    np.zeros((2, 4, 4, 3), "S3"),
])  # fmt: skip
def test_other_arrays_are_refused(tmp_path, array):
    np.savez(tmp_path / "train.npz", n01=array)
    with pytest.raises(HandfulError, match="n01"):
        load_dataset("mini-imagenet", "train", tmp_path)


def test_other_sizes_are_resized(tmp_path):
    large = image_of("n01532829", 0, 200)
    (tmp_path / "train" / "n01532829").mkdir(parents=True)
    (tmp_path / "train" / "n01532829" / "0.png").write_bytes(png(large))
    found = load_dataset("mini-imagenet", "train", tmp_path)
    expected = Image.fromarray(large).resize((84, 84), Image.Resampling.LANCZOS)
    assert np.abs(found.images[0].astype(int) - np.asarray(expected)).max() <= 1
    np.savez(tmp_path / "val.npz", n01855672=large[None])
    assert (load_dataset("mini-imagenet", "val", tmp_path).images == found.images).all()


def test_a_folder_without_it(tmp_path: Path):
    with pytest.raises(
        HandfulError, match=r"holds no 'train' split of miniImageNet: none of mini-imagenet-cache-train"
    ):
        load_dataset("mini-imagenet", "train", tmp_path)
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(3))
    (tmp_path / "train.npz").write_bytes(buffer.getvalue())
    with pytest.raises(HandfulError, match=r"damaged or no \.npz file"):
        load_dataset("mini-imagenet", "train", tmp_path)
