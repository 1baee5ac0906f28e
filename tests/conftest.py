"""Shared by all tests: a small made-up data set, and a cache of the embedded one that lives in the checkout."""

from __future__ import annotations

import os
from pathlib import Path

# Before any library reads it: threads of OpenMP that wait do not spin. On a busy machine, where their partner has no
# core, t-SNE of a hundred points took minutes instead of seconds. Subprocesses inherit the variables.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from handful.datasets import ImageSet
from traps import Traps

# The embedded data takes half a minute to draw: once per checkout is enough.
os.environ.setdefault("HANDFUL_CACHE", str(Path(__file__).parents[1] / ".cache"))

# No example fails for the time that it or its drawing takes.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def make_images(split: str, classes: int = 12, images: int = 20, size: int = 28, seed: int = 0) -> ImageSet:
    """Noisy blobs: each class is one random pattern, easy to tell apart."""
    rng = np.random.default_rng([seed, len(split)])
    patterns = rng.integers(0, 200, (classes, 7, 7)).repeat(size // 7, 1).repeat(size // 7, 2)
    noise = rng.integers(0, 56, (classes, images, size, size))
    pixels = (patterns[:, None] + noise).astype(np.uint8).reshape(-1, size, size, 1)
    names = tuple(f"{split} class {index}" for index in range(classes))
    return ImageSet("blobs", split, pixels, np.repeat(np.arange(classes), images), names)


@pytest.fixture(scope="session")
def blobs() -> dict[str, ImageSet]:
    return {split: make_images(split) for split in ("train", "val", "test")}


@pytest.fixture
def traps(tmp_path_factory) -> Traps:
    """Traps for processes that the test starts with their environment."""
    return Traps(tmp_path_factory.mktemp("traps") / "set")
