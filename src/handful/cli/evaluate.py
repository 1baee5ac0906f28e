"""``handful evaluate``: accuracy on test classes."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.table import Column, Table

from ..errors import HandfulError
from ..machine import keep_memory
from ..progress import progress_bar
from .options import (
    DataOptions,
    DataPath,
    Device,
    JsonFlag,
    Realistic,
    Seed,
    Strict,
    Uneven,
    check_device,
    console,
    episode_spec,
    parse_settings,
    read_data_options,
)


def evaluate(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Run folders of 'handful train', or names from 'handful models'."),
    ],
    dataset: Annotated[str | None, typer.Option(help="Test on this data set. Default: that of the training.")] = None,
    data: DataPath = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="Use the weights with another method that has the same parameters, e.g. tapnet-semi for tapnet."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Option of --method, NAME=VALUE. Repeat for more. The backbone of the run is used alone, by a method "
            "that has nothing to learn.",
        ),
    ] = None,
    ways: Annotated[int | None, typer.Option(min=2, help="Classes of a test episode (N). Default: 5.")] = None,
    shots: Annotated[
        int | None, typer.Option(min=1, help="Labelled images per class (K). Default: as in training.")
    ] = None,
    queries: Annotated[
        int | None, typer.Option(min=1, help="Query images per class. Default: as in validation.")
    ] = None,
    unlabelled: Annotated[
        int | None, typer.Option(min=0, help="Unlabelled images per class. Default: as in validation.")
    ] = None,
    distractors: Annotated[
        bool, typer.Option(help="Add unlabelled images of as many other classes as there are ways.")
    ] = False,
    realistic: Realistic = None,
    uneven: Uneven = None,
    splits: Annotated[int, typer.Option(min=1, help="Random labelled/unlabelled splits.")] = 10,
    episodes: Annotated[int, typer.Option(min=1, help="Test episodes per split.")] = 3000,
    iterations: Annotated[
        str, typer.Option(help="Number of refinements; auto chooses it on the validation classes.")
    ] = "auto",
    tune: Annotated[
        bool,
        typer.Option(
            "--tune",
            help="Choose the temperature of the soft labels on the validation classes, together with the number of "
            "refinements: cluster_scale times 0.03, 0.1, 0.2, 0.5, 1, 2, 5 or 10.",
        ),
    ] = False,
    trials: Annotated[
        int,
        typer.Option(
            min=0,
            max=1000,
            help="Choose the options that matter most to the method on the validation classes instead, by so many "
            "trials: its own values first.",
        ),
    ] = 0,
    validation: Annotated[
        bool,
        typer.Option(
            "--validation",
            help="Measure on the validation classes instead, to compare recipes without looking at test classes. The "
            "weights were chosen on these classes, and what --tune chooses is: the accuracy is a little too high. It "
            "is not written to RUN/results.",
        ),
    ] = False,
    data_options: DataOptions = None,
    strict: Strict = False,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: JsonFlag = False,
) -> None:
    """Measure runs on the test classes, with 95 % intervals.

    The result is also written to RUN/results, except for models that come with handful. Each image is embedded once.
    Its vector is kept for the next evaluation, in the folder 'evaluated' of the cache (HANDFUL_CACHE): at most 2 GB,
    which can be deleted at any time.

    Example: `handful evaluate runs/tac runs/pn --distractors`, or `handful evaluate tac-glyphs`
    """
    from ..embedders.shipped import model_folder
    from ..runs.config import read_config
    from ..runs.episodes import Protocol
    from ..runs.evaluation import evaluate_run
    from ..runs.results import format_accuracy

    keep_memory()
    check_device(device)
    if trials and (tune or iterations != "auto"):
        raise HandfulError("--trials also chooses the refinements: leave out --tune and --iterations")
    wanted = None if iterations == "auto" else _whole_number(iterations, "--iterations")
    given = _options(method, settings) if settings else None
    results = []
    for run in map(model_folder, runs):
        config = read_config(run)
        base = config.validation
        ways_, unlabelled_ = ways or base.ways, base.unlabelled if unlabelled is None else unlabelled
        sizes = (ways_, shots or base.shots, queries or base.queries, unlabelled_)
        spec = episode_spec(*sizes, distractors, realistic, uneven)
        protocol = Protocol(spec, config.labelled_ratio, splits, episodes, seed)
        read_with = read_data_options(dataset or config.dataset, data_options, None, defaults=False)
        with progress_bar() as bar:
            results.append(
                evaluate_run(
                    run, protocol, method=method, options=given, dataset=dataset,
                    data=None if data is None else str(data),
                    data_options=read_with, strict=strict, iterations=wanted, tuned=tune, trials=trials,
                    split="val" if validation else "test", device=device, bar=bar,
                )
            )  # fmt: skip
    if as_json:
        contents = [result.to_json() for result in results]
        typer.echo(json.dumps(contents if len(contents) > 1 else contents[0], indent=2))
        return
    for description in dict.fromkeys(result.protocol["description"] for result in results):
        chosen = ["cluster_scale"] if tune else []
        table = Table(
            Column("run", overflow="fold"), "method", "accuracy (%)", "iterations", *chosen, "trained on", "episodes/s",
            box=None,
        )  # fmt: skip
        for result in (result for result in results if result.protocol["description"] == description):
            table.add_row(
                result.run, result.title, format_accuracy(result.mean, result.interval), str(result.iterations),
                *([_times(result.cluster_multiplier)] if tune else []),
                f"{result.trained.episodes} episodes", f"{result.episodes_per_second:.0f}",
            )  # fmt: skip
        console.print(table)
        classes = "validation" if validation else "test"
        console.print(f"{classes.capitalize()} classes; {description}; ± is the 95 % interval over episodes.")
        if tried := max(result.trials for result in results):
            what = "Options" if trials else "Temperature and refinements"
            console.print(f"{what} chosen on validation classes, {tried} trials each.")
        for result in results if trials else []:
            chosen_values = ", ".join(f"{name} {value:.3g}" for name, value in result.values.items())
            console.print(f"{result.title}: {chosen_values or 'nothing to choose'}", soft_wrap=True)


def _options(method: str | None, settings: list[str]) -> dict[str, Any]:
    """The options of a method that is named beside them."""
    from ..methods import method_options

    if method is None:
        raise HandfulError("--set is for options of --method: name the method that the backbone is to be used with")
    return parse_settings("--set", method, method_options(method), settings)


def _times(multiplier: float | None) -> str:
    return "-" if multiplier is None else f"x {multiplier:g}"


def _whole_number(text: str, option: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise HandfulError(f"{option} takes a whole number or auto, got '{text:.40}'")
    return int(text)
