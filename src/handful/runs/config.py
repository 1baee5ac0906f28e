"""The settings of a run: ``config.json`` is all that is needed to build its model again.

What else a run folder holds is in :mod:`.folder`.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch

from ..errors import HandfulError
from ..io import read_object
from ..methods import build_method
from ..sampling import EpisodeSpec

_KINDS: dict[str, Any] = {
    "str": str, "str | None": str | None, "int": int, "int | None": int | None, "float": float | int,
    "bool": bool, "dict[str, Any]": dict,
}  # fmt: skip

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}

# Far beyond any training, and below what would exhaust the memory or never end.
MOST = {"episodes": 10**9, "episodes_per_step": 10**6, "validate_every": 10**9, "validation_episodes": 10**6}
MOST_PIXELS = 4096  # a side of an image
MOST_OF_EPISODE = 10**6  # classes of an episode, or images of one of them
MOST_TOGETHER = 10**7  # images of the episodes that are drawn together: those of a step, or of a validation
MOST_REFINEMENTS = 1000
MOST_PARAMETERS = 10**9
MOST_SEED = 2**32 - 1


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides what a training run becomes.

    Attributes:
        method, options: the method and its options.
        dataset, data, data_options: the data set, where its files are (None for embedded data), how they are read.
        fingerprint: of the training images, to notice other data on resuming.
        labelled_ratio: share of each class whose labels may be used.
        backbone, backbone_options, channels, image_size: the embedder.
        start, start_weights: the run folder whose backbone it starts from, and the checksum of its weights; None to
            start from random ones.
        augment: whether training images are moved and mirrored at random.
        train: what a training episode holds.
        validation: what a validation episode holds.
        episodes: training episodes in all.
        episodes_per_step: how many of them share one step of the optimiser.
        learning_rate, decay_at, decay: Adam's rate is multiplied by ``decay`` after ``decay_at`` of the episodes.
        weight_decay: L2 penalty in Adam.
        precision: of the embedder's arithmetic in training, a key of `PRECISIONS`; the method's own is float32.
        validate_every, validation_episodes: how often, and on how many episodes.
        seed: fixes everything.
    """

    method: str
    dataset: str
    fingerprint: str
    labelled_ratio: float
    channels: int
    image_size: int
    train: EpisodeSpec
    validation: EpisodeSpec
    options: dict[str, Any] = field(default_factory=dict)
    data: str | None = None
    data_options: dict[str, Any] = field(default_factory=dict)
    backbone: str = "conv4"
    backbone_options: dict[str, Any] = field(default_factory=dict)
    start: str | None = None
    start_weights: str | None = None
    augment: bool = False
    episodes: int = 2000
    episodes_per_step: int = 1
    learning_rate: float = 1e-3
    decay_at: float = 0.8
    decay: float = 0.1
    weight_decay: float = 5e-4
    precision: str = "float32"
    validate_every: int = 500
    validation_episodes: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        for name, most in MOST.items():
            check_range(name.replace("_", "-"), getattr(self, name), 1, most)
        check_range("the image size", self.image_size, 1, MOST_PIXELS)
        check_range("the seed", self.seed, 0, MOST_SEED)
        if not (0 < self.learning_rate <= sys.float_info.max):  # an int may be larger than any float
            raise HandfulError(f"the learning rate must be a number above 0, got {self.learning_rate!s:.40}")
        for name, value in {"weight decay": self.weight_decay, "decay": self.decay, "decay at": self.decay_at}.items():
            if not (0 <= value <= sys.float_info.max):
                raise HandfulError(f"the {name} must be a number from 0 up, got {value!s:.40}")
        if not 0 < self.labelled_ratio <= 1:
            raise HandfulError(f"the labelled ratio must be above 0 and at most 1, got {self.labelled_ratio!s:.40}")
        if self.precision not in PRECISIONS:
            raise HandfulError(f"unknown precision '{self.precision}': choose one of {', '.join(PRECISIONS)}")
        for spec, together in ((self.train, self.episodes_per_step), (self.validation, self.validation_episodes)):
            for entry in fields(spec):
                check_range(entry.name.replace("_", " "), getattr(spec, entry.name) or 0, 0, MOST_OF_EPISODE)
            if (images := together * images_of(spec)) > MOST_TOGETHER:
                raise HandfulError(
                    f"{together:,} episodes of {images_of(spec):,} images are {images:,} images at a time, more than "
                    f"{MOST_TOGETHER:,}: take fewer"
                )
        for name in ("iterations", "train_iterations"):
            check_range(name, self.options.get(name, 0), 0, MOST_REFINEMENTS)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: Any, path: Path) -> RunConfig:
        try:
            for kind, part in ((cls, content), (EpisodeSpec, content["train"]), (EpisodeSpec, content["validation"])):
                _check_kinds(kind, part)
            specs = {name: EpisodeSpec(**content[name]) for name in ("train", "validation")}
            config = cls(**{**content, **specs})
        except (TypeError, KeyError, AttributeError, HandfulError) as error:
            raise HandfulError(f"{path} is not the settings of a run: {' '.join(str(error).split())}") from error
        return config

    def differences(self, other: RunConfig) -> list[str]:
        """Settings in which two runs differ, as ``name (ours, theirs)``; files may have moved, if they are the same."""
        names = (entry.name for entry in fields(self) if entry.name not in ("data", "start"))
        pairs = ((name, getattr(self, name), getattr(other, name)) for name in names)
        return [f"{name} ({ours} here, {theirs} there)" for name, ours, theirs in pairs if ours != theirs]


def _check_kinds(cls: Any, content: dict[str, Any]) -> None:
    """Whether values from a file are of the kind that the fields of a dataclass say; before anything compares them."""
    for entry in fields(cls):
        value, kind = content.get(entry.name), str(entry.type)
        if entry.name not in content or kind == "EpisodeSpec":
            continue
        if not isinstance(value, _KINDS[kind]) or (isinstance(value, bool) and kind != "bool"):
            raise HandfulError(f"{entry.name} should be {entry.type}")
        if isinstance(value, str) and "\0" in value:
            raise HandfulError(f"{entry.name} holds a NUL character")


def images_of(spec: EpisodeSpec) -> int:
    """How many images an episode shows."""
    unlabelled = spec.ways * spec.unlabelled + spec.distractor_ways * spec.distractors
    total = spec.realistic_total if spec.realistic_total is not None else unlabelled
    return spec.ways * (spec.shots + spec.queries) + total


def check_range(name: str, value: Any, least: int, most: int) -> None:
    if value < least:
        raise HandfulError(f"{name} must be at least {least}, got {value!s:.40}")
    if not value <= most:
        raise HandfulError(f"{name} must be at most {most:,}, got {value!s:.40}")


def training_spec(method: str, options: dict[str, Any], spec: EpisodeSpec, classes: int) -> EpisodeSpec:
    """A training episode as a method needs it: without unlabelled images, or with two images of each class there is."""
    # What else there may be among the options may not suit these sizes.
    built = build_method(method, dim=64, ways=2, **{k: v for k, v in options.items() if k == "train_iterations"})
    if not built.trains_on_unlabelled:
        spec = replace(spec, unlabelled=0, distractor_ways=0, distractors=0, realistic_total=None, realistic_share=0.0)
    return replace(spec, ways=classes, shots=1, queries=1) if built.in_order else spec


def read_config(folder: Path) -> RunConfig:
    """The settings of a run folder, or a sentence that says it is not one."""
    path = folder / "config.json"
    if not path.is_file():
        raise HandfulError(f"{folder} is not a run folder: it has no config.json")
    return RunConfig.from_json(read_object(path), path)
