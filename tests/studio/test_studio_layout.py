"""What can be said of images without labels, and a model that follows the labels."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from studio_client import Colours, client_of

from handful.labelling.book import FREE
from handful.labelling.session import Session
from handful.studio import line
from handful.studio.embedding import Progress
from handful.studio.layout import flat, grouped, in_common_axes, near_duplicates, spread_out
from handful.studio.learner import Learner, Standing, advice
from handful.studio.line import in_line

pytest_plugins = ["studio_fixtures"]


def blobs(each: int = 60, classes: int = 5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(classes), each)
    return (4 * np.eye(classes, 100)[truth] + rng.normal(scale=0.5, size=(len(truth), 100))).astype(np.float32), truth


def test_groups_are_of_one_kind_and_the_largest_comes_first() -> None:
    vectors, truth = blobs()
    rows = np.arange(0, 2 * len(vectors), 2)
    groups = grouped(in_common_axes(vectors), rows, 2 * len(vectors))
    assert (groups.of[1::2] == -1).all() and (groups.of[rows] >= 0).all()
    assert (np.diff(groups.sizes) <= 0).all() and groups.sizes.sum() == len(vectors)
    for group in range(len(groups.sizes)):
        assert len(set(truth[groups.of[rows] == group])) == 1
    again = grouped(in_common_axes(vectors), rows, 2 * len(vectors))
    assert np.array_equal(groups.of, again.of)


@pytest.mark.parametrize("count", [2, 3, 7])
def test_a_few_images_have_a_place_as_well(count) -> None:
    vectors, _ = blobs(1, count)
    points = in_common_axes(vectors)
    assert np.isfinite(points).all()
    assert grouped(points, np.arange(count), count).sizes.sum() == count
    for place in (flat(points), spread_out(points)):
        assert place.shape == (count, 2) and np.isfinite(place).all()


def test_equal_images_have_a_place_as_well() -> None:
    vectors = np.ones((50, 8), dtype=np.float32)
    points = in_common_axes(vectors)
    assert grouped(points, np.arange(50), 50).sizes.sum() == 50
    assert np.isfinite(spread_out(points)).all() and np.isfinite(flat(points)).all()


def test_neighbours_are_neighbours_on_the_map(monkeypatch) -> None:
    vectors, truth = blobs()
    for most in (10_000, 150):  # all are laid out, or half of them
        monkeypatch.setattr("handful.studio.layout.LAID_OUT", most)
        place = spread_out(in_common_axes(vectors))
        assert np.array_equal(place, spread_out(in_common_axes(vectors))) and np.abs(place).max() <= 1.2
        distance = ((place[:, None] - place) ** 2).sum(2)
        nearest = np.argsort(distance, axis=1)[:, 1:6]
        assert (truth[nearest] == truth[:, None]).mean() > 0.95


def test_near_duplicates_are_looked_at_before_they_are_called_so() -> None:
    vectors, _ = blobs()
    vectors[7] = vectors[3] + 0.01
    vectors[20] = vectors[21]
    points = in_common_axes(vectors)
    groups = grouped(points, np.arange(300), 300)
    digests: list[bytes | None] = [None] * 300
    digests[100] = digests[250] = digests[260] = b"same"
    asked: list[tuple[int, int]] = []

    def same(one: int, other: int) -> bool:
        asked.append((one, other))
        return {one, other} == {3, 7}

    assert near_duplicates(points, np.arange(300), groups, digests, same) == [[3, 7], [100, 250, 260]]
    assert (20, 21) in asked and len(asked) == len(set(asked))


@pytest.mark.parametrize("most", [1000, 40])
def test_in_a_line_those_that_look_alike_stand_side_by_side(most, monkeypatch) -> None:
    monkeypatch.setattr(line, "AT_A_TIME", most)
    vectors, truth = blobs()
    place = in_line(in_common_axes(vectors))
    assert sorted(place.tolist()) == list(range(300))
    ordered = truth[np.argsort(place)]
    changes = int((ordered[1:] != ordered[:-1]).sum())
    assert changes < 5 + 300 / most * 5, "one run for each blob, or a few where halves were cut"
    assert in_line(np.zeros((0, 4), np.float32)).tolist() == [] and in_line(np.eye(2, 4, dtype=np.float32)).size == 2


class Held:
    """A learner whose predictor waits until it is let go."""

    def __init__(self) -> None:
        vectors, self.truth = blobs()
        self.session, self.told = Session(names=[str(number) for number in range(300)]), list[str]()
        self.learner = Learner(
            self.session, threading.RLock(), lambda: (np.arange(300), vectors), lambda: True, self.told.append
        )
        self.go, self.seen = threading.Semaphore(0), list[int]()
        see = self.session.see

        def held(*arguments):
            predictor = see(*arguments)
            predict = predictor.predict

            def waiting(labels, by_hand):
                self.seen.append(int((labels != FREE).sum()))
                assert self.go.acquire(timeout=600)
                return predict(labels, by_hand)

            predictor.predict = waiting
            return predictor

        self.session.see = held

    def wait(self, there) -> None:
        deadline = time.monotonic() + 600
        while not there():
            assert time.monotonic() < deadline
            time.sleep(0.005)


def test_the_newest_labels_win_and_labelling_does_not_wait() -> None:
    held = Held()
    held.learner.start()
    for number in (0, 60):
        held.session.label([number], str(held.truth[number]))
        held.learner.changed()
    held.wait(lambda: held.seen)
    first = held.seen[0]
    for number in range(1, 31):  # while the first predictions are being computed
        held.session.label([number], "0")
        held.learner.changed()
    assert held.learner.opinion.version == 0 and held.learner.busy
    for _ in range(50):
        held.go.release()
    held.wait(lambda: held.learner.opinion.revision == 32 and not held.learner.busy)
    assert [count for count in held.seen if first < count < 32] == [], "those in between are left out"
    assert held.learner.settled().labels.tolist().count(FREE) == 300 - 32
    held.learner.end()


def test_who_hears_of_a_check_knows_that_predictions_follow() -> None:
    """Otherwise the confidence of what looks finished still changes."""
    held, busy = Held(), []
    held.learner._tell = lambda what: busy.append(held.learner.busy) if what == "checked" else None
    for number in (0, 1, 60, 61):
        held.session.label([number], str(held.truth[number]))
    held.go.release()  # the first predictions, and not those after the check
    held.learner.start()
    held.learner.changed()
    held.wait(lambda: busy)
    assert busy[0] and held.learner.standing is not None
    held.go.release()
    held.learner.end()


def test_a_model_that_fails_is_said_and_does_not_stop_the_others() -> None:
    held = Held()
    held.session.see = lambda *arguments: 1 / 0
    held.learner.start()
    held.learner.changed()
    held.wait(lambda: "problem" in held.told)
    assert "ZeroDivisionError" in held.learner.problem
    held.session.see = Session.see.__get__(held.session)
    for number in (0, 60):
        held.session.label([number], str(held.truth[number]))
    held.learner.changed()
    held.wait(lambda: held.learner.opinion.found is not None)
    held.wait(lambda: held.learner.problem is None)
    held.learner.end()


def test_predictions_of_a_class_that_was_deleted_are_not_shown(open_desk, monkeypatch) -> None:
    desk = open_desk()
    client = client_of(desk)
    for number, name in enumerate("abc"):
        client.label([number], name)
    client.settled()
    monkeypatch.setattr(desk.learner, "changed", lambda: None)  # the predictions stay as they were
    found = client.get("/api/images?class=2").json()["total"]
    state = client.send("DELETE", "/api/classes/2").json()["state"]
    assert found > 1 and [one["id"] for one in state["classes"]] == [1, 3]
    images = client.get("/api/images?limit=1000").json()["images"]
    assert sum(one["label"] is None for one in images) == found
    assert all(likely["class"] != 2 for one in images for likely in one["likely"])
    assert client.post("/api/accept", {"where": {}}).json()["count"] == 40 - found - 2


def test_predictions_go_away_with_the_labels(open_desk) -> None:
    client = client_of(open_desk())
    client.label([0], "a")
    client.label([1], "b")
    assert client.settled()["model"]["state"] == "ready"
    client.post("/api/undo")
    state = client.wait(lambda state: state["model"]["state"] == "one-class")
    assert state["model"]["expected"] is None and state["model"]["gain"] is None
    assert client.get("/api/images?show=found").json()["total"] == 0


def test_what_to_do_is_said_in_words() -> None:
    assert "label" in advice("no-labels", None)[0] and "another class" in advice("one-class", None)[0]
    text, stop = advice("ready", Standing(3, (0.914, 0.86, 0.95), 20, 0.012))
    assert text == (
        "About 91 % of the images are labelled rightly (86 to 95 %). 20 more labels would bring about 1.2 points."
    )
    assert not stop and advice("ready", Standing(3, (0.99, 0.98, 1.0), 50, 0.001))[1]
    assert advice("ready", Standing(3, (0.9, 0.8, 1.0)))[0].endswith("(80 to 100 %).")


def test_images_are_embedded_in_the_background_and_broken_ones_are_listed(album, open_desk) -> None:
    (album / "05.jpg").write_bytes(b"<svg/>")
    (album / "06.jpg").write_bytes(b"")
    client = client_of(open_desk(embedder=Colours()))
    state = client.settled()
    assert (state["images"], state["embedded"], state["broken"]) == (40, 38, 2)
    broken = client.get("/api/broken").json()["images"]
    assert [one["name"] for one in broken] == ["05.jpg", "06.jpg"] and broken[1]["reason"] == "empty file"
    assert client.get("/api/images/5").json()["state"] == "broken"
    assert client.get("/api/thumbnail/5").status == 404
    (album / "07.jpg").unlink()
    assert client.get("/api/thumbnail/7?size=96").status == 404
    assert client.state()["broken"] == 3


def test_an_embedder_that_fails_is_said(open_desk) -> None:
    class Failing(Colours):
        def embed(self, images):
            raise RuntimeError("out of memory")

    client = client_of(open_desk(embedder=Failing()))
    state = client.wait(lambda state: state["embedding"]["state"] == "failed")
    assert "out of memory" in state["embedding"]["problem"]
    assert client.label([0], "a").status == 200, "labels can be given all the same"


def test_labels_given_before_an_image_is_embedded_count(open_desk) -> None:
    held = threading.Event()

    class Slow(Colours):
        def embed(self, images):
            assert held.wait(600)
            return super().embed(images)

    client = client_of(open_desk(embedder=Slow()))
    client.label([0], "red")
    client.label([1], "green")
    state = client.state()
    assert state["embedded"] == 0 and state["model"]["state"] == "learning" and state["embedding"]["total"] == 40
    assert client.get("/api/images?show=waiting").json()["total"] == 40
    assert client.get("/api/images?sort=like&like=0").status == 400
    assert len(client.get("/api/next").json()["images"]) == 12
    held.set()
    assert client.settled()["model"]["state"] == "ready"
    assert client.get("/api/images?show=found").json()["total"] == 38


def test_progress_is_told(open_desk) -> None:
    desk = open_desk(embedder=Colours())
    client_of(desk).settled()
    assert desk.progress == Progress("done", "embedding with colours", 40, 40)
