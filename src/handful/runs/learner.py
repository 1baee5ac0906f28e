"""The model of a run: a backbone and a method, built from settings, filled from a checkpoint or a start."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from ..checkpoint import checksum, load_checkpoint, load_weights
from ..embedders.backbones import build_backbone, feature_shape, to_input
from ..episode import Episode
from ..errors import HandfulError
from ..methods import Method, build_method
from .augmentation import colour_jitter, shift_and_flip
from .auxiliary import Auxiliary, Extra, uses_extra
from .config import MOST_PARAMETERS, PRECISIONS, RunConfig


class Learner(nn.Module):
    """A backbone and a method. Calling it on an episode of stored images gives the training loss.

    With ``precision`` bfloat16 the backbone's convolutions in training take half the memory and, on processors and
    graphics cards that know the type, about half the time; weights, gradients and the method stay in float32.
    With ``augment``, training images are moved and mirrored at random; ``jitter`` changes their colours.

    Attributes:
        auxiliary: losses beside the method's, in a training that asks for them.
    """

    backbone: nn.Module
    method: Method
    auxiliary: Auxiliary | None

    def __init__(
        self,
        backbone: nn.Module,
        method: Method,
        precision: str = "float32",
        augment: bool = False,
        jitter: float = 0.0,
    ) -> None:
        super().__init__()
        self.backbone, self.precision = backbone, PRECISIONS[precision]
        self.augment, self.jitter = augment, jitter
        self.auxiliary = None
        self.use(method)

    def use(self, method: Method) -> None:
        """Take a method, which is given the backbone in case it adapts it."""
        self.method = method
        method.attach(self.backbone, to_input)

    def forward(self, episode: Episode, turn: str = "learner", extra: Extra | None = None) -> Tensor:
        """Images (..., height, width, channels) uint8 -> scalar loss of one turn of the method."""
        adapts = self.method.adapts_backbone
        seen = episode.map_images(self.augmented if adapts else self.embed)
        loss = self.method.loss(seen, turn)
        if self.auxiliary is not None and extra is not None and turn == self.method.turns[0]:
            loss = loss + self.auxiliary(self, episode.map_images(self.embed) if adapts else seen, extra)
        return loss

    def embed(self, images: Tensor, backbone: nn.Module | None = None, *, jitter: bool = True) -> Tensor:
        """Stored images (n, height, width, channels) -> vectors (n, D), augmented in training."""
        pixels = to_input(self.augmented(images, jitter=jitter))
        mixed = self.precision != torch.float32
        with torch.autocast(pixels.device.type, self.precision if mixed else None, enabled=mixed):
            vectors: Tensor = (backbone or self.backbone)(pixels)
        return vectors.to(pixels.dtype)

    def augmented(self, images: Tensor, *, jitter: bool = True) -> Tensor:
        """Stored images, changed at random in training if that is wanted."""
        if self.training and self.augment:
            images = shift_and_flip(images)
        if self.training and self.jitter and jitter:
            images = colour_jitter(images, self.jitter)
        return images

    def turn_parameters(self) -> dict[str, list[nn.Parameter]]:
        """The parameters that each turn of a training step moves."""
        first, *others = self.method.turns
        claimed = self.method.turn_parameters()
        taken = {id(parameter) for turn in others for parameter in claimed[turn]}
        free = [p for p in self.parameters() if p.requires_grad and id(p) not in taken]
        return {first: free, **{turn: claimed[turn] for turn in others}}


def build_learner(config: RunConfig, classes: int | None = None) -> Learner:
    """A fresh model; its weights are fixed by the seed. For a training, ``classes`` are those it is trained on."""
    # First a model without numbers: nothing is drawn, and settings of absurd size take no memory.
    try:
        with torch.device("meta"):
            size = sum(value.numel() for value in _assemble(config).state_dict().values())
    except HandfulError:
        raise
    except (TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        reason = f"{error}".partition("\n")[0]
        raise HandfulError(f"the settings do not describe a model: {reason:.200}") from error
    if size > MOST_PARAMETERS:
        raise HandfulError(
            f"the settings describe a model of {size:,} numbers, more than {MOST_PARAMETERS:,}: take fewer ways, "
            "smaller images or smaller options"
        )
    torch.manual_seed(config.seed)
    learner = _assemble(config)
    if classes is not None and uses_extra(config):
        learner.auxiliary = Auxiliary(config, learner, classes)
    return learner


def _assemble(config: RunConfig) -> Learner:
    backbone = build_backbone(config.backbone, config.channels, config.image_size, **config.backbone_options)
    dim: int = backbone.dim  # type: ignore[assignment]
    shape = feature_shape(backbone)
    method = build_method(config.method, dim, config.train.ways, feature_shape=shape, **config.options)
    return Learner(backbone, method, config.precision, config.augment, config.jitter)


def load_start(learner: Learner, config: RunConfig) -> None:
    """Give a fresh model the backbone that it is to start from, if any."""
    if config.start is None:
        if learner.auxiliary is not None:
            learner.auxiliary.begin(learner)
        return
    run = Path(config.start)
    if checksum(run / "checkpoint", "best") != config.start_weights:
        raise HandfulError(f"the weights in {run} are not those that this run is to start from: train it anew")
    tensors, _ = load_checkpoint(run / "checkpoint", "best")
    prefix = "model.backbone."
    left = () if config.backbone_options.get("whiten") else (f"{prefix}whitening.",)
    known = {key: value for key, value in tensors.items() if key.startswith(prefix) and not key.startswith(left)}
    load_weights(learner.backbone, known, prefix, run)
    if learner.auxiliary is not None:
        learner.auxiliary.begin(learner, tensors)


def load_model(learner: Learner, tensors: dict[str, Tensor], where: Path) -> None:
    """Put the ``model.*`` tensors of a checkpoint into a learner."""
    load_weights(learner, {k: v for k, v in tensors.items() if k.startswith("model.")}, "model.", where)
