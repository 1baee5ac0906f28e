"""Labels, classes, undo and redo."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from handful.errors import HandfulError
from handful.labelling.book import FREE, KEYS, NONE, Action, Book, Conflict, NotThere


def seen(book: Book) -> tuple[object, ...]:
    return book.labels.tolist(), {one.id: one for one in book.classes.values()}


def test_a_new_name_adds_a_class_with_the_first_free_key_and_colour() -> None:
    book = Book(5)
    book.label([0, 1], "cat")
    book.label([2], "dog")
    book.label([3], "none-of-these")
    assert [(one.name, one.key, one.colour) for one in book.classes.values()] == [("cat", "1", 0), ("dog", "2", 1)]
    assert book.plain.tolist() == [1, 1, 2, NONE, FREE]
    book.label([0, 3], None)
    assert book.plain.tolist() == [FREE, 1, 2, FREE, FREE]


def test_an_action_that_changes_nothing_is_no_step() -> None:
    book = Book(3)
    book.label([0], "cat")
    assert not book.label([0], "cat")
    assert not book.label([], "dog"), "a name without an image is no class"
    assert book.revision == 1
    book.undo()
    with pytest.raises(Conflict, match="nothing to undo"):
        book.undo()


def test_an_action_on_an_image_that_is_not_there_changes_nothing() -> None:
    book = Book(3)
    for numbers in ([0, 3], [-1], [1, 1]):
        with pytest.raises(HandfulError):
            book.label(numbers, "cat")
    assert seen(book) == ([FREE] * 3, {})
    with pytest.raises(NotThere):
        book.delete(7)


@pytest.mark.parametrize("name", ["", "a/b", "..", "a\x00b", "a\nb", "x" * 201, "\udcff"])
def test_a_name_that_can_be_no_folder_is_refused(name) -> None:
    book = Book(1)
    with pytest.raises(HandfulError, match="cannot be a class's name"):
        book.label([0], name)
    assert not book.classes


def test_merging_and_deleting_classes_takes_their_labels_along() -> None:
    book = Book(6)
    book.label([0, 1], "cat")
    book.label([2, 3], "kitten")
    book.label([4], "dog")
    book.merge(2, 1)
    assert book.plain.tolist() == [1, 1, 1, 1, 3, FREE]
    book.delete(3)
    assert book.plain.tolist() == [1, 1, 1, 1, FREE, FREE]
    assert list(book.classes) == [1]
    book.label([5], "dog")
    assert list(book.classes) == [1, 4], "the id of a class that is gone is not used again"
    with pytest.raises(Conflict, match="with itself"):
        book.merge(1, 1)
    for _ in range(3):
        book.undo()
    assert book.plain.tolist() == [1, 1, 2, 2, 3, FREE]


def test_a_class_is_renamed_and_a_name_is_not_given_twice() -> None:
    book = Book(2)
    book.label([0], "cat")
    book.add("dog", "d")
    book.change(1, name="tomcat", key="d")
    assert [(one.name, one.key) for one in book.classes.values()] == [("tomcat", "d"), ("dog", None)]
    book.undo()
    assert [(one.name, one.key) for one in book.classes.values()] == [("cat", "1"), ("dog", "d")]
    for name in ("dog", "none-of-these"):
        with pytest.raises(Conflict):
            book.change(1, name=name)
    with pytest.raises(Conflict):
        book.add("cat")
    with pytest.raises(HandfulError, match="one of"):
        book.change(1, key="!")
    assert KEYS[:2] == "12"


def test_accepted_labels_are_known_as_such_and_given_ones_are_kept() -> None:
    book = Book(4)
    book.label([0], "cat")
    book.label([1], "dog")
    book.accept([0, 2, 3], np.array([2, 2, FREE], dtype=np.int32))
    assert book.plain.tolist() == [1, 2, 2, FREE]
    assert book.by_hand.tolist() == [True, True, False, False]
    book.merge(2, 1)
    assert book.by_hand.tolist() == [True, True, False, False]


def test_what_cannot_be_recorded_is_not_done() -> None:
    def full(kind: str, action: Action) -> None:
        raise HandfulError("the disk is full")

    book = Book(3, record=full)
    with pytest.raises(HandfulError, match="full"):
        book.label([0], "cat")
    assert seen(book) == ([FREE] * 3, {}) and book.revision == 0


def test_a_found_label_of_a_class_that_was_deleted_is_not_accepted() -> None:
    book = Book(4)
    book.label([0], "cat")
    book.label([1], "dog")
    book.delete(1)
    assert (
        book.is_label(np.array([FREE, NONE, 1, 2, 3, 99], dtype=np.int32)).tolist()
        == [False, True, False, True] + [False] * 2
    )
    book.accept([2, 3], np.array([1, 2], dtype=np.int32))
    assert book.plain.tolist() == [FREE, 2, FREE, 2]


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("label"), st.lists(st.integers(0, 7), unique=True), st.sampled_from(["a", "b", "c", None])),
        st.tuples(st.just("accept"), st.lists(st.integers(0, 7), unique=True), st.just(1)),
        st.tuples(st.just("delete"), st.integers(1, 3), st.none()),
        st.tuples(st.just("merge"), st.integers(1, 3), st.integers(1, 3)),
        st.tuples(st.just("undo"), st.none(), st.none()),
        st.tuples(st.just("redo"), st.none(), st.none()),
    ),
    max_size=25,
)


@given(ACTIONS)
def test_undo_goes_back_through_every_state_and_redo_forward_again(actions) -> None:
    log: list[tuple[str, Action]] = []
    book = Book(8, record=lambda kind, action: log.append((kind, action)))
    states = [seen(book)]
    for kind, first, second in actions:
        before = book.revision
        try:
            if kind == "label":
                book.label(first, second)
            elif kind == "accept":
                book.accept(first, np.full(len(first), second, dtype=np.int32))
            elif kind in ("delete", "merge"):
                getattr(book, kind)(*([first] if kind == "delete" else [first, second]))
            else:
                getattr(book, kind)()
        except HandfulError:
            continue
        if kind == "undo":
            states.pop()
            assert seen(book) == states[-1]
        elif book.revision > before:
            states.append(seen(book))
    for state in reversed(states[:-1]):
        book.undo()
        assert seen(book) == state
    for state in states[1:]:
        book.redo()
        assert seen(book) == state
    again = Book(8)
    for kind, action in log:
        again.replay(kind, action)
    assert seen(again) == seen(book)
