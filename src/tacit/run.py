"""A run: its settings, its folder and its model. ``config.json`` is all that is needed to build the model again.

A run folder holds ``config.json``, ``labelled.npz`` (which images counted as labelled), ``classes.json`` (what it has
seen), ``metrics.jsonl``, ``checkpoint/`` and ``results/*.json``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .augmentation import shift_and_flip
from .backbones import build_backbone, to_input
from .checkpoint import checksum, load_checkpoint, read_object
from .datasets import ImageSet, dataset_spec, load_dataset
from .datasets.base import Bar, no_bar
from .episode import Episode
from .errors import TacitError
from .methods import Method, build_method, method_options
from .sampling import EpisodeSpec

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
# What no sound model has. Adam moves a weight by about its rate in a step: at a rate of 1, this takes a million steps.
# Buffers hold means and variances, which go with the square of the weights.
MOST_WEIGHT, MOST_BUFFER = 1e6, 1e12


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
            raise TacitError(f"the learning rate must be a number above 0, got {self.learning_rate!s:.40}")
        for name, value in {"weight decay": self.weight_decay, "decay": self.decay, "decay at": self.decay_at}.items():
            if not (0 <= value <= sys.float_info.max):
                raise TacitError(f"the {name} must be a number from 0 up, got {value!s:.40}")
        if not 0 < self.labelled_ratio <= 1:
            raise TacitError(f"the labelled ratio must be above 0 and at most 1, got {self.labelled_ratio!s:.40}")
        if self.precision not in PRECISIONS:
            raise TacitError(f"unknown precision '{self.precision}': choose one of {', '.join(PRECISIONS)}")
        for spec, together in ((self.train, self.episodes_per_step), (self.validation, self.validation_episodes)):
            for entry in fields(spec):
                check_range(entry.name.replace("_", " "), getattr(spec, entry.name) or 0, 0, MOST_OF_EPISODE)
            if (images := together * images_of(spec)) > MOST_TOGETHER:
                raise TacitError(
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
        except (TypeError, KeyError, AttributeError, TacitError) as error:
            raise TacitError(f"{path} is not the settings of a run: {' '.join(str(error).split())}") from error
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
            raise TacitError(f"{entry.name} should be {entry.type}")
        if isinstance(value, str) and "\0" in value:
            raise TacitError(f"{entry.name} holds a NUL character")


def images_of(spec: EpisodeSpec) -> int:
    """How many images an episode shows."""
    unlabelled = spec.ways * spec.unlabelled + spec.distractor_ways * spec.distractors
    total = spec.realistic_total if spec.realistic_total is not None else unlabelled
    return spec.ways * (spec.shots + spec.queries) + total


def check_range(name: str, value: Any, least: int, most: int) -> None:
    if value < least:
        raise TacitError(f"{name} must be at least {least}, got {value!s:.40}")
    if not value <= most:
        raise TacitError(f"{name} must be at most {most:,}, got {value!s:.40}")


class Learner(nn.Module):
    """A backbone and a method. Calling it on an episode of stored images gives the training loss.

    With ``precision`` bfloat16 the backbone's convolutions in training take half the memory and, on processors and
    graphics cards that know the type, about half the time; weights, gradients and the method stay in float32.
    With ``augment``, training images are moved and mirrored at random.
    """

    backbone: nn.Module
    method: Method

    def __init__(self, backbone: nn.Module, method: Method, precision: str = "float32", augment: bool = False) -> None:
        super().__init__()
        self.backbone, self.method, self.precision = backbone, method, PRECISIONS[precision]
        self.augment = augment

    def forward(self, episode: Episode, turn: str = "learner") -> Tensor:
        """Images (..., height, width, channels) uint8 -> scalar loss of one turn of the method."""
        return self.method.loss(episode.map_images(self._embed), turn)

    def _embed(self, images: Tensor) -> Tensor:
        pixels = to_input(shift_and_flip(images) if self.augment and self.training else images)
        mixed = self.precision != torch.float32
        with torch.autocast(pixels.device.type, self.precision if mixed else None, enabled=mixed):
            vectors: Tensor = self.backbone(pixels)
        return vectors.to(pixels.dtype)

    def turn_parameters(self) -> dict[str, list[nn.Parameter]]:
        """The parameters that each turn of a training step moves."""
        first, *others = self.method.turns
        claimed = self.method.turn_parameters()
        taken = {id(parameter) for turn in others for parameter in claimed[turn]}
        free = [parameter for parameter in self.parameters() if id(parameter) not in taken]
        return {first: free, **{turn: claimed[turn] for turn in others}}


def build_learner(config: RunConfig) -> Learner:
    """A fresh model; its weights are fixed by the seed."""
    # First a model without numbers: nothing is drawn, and settings of absurd size take no memory.
    try:
        with torch.device("meta"):
            size = sum(value.numel() for value in _assemble(config).state_dict().values())
    except TacitError:
        raise
    except (TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        reason = f"{error}".partition("\n")[0]
        raise TacitError(f"the settings do not describe a model: {reason:.200}") from error
    if size > MOST_PARAMETERS:
        raise TacitError(
            f"the settings describe a model of {size:,} numbers, more than {MOST_PARAMETERS:,}: take fewer ways, "
            "smaller images or smaller options"
        )
    torch.manual_seed(config.seed)
    return _assemble(config)


def _assemble(config: RunConfig) -> Learner:
    backbone = build_backbone(config.backbone, config.channels, config.image_size, **config.backbone_options)
    dim: int = backbone.dim  # type: ignore[assignment]
    method = build_method(config.method, dim, config.train.ways, **config.options)
    return Learner(backbone, method, config.precision, config.augment)


def started_from(config: RunConfig, run: Path) -> RunConfig:
    """The settings of a run that starts from the backbone of another, which must be of the same kind."""
    other = read_config(run)
    for name in ("backbone", "backbone_options", "channels", "image_size"):
        ours, theirs = getattr(config, name), getattr(other, name)
        if ours != theirs:
            raise TacitError(f"cannot start from {run}: it has {name.replace('_', ' ')} {theirs}, this run {ours}")
    seen_classes(run)  # without them nobody could tell which accuracies mean something
    return replace(config, start=str(run.resolve()), start_weights=checksum(run / "checkpoint", "best"))


def load_start(learner: Learner, config: RunConfig) -> None:
    """Give a fresh model the backbone that it is to start from, if any."""
    if config.start is None:
        return
    run = Path(config.start)
    if checksum(run / "checkpoint", "best") != config.start_weights:
        raise TacitError(f"the weights in {run} are not those that this run is to start from: train it anew")
    tensors, _ = load_checkpoint(run / "checkpoint", "best")
    prefix = "model.backbone."
    _load_weights(
        learner.backbone, {key: value for key, value in tensors.items() if key.startswith(prefix)}, prefix, run
    )


def training_spec(method: str, options: dict[str, Any], spec: EpisodeSpec, classes: int) -> EpisodeSpec:
    """A training episode as a method needs it: without unlabelled images, or with two images of each class there is."""
    # What else there may be among the options may not suit these sizes.
    built = build_method(method, dim=64, ways=2, **{k: v for k, v in options.items() if k == "train_iterations"})
    if not built.trains_on_unlabelled:
        spec = replace(spec, unlabelled=0, distractor_ways=0, distractors=0, realistic_total=None, realistic_share=0.0)
    return replace(spec, ways=classes, shots=1, queries=1) if built.in_order else spec


def seen_classes(folder: Path) -> dict[str, list[str]]:
    """Names of the classes that a run has seen, by split; those that its start had seen are under ``start``.

    Raises:
        TacitError: if nobody knows; a test on classes that the run may have seen would mean nothing.
    """
    path = folder / "classes.json"
    if not path.is_file():
        raise TacitError(
            f"{folder} has no classes.json, which says what classes it has seen: put it back, or write it again with "
            "the run's 'tacit train' command and --resume"
        )
    seen = read_object(path)
    for split in ("train", "val", *seen):
        names = seen.get(split)
        if not names or not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise TacitError(
                f"{path} is damaged: '{split}' should be a list of class names; remove it and write it again with the "
                "run's 'tacit train' command and --resume"
            )
    return seen


def read_config(folder: Path) -> RunConfig:
    """The settings of a run folder, or a sentence that says it is not one."""
    path = folder / "config.json"
    if not path.is_file():
        raise TacitError(f"{folder} is not a run folder: it has no config.json")
    return RunConfig.from_json(read_object(path), path)


def load_run(folder: Path, method: str | None = None) -> tuple[RunConfig, Learner, dict[str, Any]]:
    """The settings, the best model so far, and the state of its checkpoint.

    ``method`` evaluates the run's weights as another method that learns the same things, as ``tapnet-semi`` does with
    those of ``tapnet``.
    """
    config = read_config(folder)
    if not (folder / "checkpoint" / "best.json").exists():
        raise TacitError(
            f"{folder} has no weights (checkpoint/best.json is missing): train it; if it was trained before, remove "
            "its folder 'checkpoint' and train it again"
        )
    tensors, state = load_checkpoint(folder / "checkpoint", "best")
    check_state(state, folder)
    learner = build_learner(config)
    if method is not None and method != config.method:
        shared = {name: value for name, value in config.options.items() if name in method_options(method)}
        other = build_method(method, learner.method.dim, config.train.ways, **shared)
        ours, theirs = ({k: v.shape for k, v in m.state_dict().items()} for m in (learner.method, other))
        if ours != theirs:
            raise TacitError(
                f"{folder} was trained as '{config.method}', which does not learn what '{method}' needs: "
                f"train a run with --method {method}"
            )
        learner.method = other
    load_model(learner, tensors, folder)
    return config, learner.eval(), state


def load_model(learner: Learner, tensors: dict[str, Tensor], where: Path) -> None:
    """Put the ``model.*`` tensors of a checkpoint into a learner."""
    _load_weights(learner, {k: v for k, v in tensors.items() if k.startswith("model.")}, "model.", where)


def _load_weights(module: nn.Module, tensors: dict[str, Tensor], prefix: str, where: Path) -> None:
    """Put tensors under their names behind a prefix into a module; weights that compute nothing are refused."""
    try:
        module.load_state_dict({key.removeprefix(prefix): value for key, value in tensors.items()})
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise TacitError(f"the weights in {where} do not fit its settings: {reason}") from error
    learned = {name for name, _ in module.named_parameters()}
    for name, value in module.state_dict().items():
        if fault := _fault(name, value, name in learned):
            raise TacitError(
                f"the weights in {where} are nonsense ({name} {fault}): they were damaged, or the training diverged; "
                "train it anew"
            )


def _fault(name: str, value: Tensor, learned: bool) -> str | None:
    """What is wrong with the numbers of a model; a checksum may match, and still they may be nonsense."""
    if not value.isfinite().all():
        return "has numbers that are not finite"
    if value.numel() and float(value.abs().max()) > (most := MOST_WEIGHT if learned else MOST_BUFFER):
        return f"has numbers beyond {most:g}"
    if name.endswith("running_var") and float(value.min()) < 0:
        return "has negative variances"
    # Shifts start at zero, and a single number (such as the logarithm of a scale) may be it. All other weights start
    # random, or at one, and no step of training makes all of them nothing.
    if learned and not name.endswith("bias") and value.numel() > 1 and not value.any():
        return "is all zeros"
    return None


def check_state(state: dict[str, Any], where: Path) -> None:
    """Whether the state of a checkpoint is that of a training."""
    kinds: dict[str, tuple[Any, Callable[[Any], bool]]] = {
        "episode": (int, lambda value: value >= 0),
        "loss_sum": (float | int, lambda value: abs(value) <= sys.float_info.max),
        "loss_steps": (int, lambda value: value >= 0),
        "best": (float | int, lambda value: -1 <= value <= 100),
        "best_episode": (int, lambda value: value >= 0),
    }
    for name, (kind, sound) in kinds.items():
        value = state.get(name)
        if not isinstance(value, kind) or isinstance(value, bool) or not sound(value):
            raise TacitError(f"the checkpoint in {where} is damaged: its {name.replace('_', ' ')} is {value!r:.60}")


def load_images(config: RunConfig, split: str, *, strict: bool = False, bar: Bar = no_bar) -> ImageSet:
    """One split of a run's data set, which must fit its model."""

    def check(size: int, channels: int) -> None:
        if (size, channels) != (config.image_size, config.channels):
            raise TacitError(
                f"the model takes {config.image_size} x {config.image_size} images of {config.channels} channels, "
                f"the data has {size} x {size} of {channels}"
            )

    # Before any image is decoded, as far as it is known by then.
    check(config.data_options.get("image_size", config.image_size), dataset_spec(config.dataset).channels)
    images = load_dataset(config.dataset, split, config.data, options=config.data_options, strict=strict, bar=bar)
    check(images.image_size, images.channels)
    return images


def check_unseen(folder: Path, test: ImageSet) -> None:
    """Whether a run has seen none of the test classes, in training or validation."""
    seen = {name for names in seen_classes(folder).values() for name in names}
    if shared := seen & set(test.class_names):
        raise TacitError(
            f"class '{min(shared)}' is in the test split, but {folder} was trained or validated on it: the accuracy "
            "would mean nothing; test on the split of the run, or see 'tacit data check'"
        )
