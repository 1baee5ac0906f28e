"""Accuracy with intervals: every image is embedded once, then episodes run in batches on the stored vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import stdtrit
from torch import Tensor, nn

from ..datasets import ImageSet
from ..embedders.backbones import for_inference, to_input
from ..episode import Episode
from ..errors import HandfulError
from ..methods import Method
from ..sampling import EpisodeSampler, EpisodeSpec, split_labelled
from .config import images_of

Tick = Callable[[float], None]  # called with how many more are done
MOST_ITERATIONS = 5  # refinements tried when their number is chosen on validation classes ...
CHOICE_EPISODES = 600  # ... over so many episodes, or as many as are tested, if that is less
# Of the vectors of the episodes that a core computes together: fewer wait for Python, more for memory. From 32 MiB on,
# the C library takes fresh pages from the system for every tensor, which costs more than all else.
BATCH_BYTES = 9 << 20
PREPARED = 256  # vectors of which a method's own part is computed together
BLOCK = 64  # episodes that are drawn together, about
BATCH_PIXELS = 256 * 28 * 28  # of the images that are embedded together: more is no faster, and needs gigabytes


class NotFinite(HandfulError):  # noqa: N818 - reads better
    """A model's vectors are not numbers to reckon with."""


@dataclass(frozen=True)
class Protocol:
    """What is measured, and how often.

    Attributes:
        spec: what a test episode holds.
        labelled_ratio: share of each class whose labels may be used.
        splits: random labelled/unlabelled splits; the paper takes 10.
        episodes: test episodes per split; the paper takes 3,000.
        seed: fixes the splits and the episodes.
    """

    spec: EpisodeSpec
    labelled_ratio: float
    splits: int = 10
    episodes: int = 3000
    seed: int = 0

    def describe(self) -> str:
        return (
            f"{self.spec.describe()}; {self.labelled_ratio:.0%} of each class labelled; "
            f"{self.splits} splits x {self.episodes} episodes"
        )

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "spec": self.spec.to_json(), "description": self.describe()}


@dataclass(frozen=True)
class Accuracy:
    """Mean accuracy in percent and its 95 % interval.

    Attributes:
        mean: over all episodes of all splits.
        interval: half-width over episodes, 1.96 standard errors: how exactly the mean is known for these weights.
        split_means: one per labelled/unlabelled split.
        split_interval: half-width over the split means (Student's t), which also sees what the split itself does; None
            for a single split.
        episodes: how many in all.
        iterations: refinements used.
        by_iteration: mean after 0, 1, ... refinements.
        intervals: half-widths of these.
    """

    mean: float
    interval: float
    split_means: list[float]
    split_interval: float | None
    episodes: int
    iterations: int
    by_iteration: list[float]
    intervals: list[float]

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.interval:.2f}"


def embed(
    backbone: nn.Module,
    images: NDArray[np.uint8],
    rows: NDArray[np.int64] | None = None,
    *,
    batch: int | None = None,
    progress: Tick | None = None,
) -> Tensor:
    """Stored images (n, height, width, channels), or those ``rows`` of them, -> vectors (n, dim), on the same device.

    Only a batch of images is in memory at a time. Vectors that are not finite are an error: what a method makes of them
    would look like an accuracy.
    """
    if batch is None:
        batch = max(1, BATCH_PIXELS // (images.shape[1] * images.shape[2]))
    count = len(images) if rows is None else len(rows)
    device = next(backbone.parameters()).device
    vectors = []
    backbone = for_inference(backbone)
    with torch.inference_mode():
        for start in range(0, count, batch):
            part = slice(start, start + batch) if rows is None else rows[start : start + batch]
            pixels = torch.from_numpy(np.array(images[part])).to(device)
            vectors.append(backbone(to_input(pixels)))
            if progress:
                progress(len(pixels))
    found = torch.cat(vectors)
    if not found.isfinite().all():
        raise NotFinite("the model's vectors are not finite: its training has diverged, or its weights are damaged")
    return found


def episode_accuracies(
    method: Method,
    vectors: Tensor,
    sampler: EpisodeSampler,
    episodes: int,
    iterations: int,
    *,
    batch: int | None = None,
    progress: Tick | None = None,
) -> NDArray[np.float64]:
    """Accuracy of each episode after 0, 1, ... refinements, in percent: (episodes, iterations + 1).

    A method without refinements has one column, and its episodes are drawn without their unlabelled images.
    """
    method.eval()
    if method.prepares:
        vectors = _prepared(method, vectors)
    answer = method.compare if method.prepares else method.trajectory

    def percent_right(episode: Episode) -> Tensor:
        logits = answer(episode, iterations)  # (iterations + 1, batch, queries, ways)
        return 100 * _right(logits, episode.query_labels).double().mean(-1)

    return map_episodes(
        percent_right, method, vectors, sampler, episodes, unlabelled=method.iterative, batch=batch, progress=progress
    )


def _right(logits: Tensor, labels: Tensor) -> Tensor:
    """``logits.argmax(-1) == labels``, whatever the layout of the logits; a logit that is no number makes it wrong.

    PyTorch's argmax takes five times as long where classes do not lie side by side in memory, as TAC's do not.
    """
    own = logits.gather(-1, labels.expand(logits.shape[:-1]).unsqueeze(-1)).squeeze(-1)
    right = torch.ones_like(own, dtype=torch.bool)
    for way, other in enumerate(logits.unbind(-1)):  # of equal logits, the first is chosen
        right &= torch.where(labels > way, own > other, own >= other)
    return right


def _prepared(method: Method, vectors: Tensor) -> Tensor:
    """What a method computes of each image by itself, for all images: (n, D) -> (n, E)."""
    with torch.inference_mode(), _one_core_each(vectors.device) as run:
        return torch.cat(list(run(method.per_image, torch.split(vectors, PREPARED))))


def map_episodes(
    measure: Callable[[Episode], Tensor],
    method: Method,
    vectors: Tensor,
    sampler: EpisodeSampler,
    episodes: int,
    *,
    unlabelled: bool = True,
    batch: int | None = None,
    progress: Tick | None = None,
) -> NDArray[np.float64]:
    """What ``measure`` says of each episode of vectors: it maps (batch, ...) to (values, batch) -> (episodes, values).

    If ``unlabelled`` is False, the episodes are the same, but have no unlabelled image. ``batch`` episodes are computed
    together; by default as many as fit into the cache. On the processor each core works on batches of its own: the
    tensors of a few episodes are too small to be worth dividing.
    """
    if batch is None:
        spec = sampler.spec
        images = images_of(spec) if unlabelled else spec.ways * (spec.shots + spec.queries)
        batch = max(1, BATCH_BYTES // (images * vectors[0].numel() * vectors.element_size()))
    block_size = batch * max(1, BLOCK // batch)
    method.eval()

    def work(start: int) -> NDArray[np.float64]:
        rows = []
        # Drawing costs the same for a few episodes as for many: a block at a time, of which a batch is computed.
        block = sampler.batch(start, min(block_size, episodes - start), unlabelled=unlabelled)
        with torch.inference_mode():
            for first in range(0, len(block.query_labels), batch):
                episode = block[first : first + batch].to(vectors.device)
                found = measure(episode.map_images(lambda index: vectors.index_select(0, index)))
                rows.append(found.cpu().T.numpy())
        return np.concatenate(rows)

    tables = []
    with _one_core_each(vectors.device) as run:
        for table in run(work, range(0, episodes, block_size)):
            tables.append(table)
            if progress:
                progress(len(table))
    return np.concatenate(tables)


@contextmanager
def _one_core_each(device: torch.device) -> Iterator[Callable[..., Iterator[Any]]]:
    """A ``map`` whose calls run side by side, each on one core of the processor; one after another on other devices."""
    cores = torch.get_num_threads() if device.type == "cpu" else 1
    if cores == 1:
        yield map
        return
    pool = ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,))
    try:
        yield pool.map
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(cores)


def evaluate(
    method: Method,
    vectors: Tensor,
    images: ImageSet,
    protocol: Protocol,
    iterations: int,
    *,
    record: int = 0,
    progress: Tick | None = None,
) -> Accuracy:
    """Accuracy under a protocol after so many refinements; ``vectors`` are the embeddings of ``images``.

    ``by_iteration`` of the result goes on to ``record`` refinements if that is more.
    """
    tables = []
    for split in range(protocol.splits):
        seed = (protocol.seed, split)
        parts = split_labelled(images.labels, images.class_names, protocol.labelled_ratio, seed)
        sampler = EpisodeSampler(parts, protocol.spec, seed)
        most = max(iterations, record)
        tables.append(episode_accuracies(method, vectors, sampler, protocol.episodes, most, progress=progress))
    return summarise(tables, iterations)


def summarise(tables: list[NDArray[np.float64]], iterations: int) -> Accuracy:
    """One table (episodes, iterations + 1) per split -> mean and intervals of the last wanted column."""
    column = min(iterations, tables[0].shape[1] - 1)
    values = np.concatenate(tables)
    means = np.array([table[:, column].mean() for table in tables])
    errors = values.std(0, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else np.full(values.shape[1], np.nan)
    intervals = (1.96 * errors).tolist()
    split_interval = None
    if len(means) > 1:
        split_interval = float(stdtrit(len(means) - 1, 0.975) * means.std(ddof=1) / math.sqrt(len(means)))
    return Accuracy(
        mean=float(values[:, column].mean()),
        interval=intervals[column],
        split_means=means.tolist(),
        split_interval=split_interval,
        episodes=len(values),
        iterations=column,
        by_iteration=values.mean(0).tolist(),
        intervals=intervals,
    )


def choose_iterations(method: Method, vectors: Tensor, images: ImageSet, protocol: Protocol) -> int:
    """The number of refinements, from 1 to 5, that is best on validation classes; 0 for a method that has none."""
    episodes = min(CHOICE_EPISODES, protocol.splits * protocol.episodes)
    choice = evaluate(method, vectors, images, replace(protocol, splits=1, episodes=episodes), MOST_ITERATIONS)
    return best_iterations(choice.by_iteration)


def best_iterations(by_iteration: Sequence[float] | NDArray[np.float64]) -> int:
    """The best number of refinements but 0: a method with unlabelled images must use them. 0 where there are none."""
    return 1 + int(np.argmax(by_iteration[1:])) if len(by_iteration) > 1 else 0


def stored(images: ImageSet, device: torch.device) -> Tensor:
    """All images as they are, in the place of vectors, for a method that adapts the backbone."""
    return torch.from_numpy(np.array(images.images)).to(device)


def embed_used(method: Method, backbone: nn.Module, images: ImageSet, sampler: EpisodeSampler, episodes: int) -> Tensor:
    """Embeddings of those images that the first ``episodes`` episodes show; the rows of others are not filled.

    For a method that adapts the backbone, the images as they are.
    """
    if method.adapts_backbone:
        return stored(images, next(backbone.parameters()).device)
    episode = sampler.batch(0, episodes)
    used = torch.unique(torch.cat([part.flatten() for part in (episode.support, episode.query, episode.unlabelled)]))
    found = embed(backbone, images.images, used.numpy())
    vectors = torch.empty(len(images.images), found.shape[1], device=found.device)
    vectors[used.to(found.device)] = found
    return vectors
