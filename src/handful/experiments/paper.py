"""The experiments of the paper as plain data: systems, tables, recipes, budgets and published figures.

Seo, Yoon and Moon, "Task-Adaptive Clustering for Semi-Supervised Few-Shot Classification", 2020. Nothing is computed
here; :mod:`.reproduce` turns these into trainings and measurements.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ..sampling import EpisodeSpec

Column = tuple[int, bool]  # shots, and whether there are distractors


@dataclass(frozen=True)
class System:
    """A line of a table.

    Attributes:
        title: as printed; the key of the published figures.
        method: evaluated as.
        trained_as: method of the training, if another.
        published_ways: trained as published: with so many classes an episode and the method's own defaults, instead of
            the recipe's. A second reading of the same system.
        variant: a form of the method that is not the paper's, of `VARIANTS`.
        iterations: refinements; None for the best on the validation classes.
        options: evaluated with the backbone alone, by a method of these options that has nothing to learn.
    """

    title: str
    method: str
    trained_as: str | None = None
    published_ways: int | None = None
    variant: str | None = None
    iterations: int | None = None
    options: tuple[tuple[str, Any], ...] | None = None

    @property
    def training(self) -> str:
        return self.trained_as or self.method

    @property
    def line(self) -> str:
        """The title with what sets this reading apart."""
        return self.title + (f", {self.published_ways}-way training" if self.published_ways else "")


# What was found on the way to be better than the paper's form: see docs/findings.md.
VARIANTS: dict[str, dict[str, Any]] = {
    "cosine": {"cosine_clustering": True, "cluster_scale": 6.0, "grad_through_soft_labels": True},
}
# The lines of Tables 1 and 2, by a key that other tables and figures name them with.
SYSTEMS = {
    "pn": System("PN", "pn"),
    "pn-semi": System("PN + Semi-Sup. Inference", "soft-kmeans", trained_as="pn"),
    "soft-kmeans": System("Soft k-Means", "soft-kmeans"),
    "soft-kmeans-cluster": System("Soft k-Means + Cluster", "soft-kmeans-cluster"),
    "masked-soft-kmeans": System("Masked Soft k-Means", "masked-soft-kmeans"),
    "tpn": System("TPN", "tpn"),
    "relation": System("RN", "relation"),
    "metagan": System("MetaGAN + RN", "metagan"),
    "imp": System("IMP", "imp"),
    "tapnet": System("TapNet", "tapnet"),
    "tapnet-semi": System("TapNet + Semi-Sup. Inference", "tapnet-semi", trained_as="tapnet"),
    "tac": System("TAC", "tac"),
    "tacdap": System("TACdap", "tacdap"),
    "tac-cosine": System("TAC, cosines in M", "tac", variant="cosine"),
    "tacdap-cosine": System("TACdap, cosines in M", "tacdap", variant="cosine"),
    "tac-free": System("TAC, reference-free", "tac-free"),
}
# With a common start, its own lines stand before all others: what it is worth by itself.
START = {
    "classifier": System("Classifier", "classifier"),
    "classifier-semi": System("Classifier + Semi-Sup. Inference", "classifier-semi", trained_as="classifier"),
}
# Systems with parameters to learn that are not in the paper's tables, and what sets their options apart.
LATER = (
    System("PRWN", "prwn"),
    System("TAC with PRWN's loss", "tac", variant="walk"),
    System("TAC, cosines in M, with PRWN's loss", "tac", variant="cosine-walk"),
    System("LST", "lst"),
    System("Matching Networks", "matching"),
    System("Siamese Networks", "siamese"),
    System("SNAIL", "snail"),
)
ABLATION = {
    "tapnet-soft-clustering": System("TapNet + Soft-clustering", "tapnet-soft-clustering"),
    "tac-once": System("TAC with 1 iteration", "tac", iterations=1),
    "tac": SYSTEMS["tac"],
}
SOFT_KMEANS = ("soft-kmeans", "soft-kmeans-cluster", "masked-soft-kmeans")
# Methods that learn what to do about distractors; what they learn without any means nothing.
DISTRACTOR_AWARE = ("tacdap", "soft-kmeans-cluster", "masked-soft-kmeans")


def systems_of(*keys: str) -> tuple[System, ...]:
    """Lines of Table 1 by their keys."""
    return tuple(SYSTEMS[key] for key in keys)


# Classes of a training episode where a system was published with another number than it may have here: Ren et al. train
# with as many as they test with, TapNet's and TAC's authors with more.
PUBLISHED_WAYS = {
    **{system.training: 5 for system in systems_of("pn", "pn-semi", *SOFT_KMEANS)},
    **{system.training: 20 for system in systems_of("tapnet", "tac", "tacdap")},
}


@dataclass(frozen=True)
class TableSpec:
    """One table: its lines, and whether it has columns with distractors.

    With ``both_readings``, systems that were published with other training ways than the recipe's have a second line:
    trained as published, beside trained with equal ways; if the data has classes enough, distractors included.
    """

    title: str
    systems: tuple[System, ...]
    distractors: tuple[bool, ...] = (False, True)
    both_readings: bool = True

    def lines(self, ways: int, classes: int, start: bool = False) -> list[System]:
        """The lines where the recipe trains with so many ways, on so many classes.

        The common start first, if there is one, then those trained as published.
        """
        as_published = [
            replace(system, published_ways=PUBLISHED_WAYS[system.training])
            for system in self.systems
            if self.both_readings
            and system.variant is None
            and ways != PUBLISHED_WAYS.get(system.training, ways) <= classes // 2
        ]
        return [*(START.values() if start and self.both_readings else ()), *as_published, *self.systems]


TABLES = {
    "table1": TableSpec("Accuracy of all systems, with and without distractors", tuple(SYSTEMS.values())),
    "table2": TableSpec("Accuracy of all systems, with and without distractors", tuple(SYSTEMS.values())),
    "table3": TableSpec(
        "Where to cluster, and how often", tuple(ABLATION.values()), distractors=(False,), both_readings=False
    ),
}
# Lines of the figure over refinements; the best of the variants of soft k-means is TAC's rival there.
OVER_REFINEMENTS = systems_of("tac", "tac-cosine", "tac-free", *SOFT_KMEANS)
# Lines of the figure over the share of distractors; PN and TapNet use labelled images only.
UNDER_DISTRACTORS = systems_of("pn", *SOFT_KMEANS, "tapnet", "tac", "tacdap", "tacdap-cosine", "tac-free")
SHARES = (0.0, 0.2, 0.4, 0.6, 0.8)


# At the published 1, PN is far too sure of itself at first and learns slower: see docs/recipe.md.
PN_KIN = ("pn", *SOFT_KMEANS)
SOFTER_PN: dict[str, dict[str, Any]] = {method: {"scale": 0.1} for method in PN_KIN}
# On glyphs, a classifier's embeddings lie farther apart from the first step on, and want a softer scale yet.
SOFTEST_PN: dict[str, dict[str, Any]] = {method: {"scale": 0.03} for method in PN_KIN}
# Photographs from a common start: no fixed scale of squared distances suits the lengths that a classifier gives its
# vectors. All that compare with class means do it by cosines, at a learned temperature. All values to tune are here.
LEARNED = {"scale": 10.0, "learn_scale": True}
LATER_STARTED: dict[str, dict[str, Any]] = {"prwn": {"cosine": True, **LEARNED}}
PHOTOS_STARTED: dict[str, dict[str, Any]] = {
    "pn": {"cosine": True, **LEARNED},
    **{method: {"cosine": True, **LEARNED, "grad_through_soft_labels": True} for method in SOFT_KMEANS},
    "tapnet": {"learn_scale": True},
    **{method: {"learn_scale": True, "cluster_scale": 0.05} for method in ("tapnet-soft-clustering", "tac", "tacdap")},
    "tac-free": {**LEARNED, "grad_through_soft_labels": True},
    # At 0.99, labels run through the even distances of a start's vectors until all classes are alike.
    "tpn": {"alpha": 0.5, "scale": 10.0},
}
PHOTOS_VARIANTS = {"cosine": {**VARIANTS["cosine"], "cluster_scale": 10.0}}
LATER_VARIANTS: dict[str, dict[str, Any]] = {
    "walk": {"walk": 0.5},
    "cosine-walk": {**PHOTOS_VARIANTS["cosine"], "walk": 0.5},
}
TRAIN = EpisodeSpec(ways=20, queries=8, unlabelled=5)  # as TapNet's public code, but for the unlabelled images
TEST = EpisodeSpec(ways=5, queries=15, unlabelled=20)


@dataclass(frozen=True)
class Recipe:
    """How models are trained and tested on a data set; the same for every budget.

    Attributes:
        train, test: what an episode holds; shots and distractors are those of the column.
        shots: for which there are columns.
        learning_rate, weight_decay: of Adam.
        average_pool: on top of the backbone.
        options: of methods, by name; what is not said is the method's default.
        start_rate: of the classifier whose backbone all models start from, if they do.
        start_augment: whether its images are moved and mirrored.
        started_rate: of the models that start from it.
        started_options: of methods that do; before ``options``.
        started_variants: of systems with a variant that do; instead of `VARIANTS`.
    """

    train: EpisodeSpec = TRAIN
    test: EpisodeSpec = TEST
    shots: tuple[int, ...] = (1, 5)
    learning_rate: float = 1e-3
    weight_decay: float = 5e-4
    average_pool: bool = False
    options: dict[str, dict[str, Any]] = field(default_factory=lambda: SOFTER_PN)
    start_rate: float = 3e-3
    start_augment: bool = True
    started_rate: float = 3e-4
    started_options: dict[str, dict[str, Any]] = field(default_factory=lambda: PHOTOS_STARTED)
    started_variants: dict[str, dict[str, Any]] = field(default_factory=lambda: PHOTOS_VARIANTS)

    def with_ways(self, train: int | None, test: int | None) -> Recipe:
        """The same with so many classes in a training and in a test episode; None keeps the recipe's."""
        return replace(
            self,
            train=replace(self.train, ways=train or self.train.ways),
            test=replace(self.test, ways=test or self.test.ways),
        )


RECIPES = {
    "glyphs": Recipe(
        train=EpisodeSpec(ways=20, queries=5, unlabelled=5),
        learning_rate=3e-3,
        start_augment=False,
        started_options=SOFTEST_PN,
        started_variants=VARIANTS,
    ),
    "mini-imagenet": Recipe(started_options={**PHOTOS_STARTED, "imp": {"sigma": 50.0}}),
    "tiered-imagenet": Recipe(weight_decay=0.0, average_pool=True),
    # As Ren et al.: two labelled drawings of each character, one to learn from and one to ask for; 5-way training.
    "omniglot": Recipe(
        train=EpisodeSpec(ways=5, queries=1, unlabelled=5),
        test=EpisodeSpec(ways=5, queries=1, unlabelled=5),
        shots=(1,),
        weight_decay=5e-5,
        options={},
        start_augment=False,
        started_options={},
        started_variants=VARIANTS,
    ),
}


def recipe_for(dataset: str) -> Recipe:
    """The recipe of a data set; for one's own images that of photographs in general."""
    return RECIPES.get(dataset, Recipe())


@dataclass(frozen=True)
class Budget:
    """How long to train and how often to test; nothing else changes between budgets."""

    episodes: int
    splits: int
    test_episodes: int


BUDGETS = {
    "paper": Budget(episodes=50_000, splits=10, test_episodes=3000),
    "day": Budget(episodes=4_000, splits=10, test_episodes=3000),
    "hour": Budget(episodes=400, splits=10, test_episodes=300),
    "minutes": Budget(episodes=60, splits=2, test_episodes=100),
}

Figures = dict[str, dict[Column, float]]  # by title of the system
_FOUR: tuple[Column, ...] = ((1, False), (5, False), (1, True), (5, True))


def _published(columns: tuple[Column, ...], lines: dict[str, tuple[float | None, ...]]) -> Figures:
    return {
        title: {column: value for column, value in zip(columns, values, strict=True) if value is not None}
        for title, values in lines.items()
    }


PUBLISHED_TEST_WAYS = 5
# Accuracies in percent. miniImageNet and tieredImageNet: Tables 1 to 3 of the paper. Omniglot: Ren et al. 2018.
PUBLISHED: dict[str, Figures] = {
    "mini-imagenet": _published(_FOUR, {
        "PN": (43.61, 59.08, 43.61, 59.08),
        "Soft k-Means": (50.09, 64.59, 48.70, 63.55),
        "Soft k-Means + Cluster": (49.03, 63.08, 48.86, 61.27),
        "Masked Soft k-Means": (50.41, 64.39, 49.04, 62.96),
        "TPN": (52.78, 66.42, 50.43, 64.95),
        "MetaGAN + RN": (50.35, 64.43, None, None),
        "IMP": (None, None, 49.2, 64.7),  # with 5 unlabelled images a class in evaluation
        "TapNet": (49.58, 66.86, 49.58, 66.86),
        "TapNet + Semi-Sup. Inference": (53.19, 69.53, 50.53, 66.93),
        "TapNet + Soft-clustering": (52.82, 68.76, None, None),
        "TAC with 1 iteration": (53.63, 68.70, None, None),
        "TAC": (55.50, 69.21, 50.95, 66.39),
        "TACdap": (52.60, 69.05, 51.56, 67.75),
    }),
    "tiered-imagenet": _published(_FOUR, {
        "PN": (46.52, 66.15, 46.52, 66.15),
        "Soft k-Means": (51.52, 70.25, 49.88, 68.32),
        "Soft k-Means + Cluster": (51.85, 69.42, 51.36, 67.56),
        "Masked Soft k-Means": (52.39, 69.88, 51.38, 69.08),
        "TPN": (55.74, 71.01, 53.45, 69.93),
        "TapNet": (51.84, 69.14, 51.84, 69.14),
        "TapNet + Semi-Sup. Inference": (55.66, 71.54, 51.84, 69.05),
        "TapNet + Soft-clustering": (54.18, 71.84, None, None),
        "TAC with 1 iteration": (55.20, 71.80, None, None),
        "TAC": (58.46, 72.05, 54.80, 69.35),  # 58.48 in Table 3
        "TACdap": (56.06, 71.37, 53.67, 70.72),
    }),
    "omniglot": _published(((1, False), (1, True)), {
        "PN": (94.62, 94.62),
        "PN + Semi-Sup. Inference": (97.45, 95.08),
        "Soft k-Means": (97.25, 95.01),
        "Soft k-Means + Cluster": (97.68, 97.17),
        "Masked Soft k-Means": (97.52, 97.30),
    }),
}  # fmt: skip
