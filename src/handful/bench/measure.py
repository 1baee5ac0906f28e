"""How things are measured: in turns, so that a busy moment hits all alike, by medians, beside the machine's best."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import textwrap
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

MATRIX = 2048


@dataclass
class Bench:
    """What a benchmark found.

    Attributes:
        title: what was measured, with its sizes.
        rows: one dict per line of the table, the same keys in each.
        facts: single findings, in words.
        curves: cost against a size: name of the size -> label of a way -> [(size, seconds)].
    """

    title: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    curves: dict[str, dict[str, list[tuple[float, float]]]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "torch": torch.__version__, "threads": torch.get_num_threads()}


def in_turns(ways: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median seconds of each, run one after the other ``repeats`` times, after one run that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(repeats + 1):
        for name, run in ways.items():
            begun = time.perf_counter()
            run()
            if repeat:
                seconds[name].append(time.perf_counter() - begun)
    return {name: statistics.median(values) for name, values in seconds.items()}


def matmul_peak() -> float:
    """What this machine's cores can do at best, now: multiplications and additions per second in a large product."""
    left, right = torch.randn(MATRIX, MATRIX), torch.randn(MATRIX, MATRIX)
    best = min(in_turns({"product": lambda: left @ right}, 3)["product"] for _ in range(2))
    return 2 * MATRIX**3 / best


def peak_memory() -> int:
    """The most memory that this process has had at once since the last :func:`forget_peak_memory`, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    import resource  # not on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if os.uname().sysname == "Darwin" else peak * 1024


def forget_peak_memory() -> None:
    """Start counting anew, where the system allows it (Linux)."""
    switch = Path("/proc/self/clear_refs")
    if switch.exists():
        switch.write_text("5")


def in_own_process(task: Callable[..., None], *arguments: Any) -> tuple[float, float]:
    """Seconds and bytes that ``task(pipe, *arguments)`` sends from a process of its own."""
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=task, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        seconds, extra = pipe.recv()
    except EOFError as error:
        raise RuntimeError(f"a measurement with {arguments} ended early: did it fit into memory?") from error
    process.join()
    return seconds, extra


def timed_with_memory(
    run: Callable[[], Any], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> tuple[float, float]:
    """Median seconds of a call by a clock, and the most memory beyond what there is now, in bytes."""
    forget_peak_memory()
    before, seconds = peak_memory(), []
    for _ in range(repeats):
        begun = clock()
        run()
        seconds.append(clock() - begun)
    return statistics.median(seconds), float(peak_memory() - before)


def draw(curves: dict[str, dict[str, list[tuple[float, float]]]], title: str) -> Figure:
    """Cost against each size, on logarithmic axes: a panel per size, a line per way."""
    figure = Figure(figsize=(4.0 * len(curves), 3.6), layout="constrained")
    axes = figure.subplots(1, len(curves), squeeze=False)[0]
    colours = {"ours": "#0072b2", "plain": "#d55e00"}
    for axis, (size, ways) in zip(axes, curves.items(), strict=True):
        for name, points in ways.items():
            axis.plot(*zip(*points, strict=True), marker="o", markersize=4, color=colours[name], label=name)
        axis.set(xlabel=size, xscale="log", yscale="log")
        axis.set_xticks(sorted({x for points in ways.values() for x, _ in points}))
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axis.xaxis.set_minor_locator(NullLocator())
        axis.grid(alpha=0.25)
        axis.legend(frameon=False, fontsize=8)
    axes[0].set_ylabel("seconds")
    figure.suptitle(textwrap.fill(title, 60 * len(curves)), fontsize=9)
    return figure
