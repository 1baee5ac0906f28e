"""Tar archives are read as they are, give what the unpacked folder gives, and reach nothing outside the cache."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from samples import pixels, png

from handful.datasets import dataset_spec, full_options, load_dataset, prepare_dataset, tars
from handful.datasets.check import check_dataset
from handful.datasets.files import open_files
from handful.datasets.images import BrokenImage
from handful.errors import HandfulError

ENDINGS = {".tar": "w", ".tar.gz": "w:gz", ".tgz": "w:gz", ".tar.xz": "w:xz", ".txz": "w:xz", ".tar.bz2": "w:bz2"}
SPLITS = ("train", "val", "test")


def make_mini(folder: Path) -> Path:
    """``images/`` and three tables; lines of a table are in another order than the files."""
    (folder / "images").mkdir(parents=True)
    for s, split in enumerate(SPLITS):
        lines = ["filename,label"]
        for c in range(2):
            for i in (2, 0, 1):
                name = f"n{s}{c}{i}.png"
                (folder / "images" / name).write_bytes(png(pixels(100 * s + 10 * c + i)))
                lines.append(f"{name},n{s}{c}")
        (folder / f"{split}.csv").write_text("\n".join(lines) + "\n")
    return folder


def make_folder(folder: Path) -> Path:
    for s, split in enumerate(SPLITS):
        for c in ("a", "a-2"):
            (folder / split / f"{split}-{c}").mkdir(parents=True)
            for i in range(3):
                (folder / split / f"{split}-{c}" / f"{i}.png").write_bytes(png(pixels(100 * s + 10 * len(c) + i)))
    return folder


def pack(folder: Path, path: Path, top: str) -> Path:
    """All files of a folder in an archive, under ``top``, with entries for folders as tar writes them."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for file in sorted(folder.rglob("*"), reverse=True):
                archive.write(file, f"{top}{file.relative_to(folder).as_posix()}")
        return path
    ending = next(ending for ending in ENDINGS if path.name.endswith(ending))
    with tarfile.open(path, ENDINGS[ending]) as archive:
        for file in sorted(folder.rglob("*"), reverse=True):
            archive.add(file, f"{top}{file.relative_to(folder).as_posix()}", recursive=False)
    return path


def tar_of(path: Path, *members: tuple[tarfile.TarInfo | str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for member, content in members:
            info = tarfile.TarInfo(member) if isinstance(member, str) else member
            info.size = len(content) if info.isreg() else 0
            archive.addfile(info, io.BytesIO(content))
    return path


@pytest.mark.parametrize("top", ["", "./", "data/"])
@pytest.mark.parametrize("ending", [*ENDINGS, ".zip"])
@pytest.mark.parametrize(("name", "make"), [("mini-imagenet", make_mini), ("folder", make_folder)])
def test_an_archive_gives_what_the_unpacked_folder_gives(tmp_path, name, make, ending, top):
    folder = make(tmp_path / "unpacked")
    (tmp_path / "alone").mkdir()
    path = pack(folder, tmp_path / "alone" / f"packed{ending}", top)
    rows = [prepare_dataset(name, where, {}) for where in (folder, path)]
    for ours, theirs in zip(*rows, strict=True):
        for part in ("images.bin", "labels.npy"):
            assert (Path(ours["cache"]) / part).read_bytes() == (Path(theirs["cache"]) / part).read_bytes()
    for split in SPLITS:
        a, b = (load_dataset(name, split, where) for where in (folder, path))
        assert a.class_names == b.class_names
        assert a.fingerprint() == b.fingerprint()
    assert [file.name for file in path.parent.iterdir()] == [path.name], "nothing is written beside the archive"


def test_check_reads_archives_too(tmp_path):
    path = pack(make_folder(tmp_path / "unpacked"), tmp_path / "photos.tar.gz", "photos/")
    spec = dataset_spec("folder")
    report = check_dataset(spec, path, full_options(spec, {}))
    assert not report.errors
    assert set(report.splits) == set(SPLITS)


def test_an_archive_is_copied_once_and_again_if_it_changes(tmp_path, cache, monkeypatch):
    path, copies = tar_of(tmp_path / "x.tar", ("a/x.png", b"1")), []
    copy = tars._copy
    monkeypatch.setattr(tars, "_copy", lambda *given: copies.append(given[0]) or copy(*given))
    for _ in range(2):
        assert open_files(path).read("x.png") == b"1"
    tar_of(path, ("a/x.png", b"22"))
    assert open_files(path).read("x.png") == b"22"
    assert len(copies) == 2
    assert len(list((cache / "archives").iterdir())) == 2


@pytest.mark.parametrize("damage", ["content", "all"])
def test_a_damaged_copy_does_not_pass_for_damaged_images(tmp_path, cache, damage):
    path = tar_of(tmp_path / "x.tar", ("a/x.png", b"content"), ("b/y.png", b"3"))
    open_files(path)
    (copy,) = cache.rglob("files.zip")
    copy.write_bytes(copy.read_bytes().replace(b"content", b"CONTENT") if damage == "content" else b"x")
    with pytest.raises(HandfulError, match=r"the copy of .*x\.tar in the cache is damaged: remove .*archives"):
        open_files(path).read("a/x.png")


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(("member", "content", "reason"), [
    ("../out.png", b"x", "leads out"),
    ("/etc/out.png", b"x", "leads out"),
    ("a/../../out.png", b"x", "leads out"),
    (special("a/link.png", tarfile.SYMTYPE, "/etc/passwd"), b"", "is a link"),
    (special("a/hard.png", tarfile.LNKTYPE, "a/x.png"), b"", "is a link"),
    (special("a/pipe.png", tarfile.FIFOTYPE), b"", "not a plain file"),
    ("a/program.exe", b"x", "neither an image nor a table"),
])  # fmt: skip
def test_members_that_are_not_read(tmp_path, member, content, reason):
    path = tar_of(tmp_path / "x.tar", ("a/x.png", b"1"), (member, content))
    files = open_files(path, unwrap=False)
    name = member if isinstance(member, str) else member.name
    with pytest.raises(BrokenImage, match=reason):
        files.read(name)
    assert files.read("a/x.png") == b"1"


def test_a_member_that_is_there_twice_is_not_read(tmp_path):
    files = open_files(tar_of(tmp_path / "x.tar", ("a/x.png", b"1"), ("b/y.png", b"3"), ("a/x.png", b"2")))
    with pytest.raises(BrokenImage, match="more than once"):
        files.read("a/x.png")
    assert files.read("b/y.png") == b"3"


def test_a_link_among_the_images_is_left_out_and_named(tmp_path, capsys):
    folder = make_folder(tmp_path / "unpacked")
    (folder / "train" / "train-a" / "link.png").symlink_to("/etc/passwd")
    path = pack(folder, tmp_path / "photos.tar", "")
    assert len(load_dataset("folder", "train", path).images) == 6
    with pytest.raises(
        HandfulError, match=r"1 of the train images cannot be read, such as train/train-a/link\.png: is a"
    ):
        load_dataset("folder", "train", path, strict=True)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("damage", ["text", "empty", "cut"])
def test_damaged_archives_are_named(tmp_path, cache, ending, damage):
    path = tmp_path / f"x{ending}"
    if damage == "cut":
        pack(make_folder(tmp_path / "unpacked"), path, "")
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 + 100])
    else:
        path.write_bytes(b"no archive at all" * 100 if damage == "text" else b"")
    with pytest.raises(HandfulError, match=r"x\.\S+ is not a tar archive, or a"):
        load_dataset("folder", "train", path)
    assert not list(cache.rglob("files.zip")) and not list(cache.rglob("*.part"))


def test_an_archive_that_grows_beyond_measure_is_refused(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(tars, "FREE_OF_RATIO", 1 << 16)
    path = tmp_path / "bomb.tar.xz"
    with tarfile.open(path, "w:xz") as archive:
        for number in range(40):
            info = tarfile.TarInfo(f"a/{number}.png")
            info.size = 1 << 20
            archive.addfile(info, io.BytesIO(bytes(1 << 20)))
    with pytest.raises(HandfulError, match="holds far more than an archive of its size should"):
        open_files(path)
    assert not list(cache.rglob("files.zip")) and not list(cache.rglob("*.part"))


def test_a_full_disk_is_said_before_it_is_full(tmp_path, monkeypatch):
    path = tar_of(tmp_path / "x.tar", *((f"a/{number}.png", bytes(100)) for number in range(20)))
    monkeypatch.setattr(tars, "LEAST_FREE", 1 << 62)
    assert open_files(path).files()  # so little is not looked at
    monkeypatch.setattr(tars, "LEAST_FREE", 400)
    tar_of(path, *((f"b/{number}.png", bytes(100)) for number in range(20)))
    monkeypatch.setattr(tars.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 399}))
    with pytest.raises(HandfulError, match=r"too little room .* set HANDFUL_CACHE"):
        open_files(path)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
@pytest.mark.parametrize("size", [1 << 33, -1024])
def test_headers_that_ask_for_all_memory_or_lead_backwards(tmp_path, kind, size):
    info = tarfile.TarInfo("a/x.png")
    info.type, info.size = kind, size
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    path = tmp_path / "x.tar"
    path.write_bytes(bytes(block) + bytes(2048))
    with pytest.raises(HandfulError, match="is not a tar archive, or a"):
        open_files(path)


def test_members_that_lead_in_a_circle(tmp_path):
    info = tarfile.TarInfo("a/x.png")
    info.size = -1024
    path = tmp_path / "x.tar"
    path.write_bytes(tarfile.TarInfo("a/y.png").tobuf() + info.tobuf(tarfile.GNU_FORMAT) + bytes(2048))
    with pytest.raises(HandfulError, match="is not a tar archive, or a"):
        open_files(path)


@pytest.mark.slow
def test_the_real_archive(real):
    found = load_dataset("mini-imagenet", "val", real("mini-imagenet/mini-imagenet.tar.xz"))
    assert found.images.shape == (9600, 84, 84, 3)
    assert np.bincount(found.labels).tolist() == [600] * 16
