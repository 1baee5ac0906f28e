"""Task-Adaptive Clustering (Seo, Yoon and Moon, 2020): TAC, and TACdap for unlabelled sets with distractors.

The formulas are :func:`handful.functional.tac`; here they get their learned references.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .tapnet import TapNet


class Tac(TapNet):
    """TapNet whose class means, and so whose M, are refined by clustering the unlabelled points in M itself.

    One refinement in training, more in evaluation: stronger adaptation helps at test time and hurts in training.
    """

    title = "TAC"
    summary = "Task-Adaptive Clustering: clusters the unlabelled images in M, rebuilds M, repeats"
    iterative = True

    def __init__(self, dim: int, ways: int, *, train_iterations: int = 1, iterations: int = 2, **options: Any) -> None:
        super().__init__(dim, ways, train_iterations=train_iterations, iterations=iterations, **options)


class TacDap(Tac):
    """TAC with a distractor-aware projection: one more cluster with a learned reference takes what is in no class."""

    title = "TACdap"
    summary = "TAC with a distractor cluster and reference that shape the clustering space"

    def __init__(self, dim: int, ways: int, **options: Any) -> None:
        super().__init__(dim, ways, **options)
        self.distractor_reference = nn.Parameter(torch.randn(dim) / dim**0.5)
