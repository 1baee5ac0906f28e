"""Labels in, predictions out."""

from __future__ import annotations

import numpy as np
import pytest

from handful.errors import HandfulError
from handful.labelling.book import FREE, NONE
from handful.labelling.predictor import Predictor, gain
from handful.studio import Session


def blobs(each: int = 30, classes: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(classes), each)
    return (3 * np.eye(classes, 12)[truth] + rng.normal(scale=0.5, size=(len(truth), 12))).astype(np.float32), truth


def test_without_two_classes_nothing_is_predicted() -> None:
    vectors, _ = blobs()
    session = Session(vectors)
    assert session.update() is None and session.expected_accuracy() is None
    session.label([0, 1], "a")
    assert session.labels()[:3] == ["a", "a", None]
    session.label(89, "none-of-these")
    assert session.update() is None
    with pytest.raises(HandfulError, match="no predictions"):
        session.accept(0.5)


def test_every_label_teaches_the_rest_and_undo_takes_it_back() -> None:
    vectors, truth = blobs()
    session = Session(vectors, [f"{number}.jpg" for number in range(len(vectors))])
    names = np.array(["a", "b", "c"])
    for number in (0, 30):
        session.label(f"{number}.jpg", names[truth[number]])
    assert set(session.labels()) == {"a", "b"}
    session.label([60], "c")
    assert session.labels() == names[truth].tolist()
    assert session.confidence()[60] == 1
    low, high = session.expected_accuracy()[1:]
    assert 0 < low < high <= 1
    session.undo()
    assert "c" not in session.labels()
    session.redo()
    assert session.labels() == names[truth].tolist()
    assert session.accept(0) == len(vectors) - 3
    assert session.next_to_label() == []


def test_predictions_depend_on_labels_only_and_not_on_how_they_came_about() -> None:
    vectors, truth = blobs()
    one, other = Session(vectors), Session(vectors)
    for number in (0, 30, 60, 5, 35):
        one.label([number], str(truth[number]))
        one.update()
    one.label([7], "2")
    one.update()
    one.undo()
    for number in (0, 30, 60, 5, 35):
        other.label([number], str(truth[number]))
    assert one.labels() == other.labels()
    assert np.array_equal(one.confidence(), other.confidence())


def test_images_without_a_vector_have_no_prediction_and_keep_their_label() -> None:
    vectors, truth = blobs()
    rows = np.arange(0, 90, 2)
    labels = np.full(90, FREE, dtype=np.int32)
    labels[[0, 30, 60, 1, 3]] = 1, 2, 3, 1, NONE  # nothing can be learned from the last, which has no vector
    found = Predictor(vectors[rows], rows, 90).predict(labels)
    assert (found.label[rows] == truth[rows] + 1).all()
    assert found.label[[1, 3, 5]].tolist() == [1, NONE, FREE] and found.best[5] == FREE
    assert found.is_none[3] and not found.is_none[5]
    assert (found.doubt[[0, 1, 5]] == 0).all()


def test_accepted_labels_do_not_vouch_for_themselves() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(120, 12)).astype(np.float32)  # nothing to be learned here
    labels, hand = np.full(120, FREE, dtype=np.int32), np.zeros(120, dtype=bool)
    labels[:20], hand[:20] = rng.integers(1, 3, 20), True
    predictor = Predictor(vectors)
    alone = predictor.check(labels, hand)
    accepted = predictor.predict(labels).label
    assert predictor.check(accepted, hand) == alone
    again = predictor.predict(accepted, hand)
    assert np.array_equal(again.label, accepted) and (again.chance == 1).all()
    taken = accepted.copy()
    taken[20:70] = FREE
    assert np.array_equal(predictor.predict(taken, hand).label, accepted), "they teach nothing"
    assert predictor.check(accepted, np.ones(120, dtype=bool))[0] > alone[0]


def test_more_labels_bring_less_the_better_it_is_and_the_more_there_are() -> None:
    assert gain(0.9, 0.4, 20, 20) > gain(0.98, 0.4, 20, 20) > 0
    assert gain(0.9, 0.4, 20, 20) > gain(0.9, 0.4, 200, 20)
    assert gain(0.9, 0.0, 20, 20) == 0
    vectors, truth = blobs()
    labels = np.full(90, FREE, dtype=np.int32)
    labels[::6] = truth[::6] + 1
    predictor = Predictor(vectors)
    slope = predictor.slope(labels, labels != FREE)
    assert 0 <= slope <= 1 and slope == predictor.slope(labels, labels != FREE)


def test_a_session_says_what_it_cannot_use() -> None:
    vectors, _ = blobs()
    with pytest.raises(HandfulError, match="two images"):
        Session(vectors[:1])
    with pytest.raises(HandfulError, match="as many names"):
        Session(vectors, ["one"])
    with pytest.raises(HandfulError, match="no image"):
        Session(vectors).label("nowhere.jpg", "a")


def test_nothing_is_called_none_before_an_image_was_and_then_not_far_more_than_was() -> None:
    vectors, truth = blobs(classes=4)
    foreign = truth == 3
    labels = np.full(120, FREE, dtype=np.int32)
    labels[[0, 1, 2, 30, 31, 32, 60, 61, 62]] = np.repeat([1, 2, 3], 3)
    predictor = Predictor(vectors)
    first = predictor.predict(labels)
    assert not first.is_none.any() and first.none_score[foreign].mean() < first.none_score[~foreign].mean()
    labels[[90, 91]] = NONE
    found = predictor.predict(labels)
    assert found.is_none[foreign].mean() > 0.5 > 0.2 > found.is_none[~foreign].mean()


def test_labels_of_typical_images_do_not_make_all_others_foreign() -> None:
    vectors, truth = blobs(each=100)
    labels = np.full(300, FREE, dtype=np.int32)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for kind in range(3):
        mine = np.flatnonzero(truth == kind)
        labels[mine[np.argsort(-unit[mine] @ unit[mine].mean(0))[:12]]] = kind + 1
    far = int(np.argmin((unit @ unit[labels > 0].T).max(1)))
    labels[far] = NONE
    assert Predictor(vectors).predict(labels).is_none.mean() < 0.25
