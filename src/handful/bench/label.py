"""One task with very many unlabelled points: streamed in chunks, against all at once; time and memory."""

from __future__ import annotations

from functools import partial
from multiprocessing.connection import Connection

import numpy as np
import torch

from .. import functional as F
from .measure import Bench, in_own_process, matmul_peak, timed_with_memory

DIM, WAYS, SHOTS, ITERATIONS = 1280, 20, 5, 4
SIZES = (10_000, 30_000, 100_000, 300_000)


def bench_label(repeats: int = 3, *, curves: bool = True, points: int | None = None) -> Bench:
    """TAC on 10,000 to 300,000 unlabelled vectors, or as many as wanted."""
    sizes = [size for size in SIZES if points is None or size < points] + ([points] if points else [])
    threads = torch.get_num_threads()
    bench = Bench(f"one {WAYS}-way {SHOTS}-shot task, D = {DIM}, {ITERATIONS} refinements; {threads} threads")
    for size in sizes:
        found = {way: in_own_process(_task, way, size, repeats, threads)
                 for way in ("ours", "plain") if way == "ours" or size <= max(SIZES)}  # fmt: skip
        for way, (seconds, extra) in found.items():
            bench.rows.append({
                "unlabelled points": size, "way": way, "seconds": seconds, "µs per point": 1e6 * seconds / size,
                "memory beyond the input (MiB)": extra / 2**20, "ours is faster": seconds / found["ours"][0],
            })  # fmt: skip
            bench.curves.setdefault("unlabelled points", {}).setdefault(way, []).append((size, seconds))
    fastest = min(row["µs per point"] for row in bench.rows if row["way"] == "ours")
    flops = 2 * 2 * DIM * WAYS * ITERATIONS  # per point: one product to label it, one to add it up
    bench.facts["share of the matmul peak, ours at best"] = f"{flops / fastest * 1e6 / matmul_peak():.0%}"
    ours = np.array(bench.curves["unlabelled points"]["ours"])
    slope = np.polyfit(np.log(ours[:, 0]), np.log(ours[:, 1]), 1)[0]
    bench.facts["time grows as (points) to the power of"] = f"{slope:.2f} (1 is linear)"
    return bench


def _task(pipe: Connection, way: str, size: int, repeats: int, threads: int) -> None:
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    centroids, references = (torch.randn(WAYS, DIM, generator=generator) / DIM**0.5 for _ in range(2))
    unlabelled = torch.empty(size, DIM)
    for part in torch.split(unlabelled, 10_000):
        part.normal_(generator=generator).div_(DIM**0.5)
        part += centroids[torch.randint(WAYS, (len(part),), generator=generator)]
    queries = unlabelled[:100].clone()
    run = partial(F.tac, keep_steps=False) if way == "ours" else _all_at_once
    with torch.inference_mode():
        for _ in range(2):  # what a first call loads is not the task's memory
            run(centroids, SHOTS, unlabelled[:2000], queries, references, 1)
        pipe.send(
            timed_with_memory(lambda: run(centroids, SHOTS, unlabelled, queries, references, ITERATIONS), repeats)
        )


def _all_at_once(
    centroids: torch.Tensor, shots: int, unlabelled: torch.Tensor, queries: torch.Tensor, references: torch.Tensor,
    iterations: int,
) -> torch.Tensor:  # fmt: skip
    """The formulas one after the other on all points: projected points, distances, soft labels."""
    means = centroids
    for _ in range(iterations):
        basis = F.null_basis(F.error_vectors(means, references))
        points, targets = (vectors - (vectors @ basis) @ basis.mT for vectors in (unlabelled, means))
        soft = torch.softmax(-torch.cdist(points, targets).square(), -1)
        means = F.refine(centroids, shots, unlabelled, soft)
    return F.projected_logits(queries, references, F.null_basis(F.error_vectors(means, references)))
