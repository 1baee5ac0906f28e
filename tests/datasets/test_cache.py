"""The cache: built once, for one content, by one process; kills and damage cost time, never correctness."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from samples import pixels, png

from handful.datasets import cache, load_dataset, prepare_dataset
from handful.errors import HandfulError
from traps import Traps

BUILD = "import sys; from handful.datasets import cache, load_dataset; cache.CHUNK = 16; "
BUILD += "load_dataset('folder', 'train', sys.argv[1])"


def write(folder: Path, images: int) -> Path:
    for split, count in (("train", images), ("val", 3), ("test", 3)):
        for index in range(count):
            place = folder / split / f"{split} {index % 3}"
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{index}.png").write_bytes(png(pixels(index, 40)))
    (folder / "train" / "train 0" / "0.png").write_bytes(b"broken")
    return folder


def state(folder: Path) -> dict[str, bytes]:
    files = (file for file in folder.rglob("*") if file.is_file() and file.name != ".lock")
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def builder(photos: Path, traps: Traps | None = None) -> subprocess.Popen[bytes]:
    environment = None if traps is None else traps.environment()
    return subprocess.Popen([sys.executable, "-c", BUILD, str(photos)], stderr=subprocess.PIPE, env=environment)


def test_a_second_load_decodes_nothing(tmp_path, monkeypatch):
    photos = write(tmp_path / "photos", 9)
    first = load_dataset("folder", "train", photos)
    monkeypatch.setattr(cache, "decode", None)
    second = load_dataset("folder", "train", photos)
    assert isinstance(second.images, np.memmap) and first.fingerprint() == second.fingerprint()


def test_other_content_or_settings_make_another_cache(tmp_path, cache):
    photos = write(tmp_path / "photos", 9)
    before = load_dataset("folder", "train", photos)
    image = photos / "train" / "train 1" / "1.png"
    image.write_bytes(png(pixels(77, 40)))
    after = load_dataset("folder", "train", photos)
    assert before.fingerprint() != after.fingerprint()
    load_dataset("folder", "train", photos, options={"image_size": 32})
    assert len(list((cache / "datasets").iterdir())) == 3
    image.write_bytes(png(pixels(1, 40)))  # the old content again: the old cache
    assert load_dataset("folder", "train", photos).fingerprint() == before.fingerprint()
    moved = photos.rename(tmp_path / "moved")
    load_dataset("folder", "train", moved)
    assert len(list((cache / "datasets").iterdir())) == 3


def test_a_changed_archive_makes_another_cache(tmp_path):
    path = tmp_path / "photos.zip"

    def build(number: int) -> str:
        with zipfile.ZipFile(path, "w") as archive:
            for split in ("train", "val", "test"):
                archive.writestr(f"{split}/{split}/0.png", png(pixels(number)))
        return load_dataset("folder", "train", path).fingerprint()

    assert build(1) != build(2)


def test_a_repaired_archive_is_read_again(tmp_path):
    """The checksums in its directory are the same for the damaged and for the sound archive."""
    path = tmp_path / "photos.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for split in ("train", "val", "test"):
            for index in range(3):
                archive.writestr(f"{split}/{split}/{index}.png", png(pixels(index)))
    sound = path.read_bytes()
    at = sound.index(b"IDAT") + 100
    path.write_bytes(sound[:at] + b"damage" + sound[at + 6 :])
    assert len(load_dataset("folder", "train", path).images) == 2
    path.write_bytes(sound)
    assert len(load_dataset("folder", "train", path).images) == 3


def test_a_file_that_cannot_be_read_now_may_be_later(tmp_path, monkeypatch):
    photos, read = write(tmp_path / "photos", 9), Path.open

    def fail(path, *arguments, **options):
        if path.name == "4.png":
            raise OSError(errno.EIO, "Input/output error")
        return read(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", fail)
    with pytest.raises(HandfulError, match=r"cannot read .*4\.png: Input/output error"):
        load_dataset("folder", "train", photos)
    monkeypatch.setattr(Path, "open", read)
    assert len(load_dataset("folder", "train", photos).images) == 8


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="kills a process")
def test_a_build_killed_five_times_ends_with_the_same_bytes(tmp_path, tmp_path_factory, monkeypatch, traps):
    """Each kill leaves no cache or a part of one that can be trusted, and never half of one that looks whole."""
    photos = write(tmp_path / "photos", 900)
    folders = {name: tmp_path / name for name in ("unbroken", "killed")}
    for folder in folders.values():
        folder.mkdir()
    monkeypatch.setenv("HANDFUL_CACHE", str(folders["unbroken"]))
    traps.count(f"{folders['unbroken']}/datasets/*")
    assert builder(photos, traps).wait() == 0
    monkeypatch.setenv("HANDFUL_CACHE", str(folders["killed"]))
    # Five lives that together are shorter than the build, each to some of its file operations.
    choice, most, trusted = random.Random(0), traps.counted() // 5, []
    for _ in range(5):
        deadly = Traps(tmp_path_factory.mktemp("traps") / "set")
        deadly.send(signal.SIGKILL, f"{folders['killed']}/datasets/*", at=choice.randint(1, most))
        assert builder(photos, deadly).wait() == -signal.SIGKILL
        assert not list(folders["killed"].rglob("meta.json"))
        progress = [json.loads(file.read_text())["images"] for file in folders["killed"].rglob("progress.json")]
        trusted.append(sum(progress))
    assert trusted == sorted(trusted) and len(set(trusted)) > 2, "builds went on where the former was killed"
    print(f"killed with so many images that can be trusted: {trusted}")
    assert builder(photos).wait() == 0
    assert state(folders["killed"]) == state(folders["unbroken"])


@pytest.mark.slow
def test_two_processes_at_once(tmp_path, cache):
    photos = write(tmp_path / "photos", 300)
    both = [builder(photos), builder(photos)]
    errors = [process.communicate()[1].decode() for process in both]
    assert [process.returncode for process in both] == [0, 0], errors
    found = load_dataset("folder", "train", photos)
    assert len(found.images) == 299 and len(list((cache / "datasets").iterdir())) == 1


def test_a_part_that_cannot_be_trusted_is_built_anew(tmp_path, cache):
    photos = write(tmp_path / "photos", 9)
    expected = load_dataset("folder", "train", photos).fingerprint()
    (folder,) = (cache / "datasets").iterdir()
    for damage in (
        {"meta.json": None, "progress.json": b'{"seen": 500, "images": 499, "broken": []}'},
        {"meta.json": None, "progress.json": b"not json"},
        {"meta.json": b"{}"},
        {"images.bin": b"short"},
        {"labels.npy": None},
        {"labels.npy": b"no array"},
        {"labels.npy": b""},
    ):
        for name, content in damage.items():
            if content is None:
                (folder / name).unlink()
            else:
                (folder / name).write_bytes(content)
        assert load_dataset("folder", "train", photos).fingerprint() == expected


def test_prepare_verifies_and_repairs(tmp_path, capsys):
    photos = write(tmp_path / "photos", 9)
    rows = prepare_dataset("folder", photos, {})
    assert [(row["split"], row["classes"], row["images"], row["broken"]) for row in rows] == [
        ("train", 3, 8, 1), ("val", 3, 3, 0), ("test", 3, 3, 0),
    ]  # fmt: skip
    images = Path(rows[0]["cache"]) / "images.bin"
    whole = images.read_bytes()
    images.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    (images.parent / "progress.json").write_text('{"seen": 9, "images": 8, "broken": []}')  # as a kill may leave it
    prepare_dataset("folder", photos, {})
    assert "is damaged: building it again" in " ".join(capsys.readouterr().err.split())
    assert images.read_bytes() == whole


def test_strict_refuses_a_cache_with_gaps(tmp_path):
    photos = write(tmp_path / "photos", 9)
    with pytest.raises(HandfulError, match="1 of the train images cannot be read"):
        prepare_dataset("folder", photos, {}, strict=True)


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    photos = write(tmp_path / "photos", 9)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HANDFUL_CACHE", str(tmp_path / "file"))
    with pytest.raises(HandfulError, match="set HANDFUL_CACHE to another folder"):
        load_dataset("folder", "train", photos)


def test_too_little_room_is_said_at_once(tmp_path, monkeypatch):
    photos = write(tmp_path / "photos", 9)
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    with pytest.raises(HandfulError, match=r"needs 0\.0 GiB in .* which has less"):
        load_dataset("folder", "train", photos)
