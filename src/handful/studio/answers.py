"""Images in the words of the API."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..labelling.book import FREE
from .desk import Desk
from .look import Look

MOST_DUPLICATES = 20


def described(
    desk: Desk, look: Look, numbers: NDArray[np.int64] | list[int], like: int | None = None
) -> list[dict[str, Any]]:
    """What there is to say of each of some images."""
    likeness = None if like is None else look.likeness(like)
    return [_one(desk, look, int(number), likeness) for number in numbers]


def _one(desk: Desk, look: Look, number: int, likeness: NDArray[np.float32] | None) -> dict[str, Any]:
    sight, found = look.sight, look.found
    label, given = int(look.label[number]), bool(look.given[number])
    has_label, predicted = label != FREE, found is not None and int(found.best[number]) != FREE
    group = -1 if sight.groups is None else int(sight.groups.of[number])
    near = None if likeness is None or np.isnan(likeness[number]) else round(float(likeness[number]), 4)
    return {
        "number": number,
        "name": desk.images.shown[number],
        "state": "broken" if sight.broken[number] else "ready" if sight.embedded[number] else "waiting",
        "label": label if has_label else None,
        "source": ("given" if given else "found") if has_label else None,
        "confidence": round(float(look.confidence[number]), 4) if has_label else None,
        "likely": [
            {"class": int(kind[number]), "probability": round(float(chance[number]), 4)}
            for kind, chance in ((found.best, found.chance), (found.second, found.next_chance))
            if int(kind[number]) in desk.book.classes
        ] if found is not None and predicted else [],
        "is_none": bool(look.is_none[number]),
        "none_score": round(float(found.none_score[number]), 4) if found is not None and predicted else None,
        "doubtful": bool(look.doubtful[number]),
        "was": int(look.before[number]) if look.changed[number] else None,
        "changed": bool(look.changed[number]),
        "group": None if group < 0 else group,
        "duplicates": _duplicates(desk, number),
        "likeness": near,
        "reason": desk.images.broken.get(number),
        "tag": desk.images.tag(number),
    }  # fmt: skip


def _duplicates(desk: Desk, number: int) -> list[int]:
    first = int(desk.around.duplicate[number])
    if first < 0:
        return []
    mine = next((one for one in desk.around.sets if one[0] == first), [])
    return [one for one in mine if one != number][:MOST_DUPLICATES]


def groups(desk: Desk, look: Look, examples: int = 24) -> dict[str, Any]:
    """All groups, largest first, with images from the most typical to the least: a fair sample, which to label."""
    part, found = desk.part("groups"), look.sight.groups
    answer: dict[str, Any] = {**part, "groups": []}
    if found is None:
        return answer
    order = np.lexsort((-found.typical, found.of))
    for group, size in enumerate(found.sizes):
        start, end = np.searchsorted(found.of[order], [group, group + 1])
        mine = order[start:end]
        some = np.unique(np.linspace(0, len(mine) - 1, min(examples, len(mine))).round().astype(int))
        answer["groups"].append({
            "group": group, "size": int(size), "labelled": int(look.given[mine].sum()), "examples": mine[some].tolist(),
        })  # fmt: skip
    return answer
