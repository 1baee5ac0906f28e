"""The numbers behind the figures that look inside a run of TAC."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..datasets import ImageSet
from ..datasets.base import Bar
from ..episode import Episode
from ..methods.tapnet import TapNet
from ..reports.figures import Row
from ..reports.spaces import tac_spaces, tsne_rows
from ..runs.episodes import MOST_ITERATIONS, Protocol, embed, evaluate, map_episodes
from ..runs.folder import load_run
from ..sampling import EpisodeSampler, EpisodeSpec, split_labelled

SPACES = {"in M": "tac", "in the embedding space": "tapnet-soft-clustering"}  # both classify in M


def first_episode(
    folder: Path, test: ImageSet, ratio: float, seed: int, wanted: EpisodeSpec, steps: tuple[int, ...]
) -> tuple[list[Row], EpisodeSpec]:
    """t-SNE rows of the first test episode of a seed after so many refinements, and what the episode holds.

    It has the ways and shots of ``wanted``, and its unlabelled images or, if there are fewer, all of a class.
    """
    _, learner, _ = load_run(folder)
    split = split_labelled(test.labels, test.class_names, ratio, seed)
    there = min(len(group) for group in split.unlabelled)
    spec = replace(wanted, queries=1, unlabelled=min(there, wanted.unlabelled))
    index = EpisodeSampler(split, spec, seed).batch(0, 1)
    episode = index.map_images(lambda rows: embed(learner.backbone, test.images[rows.numpy()]))
    one = type(episode)(**{name: value[0] for name, value in vars(episode).items()})
    names = [test.class_names[test.labels[first]] for first in index.support[0, :, 0].tolist()]
    spaces = tac_spaces(learner.method, one, steps)  # type: ignore[arg-type]
    return tsne_rows(spaces, one.unlabelled_labels, names, seed), spec


def entropy_rows(folder: Path, test: ImageSet, protocol: Protocol, bar: Bar) -> list[Row]:
    """Accuracy, and cross-entropy of the soft labels, after 1, 2, ... refinements by one run of TAC's weights.

    Clustered in M as TAC does, and in the embedding space; queries are classified in M in both cases.
    """
    _, learner, _ = load_run(folder)
    vectors = embed(learner.backbone, test.images, progress=bar("embedding", len(test.images)))
    count = protocol.splits * protocol.episodes
    rows = []
    for space, name in SPACES.items():
        method = load_run(folder, name)[1].method
        assert isinstance(method, TapNet)
        tick = bar(f"clustering {space}", 2 * count)
        accuracy = evaluate(method, vectors, test, protocol, MOST_ITERATIONS, progress=tick)
        losses = []
        for split in range(protocol.splits):
            seed = (protocol.seed, split)
            parts = split_labelled(test.labels, test.class_names, protocol.labelled_ratio, seed)
            sampler = EpisodeSampler(parts, protocol.spec, seed)
            losses.append(_cross_entropies(method, vectors, sampler, protocol.episodes))
            tick(protocol.episodes)
        table = np.concatenate(losses)
        several = len(table) > 1  # one episode has no interval
        errors = 1.96 * table.std(0, ddof=int(several)) / math.sqrt(len(table))
        for step in range(1, MOST_ITERATIONS + 1):
            rows.append({
                "clustering": space,
                "refinements": step,
                "accuracy": accuracy.by_iteration[step],
                "accuracy_interval": accuracy.intervals[step] if several else None,
                "cross_entropy": float(table[:, step - 1].mean()),
                "cross_entropy_interval": float(errors[step - 1]) if several else None,
            })  # fmt: skip
    return rows


def _cross_entropies(method: TapNet, vectors: Tensor, sampler: EpisodeSampler, episodes: int) -> NDArray[np.float64]:
    """Of the soft labels that each refinement used, per episode: (episodes, refinements), in nats."""

    def measure(episode: Episode) -> Tensor:
        soft = method.cluster(episode, MOST_ITERATIONS).probabilities  # (refinements, batch, U, N)
        of_truth = soft.gather(-1, episode.unlabelled_labels.expand(soft.shape[:-1]).unsqueeze(-1)).squeeze(-1)
        return -of_truth.clamp_min(torch.finfo(soft.dtype).tiny).log().double().mean(-1)  # (refinements, batch)

    return map_episodes(measure, method, vectors, sampler, episodes)
