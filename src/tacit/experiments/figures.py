"""Pictures of what the methods do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.manifold import TSNE
from torch import Tensor

from .. import functional as F
from ..episode import Episode
from ..evaluation import Accuracy
from ..methods.tapnet import TapNet

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00")  # told apart by colour-blind readers too
MARKERS = "os^D"  # the next one when the colours have run out
GREY = "#b8b8b8"


def accuracy_by_iteration(panels: dict[str, dict[str, Accuracy]]) -> Figure:
    """Accuracy against the number of refinements: one panel per setting, one line per method."""
    figure = Figure(figsize=(4.6 * len(panels), 3.6), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axis, (setting, lines) in zip(axes, panels.items(), strict=True):
        for index, (title, accuracy) in enumerate(lines.items()):
            colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index // len(COLOURS) % len(MARKERS)]
            steps = np.arange(len(accuracy.by_iteration))
            if len(steps) == 1:  # no refinements: a level to compare with
                axis.axhline(accuracy.mean, color=colour, linestyle="--", linewidth=1.2, label=title)
                continue
            axis.errorbar(steps, accuracy.by_iteration, accuracy.intervals, color=colour, marker=marker, markersize=4,
                          linewidth=1.5, capsize=2, label=title)  # fmt: skip
        axis.set(title=setting, xlabel="refinements with the unlabelled images")
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("accuracy (%), bars: 95 %")
    axes[0].legend(frameon=False, fontsize=8)
    return figure


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


def tsne(spaces: list[Space], labels: Tensor, names: list[str], seed: int) -> Figure:
    """t-SNE of each space: rightly clustered points in their class's colour with the count beside, wrong ones grey."""
    figure = Figure(figsize=(4.2 * len(spaces), 4.4), layout="constrained")
    axes = figure.subplots(1, len(spaces), squeeze=False)[0]
    for axis, space in zip(axes, spaces, strict=True):
        _tsne_panel(axis, space, labels, seed)
    entries = zip(COLOURS, names, strict=False)
    handles = [axes[0].scatter([], [], s=25, color=colour, label=name) for colour, name in entries]
    handles.append(axes[0].scatter([], [], s=25, color=GREY, label="in the wrong cluster"))
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def _tsne_panel(axis: Axes, space: Space, labels: Tensor, seed: int) -> None:
    embedding = TSNE(init="pca", perplexity=min(30, (len(labels) - 1) / 3), random_state=seed)
    flat = embedding.fit_transform(space.points.cpu().numpy())
    right = (space.assigned == labels).cpu().numpy()
    truth = labels.cpu().numpy()
    axis.scatter(flat[~right, 0], flat[~right, 1], s=14, color=GREY, linewidths=0)
    for index in np.unique(truth):
        mine = right & (truth == index)
        axis.scatter(flat[mine, 0], flat[mine, 1], s=14, color=COLOURS[index % len(COLOURS)], linewidths=0)
        if mine.any():
            axis.annotate(str(mine.sum()), np.median(flat[mine], axis=0), fontsize=13, fontweight="bold", ha="center",
                          bbox={"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 1})  # fmt: skip
    axis.set(title=f"{space.title}: {right.sum()} of {len(right)} right", xticks=[], yticks=[])
