"""The embedded data set: what it promises about its classes, its images and its cache."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from fontTools import unicodedata as script_data
from fontTools.ttLib import TTFont
from PIL import Image, ImageFont

from handful.datasets import glyphs
from handful.errors import HandfulError

SPLITS = tuple(glyphs.SPLIT_SCRIPTS)


def letters_of(split: str) -> list[str]:
    return [letter for script in glyphs.SPLIT_SCRIPTS[split] for letter in glyphs.letters()[script]]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache folder of its own, and a data set of three Hebrew letters: quick to build."""
    monkeypatch.setenv("HANDFUL_CACHE", str(tmp_path))
    monkeypatch.setitem(glyphs.SPLIT_SCRIPTS, "test", ("Hebrew",))
    monkeypatch.setattr(glyphs, "letters", lambda: {"Hebrew": "אבג"})
    return tmp_path


def test_class_counts() -> None:
    counts = [len(letters_of(split)) for split in SPLITS]
    assert counts[0] >= 200 and counts[1] >= 50 and counts[2] >= 80 and sum(counts) >= 400
    assert f"{sum(counts)} classes ({counts[0]} / {counts[1]} / {counts[2]})" in glyphs.SPEC.summary


def test_no_script_is_almost_a_whole_split_of_several() -> None:
    for split in ("train", "test"):
        assert all(len(glyphs.letters()[s]) < 0.5 * len(letters_of(split)) for s in glyphs.SPLIT_SCRIPTS[split])


def test_splits_share_no_script_and_letters_belong_to_theirs() -> None:
    scripts = [script for split in SPLITS for script in glyphs.SPLIT_SCRIPTS[split]]
    assert len(set(scripts)) == len(scripts)
    assert set(scripts) == set(glyphs.letters())
    for script in scripts:
        for letter in glyphs.letters()[script]:
            assert script_data.script_name(script_data.script(letter)) == script
            assert unicodedata.category(letter).startswith("L")
            assert not unicodedata.decomposition(letter)


def test_at_least_four_faces_draw_every_letter() -> None:
    blanks = {}
    for file in glyphs.faces():
        assert "LastResort" not in file.name
        notdef = ImageFont.truetype(str(file), 40).getmask("\U0010fffd")  # no font has this private character
        blanks[file] = bytes(notdef)
    tables = {file: TTFont(file).getBestCmap() for file in glyphs.faces()}
    for letter in itertools.chain.from_iterable(letters_of(split) for split in SPLITS):
        drawn = 0
        for file, table in tables.items():
            if ord(letter) in table:
                mask = bytes(ImageFont.truetype(str(file), 40).getmask(letter))
                drawn += any(mask) and mask != blanks[file]
        assert drawn >= 4, letter


def clean_shape(letter: str, font: ImageFont.FreeTypeFont) -> np.ndarray:
    """The letter as a black and white picture of 24 x 24, filling it in its longer direction."""
    mask = font.getmask(letter)
    image = Image.frombytes("L", mask.size, bytes(mask))
    image = image.crop(image.getbbox())
    scale = 24 / max(image.size)
    image = image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))))
    page = Image.new("L", (24, 24))
    page.paste(image, ((24 - image.width) // 2, (24 - image.height) // 2))
    return (np.asarray(page) > 127).ravel()


@pytest.mark.parametrize("split", SPLITS)
def test_no_two_letters_of_a_split_look_the_same(split: str) -> None:
    file = next(file for file in glyphs.faces() if file.stem == "DejaVuSans")
    font = ImageFont.truetype(str(file), 48)
    shapes = np.stack([clean_shape(letter, font) for letter in letters_of(split)]).astype(np.float32)
    overlap = shapes @ shapes.T
    union = shapes.sum(1)[:, None] + shapes.sum(1) - overlap
    alike = np.triu(overlap / union, 1)
    a, b = np.unravel_index(alike.argmax(), alike.shape)
    assert alike.max() < 0.85, f"{letters_of(split)[a]} and {letters_of(split)[b]}"


@pytest.mark.parametrize(
    "twins",
    [
        ("LATIN CAPITAL LETTER A", "GREEK CAPITAL LETTER ALPHA", "CYRILLIC CAPITAL LETTER A"),
        ("LATIN CAPITAL LETTER B", "GREEK CAPITAL LETTER BETA", "CYRILLIC CAPITAL LETTER VE"),
        ("LATIN CAPITAL LETTER C", "LATIN SMALL LETTER C", "CYRILLIC CAPITAL LETTER ES", "CYRILLIC SMALL LETTER ES"),
        ("LATIN CAPITAL LETTER K", "LATIN SMALL LETTER K", "GREEK SMALL LETTER KAPPA", "CYRILLIC SMALL LETTER KA"),
        ("LATIN CAPITAL LETTER O", "LATIN SMALL LETTER O", "GREEK SMALL LETTER OMICRON", "CYRILLIC SMALL LETTER O"),
        ("LATIN CAPITAL LETTER S", "LATIN SMALL LETTER S", "CYRILLIC CAPITAL LETTER DZE", "CYRILLIC SMALL LETTER DZE"),
        ("LATIN SMALL LETTER A", "LATIN SMALL LETTER ALPHA", "CYRILLIC SMALL LETTER A"),
        ("CANADIAN SYLLABICS A", "CANADIAN SYLLABICS AA", "CANADIAN SYLLABICS WA", "CANADIAN SYLLABICS WAA"),
    ],
)
def test_at_most_one_of_homoglyphs_case_twins_and_dotted_twins(twins: tuple[str, ...]) -> None:
    for split in SPLITS:
        assert len({unicodedata.lookup(name) for name in twins} & set(letters_of(split))) <= 1


@pytest.mark.slow
def test_the_table_is_what_the_rule_chooses() -> None:
    assert glyphs.choose_letters() == glyphs.letters()


def test_image_set(small: Path) -> None:
    data = glyphs.load("test")
    assert data.images.shape == (300, 28, 28, 1) and data.images.dtype == np.uint8
    assert data.images.flags.c_contiguous
    assert data.labels.dtype == np.int64 and data.labels.tolist() == [0] * 100 + [1] * 100 + [2] * 100
    assert data.class_names == ("HEBREW LETTER ALEF", "HEBREW LETTER BET", "HEBREW LETTER GIMEL")


def test_images_of_a_class_differ_and_have_contrast() -> None:
    images = glyphs.draw("א")
    assert len(np.unique(images.reshape(100, -1), axis=0)) == 100
    assert (images.reshape(100, -1).std(axis=1) > 10).all()


def test_class_names_are_unique() -> None:
    names = [unicodedata.name(letter) for split in SPLITS for letter in letters_of(split)]
    assert len(set(names)) == len(names)


def test_second_load_reads_the_cache(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = glyphs.load("test")
    monkeypatch.setattr(glyphs, "draw", lambda letter: pytest.fail("drawn again"))
    assert np.array_equal(glyphs.load("test").images, first.images)
    assert [file.suffix for file in small.iterdir()] == [".bin"]  # nothing is left behind


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty"])
def test_damaged_cache_is_built_again(small: Path, damage: str) -> None:
    first = glyphs.load("test")
    (file,) = small.iterdir()
    whole = file.read_bytes()
    flipped = whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:]
    file.write_bytes({"truncate": whole[:-7], "flip": flipped, "empty": b""}[damage])
    assert np.array_equal(glyphs.load("test").images, first.images)
    assert file.read_bytes() == whole


def test_cache_name_follows_the_letters(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = glyphs._cache_name("test")
    monkeypatch.setattr(glyphs, "letters", lambda: {"Hebrew": "אבד"})
    assert glyphs._cache_name("test") != before


def test_a_class_does_not_depend_on_the_others_or_on_the_process() -> None:
    glyphs.draw("ב")
    here = glyphs.draw("א").tobytes()
    code = "import sys; from handful.datasets import glyphs; sys.stdout.buffer.write(glyphs.draw('א').tobytes())"
    env = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUTF8": "1"}
    assert subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True).stdout == here


def test_missing_fonts_are_one_clear_error(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glyphs, "faces", dict)
    with pytest.raises(HandfulError, match="matplotlib's fonts"):
        glyphs.load("test")


def test_unwritable_cache_is_one_clear_error(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (small / "file").write_text("not a folder")
    monkeypatch.setenv("HANDFUL_CACHE", str(small / "file"))
    with pytest.raises(HandfulError, match="HANDFUL_CACHE"):
        glyphs.load("test")


@pytest.mark.slow
def test_two_whole_builds_at_once_are_identical(tmp_path: Path) -> None:
    """Two processes share one cache folder, a third has its own: every file is the same, to the byte."""
    code = f"from handful.datasets import glyphs; [glyphs.load(split) for split in {SPLITS!r}]"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    folders = [tmp_path / "shared", tmp_path / "shared", tmp_path / "own"]
    builds = [subprocess.Popen([sys.executable, "-c", code], env={**env, "HANDFUL_CACHE": str(f)}) for f in folders]
    assert [build.wait() for build in builds] == [0, 0, 0]
    names = sorted(file.name for file in folders[0].iterdir())
    assert len(names) == 3 and names == sorted(file.name for file in folders[2].iterdir())
    for name in names:
        assert (folders[0] / name).read_bytes() == (folders[2] / name).read_bytes()
