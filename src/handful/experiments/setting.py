"""What a reproduction is run on, and the training behind each line and column of its tables."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..datasets import ImageSet
from ..runs.config import RunConfig, TrainingData, build_config, read_config, training_spec
from ..runs.episodes import Protocol
from ..runs.folder import started_from
from ..runs.options import TrainingOptions
from ..sampling import EpisodeSpec
from .paper import DISTRACTOR_AWARE, LATER_STARTED, LATER_VARIANTS, START, VARIANTS, Budget, Recipe, System


@dataclass(frozen=True)
class Setting:
    """What a reproduction is run on.

    Attributes:
        dataset, data, data_options: the data set, where its files are, how they are read.
        images: its training images, for their size and fingerprint.
        labelled_ratio: share of each class whose labels may be used.
        recipe, budget: how models are trained, how long, and how they are tested.
        shots, distractors: the columns of tables.
        train_once: whether a model is trained once for the columns without and with distractors, instead of for each:
            with distractors if its method learns what to do about them, without them otherwise.
        methods: only lines that are evaluated as one of these; all if None.
        training: training options (:class:`TrainingOptions`) that are not the recipe's, by name.
        seed: of the trainings.
        seeds: trainings of each line of a table, with this and the next seeds; the common start is one for all.
        seeded: only lines that are evaluated as one of these methods are trained with several seeds; all if None.
        tuned: whether the scale of the soft labels is chosen on validation classes, for every system alike.
        trials: of each line of the table beyond, on validation classes.
        untrained: only those of its lines that need no training.
        pretraining: episodes of a classifier whose backbone all models start from; 0 for a random start.
        start: its run folder, once it is trained; or, without pretraining, a run whose backbone all models start from.
    """

    dataset: str
    data: str | None
    data_options: dict[str, Any]
    images: ImageSet
    labelled_ratio: float
    recipe: Recipe
    budget: Budget
    shots: tuple[int, ...]
    distractors: tuple[bool, ...] = (False, True)
    train_once: bool = False
    methods: tuple[str, ...] | None = None
    training: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    seeds: int = 1
    seeded: tuple[str, ...] | None = None
    tuned: bool = False
    trials: int = 12
    untrained: bool = False
    pretraining: int = 0
    start: Path | None = None

    @property
    def fewest(self) -> int:
        """Shots of the figures that show one number of them."""
        return min(self.shots)

    def spec(self, shots: int, distractors: bool) -> EpisodeSpec:
        """A test episode of a column."""
        return _with_distractors(replace(self.recipe.test, shots=shots), distractors)

    def protocol(self, spec: EpisodeSpec) -> Protocol:
        return Protocol(spec, self.labelled_ratio, self.budget.splits, self.budget.test_episodes, self.seed)

    def seeds_of(self, system: System) -> range:
        """The seeds that a line of a table is trained with."""
        several = system.training != START["classifier"].method and (
            self.seeded is None or system.method in self.seeded
        )
        return range(self.seed, self.seed + (self.seeds if several else 1))

    def trained_with_distractors(self, system: System, distractors: bool) -> bool:
        """Whether a line is trained with distractors for a column without or with them."""
        return system.training in DISTRACTOR_AWARE if self.train_once else distractors

    def config(
        self, system: System, shots: int, distractors: bool, seed: int | None = None, share: float | None = None
    ) -> RunConfig:
        """A training; a classifier's is the same for all columns. ``share`` of distractors: in realistic episodes."""
        recipe, episodes, method = self.recipe, self.budget.episodes, system.training
        seed = self.seed if seed is None else seed
        first = system.training == START["classifier"].method
        if first and self.given_start is not None:
            return replace(read_config(self.given_start), data=self.data, data_options=self.data_options)
        if first:
            episodes, shots = self.pretraining, min(recipe.shots)
        options = {} if system.published_ways else recipe.options.get(method, {})
        if self.start is not None and not system.published_ways:
            options = options | LATER_STARTED.get(method, {}) | recipe.started_options.get(method, {})
        variants = LATER_VARIANTS | (VARIANTS if self.start is None else recipe.started_variants)
        options = options | (variants[system.variant] if system.variant else {})
        train = replace(recipe.train, ways=system.published_ways or recipe.train.ways, shots=shots)
        train = realistic(train, share) if share is not None else _with_distractors(train, distractors)
        train = training_spec(method, options, train, len(self.images.class_names))
        data = TrainingData(self.dataset, self.images, self.labelled_ratio, self.data, self.data_options)
        test = self.spec(shots, bool(train.distractor_ways))
        if train.realistic_total is not None:
            test = realistic(test, train.realistic_share)
        training = self._training(episodes, started=self.start is not None, first=first)
        config = build_config(data, method, options, train, test, training, episodes=episodes, seed=seed)
        return config if first or self.start is None else started_from(config, self.start)

    @property
    def given_start(self) -> Path | None:
        """The run that all models start from, if it is not trained here."""
        return None if self.pretraining else self.start

    @property
    def start_has_lines(self) -> bool:
        """Whether the common start is a classifier, which can be measured by itself."""
        given = self.given_start
        if given is None:
            return self.pretraining > 0
        return read_config(given).method == START["classifier"].method

    def _training(self, episodes: int, *, started: bool, first: bool = False) -> TrainingOptions:
        """The recipe's training options, or what was given instead.

        ``started`` is for a model that starts from a classifier's backbone, ``first`` for that classifier.
        """
        recipe, given = self.recipe, self.training
        ours: dict[str, Any] = {
            "learning_rate": recipe.started_rate if started else recipe.learning_rate,
            "weight_decay": recipe.weight_decay,
            "average_pool": recipe.average_pool,
            "validate_every": max(1, episodes // 10) if episodes >= 1000 else episodes,
        }
        if self.given_start is not None:
            origin = read_config(self.given_start)
            ours |= {"average_pool": False, "backbone": origin.backbone, **origin.backbone_options}
        if first:  # the rate that was given is that of the models in the tables
            ours |= {"learning_rate": recipe.start_rate, "augment": recipe.start_augment}
            given = {name: value for name, value in given.items() if name != "learning_rate"}
        return TrainingOptions(**ours | given)

    def caption(self) -> str:
        """Under which conditions the numbers were measured."""
        recipe, budget = self.recipe, self.budget
        test, training = (
            recipe.test,
            self._training(budget.episodes, started=self.pretraining > 0 or self.start is not None),
        )
        return (
            f"{self.dataset}, {self.images.image_size} x {self.images.image_size}; {self.labelled_ratio:.0%} of each "
            f"class labelled. Test: {test.ways} ways, {test.queries} queries and {test.unlabelled} unlabelled images a "
            f"class, with distractors as many again from {test.ways} other classes; {budget.splits} splits x "
            f"{budget.test_episodes:,} episodes; ± is the 95 % interval over episodes, for these weights"
            f"{self._seeds_caption()}{self._training_caption(training)}{self._start_caption()}"
        )

    def _training_caption(self, training: TrainingOptions) -> str:
        if self.untrained:
            return ""
        train = self.recipe.train
        return (
            f" Training, the same for every model{self._once_caption()}: {self.budget.episodes:,} episodes of "
            f"{train.ways} ways (a line that names others has the published ways and options), {train.queries} queries "
            f"and {train.unlabelled} unlabelled images a class, {described_rate(training)}, "
            f"{training.precision} convolutions."
        )

    def _once_caption(self) -> str:
        if not self.train_once:
            return ""
        return (
            " and for the columns without and with distractors (methods that learn what to do about distractors are "
            "trained with them, all others without)"
        )

    def _seeds_caption(self) -> str:
        if self.seeds == 1:
            return ": one training seed, so variance between training runs is not included."
        lines = "" if self.seeded is None else f" for {', '.join(self.seeded)}"
        return (
            f". {self.seeds} training seeds{lines}: the accuracy is the mean over seeds, ± the mean of their "
            "intervals over episodes, and 'seeds' the least and the largest accuracy of a seed."
        )

    def _start_caption(self) -> str:
        if self.given_start is not None:
            origin = read_config(self.given_start)
            return (
                f" All start from the backbone of one run, {self.given_start.name}: {origin.method}, "
                f"{origin.episodes:,} episodes."
            )
        if not self.pretraining:
            return ""
        moved = ", moved and mirrored" if self.recipe.start_augment else ""
        return (
            f" All start from the backbone of one classifier of the {len(self.images.class_names)} training classes: "
            f"{self.pretraining:,} steps of two labelled images of each{moved}, Adam at {self.recipe.start_rate:g}."
        )


def described_rate(training: TrainingOptions) -> str:
    """The optimiser and its rate in words.

    >>> described_rate(TrainingOptions())
    'Adam at 0.001, divided by ten for the last fifth'
    """
    falls = {
        "step": ", divided by ten for the last fifth",
        "cosine": ", falling to zero along a cosine",
        "constant": "",
    }
    every = training.schedule.partition(":")[2]
    fall = falls.get(training.schedule, f", halved every {every} episodes")
    return f"{'SGD' if training.optimiser == 'sgd' else 'Adam'} at {training.learning_rate:g}{fall}"


def _with_distractors(spec: EpisodeSpec, distractors: bool) -> EpisodeSpec:
    if not distractors or not spec.unlabelled:
        return spec
    return replace(spec, distractor_ways=spec.ways, distractors=spec.unlabelled)


def realistic(spec: EpisodeSpec, share: float) -> EpisodeSpec:
    """An uneven episode with as many unlabelled images as one with distractors has, such a share of other classes."""
    return replace(
        spec, distractor_ways=0, distractors=0, realistic_total=2 * spec.ways * spec.unlabelled, realistic_share=share
    )
