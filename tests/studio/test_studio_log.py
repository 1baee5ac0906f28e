"""Nothing is lost: kills, restarts, and images that were renamed, replaced or removed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3

import numpy as np
import pytest
from studio_client import Colours, client_of, picture

from handful.errors import HandfulError
from handful.labelling.book import FREE, Action, Book
from handful.studio.collection import Images
from handful.studio.log import Log

pytest_plugins = ["studio_fixtures"]
KILLS, IMAGES = 100, 500


def restored(log: Log, count: int = IMAGES) -> Book:
    book = Book(count, record=log.record)
    for kind, action in log.actions():
        book.replay(kind, action)
    return book


def labels_until_killed(out, seed: int, pipe: int) -> None:
    """In a process of its own: act, and after each action say so, with the labels as they are then."""
    log = Log(out)
    book, rng = restored(log), np.random.default_rng(seed)
    while True:
        kind = rng.choice(["label", "many", "undo", "redo", "merge"], p=[0.6, 0.2, 0.1, 0.05, 0.05])
        try:
            if kind == "label":
                book.label([int(rng.integers(IMAGES))], f"class {rng.integers(5)}")
            elif kind == "many":
                numbers = rng.choice(IMAGES, int(rng.integers(1, IMAGES)), replace=False)
                book.label(numbers.astype(np.int32), None if rng.random() < 0.3 else f"class {rng.integers(5)}")
            elif kind == "merge":
                book.merge(*map(int, rng.choice(list(book.classes), 2, replace=False)))
            else:
                getattr(book, kind)()
        except (HandfulError, ValueError):
            continue
        os.write(pipe, np.int64(book.revision).tobytes() + book.labels.astype("<i4").tobytes())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_no_acknowledged_action_is_lost_by_a_hundred_kills(tmp_path) -> None:
    size, rng, acknowledged = 8 + 4 * IMAGES, random.Random(0), 0
    for seed in range(KILLS):
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                labels_until_killed(tmp_path / "out", seed, theirs)
            finally:
                os._exit(1)
        os.close(theirs)
        with os.fdopen(ours, "rb") as pipe:
            last = b""
            for _ in range(rng.randint(1, 12)):
                last = pipe.read(size)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            while len(more := pipe.read(size)) == size:
                last = more
        assert len(last) == size
        log = Log(tmp_path / "out")
        book = restored(log)
        log.close()
        revision, labels = int(np.frombuffer(last[:8], "<i8")[0]), np.frombuffer(last[8:], "<i4")
        assert book.revision in (revision, revision + 1), "what was not acknowledged yet is there whole, or not at all"
        if book.revision == revision:
            assert np.array_equal(book.labels, labels)
        acknowledged = book.revision
    assert acknowledged > KILLS


def test_a_second_studio_in_the_same_folder_is_refused(tmp_path) -> None:
    log = Log(tmp_path)
    with pytest.raises(HandfulError, match="another studio is at work"):
        Log(tmp_path)
    log.close()
    Log(tmp_path).close()


def test_a_damaged_or_foreign_file_is_said_and_not_written_to(tmp_path) -> None:
    (tmp_path / "studio.sqlite").write_bytes(b"not a data base, but something of the user's" * 100)
    with pytest.raises(HandfulError, match="is damaged"):
        Log(tmp_path)
    assert (tmp_path / "studio.sqlite").read_bytes().startswith(b"not a data base")
    Log(tmp_path / "new").close()
    with sqlite3.connect(tmp_path / "new" / "studio.sqlite") as base:
        base.execute("UPDATE facts SET value = '99' WHERE name = 'format'")
    base.close()
    with pytest.raises(HandfulError, match="another version"):
        Log(tmp_path / "new")


def test_a_disk_that_cannot_be_written_changes_nothing(tmp_path) -> None:
    log = Log(tmp_path)
    book = Book(3, record=log.record)
    book.label([0], "cat")
    log._base.execute("PRAGMA query_only=ON")
    with pytest.raises(HandfulError, match="nothing was changed"):
        book.label([1], "cat")
    assert book.labels.tolist() == [1, FREE, FREE]
    log._base.execute("PRAGMA query_only=OFF")
    log.close()


def test_an_action_of_many_images_is_kept_as_it_was(tmp_path) -> None:
    log = Log(tmp_path)
    numbers = np.arange(100_000, dtype=np.int32)
    log.record("do", Action("all", numbers, np.full(100_000, FREE, np.int32), numbers % 7))
    ((kind, action),) = log.actions()
    assert kind == "do" and np.array_equal(action.after, numbers % 7)
    log.close()


def given(desk) -> dict[str, str]:
    book, images = desk.book, desk.images
    return {
        images.names[number]: book.classes[int(label)].name
        for number, label in enumerate(book.plain[images.ids])
        if label > 0
    }


def test_labels_follow_images_that_were_renamed_or_moved(album, open_desk) -> None:
    client = client_of(open_desk())
    client.label([0], "a")
    client.label([1], "b")
    client.wait(looked_at(client))
    (album / "00.jpg").rename(album / "50.jpg")
    (album / "01.jpg").rename(album / "00.jpg")
    (album / "50.jpg").rename(album / "01.jpg")
    (album / "02.jpg").rename(album / "60.jpg")
    desk = open_desk()
    assert given(desk) == {"00.jpg": "b", "01.jpg": "a"}
    assert desk.notices == []


def test_the_label_of_an_image_that_was_replaced_is_not_given_to_the_other(album, open_desk) -> None:
    client = client_of(open_desk())
    client.label([0, 1], "a")
    client.wait(looked_at(client))
    former = (album / "00.jpg").read_bytes()
    shutil.copy(album / "39.jpg", album / "00.jpg")
    (album / "39.jpg").unlink()
    (album / "01.jpg").unlink()
    desk = open_desk()
    assert given(desk) == {}
    assert "2 labelled images are no longer there" in " ".join(desk.notices)
    (album / "45.jpg").write_bytes(former)
    assert given(open_desk()) == {"45.jpg": "a"}, "it came back under another name"


def test_a_file_that_was_only_touched_keeps_its_label(album, open_desk) -> None:
    client = client_of(open_desk())
    client.label([0], "a")
    client.wait(looked_at(client))
    os.utime(album / "00.jpg", ns=(1, 1))
    assert given(open_desk()) == {"00.jpg": "a"}


def test_a_file_that_is_replaced_removed_or_put_back_is_noticed_at_once(album, open_desk) -> None:
    desk = open_desk(embedder=Colours())
    client = client_of(desk)
    client.label([0], "a")
    client.label([1], "b")
    client.settled()
    first, tag = client.get("/api/thumbnail/0").content, client.get("/api/images/0").json()["tag"]
    former = (album / "00.jpg").read_bytes()
    (album / "00.jpg").write_bytes(picture((250, 250, 0), 7, (64, 64)))
    shown = client.get("/api/thumbnail/0")
    assert shown.status == 200 and shown.content != first, "the picture is of what is there now"
    assert given(desk) == {"01.jpg": "b"}, "the label stays with the former image"
    assert client.get("/api/images/0").json()["tag"] != tag
    assert "00.jpg was replaced by another image" in " ".join(client.state()["notices"])
    client.wait(lambda state: state["embedded"] == 40 and not state["model"]["busy"])
    client.label([0], "c")
    (album / "00.jpg").write_bytes(former)
    desk.watch.look(range(40))
    assert given(desk) == {"00.jpg": "a", "01.jpg": "b"}, "it counts again when the image is back"
    (album / "01.jpg").unlink()
    desk.watch.look(range(40))
    assert client.get("/api/thumbnail/1").status == 404 and client.state()["broken"] == 1
    assert given(open_desk(embedder=Colours())) == {"00.jpg": "a"}


def test_a_file_that_is_touched_while_the_studio_runs_stays_what_it_is(album, open_desk) -> None:
    desk = open_desk()
    client = client_of(desk)
    client.label([0], "a")
    client.wait(looked_at(client))
    os.utime(album / "00.jpg", ns=(1, 1))
    assert client.get("/api/thumbnail/0").status == 200
    assert given(desk) == {"00.jpg": "a"} and client.state()["notices"] == []


def test_new_images_come_without_a_label_and_numbers_follow_the_names(album, open_desk) -> None:
    client_of(open_desk()).label([1], "a")
    shutil.copy(album / "03.jpg", album / "00a.jpg")
    desk = open_desk(embedder=Colours())
    assert given(desk) == {"01.jpg": "a"}
    assert desk.images.names[:3] == ["00.jpg", "00a.jpg", "01.jpg"]
    client_of(desk).label([1], "b")
    assert given(desk) == {"01.jpg": "a", "00a.jpg": "b"}


def test_images_are_only_read(album, open_desk) -> None:
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in album.rglob("*")}
    client = client_of(open_desk())
    client.label([0], "a")
    client.label([1], "b")
    client.settled()
    client.get("/api/thumbnail/3")
    client.post("/api/export", {"format": "folders"})
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in album.rglob("*")} == before


def test_a_table_of_labels_is_read_in_once(album, open_desk, tmp_path) -> None:
    table = tmp_path / "labels.csv"
    table.write_text("path,label\n00.jpg,a\n01.jpg,b\n02.jpg,none-of-these\n")
    client = client_of(open_desk(labels=table))
    assert client.state()["labelled"] == 3 and client.state()["undo"] == "3 labels read from labels.csv"
    client.label([0], None)
    desk = open_desk(labels=table)
    assert given(desk) == {"01.jpg": "b"}, "what was taken back stays so"
    table.write_text("path,label\n01.jpg,c\n05.jpg,c\n")
    assert given(open_desk(labels=table)) == {"01.jpg": "b", "05.jpg": "c"}, "what has a label keeps it"
    table.write_text("path,label\nnowhere.jpg,c\n")
    with pytest.raises(HandfulError, match=r"nowhere\.jpg"):
        open_desk(labels=table)


def test_images_of_a_studio_without_a_log_have_numbers_too(album) -> None:
    images = Images(album)
    assert images.ids.tolist() == list(range(40)) and images.known == 40


def looked_at(client):
    """Whether the content of all images is known."""
    desk = client.app.app.state.desk
    return lambda state: all(digest is not None for digest in desk.images.digests)
