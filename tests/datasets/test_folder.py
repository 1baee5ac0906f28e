"""Anyone's images: folders, archives, how classes are found and split."""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from samples import pixels, png

from handful.datasets import load_dataset
from handful.datasets.folder import deal
from handful.errors import HandfulError


def write(folder: Path, classes: list[str], images: int = 3, size: int = 84) -> None:
    for number, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for index in range(images):
            (folder / name / f"{index}.png").write_bytes(png(pixels(1000 * number + index, size)))


@pytest.fixture
def photos(tmp_path) -> Path:
    """train/ val/ test/ of two classes each, three images per class."""
    for split in ("train", "val", "test"):
        write(tmp_path / "photos" / split, [f"{split}-cat", f"{split}-dog"])
    return tmp_path / "photos"


def zipped(folder: Path, inside: str = "") -> Path:
    path = folder.with_suffix(".zip")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.rglob("*"), reverse=True):
            if file.is_file():
                archive.write(file, inside + file.relative_to(folder).as_posix())
    return path


@pytest.mark.parametrize("form", ["folder", "zip", "zip with a folder around it"])
def test_split_folders(photos, form):
    path = photos if form == "folder" else zipped(photos, "photos/" if "around" in form else "")
    found = load_dataset("folder", "val", path)
    assert found.class_names == ("val-cat", "val-dog")
    assert found.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert found.images.shape == (6, 84, 84, 3) and isinstance(found.images, np.memmap)
    for number, image in zip((0, 1, 2, 1000, 1001, 1002), found.images, strict=True):
        assert (image == pixels(number)).all()


def test_classes_have_the_same_numbers_in_a_folder_and_in_an_archive(tmp_path):
    """Names that begin alike: a hyphen, a space and a dot come before the slash that ends a folder's name."""
    names = ["cat", "cat 2", "cat-2", "cat.2", "cat0"]
    for split in ("train", "val", "test"):
        write(tmp_path / "photos" / split, names, images=1)
    folder, archive = (
        load_dataset("folder", "val", path) for path in (tmp_path / "photos", zipped(tmp_path / "photos"))
    )
    assert folder.class_names == archive.class_names == tuple(names)
    assert (folder.images == archive.images).all() and folder.fingerprint() == archive.fingerprint()


def test_other_names_of_splits_deeper_images_and_clutter(photos):
    (photos / "val").rename(photos / "Validation")
    inside = photos / "Validation" / "val-cat"
    (inside / "images").mkdir()
    shutil.move(inside / "0.png", inside / "images" / "0.png")
    for clutter in (".DS_Store", "Thumbs.db", "notes.txt", "._0.png"):
        (inside / clutter).write_bytes(b"?")
    found = load_dataset("folder", "val", photos)
    assert found.labels.tolist() == [0, 0, 0, 1, 1, 1]


def test_a_plain_folder_of_classes_is_split_by_seed(tmp_path):
    names = [f"class {index:02}" for index in range(20)]
    write(tmp_path / "plain", names, images=1)
    parts = {s: load_dataset("folder", s, tmp_path / "plain").class_names for s in ("train", "val", "test")}
    assert [len(part) for part in parts.values()] == [13, 3, 4]
    assert sorted(name for part in parts.values() for name in part) == names
    other = load_dataset("folder", "test", tmp_path / "plain", options={"split_seed": 1}).class_names
    assert other != parts["test"]
    same = load_dataset("folder", "test", zipped(tmp_path / "plain"))
    assert same.class_names == parts["test"]


def test_a_new_class_moves_few_of_the_others():
    names = [f"class {index}" for index in range(100)]
    before, after = deal(names, 0), deal([*names, "another"], 0)
    moved = sum(split != next(s for s in after if n in after[s]) for split in before for n in before[split])
    assert moved <= 3


def test_image_size(photos):
    assert load_dataset("folder", "train", photos, options={"image_size": 32}).images.shape == (6, 32, 32, 3)


def test_broken_images_are_left_out_and_named(photos, capsys):
    (photos / "train" / "train-cat" / "0.png").write_bytes(b"no image")
    found = load_dataset("folder", "train", photos)
    assert found.labels.tolist() == [0, 0, 1, 1, 1]
    assert "train/train-cat/0.png: no image of a format that is read" in " ".join(capsys.readouterr().err.split())
    with pytest.raises(HandfulError, match=r"1 of the train images cannot be read, such as train/train-cat/0\.png"):
        load_dataset("folder", "train", photos, strict=True)


def test_a_class_without_a_sound_image_is_none(photos):
    for file in (photos / "train" / "train-cat").iterdir():
        file.write_bytes(b"")
    found = load_dataset("folder", "train", photos)
    assert found.class_names == ("train-dog",) and found.labels.tolist() == [0, 0, 0]
    for file in (photos / "train" / "train-dog").iterdir():
        file.write_bytes(b"")
    with pytest.raises(HandfulError, match=r"none of 6 images can be read; the first: train/train-cat/0\.png: empty"):
        load_dataset("folder", "train", photos)


def test_paths_that_lead_out_of_an_archive_are_not_read(photos):
    path = zipped(photos)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("train/../../evil/0.png", png(pixels(7)))
        archive.writestr("train/train-cat/../../../x.png", png(pixels(7)))
        archive.writestr("/train/absolute/0.png", png(pixels(7)))
    found = load_dataset("folder", "train", path)
    assert found.class_names == ("train-cat", "train-dog") and len(found.images) == 6


@pytest.mark.skipif(sys.platform != "linux", reason="file names are text elsewhere")
def test_names_that_are_no_text(photos):
    folder = os.fsencode(photos / "train") + b"/caf\xe9\x1b[31m"
    os.mkdir(folder)  # noqa: PTH102 - a Path is text
    with open(folder + b"/\xff.png", "wb") as file:  # noqa: PTH123
        file.write(png(pixels(5)))
    found = load_dataset("folder", "train", photos)
    assert len(found.class_names) == 3 and all(name.isprintable() for name in found.class_names)


@pytest.mark.parametrize(("prepare", "message"), [
    (lambda path: shutil.rmtree(path / "val"), "has a folder for train and test but none for 'val'"),
    (lambda path: [shutil.rmtree(path / s) for s in ("train", "test")], "has a folder for val but none"),
])  # fmt: skip
def test_missing_splits(photos, prepare, message):
    prepare(photos)
    with pytest.raises(HandfulError, match=message):
        load_dataset("folder", "val" if (photos / "train").exists() else "train", photos)


def test_bad_paths(tmp_path, photos):
    (tmp_path / "text.txt").write_text("x")
    (tmp_path / "text.zip").write_text("x")
    (tmp_path / "empty").mkdir()
    for path, message in {
        "text.txt": "neither a folder nor a .zip archive nor one of .tar, .tar.gz", "text.zip": "is not a zip archive",
        "empty": "holds 0 folders with images", "nowhere": "no such file",
    }.items():  # fmt: skip
        with pytest.raises(HandfulError, match=message):
            load_dataset("folder", "train", tmp_path / path)
    with pytest.raises(HandfulError, match="--data PATH"):
        load_dataset("folder", "train")
    with pytest.raises(HandfulError, match="no option 'size'"):
        load_dataset("folder", "train", photos, options={"size": 3})
    with pytest.raises(HandfulError, match="takes a value like 84"):
        load_dataset("folder", "train", photos, options={"image_size": "3"})


def test_an_archive_as_other_programs_write_it(photos):
    path = photos.with_suffix(".zip")
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(photos.rglob("*.png")):
            name = file.relative_to(photos).as_posix()
            archive.writestr(
                f"./{name}" if "cat" in name else zipfile.ZipInfo(name.replace("/", chr(92))), file.read_bytes()
            )
        archive.writestr("./train/train-cat/2021-01-01 10:00.png", png(pixels(5)))
        archive.writestr(".git/x.png", png(pixels(5)))
        archive.writestr("__MACOSX/train/train-cat/._0.png", b"?")
    found = load_dataset("folder", "train", path)
    assert found.class_names == ("train-cat", "train-dog") and found.labels.tolist() == [0] * 4 + [1] * 3


def test_a_class_of_trains(tmp_path):
    write(tmp_path / "plain", ["bus", "car", "train", "ship"], images=1)
    parts = [load_dataset("folder", s, tmp_path / "plain").class_names for s in ("train", "val", "test")]
    assert sorted(name for part in parts for name in part) == ["bus", "car", "ship", "train"]


def test_folders_without_images_are_no_classes(tmp_path):
    write(tmp_path / "plain", ["cat", "dog", "owl"], images=1)
    for index in range(5):
        (tmp_path / "plain" / f"videos {index}").mkdir()
        (tmp_path / "plain" / f"videos {index}" / "x.mp4").write_bytes(b"?")
    assert all(len(load_dataset("folder", s, tmp_path / "plain").class_names) == 1 for s in ("train", "val", "test"))


def test_splits_without_class_folders(tmp_path):
    for split in ("train", "val", "test"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "0.png").write_bytes(png(pixels(1)))
    with pytest.raises(HandfulError, match=r"train/ in .* holds no class folders"):
        load_dataset("folder", "train", tmp_path)
