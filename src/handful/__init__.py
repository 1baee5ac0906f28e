"""Few-shot image classification from a few labelled and many unlabelled images."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import functional
    from .embedders.embedding import embed
    from .embedders.vectors import VectorFolder
    from .episode import Episode
    from .errors import HandfulError
    from .estimator.classifier import TACClassifier
    from .estimator.folds import LabelledKFold
    from .estimator.head import Head
    from .estimator.head_training import train_head
    from .labelling import label_images
    from .methods import build_method, methods

__version__ = "0.1.0"

# Where each public name lives. PyTorch and scikit-learn take seconds to import: nothing is imported before it is used.
_PUBLIC = {
    "Episode": "episode",
    "HandfulError": "errors",
    "Head": "estimator.head",
    "LabelledKFold": "estimator.folds",
    "TACClassifier": "estimator.classifier",
    "VectorFolder": "embedders.vectors",
    "build_method": "methods",
    "embed": "embedders.embedding",
    "label_images": "labelling",
    "train_head": "estimator.head_training",
}

__all__ = [
    "Episode",
    "HandfulError",
    "Head",
    "LabelledKFold",
    "TACClassifier",
    "VectorFolder",
    "__version__",
    "build_method",
    "embed",
    "functional",
    "label_images",
    "methods",
    "train_head",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'handful' has no attribute '{name}'")
    try:
        if name in ("functional", "methods"):  # a module, and a package that can be called
            return import_module(f".{name}", __name__)
        return getattr(import_module(f".{_PUBLIC[name]}", __name__), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        install = "pip install 'handful[research]'"
        raise ModuleNotFoundError(
            f"handful.{name} needs PyTorch, which is not installed: {install}", name="torch"
        ) from None


def __dir__() -> list[str]:
    return sorted(__all__)
