"""MetaGAN (Zhang et al., NeurIPS 2018) on a Relation Network: generated points sharpen the class boundaries.

Relation scores r_1 ... r_N and a constant 0 for "generated" make N + 1 classes:

    p(n | x) = exp(r_n) / (1 + sum exp r),        p(generated | x) = 1 / (1 + sum exp r)

so that with z = log sum exp r, -log p(real | x) = softplus(-z) and -log p(generated | x) = softplus(z).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, softplus

from ..episode import Episode
from ..errors import HandfulError
from .feature_maps import Shape
from .relation import RelationModule

HIDDEN = 128  # units of the generator's two hidden layers


class Generator(nn.Module):
    """Points that look like those of a task: an encoding of its support and noise -> vectors.

    The encoding is a mean over all support images of the task, so it does not depend on their order. Vectors are not
    negative, as those of the backbones, which end in a ReLU.
    """

    def __init__(self, dim: int, noise: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(dim, HIDDEN), nn.ReLU())
        self.decoder = nn.Sequential(nn.Linear(HIDDEN + noise, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, dim), nn.ReLU())

    def forward(self, support: Tensor, noise: Tensor) -> Tensor:
        """Support (..., N, K, D) and noise (..., P, Z) -> (..., P, D)."""
        task = self.encoder(support.flatten(-3, -2)).mean(-2, keepdim=True)
        generated: Tensor = self.decoder(torch.cat([task.expand(*noise.shape[:-1], HIDDEN), noise], dim=-1))
        return generated


class MetaGan(RelationModule):
    """A Relation Network that must also tell real images from generated ones; unlabelled images are real ones.

    The learner's turn: cross-entropy of the queries over their N classes; queries and unlabelled points are real,
    generated points generated. The generator's turn: its points should pass for real, and their mean features in the
    relation module should be those of the real points (feature matching). There are as many generated points as
    queries, in one batch with the real ones: so the running statistics of batch norm are those of what was trained. In
    evaluation it is a Relation Network.

    Args:
        adversarial: weight of telling real from generated in the learner's loss. At 1, this term dominates the
            classification loss, and the classes are learned slowly.
        noise: length of the generator's noise.
        feature_matching: weight of that term in the generator's loss.
    """

    title = "MetaGAN + RN"
    summary = "Relation Network trained against generated images, with the unlabelled ones as real"
    turns = ("learner", "generator")

    def __init__(
        self,
        dim: int,
        ways: int,
        feature_shape: Shape | None = None,
        *,
        adversarial: float = 0.1,
        noise: int = 64,
        feature_matching: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(dim, ways, feature_shape, **options)
        if noise < 1:
            raise HandfulError(f"noise must be at least 1, got {noise}")
        for name, value in {"adversarial": adversarial, "feature_matching": feature_matching}.items():
            if not (value >= 0 and math.isfinite(value)):
                raise HandfulError(f"{name} must be a number from 0 up, got {value}")
        self.adversarial, self.noise, self.feature_matching = adversarial, noise, feature_matching
        self.generator = Generator(dim, noise)
        self.recognised: Tensor  # (real or generated, right or seen) points since the last call of metrics()
        self.register_buffer("recognised", torch.zeros(2, 2))

    @property
    def trains_on_unlabelled(self) -> bool:
        return True

    def turn_parameters(self) -> dict[str, list[nn.Parameter]]:
        return {"generator": list(self.generator.parameters())}

    def loss(self, episode: Episode, turn: str = "learner") -> Tensor:
        """Of the learner, who must recognise what is generated, or of the generator, who must not be recognised."""
        queries = episode.query.shape[-2]
        real = torch.cat([episode.query, episode.unlabelled], dim=-2)
        # From the processor's generator on every device: it is the one whose state a checkpoint holds.
        noise = torch.randn(*episode.query.shape[:-1], self.noise).to(real)
        if turn == "generator":
            support, real = episode.support.detach(), real.detach()  # the learner does not move in this turn
            features = self.features(support, torch.cat([real, self.generator(support, noise)], dim=-2))
            of_real, of_generated = torch.split(features, [real.shape[-2], queries], dim=-3)
            passing = softplus(-self.scores(of_generated).logsumexp(-1)).mean()
            return passing + self.feature_matching * mse_loss(of_generated.mean((-3, -2)), of_real.mean((-3, -2)))
        with torch.no_grad():
            generated = self.generator(episode.support, noise)
        scores = self.scores(self.features(episode.support, torch.cat([real, generated], dim=-2)))
        evidence = scores.logsumexp(-1)  # (..., points): above 0 it says real
        of_real, of_generated = torch.split(evidence, [real.shape[-2], queries], dim=-1)
        if self.training:
            self._count(of_real > 0, of_generated < 0)
        classes = cross_entropy(scores[..., :queries, :].flatten(0, -2), episode.query_labels.flatten())
        return classes + self.adversarial * (softplus(-of_real).mean() + softplus(of_generated).mean())

    def _count(self, *right: Tensor) -> None:
        for row, hits in zip(self.recognised, right, strict=True):
            row[0] += hits.sum()
            row[1] += hits.numel()

    def metrics(self) -> dict[str, float]:
        """Share of real and of generated points that the learner took for what they are, in percent."""
        counts = zip(("real_recognised", "generated_recognised"), self.recognised.tolist(), strict=True)
        self.recognised.zero_()
        return {name: 100 * right / seen for name, (right, seen) in counts if seen > 0}
