"""Labels as people write them, and what is said of labels that cannot be used."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tracemalloc
import unicodedata
import zipfile
from pathlib import Path

import numpy as np
import pytest
from album import COLOURS, draw, write_labels

from handful import HandfulError
from handful.datasets.files import open_files
from handful.labelling import collect


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
    with pytest.raises(HandfulError, match=sentence.replace("(", r"\(")) as caught:
        collect(photos, write_labels(photos.parent / "labels.csv", rows))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"day 0/00.png,red\n", "should start with a line that names its columns, path,label"),
        (b"", "should start with a line that names its columns"),
        (b"path,label\n\xff\xfe,red\n", "is not text in UTF-8"),
        (b'path,label\n"day 0/00.png,red\n', "not a CSV file"),
        (b"path,label\nday 0/00.png,red\n\0\0,x\n", "line 3: not text, it has NUL bytes"),
        ("path,label\n".encode("utf-16-le"), "line 1: not text, it has NUL bytes"),
        (b"path,label\n" + 300_000 * b"x" + b",red\n", "line 2: not a CSV file: field larger"),
        (b"path,label\n" + 3_000_000 * b"x,", "line 2: more than 1,048,575 letters"),
        (b"path,label,Label\nday 0/00.png,red,blue\n", "has more than one column 'label'"),
        (b"path,path,label\nday 0/00.png,x,blue\n", "has more than one column 'path'"),
        (b"path,label\nday 0/00.png,red, dark\n", "line 2: 3 cells, but there are 2 columns"),
        (b"path|label\nday 0/00.png|red\n", r"names its columns, path,label .*, got: path\|label"),
    ],
)
def test_tables_that_are_none(photos, content, sentence):
    (photos.parent / "labels.csv").write_bytes(content)
    with pytest.raises(HandfulError, match=sentence):
        collect(photos, photos.parent / "labels.csv")


def test_nothing_there(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.txt").write_text("no image")
    with pytest.raises(HandfulError, match=r"holds no images"):
        collect(tmp_path / "empty")
    with pytest.raises(HandfulError, match="no such folder or archive"):
        collect(tmp_path / "nothing")
    draw(tmp_path / "one" / "a.png", COLOURS["red"], np.random.default_rng(0))
    with pytest.raises(HandfulError, match="cannot read the labels"):
        collect(tmp_path / "one", tmp_path / "none.csv")


def test_a_folder_that_cannot_be_listed_is_named(photos, labels, monkeypatch):
    scandir = os.scandir

    def refuse(path):
        if Path(path).name == "day 1":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    (photos / "locked").mkdir()
    shutil.move(photos / "day 1", photos / "locked" / "day 1")
    table = write_labels(photos.parent / "labels.csv", [("day 0/00.png", "red"), ("day 0/02.png", "blue")])
    monkeypatch.setattr(os, "scandir", refuse)
    found = collect(photos, table)
    assert len(found.names) == 42
    assert found.skipped == {"locked/day 1": "a folder that cannot be listed: Permission denied"}


def test_no_image_that_can_be_had_says_what_was_passed_over(tmp_path, photos):
    (tmp_path / "links").mkdir()
    try:
        (tmp_path / "links" / "to").symlink_to(photos, target_is_directory=True)
    except OSError:
        pytest.skip("this system does not let users make links")
    with pytest.raises(HandfulError, match=r"holds no images .*; to is a link to a folder, which is not followed"):
        collect(tmp_path / "links")


@pytest.mark.parametrize("separator", [";", "\t"])
def test_the_separators_of_excel(photos, separator):
    table = photos.parent / "labels.csv"
    rows = ["path,label", '"day 0/00.png","red, dark"', "day 1/01.png,green"]
    content = "\ufeff" + "\r\n".join(row.replace(",", separator).replace(f"red{separator}", "red,") for row in rows)
    table.write_bytes(content.encode())
    assert collect(photos, table).given == {"day 0/00.png": "red, dark", "day 1/01.png": "green"}


def test_names_with_blanks_and_backslashes_of_their_own(photos):
    for name in (" first.png", "a\\b.png"):
        try:
            shutil.copy(photos / "day 0" / "00.png", photos / name)
        except OSError:
            pytest.skip("this system has no such names")
    if not (photos / "a\\b.png").exists() or (photos / "a").exists():
        pytest.skip("a backslash is a separator here")
    table = write_labels(photos.parent / "labels.csv", [(" first.png", "red"), ("a\\b.png", "green")])
    assert collect(photos, table).given == {" first.png": "red", "a\\b.png": "green"}


def test_another_normal_form_of_the_same_name(photos):
    """A Mac's names are decomposed, tables that were typed are not."""
    shutil.copy(photos / "day 0" / "00.png", photos / "u\u0308ber.png")
    table = write_labels(photos.parent / "labels.csv", [("\u00fcber.png", "red"), ("day 1/01.png", "green")])
    (name,) = (name for name, label in collect(photos, table).given.items() if label == "red")
    assert unicodedata.normalize("NFC", name) == "\u00fcber.png"


@pytest.mark.skipif(sys.platform != "linux", reason="file names are text elsewhere")
def test_names_that_are_no_text_are_written_as_in_the_predictions(photos):
    shutil.copy(photos / "day 0" / "00.png", os.fsdecode(os.fsencode(photos) + b"/caf\xe9.png"))
    table = write_labels(photos.parent / "labels.csv", [("caf\\udce9.png", "red"), ("day 1/01.png", "green")])
    assert collect(photos, table).given == {"caf\udce9.png": "red", "day 1/01.png": "green"}
    (photos / "day 0" / "02.png").rename(photos / "\x1b[2J.png")
    table = write_labels(photos.parent / "labels.csv", [("\\x1b[2J.png", "red"), ("day 1/01.png", "green")])
    assert collect(photos, table).given == {"\x1b[2J.png": "red", "day 1/01.png": "green"}


@pytest.fixture
def wrapped(photos):
    """An archive of a single folder, as most programs make them of one."""

    def pack(*more: str):
        path = photos.parent / "photos.zip"
        with zipfile.ZipFile(path, "w") as archive:
            for file in sorted(path for path in photos.rglob("*") if path.is_file()):
                archive.write(file, f"photos/{file.relative_to(photos).as_posix()}")
            for name in more:
                archive.write(photos / "day 0" / "00.png", name)
        return path

    return pack


@pytest.mark.parametrize("prefix", ["", "photos/"])
def test_an_archive_of_a_single_folder(photos, wrapped, prefix):
    rows = [(f"{prefix}day 0/00.png", "red"), (f"{prefix}day 1/01.png", "green")]
    table = write_labels(photos.parent / "labels.csv", rows)
    found = collect(wrapped("__MACOSX/photos/._00.png"), table)
    assert found.names == open_files(photos).under("")
    assert found.given == {"day 0/00.png": "red", "day 1/01.png": "green"}


def test_the_table_or_the_classes_in_an_archive_of_a_single_folder(photos, wrapped):
    write_labels(photos / "labels.csv", [("day 0/00.png", "red"), ("day 1/01.png", "green")])
    assert collect(wrapped()).classes == ["green", "red"]
    (photos / "labels.csv").unlink()
    assert collect(wrapped()).classes == ["day 0", "day 1"]


def test_a_name_that_may_be_two_images_of_an_archive(photos, wrapped):
    path = wrapped("photos/photos/day 0/00.png")
    rows = [("photos/day 0/00.png", "red"), ("day 1/01.png", "green")]
    sentence = "line 2: 'photos/day 0/00.png' may be two images: write 'day 0/00.png' or 'photos/photos/day 0/00.png'"
    with pytest.raises(HandfulError, match=sentence):
        collect(path, write_labels(photos.parent / "labels.csv", rows))
    rows[0] = ("photos/photos/day 0/00.png", "red")
    found = collect(path, write_labels(photos.parent / "labels.csv", rows))
    assert found.given == {"photos/day 0/00.png": "red", "day 1/01.png": "green"}


def test_an_archive_of_one_class(tmp_path):
    with zipfile.ZipFile(tmp_path / "cats.zip", "w") as archive:
        archive.writestr("cats/1.png", b"?")
    with pytest.raises(HandfulError, match="no image is labelled"):
        collect(tmp_path / "cats.zip")


def test_labels_that_differ_little_are_different_classes(photos):
    rows = [("day 0/00.png", "Red"), ("day 1/01.png", "red"), ("day 0/02.png", "NUL"), ("day 1/03.png", "red.")]
    found = collect(photos, write_labels(photos.parent / "labels.csv", rows))
    assert found.classes == ["NUL", "Red", "red", "red."]


@pytest.mark.parametrize("label", ["a\u202eb", "a\u200bb", "a\x9bb", "a\x7fb"])
def test_labels_that_could_deceive_a_reader(photos, label):
    table = write_labels(photos.parent / "labels.csv", [("day 0/00.png", label), ("day 1/01.png", "b")])
    with pytest.raises(HandfulError, match="cannot be a class's name") as caught:
        collect(photos, table)
    assert str(caught.value).isprintable()


@pytest.mark.skipif(sys.platform != "linux", reason="file names are text elsewhere")
def test_a_class_folder_whose_name_is_no_text(photos):
    (photos / "day 0").rename(os.fsdecode(os.fsencode(photos) + b"/caf\xe9"))
    with pytest.raises(HandfulError, match=r"the label 'caf\\udce9' cannot be a class's name"):
        collect(photos)


def test_a_table_that_is_no_file(photos, tmp_path):
    with pytest.raises(HandfulError, match="not a file but a folder, a pipe or a device"):
        collect(photos, tmp_path)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.csv")
        with pytest.raises(HandfulError, match="not a file but a folder, a pipe or a device"):
            collect(photos, tmp_path / "pipe.csv")
        os.mkfifo(photos / "labels.csv")
        with pytest.raises(HandfulError, match="not a file but a folder, a pipe or a device"):
            collect(photos)
    if Path("/dev/zero").exists():
        with pytest.raises(HandfulError, match="not a file but a folder, a pipe or a device"):
            collect(photos, Path("/dev/zero"))


def test_a_table_that_may_not_be_read(photos, labels, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(HandfulError, match=r"cannot read the labels in .*labels\.csv: Permission denied"):
        collect(photos, labels)


def test_a_table_in_an_archive_that_is_too_large(photos, wrapped, monkeypatch):
    write_labels(photos / "labels.csv", [("day 0/00.png", "red"), ("day 1/01.png", "green")])
    path = wrapped()
    monkeypatch.setattr("handful.datasets.files.MOST_BYTES", 10)
    with pytest.raises(HandfulError, match=r"cannot read labels\.csv in .*photos\.zip: more than 0 MiB; give another"):
        collect(path)


def test_a_long_table_is_not_held_in_memory(photos, tmp_path):
    """Only what it says of the images is: the same lines again and again take no more."""
    lines = "".join(f"day {index % 2}/{index:02d}.png,{'ab'[index % 2]}\n" for index in range(60))
    (tmp_path / "long.csv").write_text("path,label\n" + 4000 * lines)
    tracemalloc.start()
    found = collect(photos, tmp_path / "long.csv")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found.given) == 60
    assert peak < (tmp_path / "long.csv").stat().st_size / 4
