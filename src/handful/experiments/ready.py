"""Models that were trained before, in the place of trainings of a preset."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..datasets import ImageSet
from ..datasets.base import Bar
from ..embedders.shipped import model_folder
from ..errors import HandfulError
from ..runs.config import RunConfig
from ..runs.evaluation import Embedded, evaluate_run
from ..runs.folder import check_unseen, load_run
from ..runs.results import Result
from .plan import Source
from .setting import Setting


@dataclass(frozen=True)
class Ready:
    """A model that was trained before.

    Attributes:
        name: of its folder.
        folder: a run folder.
        config: of its training.
        recipe: how it was trained, in a line.
    """

    name: str
    folder: Path
    config: RunConfig
    recipe: str

    def measure(self, device: str, bar: Bar) -> Callable[[Source], Result]:
        """A function that measures this model where a grid would measure its own; images are embedded once."""
        embedded = Embedded()

        @cache
        def find(source: Source) -> Result:
            wanted = source.measurement
            return evaluate_run(
                self.folder, wanted.protocol, method=wanted.method, iterations=wanted.iterations, device=device,
                bar=bar, embedded=embedded,
            )  # fmt: skip

        return find


def ready_models(models: Sequence[str], methods: Collection[str], setting: Setting, test: ImageSet) -> dict[str, Ready]:
    """Models that come with the package, or run folders, by their methods.

    Raises:
        HandfulError: for one of other data or of another method, a second one of a method, or one that has seen the
            test classes.
    """
    ready: dict[str, Ready] = {}
    for model in models:
        folder = model_folder(model)
        config, learner, state = load_run(folder)
        if (config.dataset, config.image_size, config.channels) != (setting.dataset, test.image_size, test.channels):
            raise HandfulError(
                f"{model} was trained on '{config.dataset}', and the demo is on '{setting.dataset}': leave it out"
            )
        if config.method not in methods:
            known = ", ".join(methods)
            raise HandfulError(f"{model} is of the method '{config.method}', and the demo takes models of {known}")
        if config.method in ready:
            raise HandfulError(
                f"{model} and {ready[config.method].name} are both of '{config.method}': give one of them"
            )
        learner.method.check_ways(setting.recipe.test.ways)
        check_unseen(folder, test)
        recipe = f"{state['episode']:,} training episodes ({config.train.describe()})"
        ready[config.method] = Ready(folder.resolve().name, folder, config, recipe)
    return ready
