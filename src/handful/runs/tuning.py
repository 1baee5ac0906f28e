"""Choose options on validation classes, with the same effort for every method.

:func:`tune` chooses the temperature of soft labels and the number of refinements, :func:`search` whatever a method
declares (`Method.tunables`), by a number of trials that is the same for all.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from ..datasets import ImageSet
from ..methods import Method
from .episodes import CHOICE_EPISODES, MOST_ITERATIONS, Protocol, Tick, best_iterations, evaluate

TRIAL_EPISODES = 100  # of a search, for each trial, or as many as are tested, if that is less; the same for all trials
# Of cluster_scale, tried for every method. Of equally good ones the first is taken, so those near 1 come first.
MULTIPLIERS = (1.0, 0.5, 2.0, 0.2, 5.0, 0.1, 10.0, 0.03)
TRIALS = len(MULTIPLIERS) * MOST_ITERATIONS  # that a method gets by :func:`tune`


@dataclass(frozen=True)
class Tuned:
    """What was chosen.

    Attributes:
        iterations: refinements.
        cluster_multiplier: of ``cluster_scale``; None for a method without soft labels whose scale could be chosen.
        trials: pairs of a multiplier and a number of refinements, or sets of values, that were tried.
        accuracy: of the chosen ones on the validation classes, in percent.
        values: of the method's options, by :func:`search`.
    """

    iterations: int
    cluster_multiplier: float | None
    trials: int
    accuracy: float
    values: dict[str, Any] = field(default_factory=dict)


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


def search(
    method: Method, vectors: Tensor, images: ImageSet, protocol: Protocol, trials: int, progress: Tick | None = None
) -> Tuned:
    """The best of ``trials`` sets of values of the options that the method declares as tunable.

    ``vectors`` are the embeddings of the validation ``images``. The first set is the method's own, and of equally good
    ones the first is taken. A method with nothing to tune needs no trial.
    """
    sets = trial_values(method, trials)
    if len(sets) == 1:
        return Tuned(method.iterations if method.iterative else 0, None, 0, math.nan)
    shortened = replace(protocol, splits=1, episodes=min(TRIAL_EPISODES, protocol.splits * protocol.episodes))
    best = Tuned(0, None, 0, -math.inf)
    for values in sets:
        varied = method.with_values(values)
        found = evaluate(varied, vectors, images, shortened, varied.iterations, progress=progress)
        if found.mean > best.accuracy:
            best = Tuned(found.iterations, None, len(sets), found.mean, values)
    return best


def trial_values(method: Method, trials: int) -> list[dict[str, Any]]:
    """Values of a method's tunables: its own first, then others that fill their ranges evenly, all different.

    The points are those of an additive recurrence with irrational steps, powers of the root of x^(d + 1) = x + 1: any
    number of them is spread more evenly than at random, in any number d of dimensions.
    """
    ranges = method.tunables
    given: dict[str, Any] = {name: getattr(method, name) for name in ranges}
    if "scale" in given:
        given["scale"] = float(given["scale"])  # a tensor where it is learned
    sets, root = [given], 2.0
    for _ in range(64):
        root = (1 + root) ** (1 / (len(ranges) + 1))
    for number in range(1, 20 * trials if ranges else 1):
        if len(sets) == trials:
            break
        places = ((0.5 + number * root ** -(axis + 1)) % 1 for axis in range(len(ranges)))
        values = {name: ranges[name].value(place, given[name]) for name, place in zip(ranges, places, strict=True)}
        if values not in sets:
            sets.append(values)
    return sets
