"""Episodes a second: the batched engine against the plain way, on the same vectors, interleaved, in one run.

The plain way is what public few-shot code does: one episode at a time, and a full SVD for the null space.
"""

from __future__ import annotations

import statistics
import time

import torch
from rich.console import Console
from rich.table import Table

from tacit import Episode, build_method
from tacit import functional as F
from tacit.methods.tapnet import TapNet

WAYS, SHOTS, UNLABELLED, QUERIES, ITERATIONS = 5, 1, 100, 75, 4
BATCH, REPEATS = 32, 5


def plain_tac(episode: Episode, references: torch.Tensor) -> torch.Tensor:
    """TAC of a single episode as the formulas are written, with M spelled out: query logits (Q, N)."""
    support = means = episode.centroids
    for iteration in range(ITERATIONS + 1):
        errors = F.error_vectors(means, references)
        null_space = torch.linalg.svd(errors, full_matrices=True)[2][WAYS:].mT  # (D, D - N)
        if iteration < ITERATIONS:
            distance = torch.cdist(episode.unlabelled @ null_space, means @ null_space).square()
            means = F.refine(support, SHOTS, episode.unlabelled, torch.softmax(-distance, -1))
    return -torch.cdist(episode.query @ null_space, references @ null_space).square()


def make_episodes(count: int, dim: int) -> Episode:
    labels = torch.arange(WAYS)
    centres = torch.randn(count, WAYS, dim)

    def around(amount: int) -> torch.Tensor:
        return (centres.repeat_interleave(amount // WAYS, 1) + 2 * torch.randn(count, amount, dim)) / dim**0.5

    query_labels, hidden = (labels.repeat_interleave(n // WAYS).expand(count, n) for n in (QUERIES, UNLABELLED))
    support = around(WAYS * SHOTS).reshape(count, WAYS, SHOTS, dim)
    return Episode(support, around(QUERIES), around(UNLABELLED), query_labels, hidden)


def main() -> None:
    torch.manual_seed(0)
    title = f"{WAYS}-way {SHOTS}-shot TAC, {UNLABELLED} unlabelled, {QUERIES} queries, {ITERATIONS} refinements"
    table = Table("dim", "plain (episodes/s)", "ours (episodes/s)", "ratio", "same answers", title=title)
    for dim in (64, 256, 1600):
        episodes, plain_count = make_episodes(BATCH, dim), 8 if dim < 1600 else 2
        method = build_method("tac", dim, 20, iterations=ITERATIONS).eval()
        assert isinstance(method, TapNet)
        seconds: dict[str, list[float]] = {"plain": [], "ours": []}
        with torch.inference_mode():
            method(episodes)
            for _ in range(REPEATS):
                begun = time.perf_counter()
                ours = method(episodes)
                seconds["ours"].append((time.perf_counter() - begun) / BATCH)
                begun = time.perf_counter()
                plain = []
                for index in range(plain_count):
                    one = Episode(**{name: value[index] for name, value in vars(episodes).items()})
                    plain.append(plain_tac(one, method.class_references(one.centroids)))
                seconds["plain"].append((time.perf_counter() - begun) / plain_count)
        same = (torch.stack(plain).argmax(-1) == ours[:plain_count].argmax(-1)).double().mean()
        rate = {name: 1 / statistics.median(times) for name, times in seconds.items()}
        table.add_row(str(dim), f"{rate['plain']:.1f}", f"{rate['ours']:.0f}", f"{rate['ours'] / rate['plain']:.0f} x",
                      f"{same:.1%}")  # fmt: skip
    Console().print(table)


if __name__ == "__main__":
    main()
