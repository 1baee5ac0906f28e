"""Options that several commands share, and what they are read into."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import HandfulError
from ..terminal import Terminal

if TYPE_CHECKING:
    from ..sampling import EpisodeSpec

console = Terminal()  # standard output: results

JsonFlag = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]
Seed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Fixes every random choice.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps. auto takes what is there.")]
Realistic = Annotated[
    float | None,
    typer.Option(metavar="SHARE", help="Uneven unlabelled set as large as with --distractors, of which SHARE are."),
]
DataPath = Annotated[Path | None, typer.Option("--data", help="Where the data set's files are; not for embedded data.")]
ImageSize = Annotated[
    int | None, typer.Option(min=1, max=4096, help="Side that images are resized to; the data set's own by default.")
]
DataOptions = Annotated[
    list[str] | None,
    typer.Option("--data-option", help="Option NAME=VALUE of the data set, see 'handful datasets'; repeatable."),
]
Strict = Annotated[bool, typer.Option("--strict", help="Stop if an image cannot be read, instead of leaving it out.")]


Dataset = Annotated[str, typer.Option(help="A name from 'handful datasets'.")]
Ways = Annotated[int, typer.Option(min=2, help="N: classes of a training episode; more than the test's 5 helps.")]
Queries = Annotated[int, typer.Option(min=1, help="Queries per class in training.")]
Unlabelled = Annotated[int, typer.Option(min=0, help="Unlabelled images per class in training, where used.")]
TestWays = Annotated[int, typer.Option(min=2, help="Classes of an episode in validation and testing.")]
TestQueries = Annotated[int, typer.Option(min=1, help="Queries per class there.")]
TestUnlabelled = Annotated[int, typer.Option(min=0, help="Unlabelled images per class there.")]
EpisodesPerStep = Annotated[int, typer.Option(min=1, help="Episodes that share a step of the optimiser.")]
LearningRate = Annotated[float, typer.Option(help="Adam's rate; a tenth of it for the last fifth.")]
WeightDecay = Annotated[float, typer.Option(min=0, help="L2 penalty.")]
Precision = Annotated[str, typer.Option(help="Of the embedder in training: float32, or bfloat16, about twice as fast.")]
LabelledRatio = Annotated[
    float | None, typer.Option(help="Share of each class that is labelled; the data set's own by default.")
]
AveragePool = Annotated[bool, typer.Option(help="2 x 2 average pool on the backbone, as for tieredImageNet.")]
Augment = Annotated[
    bool, typer.Option("--augment", help="Move and mirror training images at random: for photographs, not for letters.")
]
ValidateEvery = Annotated[int, typer.Option(min=1, help="Episodes between validations.")]
ValidationEpisodes = Annotated[int, typer.Option(min=1, help="Episodes of a validation.")]


def episode_spec(
    ways: int, shots: int, queries: int, unlabelled: int, distractors: bool, realistic: float | None
) -> EpisodeSpec:
    """An even episode, or a realistic one; distractors are as many classes again, with as many images each."""
    from ..sampling import EpisodeSpec

    if distractors and realistic is not None:
        raise HandfulError("--distractors and --realistic exclude each other: the share already counts the distractors")
    spec = EpisodeSpec(ways, shots, queries, unlabelled)
    if distractors and unlabelled:
        return replace(spec, distractor_ways=ways, distractors=unlabelled)
    if realistic is not None and unlabelled:
        return replace(spec, realistic_total=2 * ways * unlabelled, realistic_share=realistic)
    return spec


def check_device(device: str) -> None:
    import torch

    present = {"auto": True, "cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device not in present:
        raise HandfulError(f"unknown device '{device}': choose one of {', '.join(present)}")
    if not present[device]:
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
