"""Training: our step against an eager loop in PyTorch's default layout, each in a process of its own, in turns."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch.optim import Adam
from torch.profiler import ProfilerActivity, profile

from ..embedders.backbones import build_backbone
from ..episode import Episode
from ..machine import keep_memory
from ..methods import build_method
from ..runs.learner import Learner
from ..sampling import EpisodeSampler, EpisodeSpec, LabelledSplit, split_labelled
from . import plain
from .measure import Bench, matmul_peak

SPEC = EpisodeSpec(ways=5, shots=1, queries=15, unlabelled=5)
WIDE = EpisodeSpec(ways=20, shots=1, queries=8, unlabelled=5)
SIZE, CLASSES, PER_CLASS = 84, 24, 40
PARTS = {
    "convolution": ("conv",),
    "batch norm": ("batch_norm",),
    "pooling": ("pool",),
    "ReLU": ("relu", "threshold", "clamp"),
    "Adam": ("adam",),
    "copies and fills": ("copy_", "fill_", "zero_", "div", "sub_"),
}


def bench_train(repeats: int = 5, *, curves: bool = True) -> Bench:
    """Images a second of whole training steps, and their share of the machine's best; the loss curves compared."""
    bench = Bench(f"CONV4, {SIZE} x {SIZE}, TAC, {SPEC.describe()}; {torch.get_num_threads()} threads, in turns")
    for label, spec in {"5-way": SPEC, "20-way": WIDE}.items():
        seconds: dict[str, list[float]] = {"ours": [], "plain": []}
        shares: list[dict[str, float]] = []
        losses: dict[str, list[Any]] = {}
        with _worker("ours", spec) as ours, _worker("plain", spec) as theirs:
            for worker in (ours, theirs):
                worker.ask("steps", 2)
            for _ in range(repeats):
                peak = matmul_peak()
                for name, worker in (("ours", ours), ("plain", theirs)):
                    seconds[name].append(worker.ask("steps", 1))
                shares.append({name: _flops(spec) / values[-1] / peak for name, values in seconds.items()})
            if spec is SPEC:
                profiled = ours.ask("profile", 1)
                for kind in ("float32", "float64"):
                    losses[kind] = [np.array(worker.ask(kind, 50)) for worker in (ours, theirs)]
        median = {name: statistics.median(values) for name, values in seconds.items()}
        for name in ("ours", "plain"):
            share = statistics.median(one[name] for one in shares)
            bench.rows.append({
                "step": label, "way": name, "images/s": _images(spec) / median[name], "share of matmul peak": share,
                "ours is faster": median["plain" if name == "plain" else "ours"] / median["ours"],
            })  # fmt: skip
        for kind, (mine, other) in losses.items():
            text = (
                f"{np.abs(mine - other).max():.1e} over 50 steps, {np.abs(mine - other)[:5].max():.1e} over 5 (28 x 28)"
            )
            bench.facts[f"losses in {kind}, largest difference between ours and plain"] = text
        if losses:
            bench.facts["a 5-way step of ours is"] = ", ".join(
                f"{share:.0%} {part}" for part, share in profiled.items()
            )
    return bench


def _images(spec: EpisodeSpec) -> int:
    return spec.ways * (spec.shots + spec.queries + spec.unlabelled)


def _flops(spec: EpisodeSpec) -> float:
    """Multiplications and additions of CONV4's convolutions in a step: forward, and backward to weights and inputs."""
    total, side, inputs = 0.0, SIZE, 3
    for index in range(4):
        forward = 2 * 9 * inputs * 64 * side * side
        total += forward * (2 if index == 0 else 3)  # nobody asks for the gradient of the pixels
        side, inputs = side // 2, 64
    return total * _images(spec)


class _Stepper:
    """A model, its optimiser and its episodes; lives in the worker process."""

    def __init__(self, way: str, spec: EpisodeSpec, size: int) -> None:
        torch.manual_seed(0)
        rng = np.random.default_rng(0)
        labels = np.repeat(np.arange(CLASSES), PER_CLASS)
        self.images = (rng.integers(0, 150, (CLASSES, size, size, 3))[labels]
                       + rng.integers(0, 100, (len(labels), size, size, 3))).astype(np.uint8)  # fmt: skip
        split: LabelledSplit = split_labelled(labels, tuple(map(str, range(CLASSES))), 0.6, 0)
        self.sampler, self.episode = EpisodeSampler(split, spec, 0), 0
        backbone = build_backbone("conv4", 3, size)
        dim: int = backbone.dim  # type: ignore[assignment]
        self.learner = Learner(backbone, build_method("tac", dim, spec.ways))
        if way == "plain":
            network = plain.conv4(3)
            weights = {k.removeprefix("blocks."): v.contiguous() for k, v in backbone.state_dict().items()}
            network.load_state_dict(weights)
            self.learner.backbone = network
        self.plain = way == "plain"
        self.optimizer = Adam(self.learner.parameters(), lr=1e-3, weight_decay=5e-4, fused=not self.plain)

    def step(self) -> float:
        positions = self.sampler.batch(self.episode, 1)
        self.episode += 1
        episode: Episode = positions.map_images(lambda rows: torch.from_numpy(self.images[rows.numpy()]))
        if self.plain:
            vectors = episode.map_images(lambda images: self.learner.backbone(plain.to_input(images)))
            loss = self.learner.method.loss(vectors)
        else:
            loss = self.learner(episode)
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.optimizer.step()
        return loss.item()


def _serve(pipe: Connection, way: str, spec: EpisodeSpec, threads: int) -> None:
    """Answer questions until there are none."""
    torch.set_num_threads(threads)
    if way == "ours":
        keep_memory()
    stepper = _Stepper(way, spec, SIZE)
    while (question := pipe.recv()) is not None:
        what, count = question
        if what == "steps":
            begun = time.perf_counter()
            for _ in range(count):
                stepper.step()
            pipe.send((time.perf_counter() - begun) / count)
        elif what == "profile":
            with profile(activities=[ProfilerActivity.CPU]) as profiler:
                stepper.step()
            pipe.send(_parts(profiler))
        else:  # the loss curve; float64 tells rounding from a difference
            torch.set_default_dtype(getattr(torch, what))
            other = _Stepper(way, spec, 28)
            pipe.send([other.step() for _ in range(count)])
            torch.set_default_dtype(torch.float32)


def _parts(profiler: Any) -> dict[str, float]:
    """Shares of the time, by kind of work."""
    times = {event.key: event.self_cpu_time_total for event in profiler.key_averages()}
    whole, shares = sum(times.values()), {}
    for part, words in PARTS.items():
        keys = [key for key in times if any(word in key.lower() for word in words)]
        shares[part] = sum(times.pop(key) for key in keys) / whole
    return {**shares, "all else": sum(times.values()) / whole}


class _worker:  # noqa: N801 - used as a function
    """A process that trains; so that the memory settings of one way do not help the other."""

    def __init__(self, way: str, spec: EpisodeSpec) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        arguments = (theirs, way, spec, torch.get_num_threads())
        self.process = context.Process(target=_serve, args=arguments, daemon=True)

    def __enter__(self) -> _worker:
        self.process.start()
        return self

    def ask(self, what: str, count: int) -> Any:
        self.pipe.send((what, count))
        while not self.pipe.poll(1):
            if not self.process.is_alive():
                raise RuntimeError("the process that was measured has died")
        return self.pipe.recv()

    def __exit__(self, *_: object) -> None:
        if self.process.is_alive():
            self.pipe.send(None)
            self.process.join(10)
