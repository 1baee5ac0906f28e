"""The registry of data sets: one dict, and the entry points ``handful.datasets`` of other packages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import HandfulError
from ..plugins import Registry
from ..progress import messages
from . import folder, glyphs, mini_imagenet, omniglot, tiered_imagenet
from .base import SPLITS, Bar, DatasetSpec, ImageSet, check_path, find_source, no_bar
from .cache import load_cached

_OWN: dict[str, DatasetSpec] = {
    spec.name: spec
    for spec in [
        glyphs.SPEC,
        omniglot.SPEC,
        mini_imagenet.SPEC,
        tiered_imagenet.SPEC,
        folder.SPEC,
    ]
}


def _fault(name: str, loaded: Any) -> str | None:
    if not isinstance(loaded, DatasetSpec):
        return f"it is {loaded!r:.60}, not a DatasetSpec"
    return None if loaded.name == name else f"its name is '{loaded.name}'"


DATASETS: Registry[DatasetSpec] = Registry("data set", _OWN, _fault)


def dataset_spec(name: str) -> DatasetSpec:
    """Return the registry entry of a data set; an unknown name is an error that lists the known ones."""
    if name not in DATASETS:
        raise HandfulError(f"unknown data set '{name}': choose one of {', '.join(DATASETS)}")
    return DATASETS[name]


def load_dataset(
    name: str,
    split: str,
    path: str | Path | None = None,
    *,
    options: dict[str, Any] | None = None,
    strict: bool = False,
    bar: Bar = no_bar,
) -> ImageSet:
    """Load one split (``train``, ``val`` or ``test``) of a data set by name.

    Files are decoded once, into a memory-mapped cache; images that cannot be read are left out, and a message says so.

    Args:
        name: a name from `DATASETS`.
        split: ``train``, ``val`` or ``test``.
        path: where the files are; None for a data set that comes with the package.
        options: the data set's own, where they are not the default.
        strict: raise an error if an image cannot be read.
        bar: ``bar(what, total)`` opens a progress bar and returns the function that advances it.
    """
    spec = dataset_spec(name)
    settings = full_options(spec, options or {})
    if split not in SPLITS:
        raise HandfulError(f"unknown split '{split}': choose one of {', '.join(SPLITS)}")
    if spec.draw is not None:
        check_path(spec, path)
        return spec.draw(split)
    cached = load_cached(spec, split, find_source(spec, split, path, settings), settings, bar)
    _mention_broken(split, cached.broken, strict)
    return cached.images


def prepare_dataset(
    name: str, path: str | Path | None, options: dict[str, Any], *, strict: bool = False, bar: Bar = no_bar
) -> list[dict[str, Any]]:
    """Build or verify the caches of all splits; return a row for each with its path and content."""
    spec = dataset_spec(name)
    if spec.draw is not None:
        raise HandfulError(f"the data set '{name}' is embedded: it is drawn at its first use, and needs no preparation")
    rows, settings = [], full_options(spec, options)
    for split in SPLITS:
        source = find_source(spec, split, path, settings)
        cached = load_cached(spec, split, source, settings, bar, verify=True)
        _mention_broken(split, cached.broken, strict)
        rows.append(
            {
                "split": split,
                "classes": len(cached.images.class_names),
                "images": len(cached.images.images),
                "broken": len(cached.broken),
                "bytes": cached.images.images.nbytes,
                "cache": str(cached.folder),
                "fingerprint": cached.images.fingerprint(),
            }
        )
    return rows


def _mention_broken(split: str, broken: list[tuple[str, str]], strict: bool) -> None:
    if broken:
        name, reason = broken[0]
        summary = f"{len(broken):,} of the {split} images cannot be read, such as {name}: {reason}"
        if strict:
            raise HandfulError(f"{summary}; 'handful data check' names them all")
        messages.print(f"{summary}; left out ('handful data check' names them all)", highlight=False, markup=False)


def full_options(spec: DatasetSpec, options: dict[str, Any]) -> dict[str, Any]:
    """A data set's options with its defaults, checked."""
    for name, value in options.items():
        if name not in spec.options:
            known = ", ".join(spec.options) or "none"
            raise HandfulError(f"the data set '{spec.name}' has no option '{name}'; it has {known}")
        if type(value) is not type(spec.options[name]):
            raise HandfulError(f"the option '{name}' takes a value like {spec.options[name]}, got {value}")
    size = options.get("image_size", 1)
    if not 1 <= size <= 4096:
        raise HandfulError(f"the image size must be from 1 to 4096, got {size}")
    return {**spec.options, **options}


__all__ = [
    "DATASETS",
    "SPLITS",
    "DatasetSpec",
    "ImageSet",
    "dataset_spec",
    "full_options",
    "load_dataset",
    "prepare_dataset",
]
