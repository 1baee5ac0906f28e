"""The real accuracy of a labelling, for those who have the truth and want to see whether to trust the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .estimate import wilson
from .label import Labelling


@dataclass(frozen=True)
class TrueAccuracy:
    """Predicted labels against the truth.

    Attributes:
        right, total: predicted images whose label is right, of those whose truth is known. Where the truth is "none of
            these", calling the image so is right; anywhere else it is wrong.
        flagged, of_classes: images that were wrongly called none of these, of those that belong to a class.
        found, of_none: images that were rightly called none of these, of those that belong to none.
        confidence: mean over the images that belong to a class.
    """

    right: int
    total: int
    flagged: int
    of_classes: int
    found: int
    of_none: int
    confidence: float

    def describe(self) -> str:
        low, high = wilson(self.right, self.total)
        words = (
            f"True accuracy: {self.right:,} of {self.total:,} predicted labels are right, "
            f"{self.right / self.total:.1%} (95 % interval {low:.1%} to {high:.1%})."
        )
        if self.of_classes:
            flagged = self.flagged / self.of_classes
            words += f" Mean confidence {self.confidence:.1%}; wrongly called none of these: {flagged:.1%}."
        if self.of_none:
            words += f" Of the images that are none of these, {self.found / self.of_none:.1%} were found."
        return words


def true_accuracy(found: Labelling, truth: Mapping[str, str], none_label: str = "none-of-these") -> TrueAccuracy | None:
    """Compare the predicted labels with the truth, by path; None if the truth of none of them is known."""
    judged = [(one, truth[one.path]) for one in found.predictions if one.source == "predicted" and truth.get(one.path)]
    if not judged:
        return None
    own = [(one, label) for one, label in judged if label != none_label]
    none = [one for one, label in judged if label == none_label]
    right = sum(not one.is_none and one.label == label for one, label in own)
    noticed = sum(one.is_none for one in none)
    return TrueAccuracy(
        right=right + noticed,
        total=len(judged),
        flagged=sum(one.is_none for one, _ in own),
        of_classes=len(own),
        found=noticed,
        of_none=len(none),
        confidence=sum(one.confidence for one, _ in own) / max(1, len(own)),
    )
