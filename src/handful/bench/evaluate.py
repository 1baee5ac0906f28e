"""Evaluation: the batched engine against one episode at a time with a full SVD, and against embedding anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ..embedders.backbones import build_backbone
from ..methods import METHODS, build_method
from ..methods.tapnet import TapNet
from ..runs.episodes import embed, episode_accuracies
from ..sampling import EpisodeSampler, EpisodeSpec, split_labelled
from . import plain
from .measure import Bench, in_turns, matmul_peak

SPEC = EpisodeSpec(ways=5, shots=1, queries=15, unlabelled=20)
DIM, ITERATIONS, IMAGE_SIZE = 1600, 4, 84
CLASSES, PER_CLASS = 20, 600  # as many as miniImageNet has for the test
EPISODES, PLAIN_EPISODES = 512, 32
NOISE = 10.0


@dataclass(frozen=True)
class Task:
    """Stored vectors, a way to draw episodes of them, and a method."""

    vectors: Tensor
    sampler: EpisodeSampler
    method: TapNet

    def ours(self, episodes: int) -> float:
        return float(episode_accuracies(self.method, self.vectors, self.sampler, episodes, ITERATIONS)[:, -1].mean())

    def plainly(self, episodes: int, embedder: Callable[[Tensor], Tensor] | None = None) -> float:
        """One episode at a time; ``embedder`` maps positions to vectors if they are not to be looked up."""
        right = []
        with torch.inference_mode():
            for index in range(episodes):
                positions = self.sampler.batch(index, 1)[0]
                episode = positions.map_images(embedder or (lambda rows: self.vectors[rows]))
                references = self.method.class_references(episode.centroids)
                found = plain.tac(episode, references, ITERATIONS).argmax(1)
                right.append((found == episode.query_labels).double().mean())
        return 100 * float(torch.stack(right).mean())

    def prototypes(self, episodes: int) -> float:
        """Prototypical Networks by a plain loop over single episodes, which are drawn in advance at no cost to it."""
        right = []
        drawn = self.sampler.batch(0, episodes, unlabelled=False)
        with torch.inference_mode():
            for index in range(episodes):
                episode = drawn[index].map_images(lambda rows: self.vectors[rows])
                right.append((plain.prototypes(episode).argmax(1) == episode.query_labels).double().mean())
        return 100 * float(torch.stack(right).mean())

    def our_prototypes(self, episodes: int) -> float:
        method = build_method("pn", self.vectors.shape[1], self.sampler.spec.ways)
        return float(episode_accuracies(method, self.vectors, self.sampler, episodes, 0).mean())


def make_task(spec: EpisodeSpec = SPEC, dim: int = DIM, classes: int = CLASSES) -> Task:
    """Random classes that overlap as real ones do: an accuracy well between chance and 100 %."""
    generator = torch.Generator().manual_seed(0)
    labels = np.repeat(np.arange(classes), PER_CLASS)
    centres = torch.randn(classes, dim, generator=generator)
    vectors = centres[torch.from_numpy(labels)] + NOISE * torch.randn(len(labels), dim, generator=generator)
    split = split_labelled(labels, tuple(map(str, range(classes))), 0.4, 0)
    torch.manual_seed(0)
    method = build_method("tac", dim, 20).eval()
    assert isinstance(method, TapNet)
    return Task(vectors / dim**0.5, EpisodeSampler(split, spec, 0), method)


def bench_eval(repeats: int = 5, *, curves: bool = True) -> Bench:
    """Episodes a second; then the cost against ways, dimensions, unlabelled points and images to embed."""
    task = make_task()
    reembed, images = _embedder()
    ways: dict[str, tuple[int, Callable[[], float]]] = {
        "ours": (EPISODES, lambda: task.ours(EPISODES)),
        "full SVD per episode": (PLAIN_EPISODES, lambda: task.plainly(PLAIN_EPISODES)),
        f"embedding anew, {IMAGE_SIZE} x {IMAGE_SIZE}, and full SVD": (1, lambda: task.plainly(1, reembed)),
    }
    seconds = in_turns({name: run for name, (_, run) in ways.items()}, repeats)
    rate = {name: count / seconds[name] for name, (count, _) in ways.items()}
    bench = Bench(
        f"{SPEC.describe()}; TAC, {ITERATIONS} refinements, D = {DIM}; {torch.get_num_threads()} threads; "
        f"median of {repeats}, in turns"
    )
    for name in ways:
        bench.rows.append({"way": name, "episodes/s": rate[name], "ours is faster": rate["ours"] / rate[name]})
    pn = in_turns({"ours": lambda: task.our_prototypes(EPISODES), "plain": lambda: task.prototypes(EPISODES)}, repeats)
    for name, way in {"ours": "PN, ours", "plain": "PN, a plain loop over episodes"}.items():
        row = {"way": way, "episodes/s": EPISODES / pn[name], "ours is faster": pn[name] / pn["ours"]}
        bench.rows.append(row)
    # Two products with the unlabelled points per refinement, one with the queries for all of them.
    points, targets = SPEC.ways * SPEC.unlabelled, SPEC.ways
    flops = 2 * DIM * targets * (2 * ITERATIONS * points + (ITERATIONS + 1) * SPEC.ways * SPEC.queries)
    share = flops * rate["ours"] / matmul_peak()
    bench.facts["share of the matmul peak, ours"] = f"{share:.0%} (thin products: bound by memory)"
    ours, theirs = task.ours(PLAIN_EPISODES), task.plainly(PLAIN_EPISODES)
    bench.facts["accuracy on the same episodes (%)"] = f"ours {ours:.4f}, full SVD {theirs:.4f}"
    for name in METHODS:
        method = build_method(name, DIM, 20 if name.startswith("ta") else SPEC.ways).eval()
        if method.adapts_backbone:  # there is none: vectors are not what it would see
            continue
        # What is computed of each image once is shared by all episodes, of which a test has thousands.
        count = EPISODES if method.prepares else 128
        run = partial(episode_accuracies, method, task.vectors, task.sampler, count, ITERATIONS)
        bench.facts[f"{name}, episodes/s"] = f"{count / in_turns({name: run}, 2)[name]:,.0f}"
    if curves:
        bench.curves = _curves(reembed, images)
    return bench


def _embedder() -> tuple[Callable[[Tensor], Tensor], np.ndarray]:
    """What public code does for each episode: every image of it through the network, in the default layout."""
    images = np.random.default_rng(0).integers(0, 256, (256, IMAGE_SIZE, IMAGE_SIZE, 3), dtype=np.uint8)
    network = plain.conv4(3).eval()

    def anew(rows: Tensor) -> Tensor:
        with torch.inference_mode():
            vectors: Tensor = network(plain.to_input(torch.from_numpy(images[rows.numpy() % len(images)])))
        return vectors

    return anew, images


def _curves(reembed: Callable[[Tensor], Tensor], images: np.ndarray) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Seconds per episode, or per pass over the images."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}

    def add(size: str, at: int, ways: Mapping[str, tuple[int, Callable[[], object]]]) -> None:
        seconds = in_turns({name: run for name, (_, run) in ways.items()}, 2)
        for name, (count, _) in ways.items():
            found.setdefault(size, {}).setdefault(name, []).append((at, seconds[name] / count))

    tasks = {
        "ways": {ways: make_task(EpisodeSpec(ways, 1, 15, 20)) for ways in (2, 5, 10, 20)},
        "dimensions": {dim: make_task(dim=dim) for dim in (64, 256, 640, 1600)},
        "unlabelled points": {5 * u: make_task(EpisodeSpec(5, 1, 15, u)) for u in (5, 20, 80, 320)},
    }
    for size, by_size in tasks.items():
        for at, task in by_size.items():
            add(size, at, {"ours": (256, partial(task.ours, 256)), "plain": (3, partial(task.plainly, 3))})
    backbone = build_backbone("conv4", 3, IMAGE_SIZE)
    for count in (32, 64, 128, 256):
        ways = {
            "ours": (1, partial(embed, backbone, images[:count])),
            "plain": (1, partial(reembed, torch.arange(count))),
        }
        add("images to embed", count, ways)
    return found
