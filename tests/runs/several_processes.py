"""Train on random images in float64, in as many processes as there are; test_distributed.py runs it.

    torchrun --nproc-per-node 2 tests/several_processes.py OUT METHOD

In float64, because a rounding error flips the maximum of a pooling window now and then, and Adam's first steps are as
long for a tiny gradient as for a large one: in float32 two runs on different numbers of threads drift apart, too.
"""

import os
import sys
from pathlib import Path

import numpy as np
import torch

from handful.datasets import ImageSet
from handful.runs.config import RunConfig
from handful.runs.training import train
from handful.sampling import EpisodeSpec


def images(split: str, seed: int) -> ImageSet:
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(8), 20)
    pixels = rng.integers(0, 150, (8, 28, 28, 1))[labels] + rng.integers(0, 100, (len(labels), 28, 28, 1))
    return ImageSet("random", split, pixels.astype(np.uint8), labels, tuple(f"{split} {index}" for index in range(8)))


def main(out: str, method: str) -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    config = RunConfig(
        method=method, dataset="random", fingerprint="-", labelled_ratio=0.5, channels=1, image_size=28,
        train=EpisodeSpec(4, 1, 2, 2), validation=EpisodeSpec(4, 1, 3, 3), episodes=400, episodes_per_step=4,
        validate_every=4, validation_episodes=2, learning_rate=1e-3,
    )  # fmt: skip
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    train(config, Path(out), images("train", 0), images("val", 1), resume=True, accelerator="cpu", devices=processes)


if __name__ == "__main__":
    main(*sys.argv[1:])
