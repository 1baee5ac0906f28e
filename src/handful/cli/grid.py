"""``handful grid``: the product of methods, shots, distractors and seeds, run by `experiments.grid`."""

from __future__ import annotations

import csv
import io
import json
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column, Table

from ..errors import HandfulError, JobFailed
from ..progress import grid_bar, progress_bar
from ..publish import check_free, publish
from ..runs.options import TrainingOptions
from .options import (
    TEST_WAYS,
    WAYS,
    DataOptions,
    DataPath,
    Dataset,
    Device,
    ImageSize,
    JsonFlag,
    LabelledRatio,
    Queries,
    Strict,
    TestQueries,
    TestUnlabelled,
    TestWays,
    Unlabelled,
    Ways,
    check_device,
    console,
    episode_spec,
    fitting_spec,
    parse_settings,
    read_data_options,
    recipe_options,
    takes_training_options,
)

if TYPE_CHECKING:
    from ..experiments.cell import Cell, Outcome

DISTRACTORS = {"without": (False,), "with": (True,), "both": (False, True)}
Jobs = Annotated[int | None, typer.Option(min=1, help="Runs at a time. Default: one per core, or per --threads cores.")]
Threads = Annotated[
    int, typer.Option(min=1, help="PyTorch threads of each run. Results differ in the last digits if this changes.")
]
Engine = Annotated[str, typer.Option(help="local (processes on this machine) or ray (a Ray cluster).")]
RayAddress = Annotated[
    str | None,
    typer.Option(
        help="Address of a running Ray cluster; the variable RAY_ADDRESS works too. Without it, Ray is started on this "
        "machine. All machines need handful installed, and --out and --data on a shared file system."
    ),
]
GRID_FILES = ("grid.csv", "grid.json")
COLUMNS = (
    "cell", "method", "shots", "distractors", "seed", "mean", "interval", "split_interval", "iterations", "n",
    "val_accuracy", "error",
)  # fmt: skip


@takes_training_options
def grid(
    methods: Annotated[list[str], typer.Option("--method", help="A name from 'handful methods'. Repeat for more.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the run folders and the table.")],
    dataset: Dataset = "glyphs",
    data: DataPath = None,
    shots: Annotated[
        list[int] | None, typer.Option(min=1, help="Labelled images per class (K). Repeat for more. Default: 1.")
    ] = None,
    distractors: Annotated[
        str, typer.Option(help="with, without or both: distractors in training and testing.")
    ] = "without",
    seeds: Annotated[
        list[int] | None,
        typer.Option("--seed", min=0, max=2**32 - 1, help="Seed of a run. Repeat for more. Default: 0."),
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Training episodes of each run.")] = 2000,
    splits: Annotated[int, typer.Option(min=1, help="Random labelled/unlabelled splits in testing.")] = 10,
    test_episodes: Annotated[int, typer.Option(min=1, help="Test episodes per split.")] = 3000,
    jobs: Jobs = None,
    threads: Threads = 1,
    engine: Engine = "local",
    ray_address: RayAddress = None,
    ways: Ways = None,
    queries: Queries = 8,
    unlabelled: Unlabelled = 5,
    test_ways: TestWays = None,
    test_queries: TestQueries = 15,
    test_unlabelled: TestUnlabelled = 20,
    training: TrainingOptions = TrainingOptions(),  # noqa: B008 - frozen
    labelled_ratio: LabelledRatio = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Option NAME=VALUE, for the methods that have it. Repeat for more."),
    ] = None,
    image_size: ImageSize = None,
    data_options: DataOptions = None,
    strict: Strict = False,
    device: Device = "auto",
    as_json: JsonFlag = False,
) -> None:
    """Train and evaluate every combination of methods, shots, distractors and seeds, several at a time.

    Each combination, called a cell, is a run folder in OUT. The command can be stopped (Ctrl-C) or killed at any time:
    run it again to resume, finished cells are skipped. If a cell fails, the others still run; the error is printed, and
    the exit code is 1. The table is also written to OUT/grid.json and OUT/grid.csv.

    Example of eight cells, two at a time:
    `handful grid --method pn --method tac --shots 1 --shots 5 --distractors both --jobs 2 --out grids/glyphs`
    """
    from ..datasets import SPLITS, dataset_spec, load_dataset
    from ..experiments.cell import Cell, Measurement
    from ..experiments.grid import run_grid
    from ..experiments.workers import Workers
    from ..methods import method_options
    from ..runs.config import TrainingData, build_config, training_spec
    from ..runs.episodes import Protocol

    check_device(device)
    workers = Workers(engine, jobs, threads, device, ray_address)
    check_free(out, GRID_FILES)
    if distractors not in DISTRACTORS:
        raise HandfulError(f"--distractors takes {', '.join(DISTRACTORS)}, got '{distractors}'")
    options = _method_options({method: method_options(method) for method in methods}, settings or [])
    ratio = dataset_spec(dataset).labelled_ratio if labelled_ratio is None else labelled_ratio
    read_with = read_data_options(dataset, data_options, image_size)
    with progress_bar() as bar:
        images = {split: load_dataset(dataset, split, data, options=read_with, strict=strict, bar=bar)
                  for split in SPLITS}  # fmt: skip
    classes = {split: len(found.class_names) for split, found in images.items()}
    where = None if data is None else str(data.resolve())
    trained_on = TrainingData(dataset, images["train"], ratio, where, read_with)
    keys: list[dict[str, Any]] = []
    cells: list[Cell] = []
    for method, k, others, seed in product(
        dict.fromkeys(methods), dict.fromkeys(shots or [1]), DISTRACTORS[distractors], dict.fromkeys(seeds or [0])
    ):
        name = f"{method}-{k}-shot{'-distractors' if others else ''}-seed-{seed}"
        chosen = recipe_options(dataset, method, out / name, options[method]) | options[method]
        spec = fitting_spec(
            "--ways", ways, WAYS, lambda n: episode_spec(n, k, queries, unlabelled, others, None),  # noqa: B023
            {"train": classes["train"]}, lambda spec: training_spec(method, chosen, spec, classes["train"]),  # noqa: B023
        )  # fmt: skip
        test = fitting_spec(
            "--test-ways", test_ways, TEST_WAYS,
            lambda n: episode_spec(n, k, test_queries, test_unlabelled, others, None),  # noqa: B023 - called at once
            {split: classes[split] for split in SPLITS[1:]},
        )  # fmt: skip
        config = build_config(trained_on, method, chosen, spec, test, training, episodes=episodes, seed=seed)
        keys.append({"cell": name, "method": method, "shots": k, "distractors": others, "seed": seed})
        protocol = Protocol(test, ratio, splits, test_episodes, seed)
        cells.append(Cell(name, config, (Measurement(protocol, method),)))

    with grid_bar(len(cells)) as end:
        outcomes = run_grid(cells, out, workers, report=lambda outcome: end(outcome.line(), outcome.skipped))
    content = _write(out, keys, outcomes)
    if as_json:
        typer.echo(json.dumps(content, indent=2))
    else:
        _print(content["summary"], splits, test_episodes)
    failed = [outcome.name for outcome in outcomes if outcome.results is None]
    if failed:
        raise JobFailed(
            f"{len(failed)} of {len(cells)} cells failed: {', '.join(failed)}; run the same command again to retry "
            "only these"
        )


def _method_options(known: dict[str, dict[str, Any]], settings: list[str]) -> dict[str, dict[str, Any]]:
    """Each method gets the settings that it has; one that none has is an error."""
    everything = {name: value for options in known.values() for name, value in options.items()}
    parse_settings("--set", "/".join(known), everything, settings)
    return {
        method: parse_settings("--set", method, options, [s for s in settings if s.partition("=")[0] in options])
        for method, options in known.items()
    }


def _write(out: Path, keys: list[dict[str, Any]], outcomes: list[Outcome]) -> dict[str, Any]:
    """``grid.json`` and ``grid.csv``, which are rewritten as a whole by each command."""
    entries, lines = [], []
    for key, outcome in zip(keys, outcomes, strict=True):
        result = outcome.results[0] if outcome.results else None
        error = None if result else {"reason": outcome.reason, "traceback": outcome.traceback}
        content = result.to_json() if result else {}
        entries.append({**key, "result": content or None, "error": error})
        found = {name: content[name] for name in COLUMNS if name in content and name not in key}
        lines.append({**key, **found, "error": outcome.reason})
        if result:
            lines[-1]["val_accuracy"] = result.trained.val_accuracy
    table = {"summary": _summary(entries), "cells": entries}
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    numbers = json.dumps(table, indent=2) + "\n"
    publish(out, {GRID_FILES[0]: text.getvalue().encode("utf-8", "backslashreplace"), GRID_FILES[1]: numbers.encode()})
    return table


def _summary(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Cells that differ only in their seed, together.

    With several seeds the interval is over the seeds (Student's t): it includes the variance between training runs.
    """
    from ..experiments.cell import mean_over_seeds

    groups: dict[tuple[str, int, bool], list[dict[str, Any]]] = {}
    for entry in entries:
        groups.setdefault((entry["method"], entry["shots"], entry["distractors"]), []).append(entry)
    rows = []
    for (method, shots, distractors), group in groups.items():
        results = [entry["result"] for entry in group if entry["result"]]
        mean, interval = mean_over_seeds([(result["mean"], result["interval"]) for result in results])
        row = {"method": method, "shots": shots, "distractors": distractors, "mean": mean, "interval": interval}
        rows.append({**row, "seeds": len(results), "failed": len(group) - len(results)})
    return rows


def _print(summary: list[dict[str, Any]], splits: int, episodes: int) -> None:
    """Rows are methods, columns are settings."""
    from ..runs.results import format_accuracy

    rows: dict[str, dict[str, str]] = {}
    for entry in summary:
        setting = f"{entry['shots']}-shot" + (", distractors" if entry["distractors"] else "")
        rows.setdefault(entry["method"], {})[setting] = format_accuracy(entry["mean"], entry["interval"])
    settings = list(next(iter(rows.values())))
    table = Table(Column("method", no_wrap=True), *settings, box=None, header_style="bold")
    for method, cells in rows.items():
        table.add_row(method, *(cells[setting] for setting in settings))
    console.print(table)
    seeds = max(entry["seeds"] for entry in summary)
    over = f"{seeds} seeds, including variance between training runs" if seeds > 1 else "episodes, for these weights"
    console.print(
        f"Accuracy in %; {splits} splits x {episodes} test episodes; ± is the 95 % interval over {over}.",
        soft_wrap=True,
    )
