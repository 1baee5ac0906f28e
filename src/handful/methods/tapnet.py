"""TapNet (Yoon, Seo and Moon, ICML 2019) and the two ways TAC's authors give it unlabelled images."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .. import functional as F
from ..episode import Episode
from ..errors import HandfulError
from .base import Method


class TapNet(Method):
    """Classify in M, the null space of the errors between class means and learned references; labelled images only.

    Args:
        grad_through_projection: whether M is differentiated through, or a constant in the backward pass as in TapNet's
            public code. Constant, only queries and references get a gradient; differentiated learns much faster.
        grad_through_soft_labels: whether the soft labels of unlabelled points are differentiated through. Without is
            better early on; TACdap's distractor reference learns through them all the same.
        cosine_clustering: label the unlabelled points by their cosines with the class means, times ``cluster_scale``,
            instead of by squared distances; in the space that the method clusters in.

    In training, class n of an episode gets reference n: classes come in random order, so any will do. In evaluation
    each class gets the reference that suits it, by an optimal assignment; there may be more references than classes
    (20-way training for a 5-way test), and the answer does not depend on the order of the classes.
    """

    title = "TapNet"
    summary = "Task-adaptive projection to learned references, labelled images only"
    iterative = False

    def __init__(
        self,
        dim: int,
        ways: int,
        *,
        grad_through_projection: bool = True,
        grad_through_soft_labels: bool = False,
        cosine_clustering: bool = False,
        train_iterations: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(dim, ways, train_iterations=train_iterations, **options)
        self.grad_through_projection = grad_through_projection
        self.grad_through_soft_labels = grad_through_soft_labels
        self.cosine_clustering = cosine_clustering
        self.references = nn.Parameter(torch.randn(ways, dim) / dim**0.5)
        self.distractor_reference: Tensor | None
        self.register_parameter("distractor_reference", None)

    def trajectory(self, episode: Episode, iterations: int) -> Tensor:
        return self.cluster(episode, iterations if self.iterative else 0, keep_steps=False).logits * self.scale

    def cluster(self, episode: Episode, iterations: int, *, keep_steps: bool = True) -> F.TacResult:
        """Cluster the episode by Task-Adaptive Clustering; also returns the soft labels and class means."""
        return F.tac(
            episode.centroids,
            episode.shots,
            episode.unlabelled,
            episode.query,
            self.class_references(episode.centroids),
            iterations,
            distractor_reference=self.distractor_reference,
            scale=self.soft_scale,
            cosine=self.cosine_clustering,
            grad_through_projection=self.grad_through_projection,
            grad_through_soft_labels=self.grad_through_soft_labels,
            keep_steps=keep_steps,
        )

    def check_ways(self, ways: int) -> None:
        if ways > len(self.references):
            raise HandfulError(
                f"{ways} ways need as many references, but this model has {len(self.references)}: "
                f"train it with --ways {ways} or more"
            )

    def class_references(self, centroids: Tensor) -> Tensor:
        """The reference of each class: (..., N, D) -> (..., N, D)."""
        self.check_ways(centroids.shape[-2])
        if self.training and centroids.shape[-2] == len(self.references):
            return self.references.expand_as(centroids)
        return self.references[assign_references(centroids.detach(), self.references.detach())]


class TapNetSemi(TapNet):
    """Trained as TapNet, evaluated as TAC: shows what the unlabelled images add at test time alone."""

    title = "TapNet + Semi-Sup. Inference"
    summary = "trained as TapNet, evaluated as TAC"
    iterative = True


class TapNetSoftClustering(TapNet):
    """Clusters in the embedding space and classifies in M: what TAC is without its clustering space (Table 3)."""

    title = "TapNet + Soft-clustering"
    summary = "clusters in the embedding space, classifies in M"
    iterative = True

    def __init__(self, dim: int, ways: int, *, train_iterations: int = 1, **options: Any) -> None:
        super().__init__(dim, ways, train_iterations=train_iterations, **options)

    def cluster(self, episode: Episode, iterations: int, *, keep_steps: bool = True) -> F.TacResult:
        centroids, unlabelled, soft = episode.centroids, episode.unlabelled, []
        references = self.class_references(centroids)

        def label_softly(means: Tensor) -> Tensor:
            labels = F.soft_labels(unlabelled, means, None, self.soft_scale, cosine=self.cosine_clustering)
            soft.append(labels if self.grad_through_soft_labels else labels.detach())
            return soft[-1]

        history = list(F.refinements(centroids, episode.shots, unlabelled, iterations, label_softly))
        # Without refinements, F.tac is TapNet: it classifies in the M of these means.
        logits = [
            F.tac(means, 1, unlabelled, episode.query, references, 0,
                  grad_through_projection=self.grad_through_projection).logits[0]
            for means in history
        ]  # fmt: skip
        none = unlabelled.new_zeros((0, *unlabelled.shape[:-1], episode.ways))
        return F.TacResult(torch.stack(logits), torch.stack(soft) if soft else none, torch.stack(history))


def assign_references(centroids: Tensor, references: Tensor) -> Tensor:
    """Which reference each class takes: centroids (..., N, D), references (R, D), R >= N -> (..., N) int64.

    Maximises the summed cosines between class means and modified references, and with them shortens the errors that
    the projection must remove. References are modified against all R: which N will be chosen is not known yet. TapNet's
    public code lets the classes choose in turn, so that its answer depends on their order; this one does not.
    """
    from scipy.optimize import linear_sum_assignment  # takes a while to import, and listing methods does not need it

    unit = torch.nn.functional.normalize
    match = unit(centroids, dim=-1) @ unit(F.modified_references(references), dim=-1).mT  # (..., N, R)
    tables = match.cpu().double().numpy().reshape(-1, *match.shape[-2:])
    chosen = np.stack([linear_sum_assignment(table, maximize=True)[1] for table in tables])
    return torch.from_numpy(chosen).to(centroids.device).reshape(centroids.shape[:-1])
