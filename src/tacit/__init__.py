"""Tell image classes apart from a handful of labels and a heap of unlabelled images."""

from typing import TYPE_CHECKING, Any

from . import functional
from .episode import Episode
from .errors import TacitError
from .methods import build_method, methods

if TYPE_CHECKING:
    from .estimator import TACClassifier
    from .heads import Head
    from .heads.train import train_head
    from .labelling import label_images

__version__ = "0.1.0"

__all__ = [
    "Episode", "Head", "TACClassifier", "TacitError", "__version__", "build_method", "functional", "label_images",
    "methods", "train_head",
]  # fmt: skip

# scikit-learn takes a while to import
_LAZY = {"TACClassifier": "estimator", "Head": "heads", "train_head": "heads.train", "label_images": "labelling"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'tacit' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(f".{_LAZY[name]}", __name__), name)
