"""The interface of a method: an episode of vectors to query logits."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..episode import Episode
from ..errors import HandfulError

Forms = dict[str, dict[str, Any]]  # options by the name of a form


@dataclass(frozen=True)
class Range:
    """What may be tried for an option: from ``low`` to ``high``.

    Attributes:
        kind: ``factor``: of the value that the option has, evenly in its logarithm; ``number``; or ``whole`` number.
    """

    low: float
    high: float
    kind: str = "factor"

    def value(self, share: float, given: Any) -> float | int:
        """What is tried at a place from 0 to 1 of the range, for an option that has a given value.

        >>> Range(0.25, 4.0).value(0.5, 3.0), Range(1, 5, "whole").value(0.99, 2)
        (3.0, 5)
        """
        if self.kind == "factor":
            return float(given * self.low * (self.high / self.low) ** share)
        if self.kind == "whole":
            return min(int(self.high), int(self.low + share * (self.high + 1 - self.low)))
        return self.low + share * (self.high - self.low)


# What is tried for methods that refine and say nothing else: how soft their labels are, and how often they refine.
REFINED = {"cluster_scale": Range(0.1, 10.0), "iterations": Range(1, 5, "whole")}
REFINEMENT = ("cluster_scale", "train_iterations", "iterations")  # options of methods that refine


class Method(nn.Module):
    """A few-shot classifier on embeddings, with the parameters that it learns in addition to the backbone's.

    A subclass sets the class attributes and writes :meth:`trajectory`.

    Args:
        dim: length of an embedding.
        ways: classes of a training episode.
        scale: multiplies every squared distance, in the logits and in the soft labels.
        cluster_scale: multiplies it once more in the soft labels; below 1, soft labels are more even.
        train_iterations: refinements with the unlabelled set in training.
        iterations: refinements in evaluation; ``handful evaluate`` chooses them on the validation classes.

    Attributes:
        title: the name in tables; an option that changes what is measured may change it.
        summary: one line for ``handful methods``.
        iterative: whether it refines with unlabelled images at all.
        unused: options of this class that have no effect on the method, and are refused; by default those of refinement
            (`REFINEMENT`) if it is not iterative.
        in_order: whether a training episode must hold all training classes, each at its own place, as for a classifier.
        reads_maps: whether it reads vectors as feature maps; the backbone's ``feature_shape`` is then its third
            argument.
        training_free: whether it has nothing to learn, so that it can be used with the vectors of any run.
        prepares: whether it computes something of each image by itself (:meth:`per_image`), which evaluation then does
            once for all images of a data set and not in every episode (:meth:`compare`).
        adapts_backbone: whether it adapts the backbone itself to each task. Then the items of an episode are stored
            images once :meth:`attach` has given it the backbone, and nothing is embedded in advance.
        turns: the parts of a training step, each with an optimiser of its own; see :meth:`loss`.
        tunables: options that may be chosen on validation classes, for trained weights as well, and what is tried; by
            default those of `REFINED` that are not ``unused``, none if it is not iterative.
        forms: sets of options by name, for the option ``form``; ``published`` is the method as its authors have it.
    """

    title: str
    summary: ClassVar[str]
    iterative: ClassVar[bool] = True
    unused: ClassVar[tuple[str, ...]] = ()
    in_order: ClassVar[bool] = False
    reads_maps: ClassVar[bool] = False
    training_free: ClassVar[bool] = False
    prepares: ClassVar[bool] = False
    adapts_backbone: ClassVar[bool] = False
    turns: ClassVar[tuple[str, ...]] = ("learner",)
    tunables: ClassVar[dict[str, Range]] = REFINED
    forms: ClassVar[Forms] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "unused" not in vars(cls) and "iterative" in vars(cls):
            cls.unused = () if cls.iterative else REFINEMENT
        if "tunables" not in vars(cls) and vars(cls).keys() & {"iterative", "unused"}:
            cls.tunables = {name: tried for name, tried in REFINED.items() if name not in cls.unused}

    def __init__(
        self,
        dim: int,
        ways: int,
        *,
        scale: float = 1.0,
        cluster_scale: float = 1.0,
        train_iterations: int = 1,
        iterations: int = 1,
    ) -> None:
        super().__init__()
        for name, value in {"dim": dim, "ways": ways, "scale": scale, "cluster_scale": cluster_scale}.items():
            if not (value > 0 and math.isfinite(value)):
                raise HandfulError(f"{name} must be a number above 0, got {value}")
        if min(train_iterations, iterations) < 0:
            raise HandfulError(f"iterations must be at least 0, got {min(train_iterations, iterations)}")
        self.dim, self.ways, self.cluster_scale = dim, ways, cluster_scale
        self.train_iterations, self.iterations = train_iterations, iterations
        self._scale = scale
        self.log_scale: Tensor | None
        self.register_parameter("log_scale", None)

    def learn_scale(self) -> None:
        """Make the scale a parameter, which starts where it is; its logarithm is learned, so that it stays above 0."""
        self.log_scale = nn.Parameter(torch.tensor(math.log(self._scale)))

    @property
    def scale(self) -> float | Tensor:
        """What multiplies squared distances or cosines; a tensor of no dimensions while it is being learned."""
        if self.log_scale is None:
            return self._scale
        return self.log_scale.exp() if torch.is_grad_enabled() else math.exp(self.log_scale.item())

    @property
    def soft_scale(self) -> float | Tensor:
        """The same in the soft labels."""
        return self.scale * self.cluster_scale

    @property
    def trains_on_unlabelled(self) -> bool:
        """Whether unlabelled images play a part in training; if not, there is no need to show any."""
        return self.iterative and self.train_iterations > 0

    def with_values(self, values: dict[str, Any]) -> Method:
        """The same method, weights shared, with other values of its `tunables`."""
        other = copy(self)
        for name, value in values.items():
            setattr(other, "_scale" if name == "scale" else name, value)
        return other

    def attach(self, backbone: nn.Module, to_input: Callable[[Tensor], Tensor]) -> None:
        """Give a method that adapts the backbone what it adapts, and what turns stored images into its input."""

    def check_ways(self, ways: int) -> None:
        """Raise a HandfulError if the method cannot tell so many classes apart."""

    def trajectory(self, episode: Episode, iterations: int) -> Tensor:
        """Query logits after 0, 1, ... refinements: (iterations + 1, ..., queries, ways).

        A method without refinements gives the one entry it has, whatever ``iterations`` says.
        """
        raise NotImplementedError

    def per_image(self, vectors: Tensor) -> Tensor:
        """What the method computes of each vector by itself in evaluation, if it ``prepares``: (n, D) -> (n, E)."""
        return vectors

    def compare(self, episode: Episode, iterations: int) -> Tensor:
        """:meth:`trajectory` from an episode of what :meth:`per_image` gives."""
        return self.trajectory(episode, iterations)

    def forward(self, episode: Episode) -> Tensor:
        """Query logits (..., queries, ways)."""
        return self.trajectory(episode, self.train_iterations if self.training else self.iterations)[-1]

    def loss(self, episode: Episode, turn: str = "learner") -> Tensor:
        """The training loss, a scalar: cross-entropy over the queries of all episodes.

        Most methods have one turn. One with adversaries has several: a step takes each of ``turns`` in order, and only
        the parameters of that turn move.
        """
        logits: Tensor = self(episode)
        return nn.functional.cross_entropy(logits.flatten(0, -2), episode.query_labels.flatten())

    def turn_parameters(self) -> dict[str, list[nn.Parameter]]:
        """The parameters of each turn but the first, which has the backbone's and all that are not named here."""
        return {}

    def metrics(self) -> dict[str, float]:
        """Further training metrics since the last call, for ``metrics.jsonl``; called at each validation.

        Counters must be buffers, so that a checkpoint holds them and a resumed run reports the same.
        """
        return {}

    def ablations(self) -> dict[str, Method]:
        """Copies that each lack one thing the method has learned, by the name of what they have instead.

        Validation can measure them beside the method: the difference is what that thing is worth.
        """
        return {}


def with_and_without(answer: Callable[[Episode], Tensor], episode: Episode, iterations: int) -> Tensor:
    """The trajectory of a method that uses all unlabelled points in one step: entry 0 without, all others with them.

    ``answer`` maps an episode to query logits (..., queries, ways).
    """
    logits = answer(episode.without_unlabelled()).unsqueeze(0)
    if iterations == 0:
        return logits
    return torch.cat([logits, answer(episode).expand(iterations, *logits.shape[1:])])
