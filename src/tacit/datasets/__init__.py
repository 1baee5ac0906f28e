"""The registry of data sets: one place, one dict."""

from __future__ import annotations

from pathlib import Path

from ..errors import TacitError
from . import glyphs
from .base import SPLITS, DatasetSpec, ImageSet

DATASETS: dict[str, DatasetSpec] = {
    spec.name: spec
    for spec in [
        glyphs.SPEC,
    ]
}


def dataset_spec(name: str) -> DatasetSpec:
    """The registry entry of a data set, or an error that lists the names there are."""
    if name not in DATASETS:
        raise TacitError(f"unknown data set '{name}': choose one of {', '.join(DATASETS)}")
    return DATASETS[name]


def load_dataset(name: str, split: str, path: str | Path | None = None) -> ImageSet:
    """Load one split (``train``, ``val`` or ``test``) of a data set by name."""
    spec = dataset_spec(name)
    if split not in SPLITS:
        raise TacitError(f"unknown split '{split}': choose one of {', '.join(SPLITS)}")
    if path is not None and not Path(path).exists():
        raise TacitError(f"no such file or folder: {path}")
    if path is not None and not spec.needs_path:
        raise TacitError(f"the data set '{name}' is embedded and reads no files: leave out --data")
    if spec.needs_path and path is None:
        raise TacitError(f"the data set '{name}' is not part of tacit: say where its files are with --data PATH")
    return spec.load(split, None if path is None else Path(path))


__all__ = ["DATASETS", "SPLITS", "DatasetSpec", "ImageSet", "dataset_spec", "load_dataset"]
