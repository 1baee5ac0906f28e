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
from ..terminal import printable
from .base import reason

RUN_KINDS = ("run", "conv4")  # of embedders; the second is the name from before there were other backbones
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


def run_of(embedder: str) -> Path | None:
    """The folder of the run behind ``run:NAME`` or ``conv4:NAME``; None if the embedder is not a run's.

    Example:
        >>> run_of("run:glyphs").name, run_of("conv4:tac-glyphs").name, run_of("efficientnet-lite0")
        ('tac-glyphs', 'tac-glyphs', None)
    """
    kind, _, model = embedder.partition(":")
    return run_folder(model) if kind in RUN_KINDS else None


def run_folder(name: str) -> Path:
    """The folder of a run, or of a model that comes with handful, where ``tac-`` may be left out."""
    if not name:
        raise HandfulError("run: needs a run folder or a model behind the colon, as in run:omniglot")
    shipped = f"tac-{name}"
    try:
        Path(name).stat()
    except (FileNotFoundError, NotADirectoryError):
        return model_folder(shipped if shipped in models() else name)
    except (OSError, ValueError) as error:  # a name that no folder can have, or one that may not be looked at
        raise HandfulError(f"run:{printable(name)} is not a run folder: {reason(error)}") from error
    return Path(name)


__all__ = [
    "CARD",
    "FACTS",
    "RUN_KINDS",
    "is_shipped",
    "model_facts",
    "model_folder",
    "models",
    "run_folder",
    "run_of",
]
