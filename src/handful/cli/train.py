"""``handful train``: meta-train a method."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from ..machine import is_main_process, keep_memory
from ..progress import progress_bar, training_bar
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
    Realistic,
    Seed,
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


@takes_training_options
def train(
    method: Annotated[str, typer.Option("--method", help="A name from 'handful methods'.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the run: settings, metrics and weights.")],
    dataset: Dataset = "glyphs",
    data: DataPath = None,
    shots: Annotated[int, typer.Option(min=1, help="Labelled images per class (K).")] = 1,
    ways: Ways = None,
    queries: Queries = 8,
    unlabelled: Unlabelled = 5,
    distractors: Annotated[
        bool, typer.Option(help="Add unlabelled images of as many other classes as there are ways.")
    ] = False,
    realistic: Realistic = None,
    test_ways: TestWays = None,
    test_queries: TestQueries = 15,
    test_unlabelled: TestUnlabelled = 20,
    episodes: Annotated[int, typer.Option(min=1, help="Number of training episodes.")] = 2000,
    training: TrainingOptions = TrainingOptions(),  # noqa: B008 - frozen
    labelled_ratio: LabelledRatio = None,
    start: Annotated[
        Path | None,
        typer.Option("--start", help="Run folder to take the initial backbone from, e.g. of --method classifier."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Option of the method, NAME=VALUE. Repeat for more. Defaults: docs/recipe.md."),
    ] = None,
    image_size: ImageSize = None,
    data_options: DataOptions = None,
    strict: Strict = False,
    seed: Seed = 0,
    resume: Annotated[
        bool, typer.Option(help="Resume a stopped run; ends in the same weights as an uninterrupted one.")
    ] = False,
    device: Device = "auto",
    devices: Annotated[
        int, typer.Option(min=1, help="Data-parallel processes on this machine, one per GPU or group of cores.")
    ] = 1,
    num_nodes: Annotated[
        int, typer.Option(min=1, help="Number of machines; start the command on each with torchrun.")
    ] = 1,
    as_json: JsonFlag = False,
) -> None:
    """Meta-train a method on episodes of the training classes.

    Ctrl-C saves a checkpoint and stops. Run the same command with --resume to continue.

    Example: `handful train --method tac --shots 1 --episodes 2000 --out runs/tac`
    """
    from ..datasets import SPLITS, dataset_spec, load_dataset
    from ..embedders.shipped import model_folder
    from ..methods import method_options
    from ..runs.config import TrainingData, build_config, read_config, training_spec
    from ..runs.folder import started_from
    from ..runs.training import train as run_training

    keep_memory()
    check_device(device)
    origin = None if start is None else model_folder(start)
    if origin is not None:
        read_config(origin)  # before the images are read, which may take a while
    given = parse_settings("--set", method, method_options(method), settings or [])
    options = recipe_options(dataset, method, out, given, started=origin is not None) | given
    ratio = dataset_spec(dataset).labelled_ratio if labelled_ratio is None else labelled_ratio
    read_with = read_data_options(dataset, data_options, image_size)
    with progress_bar() as bar:
        train_images, validation_images = (
            load_dataset(dataset, split, data, options=read_with, strict=strict, bar=bar) for split in SPLITS[:2]
        )
    classes, tested = len(train_images.class_names), len(validation_images.class_names)
    spec = fitting_spec(
        "--ways", ways, WAYS, lambda n: episode_spec(n, shots, queries, unlabelled, distractors, realistic),
        {"train": classes}, lambda spec: training_spec(method, options, spec, classes),
    )  # fmt: skip
    test = fitting_spec(
        "--test-ways", test_ways, TEST_WAYS,
        lambda n: episode_spec(n, shots, test_queries, test_unlabelled, distractors, realistic), {"val": tested},
    )  # fmt: skip
    trained_on = TrainingData(dataset, train_images, ratio, None if data is None else str(data.resolve()), read_with)
    config = build_config(trained_on, method, options, spec, test, training, episodes=episodes, seed=seed)
    if origin is not None:
        config = started_from(config, origin)
    elif resume and (out / "config.json").exists():
        known = read_config(out)
        config = replace(config, start=known.start, start_weights=known.start_weights)
    with training_bar(f"training {method}", config.episodes) as show:
        progress = run_training(
            config, out, train_images, validation_images, resume=resume, accelerator=device, devices=devices,
            num_nodes=num_nodes,
            observe=lambda p, found: show(p.episode, p.loss_sum, p.loss_steps, p.best, found.mean if found else None),
        )  # fmt: skip
    if not is_main_process():
        return
    if as_json:
        typer.echo(json.dumps({"run": str(out), "config": config.to_json(), **asdict(progress)}, indent=2))
    else:
        console.print(
            f"{method}: {progress.episode} episodes; best validation accuracy {progress.best:.2f} % "
            f"at episode {progress.best_episode}. Next: handful evaluate {out}",
            soft_wrap=True,
        )
