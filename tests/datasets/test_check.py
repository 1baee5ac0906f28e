"""``handful data check``: what it counts and what it says is wrong."""

from __future__ import annotations

import pytest
from samples import pixels, png

from handful.datasets import dataset_spec, full_options
from handful.datasets.check import check_dataset
from handful.errors import HandfulError


def check(path, name="folder", **options):
    spec = dataset_spec(name)
    return check_dataset(spec, path, full_options(spec, {}), **options)


@pytest.fixture
def photos(tmp_path):
    for number, split in enumerate(("train", "val", "test")):
        for label in range(2):
            folder = tmp_path / "photos" / split / f"{split}-{label}"
            folder.mkdir(parents=True)
            for index in range(12):
                image = pixels(1000 * number + 100 * label + index, 30 + 10 * label)
                (folder / f"{index}.png").write_bytes(png(image))
    return tmp_path / "photos"


def test_counts(photos, cache):
    report = check(photos)
    assert not report.errors and not report.warnings and report.to_json()["ok"]
    for split in ("train", "val", "test"):
        found = report.splits[split]
        assert (found.classes, found.images, found.per_class) == (2, 24, (12, 12.0, 12))
        assert found.sizes == {"30 x 30": 12, "40 x 40": 12}
    assert not list(cache.rglob("*"))  # nothing is written


def test_what_is_wrong(photos):
    train, val, test = (photos / split for split in ("train", "val", "test"))
    (train / "train-0" / "3.png").write_bytes(b"broken")
    (train / "train-0" / "notes.txt").write_text("hello")
    for index in range(5):
        (train / "train-1" / f"{index}.png").unlink()
    (val / "val-1").rename(val / "train-1")
    (test / "test-0" / "again.png").write_bytes((train / "train-0" / "0.png").read_bytes())
    report = check(photos)
    found = report.splits["train"]
    assert list(found.broken) == ["train/train-0/3.png"]
    assert found.near_empty == {"train-1": 7} and found.ignored == ["train/train-0/notes.txt"]
    assert report.shared_classes == {"train-1": ["train", "val"]}
    assert report.duplicates == [["train: train/train-0/0.png", "test: test/test-0/again.png"]]
    assert report.errors == ["a class is in more than one split, such as 'train-1' in train and val"]
    assert len(report.warnings) == 4 and not report.to_json()["ok"]
    assert len(check(photos, strict=True).errors) == 2


def test_the_same_picture_in_another_file_is_a_duplicate(photos):
    image = pixels(0, 30)
    (photos / "val" / "val-0" / "copy.bmp").write_bytes(b"")
    from PIL import Image

    Image.fromarray(image).save(photos / "val" / "val-0" / "copy.bmp")
    assert check(photos).duplicates == [["train: train/train-0/0.png", "val: val/val-0/copy.bmp"]]


def test_a_missing_split_is_an_error_among_others(photos):
    (photos / "val").rename(photos / "elsewhere")
    report = check(photos)
    assert list(report.missing) == ["val"] and list(report.splits) == ["train", "test"]
    assert report.errors[0].startswith("val: ")


def test_nothing_to_check(tmp_path):
    with pytest.raises(HandfulError, match="holds 0 folders with images"):
        check(tmp_path)
    with pytest.raises(HandfulError, match="--data PATH"):
        check(None)
    with pytest.raises(HandfulError, match="is embedded"):
        check(tmp_path, name="glyphs")


def test_real_counts(real):
    report = check(real("omniglot"), name="omniglot")
    assert [(found.classes, found.images) for found in report.splits.values()] == [
        (1028, 20560), (172, 3440), (423, 8460),
    ]  # fmt: skip
    assert not report.errors
