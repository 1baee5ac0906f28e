"""Vectors on disk: the same numbers to the bit, nothing embedded twice, and never those of another model or image."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from handful.datasets import load_dataset
from handful.datasets.cache import cache_root
from handful.embedders.conv4 import Conv4
from handful.embedders.shipped import model_folder
from handful.runs import evaluation, vectors
from handful.runs.episodes import Protocol, embed
from handful.runs.evaluation import evaluate_run
from handful.runs.folder import load_images
from handful.sampling import EpisodeSpec

PROTOCOL = Protocol(EpisodeSpec(5, 1, 3, 4), 0.4, splits=2, episodes=6)


@pytest.fixture(scope="session")
def drawn() -> list[Path]:
    """The embedded images in the cache that all tests share: drawing them again would take seconds."""
    for split in ("val", "test"):
        load_dataset("glyphs", split)
    return list(cache_root().glob("glyphs-*"))


@pytest.fixture(autouse=True)
def own_cache(drawn, tmp_path, monkeypatch):
    for file in drawn:
        (tmp_path / file.name).symlink_to(file)
    monkeypatch.setenv("HANDFUL_CACHE", str(tmp_path))


@pytest.fixture
def images() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (6, 28, 28, 1), dtype=np.uint8)


@pytest.fixture
def backbone() -> Conv4:
    torch.manual_seed(0)
    return Conv4(channels=1, image_size=28)


class Counted:
    """Embeds, and counts how often."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, backbone, images):
        def compute():
            self.count += 1
            return embed(backbone, images)

        return vectors.kept_vectors(backbone, images, compute)


def test_a_second_evaluation_embeds_nothing_and_gives_the_same_numbers(monkeypatch):
    count = 0

    def counting(*arguments, **options):
        nonlocal count
        count += 1
        return embed(*arguments, **options)

    def few(*arguments, **options):
        """20 images of each of ten classes."""
        whole = load_images(*arguments, **options)
        rows = np.concatenate([np.flatnonzero(whole.labels == label)[:20] for label in range(10)])
        return replace(whole, images=whole.images[rows], labels=whole.labels[rows], class_names=whole.class_names[:10])

    monkeypatch.setattr(evaluation, "embed", counting)
    monkeypatch.setattr(evaluation, "load_images", few)
    run = model_folder("tac-glyphs")
    first, second = (evaluate_run(run, PROTOCOL, device="cpu") for _ in range(2))
    assert count == 2, "validation and test classes, once each"
    same = {"wall_seconds": 0.0, "processor_seconds": 0.0, "episodes_per_second": 0.0}
    assert replace(first, **same) == replace(second, **same)
    monkeypatch.setattr(evaluation, "kept_vectors", lambda backbone, images, compute: compute())
    assert replace(evaluate_run(run, PROTOCOL, device="cpu"), **same) == replace(first, **same)


def test_other_weights_networks_or_pixels_have_vectors_of_their_own(backbone, images):
    keep = Counted()
    expected = embed(backbone, images)
    assert torch.equal(keep(backbone, images), expected)
    assert torch.equal(keep(backbone, images.copy()), expected) and keep.count == 1
    other = images.copy()
    other[3, 5, 5] ^= 1
    assert torch.equal(keep(backbone, other), embed(backbone, other)) and keep.count == 2
    with torch.no_grad():
        next(backbone.parameters())[0] += 1
    assert torch.equal(keep(backbone, images), embed(backbone, images)) and keep.count == 3


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "swap"])
def test_damaged_vectors_are_computed_again(backbone, images, damage, capfd):
    keep = Counted()
    expected = keep(backbone, images)
    (path,) = vectors.folder().glob("*.bin")
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[-5] ^= 1
    if damage == "swap":
        keep(backbone, images[::-1].copy())
        content = next(other for other in vectors.folder().glob("*.bin") if other != path).read_bytes()
    path.write_bytes({"cut": content[:-4], "empty": b""}.get(damage, content))
    before = keep.count
    assert torch.equal(keep(backbone, images), expected) and keep.count == before + 1
    assert "damaged" in capfd.readouterr().err
    assert torch.equal(keep(backbone, images), expected) and keep.count == before + 1


def test_the_folder_stays_small_and_drops_what_was_not_used_for_longest(backbone, images, monkeypatch):
    keep = Counted()
    sets = [np.roll(images, shift, axis=1) for shift in range(3)]
    paths = []
    for age, one in zip((30, 20), sets, strict=False):
        keep(backbone, one)
        (new,) = set(vectors.folder().glob("*.bin")) - set(paths)
        paths.append(new)
        os.utime(new, (1_000_000 - age, 1_000_000 - age))
    monkeypatch.setattr(vectors, "MOST_BYTES", 2 * paths[0].stat().st_size)
    keep(backbone, sets[0])  # used again: now the other one is the oldest
    keep(backbone, sets[2])
    assert paths[0].exists() and not paths[1].exists()
    assert len(list(vectors.folder().glob("*.bin"))) == 2
    monkeypatch.setattr(vectors, "MOST_BYTES", 10)
    assert torch.equal(keep(backbone, sets[1]), embed(backbone, sets[1])), "too large to be kept"


def test_a_cache_that_cannot_be_written_stops_nothing(backbone, images, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HANDFUL_CACHE", str(tmp_path / "file"))
    keep = Counted()
    assert torch.equal(keep(backbone, images), embed(backbone, images))
