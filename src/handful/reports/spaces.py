"""The space that TAC clusters in, refinement by refinement: what its figure is drawn from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .. import functional as F
from ..episode import Episode
from ..methods.tapnet import TapNet
from .figures import Row, in_the_plane


@dataclass(frozen=True)
class Space:
    """A view of an episode's unlabelled points.

    Attributes:
        title: above the panel.
        points: (U, D), as they lie in that space.
        assigned: (U,) class each is clustered to.
    """

    title: str
    points: Tensor
    assigned: Tensor


def tac_spaces(method: TapNet, episode: Episode, iterations: tuple[int, ...]) -> list[Space]:
    """One episode without batch dimension: the embedding space, then the TAC space after so many refinements."""
    with torch.inference_mode():
        means = method.cluster(episode, max(iterations)).centroids
        references = method.class_references(episode.centroids)
        nearest = F.projected_logits(episode.unlabelled, episode.centroids, None).argmax(-1)
        spaces = [Space("embedding space", episode.unlabelled, nearest)]
        for step in iterations:
            current = means[step][: episode.ways]
            basis = F.null_basis(F.error_vectors(current, references))
            points = episode.unlabelled - (episode.unlabelled @ basis) @ basis.mT
            assigned = F.soft_labels(episode.unlabelled, current, basis).argmax(-1)
            spaces.append(Space(f"TAC space, {step} refinement{'s' * (step != 1)}", points, assigned))
    return spaces


def tsne_rows(spaces: list[Space], labels: Tensor, names: list[str], seed: int) -> list[Row]:
    """t-SNE of each space: a row per unlabelled point, with its class and that of its cluster."""
    rows = []
    for space in spaces:
        flat = in_the_plane(space.points.cpu().numpy(), seed)
        for (x, y), truth, found in zip(flat.tolist(), labels.tolist(), space.assigned.tolist(), strict=True):
            rows.append({"space": space.title, "x": x, "y": y, "class": names[truth], "cluster": names[found]})
    return rows
