"""The store that keeps vectors."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest
from counting import Counting, arrays, items

from handful import HandfulError
from handful.datasets.base import Item
from handful.datasets.images import BrokenImage
from handful.embedders import embed_images
from handful.embedders.store import RECORD, Store
from handful.embedders.vectors import VectorFolder


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HANDFUL_CACHE", str(tmp_path / "cache"))


def test_vectors_are_kept_by_content():
    pixels = arrays(30)
    embedder = Counting()
    first, broken = embed_images(embedder, items(pixels))
    assert embedder.seen == 30 and not broken
    np.testing.assert_array_equal(first, np.array([image.sum(1) for image in pixels]))
    again, _ = embed_images(embedder, items([*pixels[::-1], *arrays(5, seed=1)]))
    assert embedder.seen == 35, "only the new ones"
    np.testing.assert_array_equal(again[:30], first[::-1])
    twice, _ = embed_images(embedder, items([arrays(1, seed=2)[0]] * 4))
    assert embedder.seen == 36 and len(twice) == 4


def test_another_key_is_another_store():
    pixels = arrays(3)
    first, second = Counting(), Counting()
    second.key = "counting-2"
    embed_images(first, items(pixels))
    embed_images(second, items(pixels))
    assert (first.seen, second.seen) == (3, 3)


def test_what_a_kill_leaves_behind_is_not_believed():
    pixels, embedder = arrays(20), Counting()
    whole, _ = embed_images(embedder, items(pixels))
    store = Store(embedder)
    with store.vectors_path.open("ab") as file:
        file.write(b"half a vector")
    with store.digests_path.open("r+b") as file:
        file.truncate(RECORD * 12 + 7)  # the last ones never got there, one of them half
    again, _ = embed_images(embedder, items(pixels))
    assert embedder.seen == 28
    np.testing.assert_array_equal(again, whole)
    assert len(Store(embedder).rows()) == 20


def test_a_stop_keeps_what_was_done(monkeypatch):
    pixels, embedder = arrays(20), Counting()
    monkeypatch.setattr("handful.embedders.store.BATCH_PIXELS", 5 * 16 * 16)
    plain = embedder.embed

    def stops(images):
        if embedder.seen == 10:
            raise KeyboardInterrupt
        return plain(images)

    embedder.embed = stops
    with pytest.raises(Exception, match="what was done is kept"):
        embed_images(embedder, items(pixels))
    assert len(Store(embedder).rows()) == 10
    embedder.embed = plain
    embed_images(embedder, items(pixels))
    assert embedder.seen == 20


def test_broken_images_and_vectors_that_are_none():
    def broken():
        raise BrokenImage("is a pipe")

    found = items(arrays(3))
    found[1] = Item("pipe", 0, broken)
    vectors, reasons = embed_images(Counting(), [*found, Item("text", 0, lambda: b"no image")])
    assert len(vectors) == 2 and list(reasons) == [1, 3] and reasons[1] == "is a pipe"
    bad = Counting()
    bad.embed = lambda images: np.full((len(images), 16), np.nan, dtype=np.float32)
    bad.key = "bad"
    with pytest.raises(HandfulError, match="gives no finite vector for image 0"):
        embed_images(bad, items(arrays(2)))


# --- Damage


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 0x40
    path.write_bytes(bytes(content))


@pytest.mark.parametrize(
    ("file", "place"),
    [
        ("vectors.bin", 4 * 16 * 3 + 2),  # a value of the fourth vector
        ("digests.bin", RECORD * 3 + 5),  # the image that it is of
        ("digests.bin", RECORD * 3 + 35),  # its checksum
    ],
)
def test_a_flipped_bit_costs_one_embedding_and_no_answer(file, place, capfd):
    pixels, embedder = arrays(20), Counting()
    whole, _ = embed_images(embedder, items(pixels))
    flip(Store(embedder).folder / file, place)
    again, _ = embed_images(embedder, items(pixels))
    np.testing.assert_array_equal(again, whole)
    assert embedder.seen == 21, "the damaged one only"
    said = "1 of 20 vectors in"  # a digest that is no image's is not asked for, and so not missed
    assert (said in capfd.readouterr().err) == (place != RECORD * 3 + 5)
    last, _ = embed_images(embedder, items(pixels))
    np.testing.assert_array_equal(last, whole)
    assert embedder.seen == 21 and not capfd.readouterr().err, "it is whole again"


def test_vectors_that_changed_places_are_not_believed():
    pixels, embedder = arrays(4), Counting()
    whole, _ = embed_images(embedder, items(pixels))
    store = Store(embedder)
    rows = np.fromfile(store.vectors_path, dtype="<f4").reshape(4, 16)
    rows[[0, 1]] = rows[[1, 0]]
    rows.tofile(store.vectors_path)
    again, _ = embed_images(embedder, items(pixels))
    np.testing.assert_array_equal(again, whole)
    assert embedder.seen == 6


@pytest.mark.parametrize("left", [0, 4 * 16 * 7 + 9, None])
def test_digests_that_outlived_their_vectors(left, capfd):
    """Nor may they find themselves beside the vectors that are added next, wherever that is killed."""
    pixels, embedder = arrays(20), Counting()
    whole, _ = embed_images(embedder, items(pixels))
    store = Store(embedder)
    if left is None:
        store.vectors_path.unlink()
    else:
        os.truncate(store.vectors_path, left)
    other, _ = embed_images(embedder, items(arrays(3, seed=1)))
    np.testing.assert_array_equal(other, [image.sum(1) for image in arrays(3, seed=1)])
    again, _ = embed_images(embedder, items(pixels))
    np.testing.assert_array_equal(again, whole)
    sound = (left or 0) // 64
    assert embedder.seen == 20 + 3 + 20 - sound
    assert len(Store(embedder).rows()) == 23


def test_a_kill_between_any_two_writes(monkeypatch):
    pixels, embedder = arrays(12), Counting()
    store = Store(embedder)
    embed_images(embedder, items(pixels[:4]))
    with store.digests_path.open("ab") as file:  # digests without vectors, those of the images that come next
        file.write(store.digests_path.read_bytes()[: 3 * RECORD])
    before = {path: path.read_bytes() for path in (store.digests_path, store.vectors_path)}
    sync, calls = os.fsync, 0

    class Killed(BaseException):
        pass

    def dies(handle):
        nonlocal calls
        calls += 1
        if calls == deadly:
            raise Killed
        sync(handle)

    monkeypatch.setattr(os, "fsync", dies)
    for deadly in (1, 2, 3, 4):
        for path, content in before.items():
            path.write_bytes(content)
        calls = 0
        try:
            embed_images(embedder, items(pixels))
        except Killed:
            assert deadly < 4
        vectors, known = Store(embedder).read([hashed(image) for image in pixels])
        assert known[:4].all(), "what was there is there"
        np.testing.assert_array_equal(vectors[known], np.array([image.sum(1) for image in pixels])[known])
        found, _ = embed_images(embedder, items(pixels))
        np.testing.assert_array_equal(found, [image.sum(1) for image in pixels])


def hashed(image: np.ndarray) -> bytes:
    return hashlib.sha256(repr((image.shape, image.dtype)).encode() + image.tobytes()).digest()


def test_a_disk_that_is_full_in_the_middle_of_a_vector(monkeypatch):
    pixels, embedder = arrays(6), Counting()
    whole, _ = embed_images(embedder, items(pixels))
    store = Store(embedder)
    sync = os.fsync

    def full(handle):
        if os.fstat(handle).st_size == 64 * 9:
            os.truncate(handle, 64 * 7 + 30)
            raise OSError(28, "No space left on device")
        sync(handle)

    monkeypatch.setattr(os, "fsync", full)
    new = arrays(3, seed=1)
    with pytest.raises(HandfulError, match=r"cannot write .* \(No space left on device\): set HANDFUL_CACHE"):
        embed_images(embedder, items([*pixels, *new]))
    monkeypatch.setattr(os, "fsync", sync)
    again, _ = embed_images(embedder, items([*pixels, *new]))
    np.testing.assert_array_equal(again, [*whole, *(image.sum(1) for image in new)])
    assert embedder.seen == 12 and store.vectors_path.stat().st_size == 64 * 9


def test_a_store_that_cannot_be_written_is_read(monkeypatch):
    pixels, embedder = arrays(6), Counting()
    whole, _ = embed_images(embedder, items(pixels))

    def refuses(self, *rest, **others):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuses)
    again, _ = embed_images(embedder, items(pixels))
    np.testing.assert_array_equal(again, whole)
    with pytest.raises(HandfulError, match=r"cannot write .* \(Permission denied\)"):
        embed_images(embedder, items(arrays(1, seed=1)))


def test_a_store_that_cannot_be_read():
    embedder = Counting()
    Store(embedder).digests_path.mkdir(parents=True)
    with pytest.raises(HandfulError, match=r"cannot read .*counting"):
        embed_images(embedder, items(arrays(1)))


def test_a_store_of_the_former_format_is_left_alone(tmp_path):
    """Its folder was named by the key alone, and its records had no checksum."""
    pixels, embedder = arrays(3), Counting()
    key = hashlib.sha256(embedder.key.encode()).hexdigest()[:16]
    former = tmp_path / "cache" / "vectors" / f"counting-{key}"
    former.mkdir(parents=True)
    (former / "digests.bin").write_bytes(b"".join(map(hashed, pixels)))
    (former / "vectors.bin").write_bytes(np.full((3, 16), 7, dtype="<f4").tobytes())
    content = {path.name: path.read_bytes() for path in former.iterdir()}
    vectors, _ = embed_images(embedder, items(pixels))
    np.testing.assert_array_equal(vectors, [image.sum(1) for image in pixels])
    assert {path.name: path.read_bytes() for path in former.iterdir()} == content


def embed_share(seeds: list[int]) -> None:
    for seed in seeds:
        found, _ = embed_images(Counting(), items(arrays(5, seed)))
        np.testing.assert_array_equal(found, [image.sum(1) for image in arrays(5, seed)])


def test_two_processes_in_one_store():
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=embed_share, args=(seeds,)) for seeds in (list(range(12)), list(range(12))[::-1])]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    embedder = Counting()
    found, _ = embed_images(embedder, items([image for seed in range(12) for image in arrays(5, seed)]))
    assert embedder.seen == 0 and len(found) == 60
    assert Store(embedder).digests_path.stat().st_size % RECORD == 0


# --- What is kept, and under which name


@pytest.mark.parametrize(("name", "value"), [("image_size", 8), ("channels", 3)])
def test_what_an_embedder_is_given_is_part_of_the_name(name, value):
    embedder = Counting()
    first = Store(embedder).folder
    setattr(embedder, name, value)
    assert Store(embedder).folder != first


def test_an_embedder_without_a_key_keeps_nothing(tmp_path):
    embedder = Counting()
    embedder.key = ""
    for times in (1, 2):
        found, _ = embed_images(embedder, items(arrays(3)))
        np.testing.assert_array_equal(found, [image.sum(1) for image in arrays(3)])
        assert embedder.seen == 3 * times
    assert not (tmp_path / "cache").exists()


def test_names_that_are_no_text():
    embedder = Counting()
    embedder.name = embedder.key = "conv4:\udcff/" + "\N{CJK UNIFIED IDEOGRAPH-20000}" * 80
    assert len(embed_images(embedder, items(arrays(2)))[0]) == 2


@pytest.mark.parametrize(
    ("vectors", "sentence"),
    [
        (np.zeros((3, 15), dtype=np.float32), r"should give floats of shape \(3, 16\), got float32 of shape \(3, 15\)"),
        (np.zeros((2, 16), dtype=np.float32), r"got float32 of shape \(2, 16\)"),
        (np.zeros((3, 16), dtype=np.int64), "got int64"),
        (np.full((3, 16), 1e300), "gives no finite vector for image 0"),
    ],
)
def test_every_batch_is_checked(vectors, sentence):
    embedder = Counting()
    embedder.embed = lambda images: vectors
    with pytest.raises(HandfulError, match=sentence):
        embed_images(embedder, items(arrays(3)))
    assert not Store(embedder).rows(), "and none of it is kept"


def test_an_image_that_changes_while_it_is_read():
    """Its vector would be kept under the digest of what it was."""
    old, new = arrays(2)
    answers = iter([old, new])
    embedder = Counting()
    vectors, broken = embed_images(embedder, [Item("photo", 0, lambda: next(answers))])
    assert len(vectors) == 0 and broken == {0: "changed while it was read"}
    np.testing.assert_array_equal(embed_images(embedder, items([old]))[0], [old.sum(1)])


def test_an_image_that_is_there_twice_and_broken():
    pixels = arrays(2)
    text = Item("text", 0, lambda: b"no image")
    found, broken = embed_images(Counting(), [text, *items(pixels), text, *items(pixels)])
    np.testing.assert_array_equal(found, [image.sum(1) for image in [*pixels, *pixels]])
    assert list(broken) == [0, 3] and broken[0] == broken[3]


# --- Shards: the format of 'handful embed'


@pytest.fixture
def sealing(monkeypatch):
    monkeypatch.setattr("handful.embedders.store.SEAL", 8)
    monkeypatch.setattr("handful.embedders.store.BATCH_PIXELS", 5 * 16 * 16)


def test_a_store_is_a_folder_of_vectors(sealing):
    pixels, embedder = arrays(23), Counting()
    whole, _ = embed_images(embedder, items(pixels))
    store = Store(embedder)
    folder = VectorFolder(store.folder)
    assert len(folder) == store.sealed.count() == 20 and len(store.rows()) == 3, "the newest are in the log"
    assert not list(folder.damaged()) and folder.origin.dim == 16
    found = dict(zip(folder.names, folder[:], strict=True))
    for image, vector in zip(pixels[:20], whole, strict=False):
        np.testing.assert_array_equal(found[hashed(image).hex()], vector)
    again, _ = embed_images(embedder, items(pixels[::-1]))
    np.testing.assert_array_equal(again, whole[::-1])
    assert embedder.seen == 23


def test_a_large_log_of_an_earlier_version_becomes_shards(sealing, monkeypatch):
    pixels, embedder = arrays(30), Counting()
    with monkeypatch.context() as before:
        before.setattr("handful.embedders.store.SEAL", 1000)
        whole, _ = embed_images(embedder, items(pixels))
    assert len(Store(embedder).rows()) == 30
    embed_images(embedder, items(arrays(1, seed=1)))
    assert Store(embedder).sealed.count() == 31 and not Store(embedder).rows()
    again, _ = embed_images(embedder, items(pixels))
    np.testing.assert_array_equal(again, whole)
    assert embedder.seen == 31


@pytest.mark.parametrize("ending", [".npy", ".json"])
def test_a_damaged_shard_costs_what_was_in_it_and_no_answer(sealing, ending, capfd):
    pixels, embedder = arrays(20), Counting()
    whole, _ = embed_images(embedder, items(pixels))
    folder = VectorFolder(Store(embedder).folder)
    path = folder.path / f"{folder.shards[0]}{ending}"
    flip(path, 128 + 4 * 16 * 3 + 2 if ending == ".npy" else 0)
    again, _ = embed_images(embedder, items(pixels))
    np.testing.assert_array_equal(again, whole)
    assert embedder.seen == (21 if ending == ".npy" else 30)
    assert ("1 of 20 vectors in" in capfd.readouterr().err) == (ending == ".npy")
    last, _ = embed_images(embedder, items(pixels))
    np.testing.assert_array_equal(last, whole)
    assert embedder.seen == (21 if ending == ".npy" else 30) and not capfd.readouterr().err, "it is whole again"


def test_a_kill_while_a_shard_is_made(sealing, monkeypatch):
    pixels = arrays(12)
    sync, calls = os.fsync, 0

    class Killed(BaseException):
        pass

    def dies(handle):
        nonlocal calls
        calls += 1
        if calls == deadly:
            raise Killed
        sync(handle)

    monkeypatch.setattr(os, "fsync", dies)
    deaths = 0
    for deadly in range(1, 30):
        embedder, calls = Counting(), 0
        embedder.key = f"killed-{deadly}"
        try:
            embed_images(embedder, items(pixels))
        except Killed:
            deaths += 1
        calls = 100
        found, _ = embed_images(embedder, items(pixels))
        np.testing.assert_array_equal(found, [image.sum(1) for image in pixels])
        assert embedder.seen <= 12 + 5, "one batch is done again, at most"
        VectorFolder(Store(embedder).folder)
    assert deaths > 8
