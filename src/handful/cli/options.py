"""Options that several commands share, and what they are read into."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, wraps
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand

from ..errors import HandfulError
from ..machine import need_torch
from ..progress import messages
from ..runs.options import TrainingOptions, described
from ..terminal import Terminal

if TYPE_CHECKING:
    from ..sampling import EpisodeSpec

console = Terminal()  # standard output: results

JsonFlag = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]
Seed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of all random choices.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps; auto uses a GPU if there is one.")]
Realistic = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE", help="Classes of unequal size in the unlabelled set, and SHARE of it (0 to 1) distractors."
    ),
]
Uneven = Annotated[
    float | None,
    typer.Option(
        metavar="CONCENTRATION",
        help="Draw the classes' shares of the unlabelled images of each episode from a Dirichlet distribution of this "
        "concentration; 2 as in the literature, less is more uneven.",
    ),
]
DataPath = Annotated[Path | None, typer.Option("--data", help="Folder or archive of the data set; glyphs needs none.")]
ImageSize = Annotated[
    int | None,
    typer.Option(min=1, max=4096, help="Resize images to this many pixels a side. Default: that of the data set."),
]
DataOptions = Annotated[
    list[str] | None,
    typer.Option("--data-option", help="Option of the data set, NAME=VALUE (see 'handful datasets'). Repeat for more."),
]
Strict = Annotated[bool, typer.Option("--strict", help="Stop if an image cannot be read, instead of skipping it.")]


Dataset = Annotated[str, typer.Option(help="A name from 'handful datasets'.")]
WAYS, TEST_WAYS = 20, 5  # where a split has as many classes
Ways = Annotated[
    int | None,
    typer.Option(
        min=2, show_default=f"{WAYS}, or fewer if there are fewer classes",
        help="Classes of a training episode (N). More than in testing helps.",
    ),
]  # fmt: skip
Queries = Annotated[int, typer.Option(min=1, help="Query images per class in training.")]
Unlabelled = Annotated[
    int, typer.Option(min=0, help="Unlabelled images per class in training, for methods that use them.")
]
TestWays = Annotated[
    int | None,
    typer.Option(
        min=2, show_default=f"{TEST_WAYS}, or fewer if there are fewer classes",
        help="Classes of a validation or test episode.",
    ),
]  # fmt: skip
TestQueries = Annotated[int, typer.Option(min=1, help="Query images per class in validation and testing.")]
TestUnlabelled = Annotated[int, typer.Option(min=0, help="Unlabelled images per class in validation and testing.")]
LabelledRatio = Annotated[
    float | None, typer.Option(help="Share of each class that is labelled (0 to 1). Default: that of the data set.")
]


def takes_training_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `TrainingOptions` in the place of its parameter ``training``."""
    return _with_options(command, lambda given: TrainingOptions(**given), optional=False)


def takes_training_changes(command: Callable[..., None]) -> Callable[..., None]:
    """The same for a command whose defaults are a recipe's: ``training`` is a dict of those that were given."""

    def given_ones(given: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in given.items() if value is not None}

    return _with_options(command, given_ones, optional=True)


def _with_options(
    command: Callable[..., None], read: Callable[[dict[str, Any]], Any], *, optional: bool
) -> Callable[..., None]:
    """Typer makes options of a signature: this one has a parameter for each training option.

    With ``optional``, those that were not given are None.
    """
    options = described()

    @wraps(command)
    def run(**given: Any) -> None:
        training = read({option.name: given.pop(option.name) for option in options})
        command(**given, training=training)

    signature = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.name != "training":
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        for option in options:
            usual = {"False": "no", "True": "yes"}.get(str(option.default), option.default)
            shown = typer.Option(
                help=option.help.text, min=option.help.least, max=option.help.most,
                show_default=f"{usual}, unless the recipe says otherwise" if optional else True,
            )  # fmt: skip
            kind, default = (option.kind | None, None) if optional else (option.kind, option.default)
            parameters.append(
                inspect.Parameter(
                    option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, shown]
                )
            )
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters} | {"return": None}
    return run


class Command(TyperCommand):
    """A command whose help shows the names of its options whole, whatever the width of the terminal."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from typer import rich_utils  # takes a while, and only help needs it

        names = vars(rich_utils)
        table, names["Table"] = names["Table"], _Options
        try:
            super().format_help(ctx, formatter)
        finally:
            names["Table"] = table


class _Options(Table):
    """Typer's table of options, with the four columns of names as one that is never cut: ``--x`` above ``--no-x``."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        if len(cells) < 6:  # not a table of options
            super().add_row(*cells, **options)
            return
        *required, long, short, off, short_off, kind, about = cells
        lines = [Text(", ").join(part for part in pair if part.plain) for pair in ((long, short), (off, short_off))]
        super().add_row(*required, Text("\n").join(line for line in lines if line.plain), kind, about, **options)
        self.columns[len(required)].no_wrap = True


def episode_spec(
    ways: int,
    shots: int,
    queries: int,
    unlabelled: int,
    distractors: bool,
    realistic: float | None,
    uneven: float | None = None,
) -> EpisodeSpec:
    """An even episode, an uneven or a realistic one; distractors are as many classes again, with as many images."""
    from ..sampling import EpisodeSpec

    if distractors and realistic is not None:
        raise HandfulError("--distractors and --realistic exclude each other: the share already counts the distractors")
    if uneven is not None and realistic is not None:
        raise HandfulError("--uneven and --realistic exclude each other: a realistic episode is uneven in its own way")
    spec = EpisodeSpec(ways, shots, queries, unlabelled, concentration=uneven)
    if distractors and unlabelled:
        return replace(spec, distractor_ways=ways, distractors=unlabelled)
    if realistic is not None and unlabelled:
        return replace(spec, realistic_total=2 * ways * unlabelled, realistic_share=realistic)
    return spec


def fitting_spec(
    option: str,
    given: int | None,
    usual: int,
    make: Callable[[int], EpisodeSpec],
    classes: dict[str, int],
    suit: Callable[[EpisodeSpec], EpisodeSpec] = lambda spec: spec,
) -> EpisodeSpec:
    """An episode of the ways that were given, or the usual ones, or as many as the splits have classes for.

    Args:
        option, given, usual: the command line option of the ways, what it was given, and its default.
        make: an episode of so many ways.
        classes: how many there are in each split that the episodes are drawn from.
        suit: what the method makes of an episode; it may need no distractors, or take all classes.

    Raises:
        HandfulError: if the ways that were given need more classes than there are, or fewer than two would fit.
    """
    spec = make(given or usual)
    seen = suit(spec)
    split, there = min(classes.items(), key=lambda entry: entry[1])
    room, others = there, ""
    if seen.distractor_ways:  # classes of their own
        room, others = there // 2, " and as many distractor classes"
    elif seen.realistic_total and seen.realistic_share:
        room, others = there - 1, " and a class of distractors"
    if seen.ways != spec.ways or spec.ways <= room:
        return spec
    if given is not None or room < 2:
        advice = f"take at most {room}" if room >= 2 else f"2 ways{others} are the least, add classes"
        raise HandfulError(
            f"{option}: {spec.ways} ways{others} are more than the split '{split}' has, {there} classes: {advice}"
        )
    both = f" for the ways{others}" if others else ""
    _say_once(f"{option} is {room} here, not {usual}: the split '{split}' has {there} classes{both}")
    return make(room)


@cache
def _say_once(sentence: str) -> None:
    messages.print(sentence, soft_wrap=True)


COMPARISONS = ("cosine", "cosine_clustering", "classify")  # options that say whether a method compares by cosines
SCALES = ("scale", "cluster_scale")


def recipe_options(
    dataset: str, method: str, run: Path, given: Mapping[str, Any] = MappingProxyType({}), *, started: bool = False
) -> dict[str, Any]:
    """The method's options in the recipe of a data set; ``started`` from the embedder of another run.

    Options that are ``given`` come before them. If these change what is compared, squared distances or cosines, the
    recipe's scales, which are for the other, are left out; a ``form`` leaves all of it out. A run that is there already
    keeps its options.
    """
    from ..experiments.paper import recipe_for
    from ..methods import method_options
    from ..runs.config import read_config

    if "form" in given:  # it is complete by itself: the recipe would override a part of it
        return {}
    known = read_config(run) if (run / "config.json").exists() else None
    recipe = recipe_for(dataset)
    options = dict(recipe.options.get(method, {}))
    if started or (known is not None and known.start_weights is not None):
        options |= recipe.started_options.get(method, {})
    if known is not None:
        return {name: value for name, value in options.items() if name in known.options}
    usual = method_options(method) | options
    if any(given[name] != usual[name] for name in COMPARISONS if name in given):
        options = {name: value for name, value in options.items() if name not in SCALES}
    return options


def check_device(device: str) -> None:
    if device in ("auto", "cpu"):
        return  # nothing to ask PyTorch, which takes a second to import
    if device not in ("cuda", "mps"):
        raise HandfulError(f"unknown device '{device}': choose one of auto, cpu, cuda, mps")
    need_torch(f"--device {device}")
    import torch

    if not (torch.cuda if device == "cuda" else torch.backends.mps).is_available():
        raise HandfulError(f"this machine has no '{device}' device that PyTorch can use: leave out --device")


def read_data_options(
    dataset: str, settings: list[str] | None, image_size: int | None, defaults: bool = True
) -> dict[str, Any]:
    """The data set's options from ``--data-option`` and ``--image-size``, with or without its defaults."""
    from ..datasets import dataset_spec, full_options

    spec = dataset_spec(dataset)
    options = parse_settings("--data-option", dataset, spec.options, settings or [])
    if image_size is not None:
        options["image_size"] = image_size
    full = full_options(spec, options)
    return full if defaults else options


def parse_settings(option: str, owner: str, known: dict[str, Any], settings: list[str]) -> dict[str, Any]:
    """``NAME=VALUE`` pairs, each value read as its default's type."""
    options: dict[str, Any] = {}
    for setting in settings:
        name, separator, text = setting.partition("=")
        if name not in known or not separator:
            names = ", ".join(known) or "an empty list: it has no options"
            raise HandfulError(f"{option} {setting}: '{owner}' takes NAME=VALUE with a name from {names}")
        try:
            kind = type(known[name])
            options[name] = {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
        except (KeyError, ValueError):
            raise HandfulError(f"{option} {name} takes a value like {known[name]}, got '{text}'") from None
    return options
