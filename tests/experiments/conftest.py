"""Shared by the tests of experiments: images in files, for the workers load their data by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory) -> Iterator[Path]:
    """A cache of one's own, which the workers inherit."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("HANDFUL_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def photos(blobs, own_cache, tmp_path_factory) -> Path:
    """Blobs as files; faint ones, so that no cell gets everything right."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for split, images in blobs.items():
        for index, (pixels, label) in enumerate(zip(images.images, images.labels, strict=True)):
            path = folder / split / images.class_names[label] / f"{index}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            noise = rng.integers(0, 200, pixels.shape[:2])
            Image.fromarray((pixels[..., 0] // 5 + noise).astype(np.uint8)).save(path)
    return folder
