"""A user's files: nothing that is there is passed over in silence."""

from __future__ import annotations

import errno
import os
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
from samples import pixels, png

from handful.datasets import dataset_spec, full_options, load_dataset
from handful.datasets.base import no_bar
from handful.datasets.check import check_dataset
from handful.datasets.files import Archive, Folder, open_files
from handful.errors import HandfulError


def write(folder: Path, *names: str) -> Path:
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(png(pixels(number, 8)))
    return folder


def link(path: Path, target: Path) -> None:
    try:
        path.symlink_to(target, target_is_directory=True)
    except OSError:
        pytest.skip("this system does not let users make links")


@pytest.fixture
def locked(monkeypatch) -> set[str]:
    """Names of folders that cannot be listed; root may list all, so that permissions are no way to test this."""
    names: set[str] = set()
    scandir = os.scandir

    def refuse(path):
        if Path(path).name in names:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    return names


@pytest.fixture
def photos(tmp_path) -> Path:
    """train/ val/ test/ of two classes each."""
    names = [f"{split}/{split}-{label}/{index}/x.png" for split in ("train", "val", "test") for label in "ab"
             for index in range(2)]  # fmt: skip
    return write(tmp_path / "photos", *names)


def test_a_folder_that_cannot_be_listed_is_named(photos, locked):
    locked.add("train-a")
    with pytest.raises(HandfulError, match=r"cannot read .*train-a: Permission denied"):
        Folder(photos).under("")
    skipped: dict[str, str] = {}
    names = Folder(photos).under("", skipped)
    assert skipped == {"train/train-a": "a folder that cannot be listed: Permission denied"}
    assert len(names) == 10


def test_the_folder_itself_cannot_be_listed(photos, locked):
    locked.add("photos")
    with pytest.raises(HandfulError, match=r"cannot read .*photos: Permission denied"):
        Folder(photos).under("", {})


def test_a_data_set_with_a_folder_that_cannot_be_listed_is_an_error(photos, locked):
    locked.add("train-a")
    with pytest.raises(HandfulError, match=r"cannot read .*train-a: Permission denied"):
        load_dataset("folder", "train", photos)
    report = check_dataset(dataset_spec("folder"), photos, full_options(dataset_spec("folder"), {}))
    assert list(report.missing) == ["train"] and "Permission denied" in report.errors[0]


def test_what_systems_leave_may_be_locked(photos, locked):
    for name in (".Trash-0", "lost+found"):
        write(photos, f"{name}/x.png")
        locked.add(name)
    assert len(Folder(photos).under("")) == 12


def test_links_to_folders_and_in_circles_are_named(photos, tmp_path):
    elsewhere = write(tmp_path / "elsewhere", "y.png")
    link(photos / "train" / "train-a" / "more", elsewhere)
    link(photos / "train" / "train-a" / "up", photos)
    link(photos / "circle.png", photos / "circle.png")
    skipped: dict[str, str] = {}
    names = Folder(photos).under("", skipped)
    assert skipped == dict.fromkeys(
        ["train/train-a/more", "train/train-a/up"], "a link to a folder, which is not followed"
    )
    assert len(names) == 13 and "circle.png" in names, "whoever reads it says why it cannot be"
    report = check_dataset(dataset_spec("folder"), photos, full_options(dataset_spec("folder"), {}))
    assert report.splits["train"].ignored == ["train/train-a/more", "train/train-a/up"]


def test_an_entry_that_cannot_be_looked_at_is_named(photos, monkeypatch):
    """A link to where nobody may look: it might be a class."""

    class Entry:
        name, path = "secret", str(photos / "train" / "secret")

        def is_dir(self):
            raise PermissionError(errno.EACCES, "Permission denied")

        is_file = is_dir

    class Listing(list):
        __enter__ = list.__iter__

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(os, "scandir", lambda path: Listing([Entry()]))
    for look in (Folder(photos).folders, Folder(photos).files):
        with pytest.raises(HandfulError, match=r"cannot read .*secret: Permission denied"):
            look("train")
    assert Folder(photos).under("train") == ["train/secret"]


def test_folders_in_folders_in_folders(tmp_path):
    """Deeper than Python's own functions go."""
    write(tmp_path, "x.png")
    made = [tmp_path]
    try:
        with suppress(OSError):  # paths may not be that long here
            while len(made) < 1100:
                (made[-1] / "d").mkdir()
                made.append(made[-1] / "d")
        assert Folder(tmp_path).under("") == ["x.png"]
    finally:  # nor do the functions of Python and pytest that remove folders
        for folder in made[:0:-1]:
            folder.rmdir()


def zipped(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for number, name in enumerate(names):
            archive.writestr(name, png(pixels(number, 8)))
    return path


def test_an_archive_of_a_single_folder_is_that_folder(tmp_path):
    path = zipped(tmp_path / "x.zip", "photos/a.png", "photos/in/b.png", "__MACOSX/photos/._a.png", ".DS_Store")
    files = open_files(path)
    assert files.top == "photos" and files.under("") == ["a.png", "in/b.png"]
    assert files.read("in/b.png") == png(pixels(1, 8))
    assert (files.folders(), files.files()) == (["in"], ["a.png"])


@pytest.mark.parametrize("names", [("a/x.png", "b/x.png"), ("a/x.png", "x.png"), ("a/x.png", "../a/y.png"),
                                   ("/a/x.png",), ("../x.png",), ("x.png",)])  # fmt: skip
def test_other_archives_stay_as_they_are(tmp_path, names):
    files = open_files(zipped(tmp_path / "x.zip", *names))
    assert files.top == "" and files.under("") == sorted(names)


def test_a_doubtful_member_of_a_single_folder_stays_doubtful(tmp_path):
    files = open_files(zipped(tmp_path / "x.zip", "a/x.png", "a/../../y.png"))
    assert isinstance(files, Archive) and files.doubtful == {"../../y.png": "has a path that leads out of the archive"}


def test_a_single_split_in_an_archive_is_still_that_split(tmp_path):
    path = zipped(tmp_path / "x.zip", "train/cat/1.png", "train/dog/1.png")
    assert load_dataset("folder", "train", path).class_names == ("cat", "dog")
    with pytest.raises(HandfulError, match="has a folder for train but none for 'val'"):
        load_dataset("folder", "val", path)


def test_names_are_part_of_an_archives_digest(tmp_path):
    """So that a cache of the images under other names is not taken for theirs."""
    files = open_files(zipped(tmp_path / "x.zip", "a/x.png", "a/y.png"), unwrap=False)
    assert files.digest(["a/x.png"], no_bar) != files.digest(["x.png"], no_bar)
