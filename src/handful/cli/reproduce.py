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
    out: Annotated[Path, typer.Option("--out", help="Folder for the report and the run folders.")],
    dataset: Dataset = "glyphs",
    data: DataPath = None,
    budget: Annotated[
        str, typer.Option(help="paper, day, hour or minutes: number of training and test episodes.")
    ] = "hour",
    episodes: Annotated[
        int | None, typer.Option(min=1, help="Training episodes. Default: those of the budget.")
    ] = None,
    pretrain: Annotated[
        int,
        typer.Option(
            min=0,
            help="First train a classifier of all training classes for so many steps, and start all models from its "
            "backbone; 0: start from random weights. Adds about five points on photographs (docs/recipe.md). Slow with "
            "thousands of classes, as in omniglot.",
        ),
    ] = 0,
    start: Annotated[
        str | None,
        typer.Option(
            "--start",
            help="Run folder whose backbone all models start from, instead of one that --pretrain trains. Options of "
            "the backbone are taken from it.",
        ),
    ] = None,
    splits: Annotated[
        int | None,
        typer.Option(min=1, help="Random labelled/unlabelled splits in testing. Default: those of the budget."),
    ] = None,
    test_episodes: Annotated[
        int | None, typer.Option(min=1, help="Test episodes per split. Default: those of the budget.")
    ] = None,
    shots: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Labelled images per class (K). Repeat for more. Default: 1 and 5; 1 on omniglot."),
    ] = None,
    distractors: Annotated[str, typer.Option(help="with, without or both: which columns of the tables.")] = "both",
    train_once: Annotated[
        bool,
        typer.Option(
            "--train-once",
            help="Measure the columns without and with distractors on the same model: half of the trainings. Methods "
            "that learn what to do about distractors are trained with them, all others without.",
        ),
    ] = False,
    methods: Annotated[
        list[str] | None, typer.Option("--method", help="Only this method's rows of the tables. Repeat for more.")
    ] = None,
    ways: Annotated[
        int | None, typer.Option(min=2, help="Classes of a training episode (N). Default: 20; 5 on omniglot.")
    ] = None,
    test_ways: Annotated[
        int | None, typer.Option(min=2, help="Classes of a validation or test episode. Default: 5, as published.")
    ] = None,
    tune: Annotated[
        bool,
        typer.Option(
            "--tune",
            help="Choose the temperature of the soft labels of every system on the validation classes, with the same "
            "trials for each, together with the number of refinements; of TPN its own options.",
        ),
    ] = False,
    trials: Annotated[
        int,
        typer.Option(
            min=1, max=1000, help="For beyond: sets of options that are tried for each line on validation classes."
        ),
    ] = 12,
    untrained: Annotated[
        bool, typer.Option("--untrained", help="For beyond: only the lines that need no training beside the start.")
    ] = False,
    training: dict[str, Any] = {},  # noqa: B006 - replaced by options
    labelled_ratio: LabelledRatio = None,
    image_size: ImageSize = None,
    data_options: DataOptions = None,
    strict: Strict = False,
    seed: Seed = 0,
    seeds: Annotated[
        int, typer.Option(min=1, max=100, help="Trainings of each row of a table, with seeds from --seed on.")
    ] = 1,
    seeds_for: Annotated[
        str | None,
        typer.Option(metavar="METHOD,...", help="Only these methods are trained with several --seeds. Default: all."),
    ] = None,
    jobs: Jobs = None,
    threads: Threads = 1,
    engine: Engine = "local",
    ray_address: RayAddress = None,
    device: Device = "auto",
    as_json: JsonFlag = False,
) -> None:
    """Make the paper's tables and figures on a data set: OUT/report.html and report.md, with the numbers as CSV.

    Each row of a table is a model that is trained and tested. Models that several tables and figures need are trained
    once. If the command is stopped or killed, run it again to resume. Another WHAT with the same OUT reuses models.

    The budgets paper, day, hour and minutes train each model for 50,000, 4,000, 400 and 60 episodes. With the last
    three, table1 takes about a day, an hour and some minutes on two cores, for images of 28 x 28 or 32 x 32. The budget
    paper on images of 84 x 84 needs a GPU or a cluster (--engine ray).

    Example: `handful reproduce table1 --dataset glyphs --budget minutes --out reports/glyphs`
    """
    from ..datasets import SPLITS, dataset_spec, load_dataset
    from ..embedders.shipped import model_folder
    from ..experiments.paper import BUDGETS, recipe_for
    from ..experiments.reproduce import check_what
    from ..experiments.reproduce import reproduce as run
    from ..experiments.setting import Setting
    from ..experiments.workers import Workers
    from ..methods import method_class

    check_device(device)
    workers = Workers(engine, jobs, threads, device, ray_address)
    wanted = check_what(what)
    if start is not None and pretrain:
        raise HandfulError("--start and --pretrain are two ways to the same: give one of them")
    if budget not in BUDGETS:
        raise HandfulError(f"unknown budget '{budget}': choose one of {', '.join(BUDGETS)}")
    if distractors not in DISTRACTORS:
        raise HandfulError(f"--distractors takes {', '.join(DISTRACTORS)}, got '{distractors}'")
    several = tuple(seeds_for.split(",")) if seeds_for else None
    for name in (*(methods or ()), *(several or ())):
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
        train_once=train_once,
        methods=tuple(methods) if methods else None,
        training=training,
        seed=seed,
        seeds=seeds,
        seeded=several,
        tuned=tune,
        trials=trials,
        untrained=untrained,
        pretraining=pretrain,
        start=None if start is None else model_folder(start),
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
            elif (tabled := FIGURES[name].table) is not None:
                _print_entries(*tabled(content[name]))
        console.print(content["caption"], soft_wrap=True)
    messages.print(f"Report: {content['report']}", soft_wrap=True)
    if content["failed"]:
        raise JobFailed(
            f"{len(content['failed'])} cells failed: {', '.join(content['failed'])}; run the command again to retry "
            "only these"
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


def _print_entries(header: list[str], lines: list[list[Any]]) -> None:
    table = Table(Column(header[0], no_wrap=True), *header[1:], box=None, header_style="bold")
    for line in lines:
        table.add_row(*(cell if isinstance(cell, str) else cell.text for cell in line))
    console.print(table)
