"""``handful whiten``: vectors of a run in which images of one class differ alike in all directions, or nearly so.

Of the labelled training images, as unit vectors, S (D, D) is the covariance within the classes. With its eigenvalues
w_1 >= w_2 >= ..., their mean w and l = shrinkage x w, the vectors are multiplied by

    ((S + l I) / l)^(-1/2),

which shrinks the directions of the largest eigenvalues, in which images of the same class differ most, and leaves
directions of next to none as they are. Only the first eigenvalues are taken, as many as asked for. The map becomes the
last layer of the backbone, in training as in evaluation, and is not learned.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..checkpoint import save_checkpoint
from ..datasets.base import Bar, no_bar
from ..embedders.backbones import backbone_options
from ..embedders.conv4 import Whitening
from ..errors import HandfulError
from ..io import write_json
from ..sampling import split_labelled
from .config import RunConfig
from .episodes import embed
from .folder import load_images, load_run
from .learner import build_learner

DIRECTIONS, SHRINKAGE = 64, 10.0


def whiten_run(
    run: Path, out: Path, *, directions: int = DIRECTIONS, shrinkage: float = SHRINKAGE, bar: Bar = no_bar
) -> RunConfig:
    """Write a copy of a run whose backbone ends in a whitening of its vectors; the settings of the copy.

    Args:
        run: a run folder; its data set must be at hand.
        out: the folder to make; it appears at once, when all is in it.
        directions: how many are scaled.
        shrinkage: l in multiples of the mean eigenvalue: the higher, the milder.
        bar: shows progress.
    """
    if out.is_symlink():
        raise HandfulError(f"{out} is a link: choose another --out")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise HandfulError(f"{out} exists and is not empty: choose another --out")
    config, learner, state = load_run(run)
    if "whiten" not in backbone_options(config.backbone):
        raise HandfulError(f"the backbone '{config.backbone}' of {run} cannot be whitened: conv4 can")
    if config.backbone_options.get("whiten"):
        raise HandfulError(f"{run} is whitened already: take the run that it was made of")
    images = load_images(config, "train", bar=bar)
    split = split_labelled(images.labels, images.class_names, config.labelled_ratio, config.seed)
    rows = np.concatenate(split.labelled)
    vectors = embed(learner.backbone, images.images, rows, progress=bar("embedding", len(rows)))
    found = whitening(vectors, torch.from_numpy(images.labels[rows]), directions, shrinkage)

    config = replace(config, backbone_options={**config.backbone_options, "whiten": directions})
    whitened = build_learner(config)
    whitened.load_state_dict(learner.state_dict(), strict=False)  # all but the two that come now
    whitened.backbone.whitening.load_state_dict(found.state_dict())  # type: ignore[union-attr]
    tensors = {f"model.{name}": value for name, value in whitened.state_dict().items()}
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.", suffix=".part") as part:
        made = Path(part) / "run"
        for name in ("best", "last"):
            save_checkpoint(made / "checkpoint", name, tensors, state)
        write_json(made / "config.json", config.to_json())
        for name in ("classes.json", "labelled.npz"):
            if (run / name).is_file():
                shutil.copy(run / name, made / name)
        made.replace(out)
    return config


def whitening(vectors: Tensor, labels: Tensor, directions: int, shrinkage: float) -> Whitening:
    """The layer that whitens such vectors (n, D) of classes (n,)."""
    dim = vectors.shape[1]
    if not 1 <= directions <= dim:
        raise HandfulError(f"--directions takes a number from 1 to {dim}, the length of a vector, got {directions}")
    if not 0 < shrinkage < float("inf"):
        raise HandfulError(f"--shrinkage takes a number above 0, got {shrinkage}")
    points = torch.nn.functional.normalize(vectors, dim=-1).double()
    counts = labels.bincount().clamp_min(1).unsqueeze(-1)
    sums = torch.zeros(len(counts), dim, dtype=points.dtype, device=points.device).index_add_(0, labels, points)
    within = points - (sums / counts)[labels]
    values, axes = torch.linalg.eigh(within.mT @ within / len(within))  # in rising order
    least = shrinkage * values.mean().clamp_min(torch.finfo(vectors.dtype).eps)
    layer = Whitening(dim, directions)
    layer.directions.copy_(axes[:, -directions:].mT)
    layer.gains.copy_((least / (values[-directions:].clamp_min(0) + least)).sqrt())
    return layer
