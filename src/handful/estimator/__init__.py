"""The scikit-learn estimator, the clustering behind it, and heads: what is learned of an embedder's space."""

from .classifier import TACClassifier
from .head import Head, head_of, heads, load_head

__all__ = ["Head", "TACClassifier", "head_of", "heads", "load_head"]
