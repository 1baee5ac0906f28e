"""From a data set and an embedder to a head."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..datasets import dataset_spec
from ..datasets.base import Bar, Item, find_source, no_bar
from ..embedders import Precomputed, embed_images, load_embedder
from ..embedders.base import Embedder
from ..embedders.shipped import run_of
from ..embedders.trained import learned_references
from ..errors import HandfulError
from .head import Head


def head_for(
    embedder: str, dataset: str, data: Path | None, options: dict[str, Any], *, device: str = "auto", bar: Bar = no_bar,
    **settings: Any,
) -> Head:  # fmt: skip
    """Embed the training and validation classes of a data set and learn a head; see :func:`train_head`."""
    from .head_training import train_head  # needs PyTorch, which the vectors alone do not

    loaded = load_embedder(embedder, device)
    if isinstance(loaded, Precomputed):
        raise HandfulError(
            "a head needs an embedder that can be asked: for vectors of your own, call handful.train_head"
        )
    x, y = vectors_of(loaded, dataset, "train", data, options, bar)
    validation = vectors_of(loaded, dataset, "val", data, options, bar)
    references = None
    if (run := run_of(embedder)) is not None:
        references = learned_references(run)
    head = train_head(x, y, validation=validation, name=embedder, references=references, bar=bar, **settings)
    head.facts.update({"embedder": embedder, "dataset": dataset})
    return head


def vectors_of(
    embedder: Embedder, dataset: str, split: str, data: Path | None, options: dict[str, Any], bar: Bar
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The vectors of all images of a split that can be read, and their classes."""
    spec = dataset_spec(dataset)
    if spec.draw is not None:
        drawn = spec.draw(split)
        items = [Item(str(row), int(label), partial(drawn.images.__getitem__, row))
                 for row, label in enumerate(drawn.labels)]  # fmt: skip
    else:
        items = list(find_source(spec, split, data, options).listing().items(0))
    vectors, broken = embed_images(embedder, items, bar)
    return vectors, np.array([item.label for number, item in enumerate(items) if number not in broken])
