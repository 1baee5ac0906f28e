"""Labels as people write them, and what is said of labels that cannot be used."""

from __future__ import annotations

import shutil
import zipfile

import numpy as np
import pytest
from album import COLOURS, draw, write_labels

from tacit import TacitError
from tacit.labelling import collect


def test_a_table_beside_the_images(photos, labels):
    found = collect(photos, labels)
    assert len(found.names) == 72 and found.names == sorted(found.names)
    assert found.classes == ["blue", "green", "red"]
    assert found.given["day 1/01.png"] == "green" and "other 00.png" not in found.given


@pytest.mark.parametrize("path", ["day 0\\00.png", "./day 0/00.png", "ABSOLUTE/day 0/00.png"])
def test_paths_as_other_systems_write_them(photos, path):
    path = path.replace("ABSOLUTE", str(photos.resolve()))
    table = write_labels(photos.parent / "labels.csv", [(path, "red"), ("day 1/01.png", "green")])
    assert collect(photos, table).given == {"day 0/00.png": "red", "day 1/01.png": "green"}


def test_the_table_of_an_image_folder_of_hugging_face(photos):
    rows = [("day 0/00.png", "red", "x"), ("day 1/01.png", "green", "y"), ("day 0/02.png", "", "z")]
    write_labels(photos / "metadata.csv", rows, ("file_name", "label", "text"))
    assert set(collect(photos).given.values()) == {"red", "green"}


def test_labels_by_folder(photos):
    for name in ("red", "green"):
        (photos / name).mkdir()
    shutil.move(photos / "day 0" / "00.png", photos / "red" / "00.png")
    shutil.move(photos / "day 1" / "01.png", photos / "green" / "01.png")
    (photos / "Unlabelled").mkdir()
    for folder in ("day 0", "day 1"):
        shutil.move(photos / folder, photos / "Unlabelled" / folder)
    found = collect(photos)
    assert found.given == {"red/00.png": "red", "green/01.png": "green"}
    assert len(found.names) == 72


def test_an_archive(photos, labels):
    with zipfile.ZipFile(photos.parent / "photos.zip", "w") as archive:
        for path in sorted(photos.rglob("*.png")):
            archive.write(path, path.relative_to(photos).as_posix())
    assert collect(photos.parent / "photos.zip", labels).given == collect(photos, labels).given


def test_known_to_be_none(photos):
    rows = [("day 0/00.png", "red"), ("day 1/01.png", "green"), ("other 00.png", "none-of-these")]
    found = collect(photos, write_labels(photos.parent / "labels.csv", rows))
    assert found.none == {"other 00.png"} and found.classes == ["green", "red"]


def test_a_byte_order_mark_and_blank_lines(photos):
    table = photos.parent / "labels.csv"
    table.write_bytes("\ufeffpath,label\r\n\r\nday 0/00.png,red\r\nday 1/01.png,grün\r\n".encode())
    assert collect(photos, table).classes == ["grün", "red"]


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([("day 0/00.png", "red"), ("nowhere.png", "blue")], "line 3: there is no image 'nowhere.png'"),
        ([("../photos/day 0/00.png", "red")], "there is no image"),
        ([("day 0/00.png", "red"), ("day 0/00.png", "blue")], "is labelled 'blue' here and 'red' further up"),
        ([("day 0/00.png", "red"), ("day 0/06.png", "red")], "all labelled images are of one class, 'red'"),
        ([("day 0/00.png", "")], "no image is labelled"),
        ([("day 0/00.png", "../x"), ("day 1/01.png", "b")], "the label '../x' cannot be a class's name"),
        ([("day 0/00.png", ".."), ("day 1/01.png", "b")], "the label '..' cannot be a class's name"),
        ([("day 0/00.png", "a\\b"), ("day 1/01.png", "b")], "cannot be a class's name"),
        ([("day 0/00.png", "a\x07"), ("day 1/01.png", "b")], "cannot be a class's name"),
    ],
)
def test_labels_that_cannot_be_used(photos, rows, sentence):
    with pytest.raises(TacitError, match=sentence.replace("(", r"\(")) as caught:
        collect(photos, write_labels(photos.parent / "labels.csv", rows))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"day 0/00.png,red\n", "should start with a line that names its columns, path,label"),
        (b"", "should start with a line that names its columns"),
        (b"path,label\n\xff\xfe,red\n", "is not text in UTF-8"),
        (b'path,label\n"day 0/00.png,red\n', "not a CSV file"),
    ],
)
def test_tables_that_are_none(photos, content, sentence):
    (photos.parent / "labels.csv").write_bytes(content)
    with pytest.raises(TacitError, match=sentence):
        collect(photos, photos.parent / "labels.csv")


def test_nothing_there(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.txt").write_text("no image")
    with pytest.raises(TacitError, match="holds no images"):
        collect(tmp_path / "empty")
    with pytest.raises(TacitError, match="no such folder or archive"):
        collect(tmp_path / "nothing")
    draw(tmp_path / "one" / "a.png", COLOURS["red"], np.random.default_rng(0))
    with pytest.raises(TacitError, match="cannot read the labels"):
        collect(tmp_path / "one", tmp_path / "none.csv")
