"""The ``tacit`` command: thin wrappers that read options, call the library and print."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Column, Table

from . import __version__
from .cli_bench import bench
from .cli_data import data_app
from .cli_grid import grid
from .cli_label import head_app, label
from .cli_models import export, models
from .cli_options import (
    Augment,
    AveragePool,
    DataOptions,
    DataPath,
    Dataset,
    Device,
    EpisodesPerStep,
    ImageSize,
    JsonFlag,
    LabelledRatio,
    LearningRate,
    Precision,
    Queries,
    Realistic,
    Seed,
    Strict,
    TestQueries,
    TestUnlabelled,
    TestWays,
    Unlabelled,
    ValidateEvery,
    ValidationEpisodes,
    Ways,
    WeightDecay,
    check_device,
    console,
    episode_spec,
    parse_settings,
    read_data_options,
)
from .cli_reproduce import reproduce
from .distributed import is_main_process
from .errors import Interrupted, TacitError
from .machine import keep_memory
from .progress import messages, progress_bar, training_bar

# Lightning and matplotlib take seconds to import: commands import what they need, so that --help need not wait.

app = typer.Typer(
    help="Tell image classes apart from a handful of labels and a heap of unlabelled images.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="markdown",
)
app.add_typer(data_app, name="data")
app.add_typer(head_app, name="head")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tacit {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def methods(as_json: JsonFlag = False) -> None:
    """List the methods and their options."""
    from .methods import METHODS, method_options

    rows: list[dict[str, Any]] = [
        {"name": name, "title": cls.title, "summary": cls.summary, "options": method_options(name)}
        for name, cls in METHODS.items()
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        options = ", ".join(f"{name}={value}" for name, value in row["options"].items())
        console.print(row["name"], style="bold", end=" ")
        console.print(f"({row['title']})")
        console.print(f"  {row['summary']}", soft_wrap=True)
        console.print(f"  --set {options}", style="dim", soft_wrap=True)


@app.command()
def datasets(as_json: JsonFlag = False) -> None:
    """List the data sets."""
    from .datasets import DATASETS

    rows: list[dict[str, Any]] = [
        {
            "name": spec.name,
            "summary": spec.summary,
            "labelled_ratio": spec.labelled_ratio,
            "needs_data": spec.needs_path,
            "options": spec.options,
        }
        for spec in DATASETS.values()
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        files = "files at --data PATH" if row["needs_data"] else "embedded"
        options = ", ".join(f"{name}={value}" for name, value in row["options"].items())
        console.print(row["name"], style="bold", end=" ")
        console.print(f"({files}, {row['labelled_ratio']:.0%} labelled)")
        console.print(f"  {row['summary']}", soft_wrap=True)
        if options:
            console.print(f"  --data-option {options}", style="dim", soft_wrap=True)


@app.command()
def train(
    method: Annotated[str, typer.Option("--method", help="A name from 'tacit methods'.")],
    out: Annotated[Path, typer.Option("--out", help="Run folder to write.")],
    dataset: Dataset = "glyphs",
    data: DataPath = None,
    shots: Annotated[int, typer.Option(min=1, help="K: labelled images per class.")] = 1,
    ways: Ways = 20,
    queries: Queries = 8,
    unlabelled: Unlabelled = 5,
    distractors: Annotated[
        bool, typer.Option(help="Add as many distractor classes as ways to the unlabelled set.")
    ] = False,
    realistic: Realistic = None,
    test_ways: TestWays = 5,
    test_queries: TestQueries = 15,
    test_unlabelled: TestUnlabelled = 20,
    episodes: Annotated[int, typer.Option(min=1, help="Training episodes in all.")] = 2000,
    episodes_per_step: EpisodesPerStep = 1,
    learning_rate: LearningRate = 1e-3,
    weight_decay: WeightDecay = 5e-4,
    precision: Precision = "float32",
    labelled_ratio: LabelledRatio = None,
    average_pool: AveragePool = False,
    augment: Augment = False,
    start: Annotated[
        Path | None,
        typer.Option("--start", help="Run folder whose embedder to start from, such as one of --method classifier."),
    ] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="Method option NAME=VALUE; repeatable.")] = None,
    image_size: ImageSize = None,
    data_options: DataOptions = None,
    strict: Strict = False,
    validate_every: ValidateEvery = 500,
    validation_episodes: ValidationEpisodes = 200,
    seed: Seed = 0,
    resume: Annotated[bool, typer.Option(help="Continue a stopped run to the weights it would have had.")] = False,
    device: Device = "auto",
    devices: Annotated[
        int, typer.Option(min=1, help="Processes on this machine that share each step, one per GPU or group of cores.")
    ] = 1,
    num_nodes: Annotated[int, typer.Option(min=1, help="Machines; start the command on each with torchrun.")] = 1,
    as_json: JsonFlag = False,
) -> None:
    """Meta-train a method on episodes of the training classes.

    Ctrl-C saves and stops; the same command with --resume goes on.

    Example: `tacit train --method tac --shots 1 --episodes 2000 --out runs/tac`
    """
    from .datasets import SPLITS, dataset_spec, load_dataset
    from .methods import method_options
    from .models import model_folder
    from .run import RunConfig, read_config, started_from, training_spec
    from .training import train as run_training

    keep_memory()
    check_device(device)
    origin = None if start is None else model_folder(start)
    if origin is not None:
        read_config(origin)  # before the images are read, which may take a while
    options = parse_settings("--set", method, method_options(method), settings or [])
    ratio = dataset_spec(dataset).labelled_ratio if labelled_ratio is None else labelled_ratio
    read_with = read_data_options(dataset, data_options, image_size)
    with progress_bar() as bar:
        train_images, validation_images = (
            load_dataset(dataset, split, data, options=read_with, strict=strict, bar=bar) for split in SPLITS[:2]
        )
    spec = episode_spec(ways, shots, queries, unlabelled, distractors, realistic)
    config = RunConfig(
        method=method,
        options=options,
        dataset=dataset,
        data=None if data is None else str(data.resolve()),
        data_options=read_with,
        augment=augment,
        fingerprint=train_images.fingerprint(),
        labelled_ratio=ratio,
        channels=train_images.channels,
        image_size=train_images.image_size,
        backbone_options={"average_pool": True} if average_pool else {},
        train=training_spec(method, options, spec, len(train_images.class_names)),
        validation=episode_spec(test_ways, shots, test_queries, test_unlabelled, distractors, realistic),
        episodes=episodes,
        episodes_per_step=episodes_per_step,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        precision=precision,
        validate_every=validate_every,
        validation_episodes=validation_episodes,
        seed=seed,
    )
    if origin is not None:
        config = started_from(config, origin)
    elif resume and (out / "config.json").exists():
        known = read_config(out)
        config = replace(config, start=known.start, start_weights=known.start_weights)
    with training_bar(f"training {method}", config) as observe:
        progress = run_training(
            config, out, train_images, validation_images, resume=resume, accelerator=device, devices=devices,
            num_nodes=num_nodes, observe=observe,
        )  # fmt: skip
    if not is_main_process():
        return
    if as_json:
        typer.echo(json.dumps({"run": str(out), "config": config.to_json(), **asdict(progress)}, indent=2))
    else:
        console.print(
            f"{method}: {progress.episode} episodes; best validation accuracy {progress.best:.2f} % "
            f"at episode {progress.best_episode}. Next: tacit evaluate {out}",
            soft_wrap=True,
        )


@app.command()
def evaluate(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Run folders of 'tacit train', or names from 'tacit models'.")
    ],
    dataset: Annotated[str | None, typer.Option(help="Another data set than the run was trained on.")] = None,
    data: DataPath = None,
    method: Annotated[
        str | None, typer.Option(help="Evaluate as another method that learns the same, e.g. tapnet-semi for tapnet.")
    ] = None,
    ways: Annotated[int | None, typer.Option(min=2, help="N: classes of a test episode; 5 by default.")] = None,
    shots: Annotated[int | None, typer.Option(min=1, help="K; as in training by default.")] = None,
    queries: Annotated[int | None, typer.Option(min=1, help="Queries per class; as in the run's validation.")] = None,
    unlabelled: Annotated[
        int | None, typer.Option(min=0, help="Unlabelled images per class; as in validation.")
    ] = None,
    distractors: Annotated[bool, typer.Option(help="Add as many distractor classes as ways.")] = False,
    realistic: Realistic = None,
    splits: Annotated[int, typer.Option(min=1, help="Random labelled/unlabelled splits.")] = 10,
    episodes: Annotated[int, typer.Option(min=1, help="Test episodes per split.")] = 3000,
    iterations: Annotated[
        str, typer.Option(help="Refinements: a number, or auto: best on the validation classes.")
    ] = "auto",
    data_options: DataOptions = None,
    strict: Strict = False,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: JsonFlag = False,
) -> None:
    """Measure runs on the test classes, with 95 % intervals.

    Every image is embedded once; the result is also kept in RUN/results (not for a model that came with tacit).

    Example: `tacit evaluate runs/tac runs/pn --distractors`, or `tacit evaluate tac-glyphs`
    """
    from .evaluation import Protocol, evaluate_run
    from .models import model_folder
    from .run import read_config

    keep_memory()
    check_device(device)
    wanted = None if iterations == "auto" else _whole_number(iterations, "--iterations")
    results = []
    for run in map(model_folder, runs):
        config = read_config(run)
        base = config.validation
        ways_, unlabelled_ = ways or base.ways, base.unlabelled if unlabelled is None else unlabelled
        spec = episode_spec(ways_, shots or base.shots, queries or base.queries, unlabelled_, distractors, realistic)
        protocol = Protocol(spec, config.labelled_ratio, splits, episodes, seed)
        read_with = read_data_options(dataset or config.dataset, data_options, None, defaults=False)
        with progress_bar() as bar:
            results.append(
                evaluate_run(
                    run, protocol, method=method, dataset=dataset, data=None if data is None else str(data),
                    data_options=read_with, strict=strict, iterations=wanted, device=device, bar=bar,
                )
            )  # fmt: skip
    if as_json:
        typer.echo(json.dumps(results if len(results) > 1 else results[0], indent=2))
        return
    for description in dict.fromkeys(result["protocol"]["description"] for result in results):
        table = Table(
            Column("run", overflow="fold"), "method", "accuracy (%)", "iterations", "trained on", "episodes/s", box=None
        )
        for result in results:
            if result["protocol"]["description"] == description:
                interval = "unknown" if result["interval"] is None else f"{result['interval']:.2f}"
                table.add_row(
                    result["run"], result["title"], f"{result['mean']:.2f} ± {interval}",
                    str(result["iterations"]), f"{result['trained']['episodes']} episodes",
                    f"{result['episodes_per_second']:.0f}",
                )  # fmt: skip
        console.print(table)
        console.print(f"{description}; ± is the 95 % interval over episodes.")


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for the runs and the report.")] = Path("tacit-demo"),
    episodes: Annotated[
        int | None, typer.Option(min=1, help="Training episodes of each model; more is better.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="All methods: three times as long.")] = False,
    models: Annotated[
        list[str] | None,
        typer.Option("--model", help="Trained on glyphs: used instead of training its method; repeatable."),
    ] = None,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: JsonFlag = False,
) -> None:
    """The tour on the embedded data: train briefly, compare, write one HTML report. A few minutes on two cores.

    Example, with weights from 'tacit models' (or a run folder) for TAC: `tacit demo --model tac-glyphs`
    """
    from .experiments.demo import EPISODES, run_demo

    keep_memory()
    check_device(device)
    to = messages if as_json else console
    result = run_demo(
        out, full=full, episodes=episodes or EPISODES, models=models or (), seed=seed, device=device, console=to
    )
    if as_json:
        typer.echo(json.dumps(result, indent=2))


app.command()(models)
app.command()(export)
app.command()(grid)
app.command()(reproduce)
app.command()(label)
app.command()(bench)


def main() -> None:
    """Entry point: bad input is one sentence and exit code 2; bugs keep their traceback."""
    if isinstance(sys.stdout, TextIOWrapper):  # names of files may hold what the terminal's encoding does not
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app()
    except TacitError as error:
        _say(str(error))
        sys.exit(error.exit_code)
    except Interrupted as stop:
        _say(str(stop))
        sys.exit(130)
    except ValueError as error:  # Python's own, of a name in an option or a file that is no name anywhere
        if "embedded null" not in str(error):
            raise
        _say("a name or a path holds a NUL character, which no file has in its name: remove it")
        sys.exit(2)
    except OSError as error:  # a full disk, a folder that may not be written
        _say(f"{error.strerror or error}: {error.filename}" if error.filename else str(error))
        sys.exit(2 if isinstance(error, PermissionError | FileExistsError | NotADirectoryError) else 1)


def _say(sentence: str) -> None:
    if not is_main_process():  # the first of several processes speaks for all
        return
    messages.print("tacit:", style="bold red", end=" ")
    messages.print(sentence, soft_wrap=True)


def _whole_number(text: str, option: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise TacitError(f"{option} takes a whole number or auto, got '{text:.40}'")
    return int(text)
