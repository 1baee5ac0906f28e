"""Selections of the paper's systems that are run by name: those of ``handful demo``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..datasets import ImageSet, dataset_spec
from ..methods import method_class
from ..runs.episodes import MOST_ITERATIONS
from ..runs.results import Result
from .paper import ABLATION, DISTRACTOR_AWARE, START, Budget, System, recipe_for, systems_of
from .plan import Plan, Source
from .setting import Setting

COLUMNS = {"without distractors": False, "with distractors": True}


@dataclass(frozen=True)
class Asked:
    """The measurements behind one accuracy.

    Attributes:
        best: with the refinements that are best on the validation classes.
        curve: with as many as are tried, for the accuracy after each; the same if the method has no refinements.
    """

    best: Source
    curve: Source

    def result(self, find: Callable[[Source], Result]) -> Result:
        """That of the best number of refinements, with the accuracies after each."""
        curve = find(self.curve)
        return replace(find(self.best), by_iteration=curve.by_iteration, intervals=curve.intervals)


@dataclass(frozen=True)
class Preset:
    """What is trained and compared; the recipe is that of the data set (:func:`.paper.recipe_for`).

    Attributes:
        dataset: its name.
        shots: labelled images of a class.
        budget: how long to train, and how often to test.
        systems: the lines; those of the same training share its weights.
        with_distractors: the trainings whose episodes have distractors.
    """

    dataset: str
    shots: int
    budget: Budget
    systems: tuple[System, ...]
    with_distractors: tuple[str, ...]

    @property
    def trainings(self) -> dict[str, list[str]]:
        """The methods that are trained, and those that are evaluated with the weights of each."""
        found: dict[str, list[str]] = {}
        for system in self.systems:
            found.setdefault(system.training, []).append(system.method)
        return found

    def setting(self, images: ImageSet, seed: int) -> Setting:
        """The setting of a reproduction on these training images; models are validated once, at the end."""
        spec, episodes = dataset_spec(self.dataset), self.budget.episodes
        return Setting(
            self.dataset, None, {}, images, spec.labelled_ratio, recipe_for(self.dataset), self.budget,
            shots=(self.shots,), training={"validate_every": episodes}, seed=seed, pretraining=episodes,
        )  # fmt: skip

    def ask(self, plan: Plan) -> dict[System, dict[str, Asked]]:
        """Plan each system in each column; a model is trained once, with or without distractors."""
        asked: dict[System, dict[str, Asked]] = {}
        for system in self.systems:
            for column, distractors in COLUMNS.items():
                trained_with = system.training in self.with_distractors
                test = plan.setting.spec(self.shots, distractors)
                best = curve = plan.ask(system, self.shots, trained_with, test)
                if method_class(system.method).iterative:
                    curve = plan.ask(replace(system, iterations=MOST_ITERATIONS), self.shots, trained_with, test)
                asked.setdefault(system, {})[column] = Asked(best, curve)
        return asked


DEMO = Preset(
    dataset="glyphs",
    shots=1,
    budget=Budget(episodes=200, splits=2, test_episodes=300),  # a minute on two cores, too little for a comparison
    systems=systems_of("pn", "pn-semi", "tapnet", "tapnet-semi", "tac", "tacdap"),
    with_distractors=DISTRACTOR_AWARE,
)
FULL_DEMO = replace(
    DEMO,
    systems=(
        *DEMO.systems,
        *START.values(),
        *systems_of("soft-kmeans-cluster", "masked-soft-kmeans", "tpn", "relation", "metagan", "imp"),
        ABLATION["tapnet-soft-clustering"],
    ),
)
