"""Random shifts and flips: every pixel is one of the image, moved as far as is said, and the randomness is kept."""

from __future__ import annotations

import torch

from handful.runs.augmentation import shift_and_flip


def test_each_image_is_moved_by_at_most_a_tenth_and_perhaps_mirrored():
    side, count = 20, 400
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    images = (
        torch.stack([rows, columns], -1).to(torch.uint8).expand(count, side, side, 2)
    )  # each pixel says where it is
    torch.manual_seed(0)
    moved = shift_and_flip(images)
    assert moved.shape == images.shape
    assert moved.dtype == torch.uint8
    inner = moved[:, 5:15, 5:15].int()  # no border, whatever the shift
    down = inner[..., 0] - rows[5:15, 5:15]
    assert (down == down[:, :1, :1]).all(), "all rows of an image move alike"
    assert set(down[:, 0, 0].tolist()) == {-2, -1, 0, 1, 2}
    steps = inner[:, 0, 1, 1] - inner[:, 0, 0, 1]
    assert set(steps.tolist()) == {-1, 1}
    assert 150 < (steps == -1).sum() < 250, "about half of them are mirrored"
    across = torch.where(steps == -1, side - 1 - inner[:, 0, 0, 1], inner[:, 0, 0, 1]) - 5
    assert set(across.tolist()) == {-2, -1, 0, 1, 2}


def test_what_is_missing_is_mirrored_in():
    images = torch.arange(20).reshape(1, 20, 1, 1).expand(50, 20, 1, 1)
    torch.manual_seed(0)
    for image in shift_and_flip(images)[:, :, 0, 0].tolist():
        shift = image[10] - 10
        expected = [abs(place + shift) for place in range(20)]
        assert image == [min(place, 38 - place) for place in expected]


def test_the_same_seed_moves_alike():
    images = torch.randint(0, 256, (8, 28, 28, 3), dtype=torch.uint8)
    found = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        found.append(shift_and_flip(images))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
