"""The played person of person.py: what counts, and that nobody peeks."""

from __future__ import annotations

import numpy as np
import pytest
from person import REACH, Page, Window, correct, finish, paste_names, play

from handful.labelling.session import Session

TRUTH = np.array(["circle", "cross", "star"])[np.arange(120) % 3]


def vectors(noise: float = 0.6) -> np.ndarray:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(3, 12))
    return (centres[np.arange(120) % 3] + noise * rng.normal(size=(120, 12))).astype(np.float32)


def page_of(window: Window) -> Page:
    session = Session(vectors(), distractors=False)
    session.see(vectors())
    return Page(session, TRUTH, window)


def test_a_person_labels_all_with_far_fewer_actions_than_images() -> None:
    page = play(vectors(), TRUTH, window=Window(6, 4), queue=2)
    assert page.right >= REACH[-1] and page.reached.keys() == set(REACH)
    assert page.reached[0.9][0] <= page.reached[0.95][0] <= page.count < 60
    assert page.actions["paste names"] == 3 and page.actions["letter"] == 0 and page.actions["key"] >= 6


def test_typed_names_cost_a_letter_each_and_enter() -> None:
    pasted, typed = (play(vectors(), TRUTH, window=Window(6, 4), queue=4, pasted=one) for one in (True, False))
    assert typed.actions["letter"] == sum(map(len, set(TRUTH.tolist()))) + 3
    assert typed.actions["key"] == pasted.actions["key"] - 3 and typed.right >= REACH[-1]


def test_only_what_is_on_the_screen_can_be_seen() -> None:
    page = page_of(Window(4, 2))
    page.show([1, 2, 3])
    assert page.see([1, 3]).tolist() == ["cross", "circle"]
    with pytest.raises(AssertionError, match="cannot see"):
        page.see([4])
    with pytest.raises(AssertionError):
        page.show(list(range(9)))


def shown_as_circles() -> Page:
    page = page_of(Window(5, 1))
    paste_names(page, ["circle", "cross", "star"])
    page.shown = np.full(120, "circle")
    return page


@pytest.mark.parametrize(("worth", "actions", "labelled"), [(1.5, 2, 3), (1.0, 2, 3), (2.0, 0, 0)])
def test_images_side_by_side_are_dragged_over_and_labelled_with_one_key(worth, actions, labelled) -> None:
    """Stars but for one circle, all shown as circles: three in a run, and one alone, which a drag more is not worth."""
    page = shown_as_circles()
    before = page.count
    assert correct(page, [np.array([2, 5, 8, 0, 11])], worth) == bool(labelled)
    assert page.count == before + actions and page.labels == labelled


def test_a_single_image_takes_the_key_at_the_pointer() -> None:
    page = shown_as_circles()
    before = page.count
    assert correct(page, [np.array([0, 3, 2, 6, 9])], 1.0)
    assert page.count == before + 1 and page.actions["drag"] == 0 and page.labels == 1


def test_a_screen_is_accepted_without_what_is_wrong() -> None:
    page = page_of(Window(10, 1))
    paste_names(page, ["circle", "cross", "star"])
    for number in range(6):
        page.label([number], str(TRUTH[number]))
    screen = np.array([6, 7, 8, 9, 10, 11, 12, 13, 14, 15])
    page.shown = TRUTH.copy()
    page.shown[[9, 11]] = "wrong"  # two wrong ones, and one between them that is left out with them
    before, labels = page.count, page.labels
    assert finish(page, [screen], 3) and page.labels == labels + 7
    assert page.count == before + 2, "one drag, and Shift Space"
    page.shown = np.full(120, "wrong")
    assert not finish(page, [screen + 20], 3)
