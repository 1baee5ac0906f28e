"""Omniglot: the official archives and their unpacked folders, both splits, rotations."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from handful.datasets import load_dataset
from handful.datasets.omniglot import VALIDATION_ALPHABETS
from handful.errors import HandfulError

DRAWINGS = 2
# Alphabets and numbers of characters, in the order of the archives: 964 and 659 in all.
BACKGROUND = {
    "Alphabet_of_the_Magi": 20, "Anglo-Saxon_Futhorc": 29, "Arcadian": 26, "Armenian": 41,
    "Asomtavruli_(Georgian)": 40, "Balinese": 24, "Bengali": 46, "Blackfoot_(Canadian_Aboriginal_Syllabics)": 14,
    "Braille": 26, "Burmese_(Myanmar)": 34, "Cyrillic": 33, "Early_Aramaic": 22, "Futurama": 26, "Grantha": 43,
    "Greek": 24, "Gujarati": 48, "Hebrew": 22, "Inuktitut_(Canadian_Aboriginal_Syllabics)": 16,
    "Japanese_(hiragana)": 52, "Japanese_(katakana)": 47, "Korean": 40, "Latin": 26,
    "Malay_(Jawi_-_Arabic)": 40, "Mkhedruli_(Georgian)": 41, "N_Ko": 33,
    "Ojibwe_(Canadian_Aboriginal_Syllabics)": 14, "Sanskrit": 42, "Syriac_(Estrangelo)": 23, "Tagalog": 17,
    "Tifinagh": 55,
}  # fmt: skip
EVALUATION = {
    "Angelic": 20, "Atemayar_Qelisayer": 26, "Atlantean": 26, "Aurek-Besh": 26, "Avesta": 26, "Ge_ez": 26,
    "Glagolitic": 45, "Gurmukhi": 45, "Kannada": 41, "Keble": 26, "Malayalam": 47, "Manipuri": 40, "Mongolian": 30,
    "Old_Church_Slavonic_(Cyrillic)": 45, "Oriya": 46, "Sylheti": 28, "Syriac_(Serto)": 23, "Tengwar": 25,
    "Tibetan": 42, "ULOG": 26,
}  # fmt: skip


def drawing(number: int, index: int) -> bytes:
    """A one-bit PNG of 105 x 105, as the originals: black ink on white, here a square whose place tells the number."""
    page = np.full((105, 105), 255, np.uint8)
    x, y = number % 40, number // 40
    page[y * 2 : y * 2 + 25, x * 2 : x * 2 + 20 + 5 * index] = 0
    buffer = io.BytesIO()
    Image.fromarray(page).convert("1").save(buffer, "PNG")
    return buffer.getvalue()


def members() -> Iterator[tuple[str, str, bytes]]:
    number = 0
    for part, alphabets in (("images_background", BACKGROUND), ("images_evaluation", EVALUATION)):
        for alphabet, characters in alphabets.items():
            for character in range(1, characters + 1):
                number += 1
                for index in range(DRAWINGS):
                    name = f"{part}/{alphabet}/character{character:02}/{number:04}_{index + 1:02}.png"
                    yield part, name, drawing(number, index)


@pytest.fixture(scope="module")
def archives(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("omniglot")
    for part in ("images_background", "images_evaluation"):
        with zipfile.ZipFile(folder / f"{part}.zip", "w") as archive:
            for owner, name, content in members():
                if owner == part:
                    archive.writestr(name, content)
    return folder


@pytest.fixture(scope="module")
def unpacked(archives, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    for file in archives.iterdir():
        with zipfile.ZipFile(file) as archive:
            archive.extractall(folder / "python")
    return folder


@pytest.mark.parametrize(("scheme", "sizes"), [("ren", (1028, 172, 423)), ("background", (792, 172, 659))])
def test_splits(archives, scheme, sizes):
    parts = [
        load_dataset("omniglot", split, archives, options={"split": scheme, "rotations": False}).class_names
        for split in ("train", "val", "test")
    ]
    assert tuple(map(len, parts)) == sizes
    assert len(set().union(*parts)) == 1623
    assert {name.split("/")[0] for name in parts[1]} == set(VALIDATION_ALPHABETS)
    last = "N_Ko" if scheme == "ren" else "Angelic"
    assert parts[2][0].startswith(f"{last}/") or scheme == "ren"
    if scheme == "ren":  # by alphabet: what is for testing comes after all that is for training
        assert max(parts[0]) < min(parts[2])


def test_pixels_labels_and_rotations(archives, unpacked):
    found = load_dataset("omniglot", "val", archives)
    assert found.images.shape == (172 * 4 * DRAWINGS, 28, 28, 1) and len(found.class_names) == 172 * 4
    assert found.class_names[:2] == ("Armenian/character01", "Armenian/character01, turned 90 degrees")
    first = Image.open(io.BytesIO(drawing(20 + 29 + 26 + 1, 0))).convert("L").resize((28, 28), Image.Resampling.LANCZOS)
    upright = found.images[0, :, :, 0]
    assert np.abs(upright.astype(int) - np.asarray(first)).max() <= 1
    for turn in range(4):
        assert found.labels[turn] == turn
        assert (found.images[turn, :, :, 0] == np.rot90(upright, turn)).all()
    assert np.bincount(found.labels).tolist() == [DRAWINGS] * (172 * 4)
    same = load_dataset("omniglot", "val", unpacked)
    assert (same.images == found.images).all() and same.class_names == found.class_names


def test_what_is_missing_is_named(archives, tmp_path):
    with pytest.raises(HandfulError, match=r"holds neither images_background\.zip nor a folder images_background"):
        load_dataset("omniglot", "train", tmp_path)
    (tmp_path / "images_evaluation.zip").write_bytes((archives / "images_evaluation.zip").read_bytes())
    with zipfile.ZipFile(tmp_path / "images_background.zip", "w") as archive:
        archive.writestr("images_background/Greek/character01/0001_01.png", drawing(1, 0))
    with pytest.raises(HandfulError, match="holds 1 characters instead of 964"):
        load_dataset("omniglot", "train", tmp_path)
    with pytest.raises(HandfulError, match="'ren' and 'background', got 'other'"):
        load_dataset("omniglot", "train", archives, options={"split": "other"})


def test_the_real_one(real):
    sizes = [len(load_dataset("omniglot", split, real("omniglot")).class_names) for split in ("val", "test")]
    assert sizes == [4 * 172, 4 * 423]
