"""Whether a data set has the classes that a plan needs: said once, before the first training."""

from __future__ import annotations

from collections.abc import Sequence

from ..datasets import SPLITS
from ..errors import HandfulError
from ..methods import method_class
from ..methods.tapnet import TapNet
from ..sampling import EpisodeSpec
from .cell import Cell


def check_classes(cells: Sequence[Cell], dataset: str, there: dict[str, int]) -> None:
    """Raise a HandfulError if a split has fewer classes than the largest of its episodes needs.

    Args:
        cells: the trainings and measurements that are planned.
        dataset: its name.
        there: how many classes each split has.
    """
    # A method that learns all classes at once takes as many as there are.
    sized = [cell.config.train for cell in cells if not method_class(cell.config.method).in_order]
    training = max(sized or [cell.config.train for cell in cells], key=_classes)
    tests = [one.protocol.spec for cell in cells for one in cell.measurements]
    test = max((*tests, *(cell.config.validation for cell in cells)), key=_classes)
    too_few = [split for split in SPLITS if there[split] < _classes(training if split == "train" else test)]
    if too_few:
        found = ", ".join(f"{split} {there[split]}" for split in SPLITS)
        raise HandfulError(
            f"the training episodes need {_needs(training)}, the validation and test episodes {_needs(test)}, but "
            f"'{dataset}' has fewer (classes: {found}): "
            + _fitting(training, test, there["train"], min(there["val"], there["test"]))
        )
    for cell in cells:
        if issubclass(method_class(cell.config.method), TapNet) and test.ways > cell.config.train.ways:
            raise HandfulError(
                f"{cell.config.method} cannot be tested with {test.ways} ways after training with "
                f"{cell.config.train.ways}: give --ways {test.ways} or more, or --test-ways {cell.config.train.ways}"
            )


def _classes(spec: EpisodeSpec) -> int:
    return spec.ways + (spec.distractor_ways or int(spec.realistic_share > 0))


def _needs(spec: EpisodeSpec) -> str:
    extra = f" + {spec.distractor_ways} of distractors" if spec.distractor_ways else ""
    return f"{_classes(spec)} classes ({spec.ways} ways{extra})"


def _fitting(training: EpisodeSpec, test: EpisodeSpec, classes: int, test_classes: int) -> str:
    """What to do about it, in words: the largest episodes that the data has classes for."""
    ways = min(training.ways, classes // (2 if training.distractor_ways else 1))
    test_ways = min(test.ways, ways, test_classes // (2 if test.distractor_ways else 1))
    if test_ways < 2:
        return "add classes" + (", or give --distractors without" if test.distractor_ways else "")
    return f"add classes, or give --ways {ways} --test-ways {test_ways}"
