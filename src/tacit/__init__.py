"""Tell image classes apart from a handful of labels and a heap of unlabelled images."""

from . import functional
from .episode import Episode
from .errors import TacitError
from .methods import build_method, methods

__version__ = "0.1.0"

__all__ = ["Episode", "TacitError", "__version__", "build_method", "functional", "methods"]
