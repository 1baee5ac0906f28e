"""TapNet (Yoon, Seo and Moon, ICML 2019) and the two ways TAC's authors give it unlabelled images."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from .. import functional as F
from ..episode import Episode
from ..errors import HandfulError
from .base import Forms, Method
from .partial_projection import partial_tac


class TapNet(Method):
    """Classify in M, the null space of the errors between class means and learned references; labelled images only.

    Args:
        grad_through_projection: whether M is differentiated through, or a constant in the backward pass as in TapNet's
            public code. Constant, only queries and references get a gradient; differentiated learns much faster.
        grad_through_soft_labels: whether the soft labels of unlabelled points are differentiated through. Without is
            better early on; TACdap's distractor reference learns through them all the same.
        reference_bias: learn a bias b of each reference, as the linear layer in TapNet's public code has it: the logits
            are 2 (phi . Px + b) - |P phi|^2 - |Px|^2, with P the projection onto M.
        matching: how a class of an evaluation finds its reference: ``optimal`` or ``greedy``, as in TapNet's public
            code (:func:`assign_references`, :func:`choose_in_turn`).
        cosine_clustering: label the unlabelled points by their cosines with the class means, times ``cluster_scale``,
            instead of by squared distances; in the space that the method clusters in.
        classify: what queries are compared with: ``references``, by squared distances in M; or ``means``, by cosines
            with the class means in M. Then soft labels are by cosines, too, at the same scale times ``cluster_scale``.
        learn_scale: whether the scale is learned; it starts at ``scale``.
        partial_projection: a, how much of the error directions Q is removed: a point z becomes z - a Q Q^T z. At 1 it
            is projected onto M; at 0 it stays as it is.

    In training, class n of an episode gets reference n: classes come in random order, so any will do. In evaluation
    each class gets the reference that suits it; there may be more references than classes (20-way training for a 5-way
    test). With an optimal assignment, the answer does not depend on the order of the classes.
    """

    title = "TapNet"
    summary = "Task-adaptive projection to learned references, labelled images only"
    iterative = False
    forms: ClassVar[Forms] = {
        "published": {
            "scale": 1.0,
            "cluster_scale": 1.0,
            "cosine_clustering": False,
            "grad_through_projection": False,
            "reference_bias": True,
            "matching": "greedy",
            "classify": "references",
            "learn_scale": False,
            "partial_projection": 1.0,
        }
    }

    def __init__(
        self,
        dim: int,
        ways: int,
        *,
        grad_through_projection: bool = True,
        grad_through_soft_labels: bool = False,
        reference_bias: bool = False,
        matching: str = "optimal",
        cosine_clustering: bool = False,
        classify: str = "references",
        learn_scale: bool = False,
        partial_projection: float = 1.0,
        train_iterations: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(dim, ways, train_iterations=train_iterations, **options)
        self.grad_through_projection = grad_through_projection
        self.grad_through_soft_labels = grad_through_soft_labels
        self.cosine_clustering = cosine_clustering or classify == "means"
        if classify not in ("references", "means"):
            raise HandfulError(f"classify must be references or means, got '{classify!s:.40}'")
        if reference_bias and classify == "means":
            raise HandfulError("reference_bias is one of references: leave it out with classify=means")
        if not 0 <= partial_projection <= 1:
            raise HandfulError(f"partial_projection must be a number from 0 to 1, got {partial_projection}")
        self.classify, self.partial_projection = classify, partial_projection
        if learn_scale:
            self.learn_scale()
        if matching not in ("optimal", "greedy"):
            raise HandfulError(f"matching must be optimal or greedy, got '{matching!s:.40}'")
        self.matching = matching
        self.references = nn.Parameter(torch.randn(ways, dim) / dim**0.5)
        self.reference_bias: Tensor | None
        self.register_parameter("reference_bias", nn.Parameter(torch.zeros(ways)) if reference_bias else None)
        self.distractor_reference: Tensor | None
        self.register_parameter("distractor_reference", None)

    def trajectory(self, episode: Episode, iterations: int) -> Tensor:
        return self.cluster(episode, iterations if self.iterative else 0, keep_steps=False).logits * self.scale

    def cluster(self, episode: Episode, iterations: int, *, keep_steps: bool = True) -> F.TacResult:
        """Cluster the episode by Task-Adaptive Clustering; also returns the soft labels and class means."""
        references, bias = self._of_classes(episode.centroids)
        return self._formula()(
            episode.centroids,
            episode.shots,
            episode.unlabelled,
            episode.query,
            references,
            iterations,
            distractor_reference=self.distractor_reference,
            scale=self._label_scale(),
            reference_bias=bias,
            distractor_offset=self.distractor_offset(episode),
            cosine=self.cosine_clustering,
            grad_through_projection=self.grad_through_projection,
            grad_through_soft_labels=self.grad_through_soft_labels,
            keep_steps=keep_steps,
        )

    def _formula(self) -> Callable[..., F.TacResult]:
        """`functional.tac`, or its plain form if the options ask for what that does not have."""
        if self.classify == "references" and self.partial_projection == 1:
            return F.tac
        return partial(partial_tac, by_means=self.classify == "means", share=self.partial_projection)

    def _label_scale(self) -> float | Tensor:
        """The scale of the soft labels, a constant if they are."""
        scale = self.soft_scale
        return scale.detach() if isinstance(scale, Tensor) and not self.grad_through_soft_labels else scale

    def distractor_offset(self, episode: Episode) -> Tensor | None:
        """What is added to the squared distances of the distractor cluster (...), if there is one and it is."""
        return None

    def check_ways(self, ways: int) -> None:
        if ways > len(self.references):
            raise HandfulError(
                f"{ways} ways need as many references, but this model has {len(self.references)}: "
                f"train it with --ways {ways} or more"
            )

    def class_references(self, centroids: Tensor) -> Tensor:
        """The reference of each class: (..., N, D) -> (..., N, D)."""
        return self._of_classes(centroids)[0]

    def _of_classes(self, centroids: Tensor) -> tuple[Tensor, Tensor | None]:
        """The reference of each class, and its bias (..., N) if references have one."""
        self.check_ways(centroids.shape[-2])
        if self.training and centroids.shape[-2] == len(self.references):
            return self.references.expand_as(centroids), self.reference_bias
        bias = self.reference_bias
        with torch.no_grad():
            if self.matching == "greedy":
                chosen = choose_in_turn(centroids, self.references, bias)
            else:
                chosen = assign_references(centroids, self.references)
        return self.references[chosen], None if bias is None else bias[chosen]

    def ablations(self) -> dict[str, Method]:
        return {"random_references": self.with_random_references()}

    def with_random_references(self, seed: int = 0) -> TapNet:
        """A copy whose references have random directions and the lengths of the learned ones; biases stay.

        References that were never trained already classify well, because M adapts to them: the accuracy of this copy
        says how much of the method's comes from learning them.
        """
        # NumPy's generator: PyTorch's drew the first references, and the same seed would draw the same again.
        other, generator = deepcopy(self), np.random.default_rng(seed)
        with torch.no_grad():
            for learned in (other.references, other.distractor_reference):
                if learned is not None:
                    drawn = torch.from_numpy(generator.standard_normal(learned.shape)).to(learned)
                    length = torch.linalg.vector_norm(learned, dim=-1, keepdim=True)
                    learned.copy_(nn.functional.normalize(drawn, dim=-1) * length)
        return other


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
        references, bias = self._of_classes(centroids)

        def label_softly(means: Tensor) -> Tensor:
            labels = F.soft_labels(unlabelled, means, None, self._label_scale(), cosine=self.cosine_clustering)
            soft.append(labels if self.grad_through_soft_labels else labels.detach())
            return soft[-1]

        history = list(F.refinements(centroids, episode.shots, unlabelled, iterations, label_softly))
        # Without refinements, F.tac is TapNet: it classifies in the M of these means.
        logits = [
            self._formula()(means, 1, unlabelled, episode.query, references, 0, reference_bias=bias,
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


def choose_in_turn(centroids: Tensor, references: Tensor, bias: Tensor | None = None) -> Tensor:
    """Which reference each class takes if they choose in their order, as in TapNet's public code: -> (..., N) int64.

    centroids (..., N, D), references (R, D), R >= N, bias (R,). A class takes, of the references that are left, that
    with the largest 2 (phi . c + b) - |phi|^2 - |c|^2: without a bias, the nearest one in the embedding space.
    """
    scores = 2 * centroids @ references.mT - references.square().sum(-1)  # (..., N, R), up to a constant per class
    if bias is not None:
        scores = scores + 2 * bias
    chosen: list[Tensor] = []
    for wishes in scores.unbind(-2):
        taken = torch.zeros_like(wishes, dtype=torch.bool)
        if chosen:
            taken = taken.scatter(-1, torch.stack(chosen, dim=-1), True)
        chosen.append(wishes.masked_fill(taken, -torch.inf).argmax(-1))
    return torch.stack(chosen, dim=-1)
