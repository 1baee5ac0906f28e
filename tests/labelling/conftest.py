"""A folder of small pictures: four colours, and a way to embed them that takes no time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from album import COLOURS, draw, write_labels


@pytest.fixture
def photos(tmp_path) -> Path:
    """60 images of three colours in folders and subfolders, 12 of another colour."""
    rng = np.random.default_rng(0)
    for index in range(60):
        name = list(COLOURS)[index % 3]
        draw(tmp_path / "photos" / f"day {index % 2}" / f"{index:02d}.png", COLOURS[name], rng)
    for index in range(12):
        draw(tmp_path / "photos" / f"other {index:02d}.png", COLOURS["sand"], rng)
    return tmp_path / "photos"


@pytest.fixture
def labels(photos) -> Path:
    """Three labels of each of three colours; one image is named but not labelled."""
    rows = [(f"day {index % 2}/{index:02d}.png", list(COLOURS)[index % 3]) for index in range(9)]
    return write_labels(photos.parent / "labels.csv", [*rows, ("other 00.png", "")])


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("HANDFUL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


MODULE = '''
import numpy as np

calls = []

def colours(images):
    """Mean colours of a 4 x 4 raster, about grey."""
    calls.append(len(images))
    parts = images.reshape(len(images), 4, 4, 4, 4, 3).mean((2, 4))
    return parts.reshape(len(images), -1) - 128

colours.image_size = 16
'''


@pytest.fixture
def embedder(tmp_path, monkeypatch) -> str:
    """``my_embedder:colours``, importable from the current folder."""
    (tmp_path / "my_embedder.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "my_embedder", raising=False)
    return "my_embedder:colours"
