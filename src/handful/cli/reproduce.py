"""``handful reproduce``: the paper's tables and figures, by `experiments.reproduce`."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Column, Table

from ..errors import HandfulError, JobFailed
from ..experiments.figures import FIGURES
from ..progress import messages, progress_bar
from .grid import DISTRACTORS, Engine, Jobs, RayAddress, Threads
from .options import (
    DataOptions,
    DataPath,
    Dataset,
    Device,
    ImageSize,
    JsonFlag,
    LabelledRatio,
    Seed,
    Strict,
    check_device,
    console,
    read_data_options,
    takes_training_changes,
)


@takes_training_changes
def reproduce(
    what: Annotated[
        list[str],
        typer.Argument(metavar="WHAT...", help=f"table1, table2, table3, {', '.join(FIGURES)} or all."),
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder for the report and its runs.")],
    dataset: Dataset = "glyphs",
    data: DataPath = None,
    budget: Annotated[
        str, typer.Option(help="paper, day, hour or minutes: how long to train and how often to test, nothing else.")
    ] = "hour",
    episodes: Annotated[int | None, typer.Option(min=1, help="Training episodes, instead of the budget's.")] = None,
    pretrain: Annotated[
        int,
        typer.Option(
            min=0,
            help="Steps of a classifier of the training classes from whose embedder all models start; 0 for none. "
            "On photographs worth some five points (docs/recipe.md); a step has two images of every class, which is "
            "dear where there are thousands of them, as in omniglot.",
        ),
    ] = 0,
    splits: Annotated[int | None, typer.Option(min=1, help="Labelled/unlabelled splits in testing, instead.")] = None,
    test_episodes: Annotated[int | None, typer.Option(min=1, help="Test episodes per split, instead.")] = None,
    shots: Annotated[list[int] | None, typer.Option(min=1, help="K; repeatable. The paper's by default.")] = None,
    distractors: Annotated[str, typer.Option(help="with, without or both: columns of the tables.")] = "both",
    methods: Annotated[
        list[str] | None, typer.Option("--method", help="Only these lines of the tables; repeatable.")
    ] = None,
    ways: Annotated[
        int | None, typer.Option(min=2, help="Classes of a training episode, instead of the data set's recipe.")
    ] = None,
    test_ways: Annotated[
        int | None, typer.Option(min=2, help="Classes of a validation or test episode, instead; published: 5.")
    ] = None,
    training: dict[str, Any] = {},  # noqa: B006 - replaced by options
    labelled_ratio: LabelledRatio = None,
    image_size: ImageSize = None,
    data_options: DataOptions = None,
    strict: Strict = False,
    seed: Seed = 0,
    jobs: Jobs = None,
    threads: Threads = 1,
    engine: Engine = "local",
    ray_address: RayAddress = None,
    device: Device = "auto",
    as_json: JsonFlag = False,
) -> None:
    """Make the paper's tables and figures on a data set: OUT/report.html and report.md, with the numbers as CSV.

    Each line of a table is a training and its test; what several tables and figures can share is trained once. The
    same command again goes on where it was stopped or killed, and another WHAT in the same OUT uses the runs there are.

    The budgets train for 50,000, 4,000, 400 and 60 episodes. On two cores and small images (28 x 28 or 32 x 32) table1
    takes about what they are called; the paper's, on 84 x 84, wants a cluster (--engine ray) or a graphics card.

    Example: `handful reproduce table1 --dataset glyphs --budget minutes --out reports/glyphs`
    """
    from ..datasets import SPLITS, dataset_spec, load_dataset
    from ..experiments.paper import BUDGETS, recipe_for
    from ..experiments.plan import Setting
    from ..experiments.reproduce import check_what
    from ..experiments.reproduce import reproduce as run
    from ..experiments.workers import Workers
    from ..methods import method_class

    check_device(device)
    workers = Workers(engine, jobs, threads, device, ray_address)
    wanted = check_what(what)
    if budget not in BUDGETS:
        raise HandfulError(f"unknown budget '{budget}': choose one of {', '.join(BUDGETS)}")
    if distractors not in DISTRACTORS:
        raise HandfulError(f"--distractors takes {', '.join(DISTRACTORS)}, got '{distractors}'")
    for name in methods or ():
        method_class(name)
    spec = dataset_spec(dataset)
    read_with = read_data_options(dataset, data_options, image_size)
    changes = {"episodes": episodes, "splits": splits, "test_episodes": test_episodes}
    recipe = recipe_for(dataset).with_ways(ways, test_ways)
    with progress_bar() as bar:
        images = {split: load_dataset(dataset, split, data, options=read_with, strict=strict, bar=bar)
                  for split in SPLITS}  # fmt: skip
    setting = Setting(
        dataset=dataset,
        data=None if data is None else str(data.resolve()),
        data_options=read_with,
        images=images["train"],
        labelled_ratio=spec.labelled_ratio if labelled_ratio is None else labelled_ratio,
        recipe=recipe,
        budget=replace(BUDGETS[budget], **{name: value for name, value in changes.items() if value is not None}),
        shots=tuple(dict.fromkeys(shots or recipe.shots)),
        distractors=DISTRACTORS[distractors],
        methods=tuple(methods) if methods else None,
        training=training,
        seed=seed,
        pretraining=pretrain,
    )
    content = run(
        wanted, setting, out, command=shlex.join(["handful", *sys.argv[1:]]), images=images, workers=workers,
    )  # fmt: skip
    _show(content, wanted, as_json)


def _show(content: dict[str, Any], wanted: Sequence[str], as_json: bool) -> None:
    """Print the tables, and where the report is; an error if cells have failed."""
    if as_json:
        typer.echo(json.dumps(content, indent=2))
    else:
        for name in wanted:
            if name.startswith("table"):
                _print(content[name])
        console.print(content["caption"], soft_wrap=True)
    messages.print(f"Report: {content['report']}", soft_wrap=True)
    if content["failed"]:
        raise JobFailed(
            f"{len(content['failed'])} cells failed: {', '.join(content['failed'])}; the same command again tries only "
            "these"
        )


def _print(rows: list[dict[str, Any]]) -> None:
    """Systems down, settings across; what was published stands in brackets."""
    from ..runs.results import format_accuracy

    settings = list(dict.fromkeys((row["shots"], row["distractors"]) for row in rows))
    names = [f"{shots}-shot" + (", distractors" if others else "") for shots, others in settings]
    table = Table(Column("system", no_wrap=True), *names, box=None, header_style="bold")
    for system in dict.fromkeys(row["system"] for row in rows):
        found = {(row["shots"], row["distractors"]): row for row in rows if row["system"] == system}
        cells = []
        for row in (found[setting] for setting in settings):
            published = "" if row["published"] is None else f" ({row['published']:.2f})"
            cells.append(format_accuracy(row["accuracy"], row["interval"]) + published)
        table.add_row(system, *cells)
    console.print(table)
