"""``handful data fetch``: known checksums and numbers, verified and prepared files; nothing but pickles is unpacked."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import re
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from samples import pixels, png

from command import handful
from handful.datasets import DATASETS, load_dataset, tars
from handful.datasets import fetch as fetching
from handful.datasets.known import KNOWN, KnownFile
from handful.embedders.shipped import model_folder
from handful.errors import HandfulError

SPLITS = ("train", "val", "test")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HANDFUL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def downloads(tmp_path) -> Path:
    """miniImageNet's pickles in small: two classes of three images a split."""
    folder = tmp_path / "downloads"
    folder.mkdir()
    for number, split in enumerate(SPLITS):
        images = np.stack([pixels(10 * number + image) for image in range(6)])
        content = {"image_data": images, "class_dict": {f"n{number}0": [0, 2, 4], f"n{number}1": [1, 3, 5]}}
        (folder / f"mini-imagenet-cache-{split}.pkl").write_bytes(pickle.dumps(content))
    return folder


@pytest.fixture
def small(monkeypatch, downloads):
    """What is known of the small one: its numbers, and the checksum of one of its files."""
    name = "mini-imagenet-cache-test.pkl"
    md5 = hashlib.md5((downloads / name).read_bytes()).hexdigest()
    files = (
        KnownFile(name, md5, "Somebody", "6 images"),
        KnownFile("mini-imagenet-cache-val.pkl", "0" * 32, "Else", ""),
    )
    known = replace(KNOWN["mini-imagenet"], files=files, images=dict.fromkeys(SPLITS, (2, 6)), fingerprints={})
    monkeypatch.setitem(KNOWN, "mini-imagenet", known)
    return known


def add(archive: tarfile.TarFile, name: str, content: bytes, **kind: object) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    for key, value in kind.items():
        setattr(member, key, value)
    archive.addfile(member, io.BytesIO(content))


def test_what_is_known_is_sound():
    for name, known in KNOWN.items():
        assert DATASETS[name].needs_path
        assert all(re.fullmatch("[0-9a-f]{32}", file.md5) and file.publisher for file in known.files)
        assert tuple(known.images) == SPLITS
        assert tuple(known.fingerprints) in ((), SPLITS)
        assert all(place.startswith("https://github.com/") for place in known.places)
    assert sum(images for _, images in KNOWN["tiered-imagenet"].images.values()) == 779_165
    assert sum(images for _, images in KNOWN["mini-imagenet"].images.values()) == 60_000
    assert sum(classes for classes, _ in KNOWN["omniglot"].images.values()) == 4 * 1623


def test_the_documentation_has_the_same_fingerprints():
    page = (Path(__file__).parents[2] / "docs" / "data" / "README.md").read_text(encoding="utf-8")
    for known in KNOWN.values():
        assert all(f"`{fingerprint}`" in page for fingerprint in known.fingerprints.values())


def test_the_model_that_comes_along_was_trained_on_the_images_that_are_known():
    folder, known = model_folder("tac-omniglot"), KNOWN["omniglot"]
    assert (
        json.loads((folder / "config.json").read_text(encoding="utf-8"))["fingerprint"] == known.fingerprints["train"]
    )
    assert known.fingerprints["test"] in (folder / "model.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", KNOWN)
def test_the_command_says_where_to_get_it(name):
    done = handful("data", "fetch", name)
    assert done.returncode == 0
    for file in KNOWN[name].files:
        assert f"{file.md5}  {file.name}" in done.stdout
    assert f"handful data fetch {name} --from PATH" in done.stdout
    told = json.loads(handful("data", "fetch", name, "--json").stdout)
    assert list(told["places"]) == list(KNOWN[name].places)


def test_a_command_without_the_files_says_how_to_get_them():
    for name in (*KNOWN, "folder"):
        done = handful("data", "check", "--dataset", name)
        assert done.returncode == 2
        assert (f"'handful data fetch {name}' says where to get them" in " ".join(done.stderr.split())) == (
            name in KNOWN
        )


def test_downloaded_files_are_verified_and_prepared(downloads, small, monkeypatch):
    told = json.loads(handful("data", "fetch", "mini-imagenet", "--from", downloads, "--json").stdout)
    assert [(file["name"], file["publisher"]) for file in told["files"]] == [
        ("mini-imagenet-cache-test.pkl", "Somebody"),
        ("mini-imagenet-cache-val.pkl", None),
    ]
    prints = {split: load_dataset("mini-imagenet", split, downloads).fingerprint() for split in SPLITS}
    assert {row["split"]: row["fingerprint"] for row in told["splits"]} == prints
    assert {row["as_measured"] for row in told["splits"]} == {None}
    for known, sentence in ((prints, "These are the images"), ({**prints, "val": "other"}, "Not all pixels are those")):
        monkeypatch.setitem(KNOWN, "mini-imagenet", replace(small, fingerprints=known))
        said = handful("data", "fetch", "mini-imagenet", "--from", downloads).stdout
        assert f"{sentence} that our results were measured on" in " ".join(said.split()).replace(
            "of the images that", "that"
        )
        assert "as Somebody has it" in said
        assert "which is not the known one" in said


def test_half_a_data_set_is_an_error(downloads, small, monkeypatch):
    monkeypatch.setitem(KNOWN, "mini-imagenet", replace(small, images={**small.images, "val": (16, 9600)}))
    done = handful("data", "fetch", "mini-imagenet", "--from", downloads)
    assert done.returncode == 2
    assert "'val' split has 2 classes and 6 images, where 16 and 9,600 are expected" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["glyphs"], "nothing to fetch for 'glyphs': it is drawn on first use"),
        (["folder"], "nothing to fetch for 'folder': it reads images of your own"),
        (["imagenet"], "unknown data set 'imagenet': choose one of omniglot, mini-imagenet, tiered-imagenet"),
        (["omniglot", "--from", "gone"], "no such file or folder: gone"),
    ],
)
def test_other_names_and_places_are_one_sentence(arguments, sentence):
    done = handful("data", "fetch", *arguments)
    assert done.returncode == 2
    assert sentence in done.stderr


def test_only_plain_pickles_of_known_names_are_unpacked(downloads, small, tmp_path):
    path, out = tmp_path / "mini-imagenet.tar.gz", tmp_path / "unpacked"
    with tarfile.open(path, "w:gz") as archive:
        for name in ("../evil.pkl", "/evil.pkl", "readme.txt", "mini-imagenet-cache-more.pkl"):
            add(archive, name, b"evil")
        add(archive, "../mini-imagenet-cache-validation.pkl", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd")
        for split in SPLITS:
            name = f"mini-imagenet-cache-{split}.pkl"
            add(archive, f"../../some/{name}", (downloads / name).read_bytes())
    with pytest.raises(HandfulError, match="add --out FOLDER to unpack them"):
        fetching.fetch("mini-imagenet", path)
    found = fetching.fetch("mini-imagenet", path, out)
    assert found.data == str(out)
    assert [row["images"] for row in found.splits] == [6, 6, 6]
    assert sorted(file.name for file in out.glob("[!.]*")) == sorted(file.name for file in downloads.iterdir())
    assert not list(tmp_path.rglob("evil*"))
    assert all((out / file.name).read_bytes() == file.read_bytes() for file in downloads.iterdir())


def test_a_file_of_the_users_is_not_replaced(downloads, small, tmp_path):
    path, out = tmp_path / "mini-imagenet.tar", tmp_path / "unpacked"
    out.mkdir()
    (out / "mini-imagenet-cache-train.pkl").write_text("mine")
    with tarfile.open(path, "w") as archive:
        for file in downloads.iterdir():
            archive.add(file, file.name)
    with pytest.raises(HandfulError, match="is not a file that handful wrote"):
        fetching.fetch("mini-imagenet", path, out)
    assert (out / "mini-imagenet-cache-train.pkl").read_text() == "mine"


def test_the_same_pickle_twice_is_refused(downloads, small, tmp_path):
    path = tmp_path / "twice.tar"
    with tarfile.open(path, "w") as archive:
        for top in ("a", "b"):
            archive.add(downloads / "mini-imagenet-cache-val.pkl", f"{top}/mini-imagenet-cache-val.pkl")
    with pytest.raises(HandfulError, match=r"holds mini-imagenet-cache-val\.pkl more than once"):
        fetching.fetch("mini-imagenet", path, tmp_path / "out")


def test_an_archive_of_images_is_not_read_to_its_end(tmp_path):
    path = tmp_path / "images.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        add(archive, "images/1.png", png(pixels(1)))
        add(archive, "train_labels.pkl", b"")
    assert not tars.holds(path, ["train_labels.pkl"])


def test_a_damaged_archive_is_one_sentence(tmp_path):
    path = tmp_path / "mini-imagenet.tar.gz"
    path.write_bytes(b"not an archive")
    with pytest.raises(HandfulError, match="is not a tar archive, or a damaged one"):
        fetching.fetch("mini-imagenet", path, tmp_path / "out")


def test_a_sentence_about_an_archive_is_not_wrapped_in_another(tmp_path, monkeypatch):
    path = tmp_path / "many.tar"
    with tarfile.open(path, "w") as archive:
        add(archive, "a/1.png", png(pixels(1)))
        add(archive, "a/2.png", png(pixels(2)))
    monkeypatch.setattr(tars, "MOST_MEMBERS", 1)
    with pytest.raises(HandfulError) as error:
        load_dataset("folder", "train", path)
    assert str(error.value).startswith(f"{path} holds far more than an archive of its size should")
