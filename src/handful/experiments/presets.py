"""Selections of the paper's systems that are run by name: the tour of ``handful demo``."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .paper import ABLATION, START, Budget, System, systems_of


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


DEMO = Preset(
    dataset="glyphs",
    shots=1,
    budget=Budget(episodes=200, splits=2, test_episodes=300),  # what fits into a tour, too little for a comparison
    systems=systems_of("pn", "pn-semi", "tapnet", "tapnet-semi", "tac", "tacdap"),
    with_distractors=("tacdap", "soft-kmeans-cluster", "masked-soft-kmeans"),
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
