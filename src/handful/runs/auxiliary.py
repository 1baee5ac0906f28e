"""Losses beside the method's own: all training classes at once, rotations, pseudo-labels.

The last two use the images of the training classes whose labels may not be used. What they learn is thrown away after
training: only the backbone keeps what it gained.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..datasets import ImageSet
from ..episode import Episode
from ..errors import HandfulError
from ..methods import Method
from ..methods.classifier import Classifier, CosineHead
from ..sampling import LabelledSplit
from .config import RunConfig

RAMP = 0.2  # share of the training over which the weight of pseudo-labels of a teacher that learns grows from 0


class Model(Protocol):
    """What is trained: :class:`.learner.Learner`."""

    backbone: nn.Module
    method: Method

    def embed(self, images: Tensor, backbone: nn.Module | None = None, *, jitter: bool = True) -> Tensor: ...


@dataclass(frozen=True)
class Extra:
    """What the losses beside the method's need of a step, in addition to its episodes.

    Attributes:
        classes: (episodes, ways) int64, the training class of each way.
        images: (n, height, width, channels) uint8, unlabelled images of the training classes.
        progress: share of the training that is done.
    """

    classes: Tensor
    images: Tensor
    progress: float

    def to(self, device: torch.device) -> Extra:
        return Extra(self.classes.to(device), self.images.to(device), self.progress)


def draw_extra(
    config: RunConfig, split: LabelledSplit, images: ImageSet, episode: Episode, start: int, rank: int = 0
) -> Extra | None:
    """What a step needs that starts with this episode; the same for a resumed run. None if no option asks for it."""
    if not uses_extra(config):
        return None
    rows = np.empty(0, dtype=np.int64)
    if config.rotation_loss or config.pseudo_label_loss:
        pool = np.concatenate(split.unlabelled)
        if not len(pool):
            raise HandfulError("there are no unlabelled training images: lower --labelled-ratio, or train without them")
        rows = np.random.default_rng((config.seed, 3, start, rank)).choice(pool, config.extra_unlabelled)
    return Extra(
        torch.from_numpy(images.labels[episode.support[..., 0].numpy()]),
        torch.from_numpy(images.images[rows]),
        start / config.episodes,
    )


def uses_extra(config: RunConfig) -> bool:
    return bool(config.classifier_loss or config.rotation_loss or config.pseudo_label_loss)


class Auxiliary(nn.Module):
    """The losses beside the method's, and what they learn.

    Args:
        config: the weights of the losses.
        learner: the model; a `Classifier` has a head for the training classes, for other methods there is one here.
        classes: training classes.
    """

    def __init__(self, config: RunConfig, learner: Model, classes: int) -> None:
        super().__init__()
        self.config, dim = config, learner.method.dim
        if isinstance(learner.method, Classifier):
            if config.classifier_loss:
                raise HandfulError("--classifier-loss is for methods of episodes: this one is a classifier already")
        elif config.pseudo_label_loss and not config.classifier_loss:
            raise HandfulError("--pseudo-label-loss needs a classifier: add --classifier-loss 0.5")
        self.head = CosineHead(dim, classes) if config.classifier_loss else None
        self.rotation = nn.Linear(dim, 4) if config.rotation_loss else None
        self.teacher = self.teacher_head = None
        if config.pseudo_label_loss:
            self.teacher, self.teacher_head = (copy.deepcopy(part) for part in (learner.backbone, self._head(learner)))
            for part in (self.teacher, self.teacher_head):
                part.requires_grad_(False)

    def _head(self, learner: Model) -> nn.Module:
        """What names the training classes: a classifier's own layer, or the one here."""
        return learner.method.head if isinstance(learner.method, Classifier) else self.head  # type: ignore[return-value]

    def forward(self, learner: Model, episode: Episode, extra: Extra) -> Tensor:
        """The sum of the losses, each times its weight; ``episode`` is embedded."""
        config, total = self.config, episode.query.new_zeros(())
        if self.head is not None:
            support = extra.classes[..., None].expand(episode.support.shape[:-1])
            query = extra.classes.gather(-1, episode.query_labels)
            points = torch.cat([episode.support.flatten(0, -2), episode.query.flatten(0, -2)])
            total = total + config.classifier_loss * cross_entropy(
                self.head(points), torch.cat([support.flatten(), query.flatten()])
            )
        if self.rotation is not None:
            turns = torch.randint(4, (len(extra.images),)).to(extra.images.device)
            rotated = torch.stack([image.rot90(int(k)) for image, k in zip(extra.images, turns.tolist(), strict=True)])
            total = total + config.rotation_loss * cross_entropy(self.rotation(learner.embed(rotated)), turns)
        if self.teacher is not None and self.teacher_head is not None:
            with torch.no_grad():
                self.teacher.eval()
                said = torch.softmax(self.teacher_head(learner.embed(extra.images, self.teacher, jitter=False)), -1)
            logits = self._head(learner)(learner.embed(extra.images))
            ramp = 1.0 if config.teacher_momentum == 1 else min(1.0, extra.progress / RAMP)
            total = total + config.pseudo_label_loss * ramp * cross_entropy(logits, said)
        return total

    @torch.no_grad()
    def begin(self, learner: Model, start: dict[str, Tensor] | None = None) -> None:
        """Take over what a start has learned of the training classes; the teacher begins as the model."""
        head: nn.Module | None = self._head(learner)
        knows = self.config.teacher_momentum < 1 or not self.config.pseudo_label_loss
        if head is not None and start is not None:
            prefix = "model.method.head."
            known = {name.removeprefix(prefix): value for name, value in start.items() if name.startswith(prefix)}
            own = head.state_dict()
            if {name: value.shape for name, value in known.items()} == {k: v.shape for k, v in own.items()}:
                head.load_state_dict(known)
                knows = True
        if not knows:
            raise HandfulError(
                "--teacher-momentum 1 needs a --start that is a classifier of the same classes with the same head: a "
                "teacher that never learns has to know them"
            )
        self._move_teacher(learner, keep=0.0)

    def follow(self, learner: Model) -> None:
        """Move the teacher a little towards the model; after each step."""
        if self.config.teacher_momentum < 1:
            self._move_teacher(learner, keep=self.config.teacher_momentum)

    @torch.no_grad()
    def _move_teacher(self, learner: Model, keep: float) -> None:
        if self.teacher is None or self.teacher_head is None:
            return
        for theirs, ours in ((self.teacher, learner.backbone), (self.teacher_head, self._head(learner))):
            for old, new in zip(theirs.state_dict().values(), ours.state_dict().values(), strict=True):
                if old.is_floating_point():
                    old.lerp_(new, 1.0 - keep)
                else:
                    old.copy_(new)
