"""Trained models that come with the package: the folders in ``models`` that have a ``model.json``.

Such a folder is a run folder without what only training needs (``handful export`` makes them): ``config.json``,
``classes.json`` and the best checkpoint, so that whatever reads a run reads it; ``model.json``, what was measured with
its weights; and ``CARD.md``, the same for people. It is read, and never written to.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import HandfulError
from ..io import read_object

FACTS, CARD = "model.json", "CARD.md"
_HERE = Path(__file__).resolve().parent / "models"


def models() -> list[str]:
    """Names of the models that come with the package."""
    return sorted(path.parent.name for path in _HERE.glob(f"*/{FACTS}"))


def model_folder(model: str | Path) -> Path:
    """The folder of a run, or of a model that comes with the package; a folder that exists goes before a name.

    Example:
        >>> model_folder("tac-glyphs").name
        'tac-glyphs'
    """
    if Path(model).exists():
        return Path(model)
    if str(model) in models():
        return _HERE / model
    raise HandfulError(
        f"{model} is not a run folder, nor one of the models that come with handful: {', '.join(models())}"
    )


def is_shipped(folder: Path) -> bool:
    """Whether it is the folder of a model that comes with the package."""
    return folder.resolve().parent == _HERE


def model_facts(folder: Path) -> dict[str, Any]:
    """Read ``model.json``: name, method, data set, training budget and the accuracies measured with these weights."""
    return read_object(folder / FACTS)


__all__ = ["CARD", "FACTS", "is_shipped", "model_facts", "model_folder", "models"]
