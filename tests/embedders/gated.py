"""An embedder for tests on several machines: it writes down each batch, and does no more of them than it is allowed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

FOLDER = Path(os.environ.get("GATED", "."))


def started() -> int:
    """How many batches were begun, by all workers."""
    return sum(path.read_text().count("\n") for path in FOLDER.glob("*.log"))


def allowed() -> int:
    try:
        return int((FOLDER / "allowed").read_text() or 0)
    except OSError:
        return 0


def gated(images):
    if len(images) == 1:  # as it is loaded
        return vectors(images)
    with (FOLDER / f"{os.getpid()}.log").open("a") as file:
        file.write(f"{len(images)}\n")
    ticket = started()
    while ticket > allowed():
        time.sleep(0.02)
    return vectors(images)


def vectors(images):
    return images.reshape(len(images), -1).astype(np.float32)[:, :48]


gated.image_size = 16


def deadly(images):
    """Ends the process of whoever embeds a white image."""
    if len(images) > 1 and (images == 255).all((1, 2, 3)).any():
        os._exit(1)
    return vectors(images)


deadly.image_size = 16
