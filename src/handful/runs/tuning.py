"""Choose the temperature of soft labels and the number of refinements on validation classes, for all methods alike."""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass, replace

from torch import Tensor

from ..datasets import ImageSet
from ..methods import Method
from .episodes import CHOICE_EPISODES, MOST_ITERATIONS, Protocol, best_iterations, evaluate

# Of cluster_scale, tried for every method. Of equally good ones the first is taken, so those near 1 come first.
MULTIPLIERS = (1.0, 0.5, 2.0, 0.2, 5.0, 0.1, 10.0)


@dataclass(frozen=True)
class Tuned:
    """What was chosen.

    Attributes:
        iterations: refinements.
        cluster_multiplier: of ``cluster_scale``; None for a method without soft labels whose scale could be chosen.
        trials: pairs of a multiplier and a number of refinements that were tried.
        accuracy: of the chosen pair on the validation classes, in percent.
    """

    iterations: int
    cluster_multiplier: float | None
    trials: int
    accuracy: float


def tunable(method: Method) -> bool:
    """Whether the answers of a method depend on the scale of its soft labels."""
    return method.iterative and "cluster_scale" not in method.unused


def with_multiplier(method: Method, multiplier: float | None) -> Method:
    """The same method, weights shared, with another scale of the soft labels."""
    other = copy(method)
    other.cluster_scale = method.cluster_scale * (1.0 if multiplier is None else multiplier)
    return other


def tune(method: Method, vectors: Tensor, images: ImageSet, protocol: Protocol, iterations: int | None = None) -> Tuned:
    """The best multiplier of ``cluster_scale`` together with the best number of refinements, 1 to 5.

    ``vectors`` are the embeddings of the validation ``images``, ``iterations`` the number of refinements if it is not
    to be chosen. A method without soft labels gets the number of its refinements chosen only.
    """
    episodes = min(CHOICE_EPISODES, protocol.splits * protocol.episodes)
    shortened = replace(protocol, splits=1, episodes=episodes)
    multipliers = MULTIPLIERS if tunable(method) else (None,)
    best, trials = Tuned(0, None, 0, -math.inf), 0
    for multiplier in multipliers:
        most = MOST_ITERATIONS if iterations is None else iterations
        found = evaluate(with_multiplier(method, multiplier), vectors, images, shortened, most).by_iteration
        chosen = best_iterations(found) if iterations is None else min(iterations, len(found) - 1)
        trials += len(found) - 1 if iterations is None else 1
        if found[chosen] > best.accuracy:
            best = Tuned(chosen, multiplier, 0, found[chosen])
    return replace(best, trials=trials)
