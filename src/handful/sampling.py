"""Sampling of episodes: the labelled/unlabelled split, and standard, distractor and realistic episodes.

Everything is drawn from a counter-based generator, of which each episode has a fixed range: episode i of seed s is the
same for any batch size, order and number of workers, and the only state needed for resuming is the episode number.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .episode import Episode
from .errors import HandfulError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
LEAST_CONCENTRATION, MOST_CONCENTRATION = 0.01, 1e6  # beyond these, all images are of one class, or shares are even


@dataclass(frozen=True)
class EpisodeSpec:
    """The sizes of an episode.

    Attributes:
        ways: N, number of classes.
        shots: K, labelled images per class (support).
        queries: q, images to classify per class.
        unlabelled: u, unlabelled images per class. In a realistic episode only the total over all classes is
            fixed: ``realistic_total``.
        distractor_ways: N_d, further classes that only add unlabelled images.
        distractors: d, unlabelled images of each distractor class.
        realistic_total: if given, the unlabelled set is uneven instead: this many images in all, of which
            ``realistic_share`` are distractors drawn from all other classes, the rest unevenly from the N.
        realistic_share: share of distractors in a realistic episode, 0 to 1.
        concentration: if given, the unlabelled set is uneven: the shares of the N classes in their ``ways`` times
            ``unlabelled`` images are drawn for each episode from a symmetric Dirichlet distribution of this
            concentration, as Veilleux et al. (alpha-TIM, 2021) do with 2; those of the distractor classes likewise.
            The smaller, the more uneven.
    """

    ways: int = 5
    shots: int = 1
    queries: int = 15
    unlabelled: int = 20
    distractor_ways: int = 0
    distractors: int = 0
    realistic_total: int | None = None
    realistic_share: float = 0.0
    concentration: float | None = None

    def __post_init__(self) -> None:
        least = {"ways": 1, "shots": 1, "queries": 1, "unlabelled": 0, "distractor_ways": 0, "distractors": 0}
        for name, limit in {**least, "realistic_total": 0}.items():
            if (getattr(self, name) or 0) < limit:
                raise HandfulError(f"{name.replace('_', ' ')} must be at least {limit}, got {getattr(self, name)}")
        if not 0.0 <= self.realistic_share <= 1.0:
            raise HandfulError(f"the share of distractors must be between 0 and 1, got {self.realistic_share}")
        if self.concentration is not None:
            if not LEAST_CONCENTRATION <= self.concentration <= MOST_CONCENTRATION:
                raise HandfulError(
                    f"the concentration must be a number from {LEAST_CONCENTRATION:g} to {MOST_CONCENTRATION:g}, got "
                    f"{self.concentration}"
                )
            if self.realistic_total is not None:
                raise HandfulError("a realistic episode is uneven in its own way: leave out its concentration")

    @property
    def images(self) -> int:
        """How many images an episode has.

        >>> EpisodeSpec(ways=20, shots=1, queries=8, unlabelled=5).images
        280
        """
        unlabelled = self.ways * self.unlabelled + self.distractor_ways * self.distractors
        return self.ways * (self.shots + self.queries) + (
            unlabelled if self.realistic_total is None else self.realistic_total
        )

    def describe(self) -> str:
        """The protocol in one line, for captions."""
        line = f"{self.ways}-way {self.shots}-shot, {self.queries} queries per class, "
        if self.realistic_total is not None:
            return line + f"{self.realistic_total} unlabelled, uneven, {self.realistic_share:.0%} distractors"
        uneven = self.concentration is not None
        line += f"{self.unlabelled} unlabelled per class" + " on average" * uneven
        if self.distractor_ways:
            line += f", {self.distractor_ways} distractor classes with {self.distractors} each"
        return line + (f", shares of the classes from Dirichlet({self.concentration:g})" if uneven else "")

    def to_json(self) -> dict[str, Any]:
        """As files hold it: an episode whose shares are even says nothing of them, as before there were others."""
        content = asdict(self)
        if self.concentration is None:
            del content["concentration"]
        return content


@dataclass(frozen=True)
class LabelledSplit:
    """Each class divided in two: images whose label may be used, and images whose label may not.

    Attributes:
        labelled: per class, positions in the data set, in random order.
        unlabelled: the same for the rest of the class.
        class_names: for messages.
    """

    labelled: tuple[Ints, ...]
    unlabelled: tuple[Ints, ...]
    class_names: tuple[str, ...]

    def mask(self, size: int) -> NDArray[np.bool_]:
        """(size,) bool: True where the label may be used. What a run stores."""
        mask = np.zeros(size, dtype=bool)
        mask[np.concatenate(self.labelled)] = True
        return mask


def split_labelled(
    labels: Ints, class_names: tuple[str, ...], ratio: float, seed: int | tuple[int, ...]
) -> LabelledSplit:
    """Label ``ratio`` of each class, and at least one image. The same seed gives the same split."""
    if not 0.0 < ratio <= 1.0:
        raise HandfulError(f"the labelled ratio must be above 0 and at most 1, got {ratio}")
    labelled, unlabelled = [], []
    for index in range(len(class_names)):
        members = np.flatnonzero(labels == index)
        members = np.random.default_rng([*np.atleast_1d(seed), index]).permutation(members)
        cut = max(1, round(ratio * len(members)))
        labelled.append(members[:cut])
        unlabelled.append(members[cut:])
    return LabelledSplit(tuple(labelled), tuple(unlabelled), class_names)


class EpisodeSampler:
    """Draw episodes of positions in the data set, in batches.

    Args:
        split: the images that may be drawn as labelled and as unlabelled.
        spec: the sizes of an episode.
        seed: fixes every episode; one int or several.
        in_order: every episode has all classes, and its class n is class n of the data set.

    Raises:
        HandfulError: if there are too few classes, or too few images in one of them.
    """

    def __init__(
        self, split: LabelledSplit, spec: EpisodeSpec, seed: int | tuple[int, ...], *, in_order: bool = False
    ) -> None:
        self.spec, self._in_order = spec, in_order
        self._labelled, self._labelled_size = _padded(split.labelled)  # (classes, most), (classes,)
        self._unlabelled, self._unlabelled_size = _padded(split.unlabelled)
        self._pool = np.concatenate(split.unlabelled)  # all unlabelled images, class after class
        self._pool_start = np.cumsum(self._unlabelled_size) - self._unlabelled_size
        self._key = np.random.SeedSequence(seed).generate_state(2, np.uint64).astype(np.uint64)
        _check_sizes(split, spec)
        if in_order and (spec.ways, spec.distractor_ways) != (len(split.class_names), 0):
            raise HandfulError(
                f"this method learns all {len(split.class_names)} training classes at once: give so many ways, no "
                "distractors"
            )

    def batch(self, start: int, count: int, *, unlabelled: bool = True) -> Episode:
        """Episodes ``start`` to ``start + count - 1``: support (count, ways, shots) and so on, all int64.

        If ``unlabelled`` is False, support and query are the same, but no unlabelled image is drawn.
        """
        spec, draws = self.spec, _Draws(self._key, start, count)
        all_classes = np.full(count, len(self._labelled_size))
        classes = draws.distinct(all_classes, spec.ways + spec.distractor_ways)  # (count, ways + distractor_ways)
        if self._in_order:
            classes = np.sort(classes, axis=1)
        ways = classes[:, : spec.ways]
        images = _pick(self._labelled, ways, draws.distinct(self._labelled_size[ways], spec.shots + spec.queries))
        # Unlabelled images come last: support and query are the same with or without them.
        if not unlabelled:
            others = others_labels = np.empty((count, 0), dtype=np.int64)
        elif spec.concentration is not None:
            others, others_labels = self._uneven(draws, classes, spec.concentration)
        elif spec.realistic_total is None:
            others, others_labels = self._even(draws, classes)
        else:
            others, others_labels = self._realistic(draws, ways, spec.realistic_total)
        query_labels = np.tile(np.repeat(np.arange(spec.ways), spec.queries), (count, 1))
        support, query = images[:, :, : spec.shots], images[:, :, spec.shots :].reshape(count, -1)
        arrays = (support, query, others, query_labels, others_labels)
        return Episode(*(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays))

    def _even(self, draws: _Draws, classes: Ints) -> tuple[Ints, Ints]:
        """u images of each class, d of each distractor class: positions and labels, both (count, total)."""
        spec, count = self.spec, len(classes)
        ways, others = classes[:, : spec.ways], classes[:, spec.ways :]
        own = _pick(self._unlabelled, ways, draws.distinct(self._unlabelled_size[ways], spec.unlabelled))
        distractors = _pick(self._unlabelled, others, draws.distinct(self._unlabelled_size[others], spec.distractors))
        labels = np.repeat(np.append(np.arange(spec.ways), -1), [spec.unlabelled] * spec.ways + [distractors[0].size])
        return np.concatenate([own.reshape(count, -1), distractors.reshape(count, -1)], 1), np.tile(labels, (count, 1))

    def _uneven(self, draws: _Draws, classes: Ints, concentration: float) -> tuple[Ints, Ints]:
        """As many images as in an even set, in Dirichlet-distributed shares: positions and labels (count, total)."""
        spec, positions, labels = self.spec, [], []
        for first, group, each in ((0, classes[:, : spec.ways], spec.unlabelled),
                                   (spec.ways, classes[:, spec.ways :], spec.distractors)):  # fmt: skip
            ways, size, most = group.shape[1], self._unlabelled_size[group], self._unlabelled.shape[1]
            if not ways * each:
                continue
            weight = _gamma(draws.uniform(ways), concentration)  # (count, ways)
            amount = _apportioned(weight / weight.sum(1, keepdims=True), size, ways * each)
            # Every image of a class gets a random number, and the smallest are taken.
            order = draws.uniform(ways * most).reshape(*group.shape, most)
            order[np.arange(most) >= size[..., None]] = np.inf  # padding
            chosen = _pick(self._unlabelled, group, np.argsort(order, axis=-1))  # (count, ways, most)
            taken = np.arange(most) < amount[..., None]
            number = np.broadcast_to(np.arange(ways)[:, None] if first == 0 else -1, chosen.shape)
            positions.append(chosen[taken].reshape(len(group), -1))
            labels.append(number[taken].reshape(len(group), -1))
        none = np.empty((len(classes), 0), dtype=np.int64)
        return np.concatenate([none, *positions], 1), np.concatenate([none, *labels], 1)

    def _realistic(self, draws: _Draws, ways: Ints, total: int) -> tuple[Ints, Ints]:
        """Only totals are fixed: images of the N classes are drawn unevenly, distractors from all other classes."""
        count, distractors = len(ways), round(total * self.spec.realistic_share)
        # A race: each class has a random weight (together uniform on the simplex), each of its images finishes after an
        # exponential time with that rate, and the first to finish are taken. No class gives more than it has.
        size, most = self._unlabelled_size[ways], self._unlabelled.shape[1]
        weight = -np.log1p(-draws.uniform(self.spec.ways))  # (count, ways)
        time = -np.log1p(-draws.uniform(self.spec.ways * most)).reshape(count, self.spec.ways, most)
        finish = time / weight[..., None]
        finish[np.arange(most) >= size[..., None]] = np.inf  # padding
        first = np.argsort(finish.reshape(count, -1), axis=1)[:, : total - distractors]
        own = np.take_along_axis(self._unlabelled[ways].reshape(count, -1), first, axis=1)
        # Distractors are places in the pool of all images as if the N classes were cut out of it, then moved past each
        # of those classes in turn, first class first.
        place = draws.distinct(len(self._pool) - size.sum(1), distractors)  # (count, distractors)
        for skipped in np.sort(ways, axis=1).T[..., None]:
            place = place + np.where(place >= self._pool_start[skipped], self._unlabelled_size[skipped], 0)
        labels = np.concatenate([first // most, np.full_like(place, -1)], 1)
        return np.concatenate([own, self._pool[place]], 1), labels


class _Draws:
    """Random numbers for episodes ``start`` to ``start + count - 1``, the same for an episode in whatever batch."""

    def __init__(self, key: NDArray[np.uint64], start: int, count: int) -> None:
        self._key, self._start, self._count, self._stream = key, start, count, 0

    def uniform(self, width: int) -> Floats:
        """(count, width) in [0, 1). Each call reads a stream of its own."""
        steps = -(-width // 4)  # one step of Philox's counter gives four numbers
        key = np.array([self._key[0], self._key[1] ^ np.uint64(self._stream)])
        self._stream += 1
        bits = np.random.Philox(key=key, counter=[self._start * steps, 0, 0, 0])
        return np.random.Generator(bits).random((self._count, steps * 4))[:, :width]

    def distinct(self, limit: Ints, amount: int) -> Ints:
        """``amount`` different integers below each limit, in random order: (count, ...) -> (count, ..., amount)."""
        uniform = self.uniform(2 * amount * limit[0].size).reshape(len(limit), 2, *limit.shape[1:], amount)
        chosen = np.full((*limit.shape, amount), -1)
        for step in range(amount):  # Floyd's algorithm: if the draw is taken, the newest candidate is not
            newest = limit - amount + step
            drawn = np.floor(uniform[:, 0, ..., step] * (newest + 1)).astype(np.int64)
            taken = (chosen == drawn[..., None]).any(-1)
            chosen[..., step] = np.where(taken, newest, drawn)
        return np.take_along_axis(chosen, np.argsort(uniform[:, 1], axis=-1), axis=-1)


def _gamma(uniform: Floats, shape: float) -> Floats:
    """Gamma-distributed numbers of a shape, from uniform ones: divided by their sum they are Dirichlet-distributed."""
    from scipy.special import gammaincinv  # takes a while to import, and even episodes do not need it

    found: Floats = np.maximum(gammaincinv(shape, uniform), np.finfo(np.float64).tiny)
    return found


def _apportioned(shares: Floats, size: Ints, total: int) -> Ints:
    """Whole numbers that sum to ``total``, nearest to these shares of it by the method of largest remainders.

    shares (count, ways) -> (count, ways); no class gives more than its ``size``, and the others make up for it.
    """
    amount = np.minimum(np.floor(shares * total).astype(np.int64), size)
    rows = np.arange(len(amount))
    while (missing := amount.sum(1) < total).any():
        lack = np.where(amount < size, shares * total - amount, -np.inf)
        amount[rows, lack.argmax(1)] += missing
    return amount


def _pick(table: Ints, rows: Ints, columns: Ints) -> Ints:
    """Entries of a (classes, most) table: rows (count, ways), columns (count, ways, k) -> (count, ways, k)."""
    return table[rows[..., None], columns]


def _padded(groups: tuple[Ints, ...]) -> tuple[Ints, Ints]:
    """Lists of unequal length as one table (groups, most), and the lengths (groups,)."""
    sizes = np.array([len(group) for group in groups])
    table = np.zeros((len(groups), max(1, sizes.max())), dtype=np.int64)
    for row, group in zip(table, groups, strict=True):
        row[: len(group)] = group
    return table, sizes


def _check_sizes(split: LabelledSplit, spec: EpisodeSpec) -> None:
    names, needed = split.class_names, spec.ways + spec.distractor_ways
    if len(names) < needed:
        extra = f" and {spec.distractor_ways} distractor classes" if spec.distractor_ways else ""
        raise HandfulError(f"{spec.ways} ways{extra} need {needed} classes, but there are only {len(names)}")

    def check(kind: str, groups: tuple[Ints, ...], need: int, why: str) -> None:
        have, short = min((len(group), index) for index, group in enumerate(groups))
        if have < need:
            raise HandfulError(
                f"class '{names[short]}' has {have} {kind} images, but {need} are needed ({why}): "
                "take fewer per class, change the labelled ratio, or add images"
            )

    check("labelled", split.labelled, spec.shots + spec.queries, f"{spec.shots} support + {spec.queries} query")
    if spec.realistic_total is None:  # uneven or not: so many of each class are enough for any shares
        need = max(spec.unlabelled, spec.distractors if spec.distractor_ways else 0)
        check("unlabelled", split.unlabelled, need, "the unlabelled set of an episode")
        return
    sizes = np.sort([len(group) for group in split.unlabelled])
    smallest = int(np.argmin([len(group) for group in split.unlabelled]))
    distractors = round(spec.realistic_total * spec.realistic_share)
    for what, need, least in (
        ("candidate", spec.realistic_total - distractors, int(sizes[: spec.ways].sum())),
        ("distractor", distractors, int(sizes[: len(sizes) - spec.ways].sum())),
    ):
        if least < need:
            raise HandfulError(
                f"a realistic episode needs {need} unlabelled {what} images, but its classes may hold only {least} "
                f"(the smallest, '{names[smallest]}', has {sizes[0]}): take fewer unlabelled images or another share"
            )
