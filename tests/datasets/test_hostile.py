"""Hostile data sets: a sample of every kind, and the most telling cases by themselves; `hostile.py` makes more."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

if os.name != "posix":
    pytest.skip("needs pipes, links and signals as POSIX has them", allow_module_level=True)

import hostile
import hostile_cases as cases

from handful.datasets import dataset_spec, full_options, load_dataset
from handful.datasets.check import check_dataset
from handful.errors import HandfulError

MANY = 12  # cases of a kind, but fewer where one takes seconds
FEWER = {"image: real bomb": 1, "zip: bomb": 1, "omniglot": 1, "pickle: memory": 5, "image: claims a size": 5, "csv": 5}
CHEAP_SEED = 77  # its first bombs are those that take least


def broken(path: Path) -> dict[str, str]:
    """The training images in a folder or an archive that cannot be read, and why."""
    spec = dataset_spec("folder")
    return check_dataset(spec, path, full_options(spec, {"image_size": 16})).splits["train"].broken


def test_a_sample_of_every_kind(tmp_path):
    kinds = [kind for kind in hostile.KINDS for _ in range(FEWER.get(kind, MANY))]
    results = hostile.run(kinds, CHEAP_SEED, tmp_path)
    assert [str(result) for result in results if result.outcome in hostile.FAILURES] == []
    assert len(results) == len(kinds) and {result.outcome for result in results} == {"loaded", "refused"}
    assert not list(tmp_path.rglob("canary"))


def test_a_case_depends_on_its_seed_alone():
    for make, *_ in hostile.KINDS.values():
        if make not in (cases.real_bomb, cases.zip_bomb, cases.odd_folder, cases.odd_omniglot, cases.odd_npz):
            assert make(cases.Random("x")) == make(cases.Random("x"))
    assert len(hostile.plan(250)) == 250 and set(hostile.plan(100)) == set(hostile.KINDS)


def test_malice_is_refused_by_name(tmp_path, monkeypatch):
    """The pickle does what it says when Python reads it; here it is named, and nothing happens."""
    monkeypatch.chdir(tmp_path)
    pickled, canary = tmp_path / "mini-imagenet-cache-train.pkl", tmp_path / "canary"
    pickled.write_bytes(cases.OTHER_FORMATS["pickle"])
    subprocess.run([sys.executable, "-m", "pickle", pickled.name], check=True, capture_output=True)
    assert canary.exists()
    canary.unlink()
    for module, name, arguments in [("os", "system", cases.TOUCH), *cases.CALLS]:
        if (module, name) in (("_codecs", "encode"), ("\x1b[31m", "\r")):
            continue  # one is read, as far as it goes; the other is not printed as it is
        pickled.write_bytes(f"c{module}\n{name}\n".encode() + cases.push(arguments) + b"R.")
        with pytest.raises(HandfulError, match=re.escape(f"'{module}.{name}', and only")):
            load_dataset("mini-imagenet", "train", tmp_path)
    assert not canary.exists()


@pytest.mark.parametrize("claimed", [None, 99])
def test_a_zip_bomb_among_images_is_left_out_and_named(tmp_path, capsys, claimed):
    path = tmp_path / "data.zip"
    data = cases.inflated(*cases.FINE_MEMBERS, ("train/a/bomb.png", b""), times=300)
    last = data.rindex(b"PK\1\2")
    path.write_bytes(data if claimed is None else data[:last] + cases.patch(data[last:], cases.SIZE, b"\x63\0\0\0"))
    reason = "more than 256 MiB" if claimed is None else "Bad CRC-32"
    assert len(load_dataset("folder", "train", path).images) == 2
    assert f"train/a/bomb.png: {reason}" in " ".join(capsys.readouterr().err.split())
    assert list(broken(path)) == ["train/a/bomb.png"]


def test_members_that_share_their_content_are_left_out(tmp_path):
    (tmp_path / "data.zip").write_bytes(cases.overlapping(50, 1 << 20))
    assert list(broken(tmp_path / "data.zip").values()).count("overlaps with another member") == 49


def test_members_with_a_way_out_are_never_read(tmp_path, monkeypatch):
    opened, path = [], tmp_path / "data.zip"
    read = zipfile.ZipFile.open
    path.write_bytes(cases.archive(*cases.FINE_MEMBERS, *((name, cases.OUTSIDE) for name in cases.WAYS_OUT)))
    monkeypatch.setattr(
        zipfile.ZipFile, "open", lambda self, name, *rest: opened.append(name) or read(self, name, *rest)
    )
    found = load_dataset("folder", "train", path)
    assert len(found.images) == 2 and {member.filename for member in opened} == {"train/a/fine.png", "train/b/fine.png"}
    assert broken(path)["train/a/../../../x.png"] == "has a path that leads out of the archive"


@pytest.mark.parametrize("special", [name for name in cases.SPECIAL if name not in ("image", "text")])
def test_what_is_no_file_is_left_out(tmp_path, special):
    """Pipes and devices would never end, links may lead nowhere; nobody waits for them."""
    hostile.write(tmp_path, cases.among_fine("train/a/x.png", cases.SPECIAL[special]))
    found = load_dataset("folder", "train", tmp_path)
    assert len(found.images) == 2 or special == "locked"  # not for the administrator
    hostile.remove(tmp_path / "train")


def test_an_image_that_is_read_for_ever(tmp_path):
    """A progressive JPEG image whose last pass over its 25 million pixels is repeated: it would take an hour."""
    hostile.write(tmp_path, cases.among_fine("train/a/x.jpg", cases.bomb("JPEG", "L", 5000)))
    assert broken(tmp_path) == {"train/a/x.jpg": "a JPEG file of more than 64 scans"}


@pytest.mark.parametrize("trick", ["shared text", "shared scalar", "shared objects", "flooded dict", "nested arrays"])
def test_small_pickles_that_would_grow(tmp_path, trick):
    (tmp_path / "mini-imagenet-cache-train.pkl").write_bytes(cases.memory_tricks()[trick])
    with pytest.raises(HandfulError, match="is refused: it holds "):
        load_dataset("mini-imagenet", "train", tmp_path)
