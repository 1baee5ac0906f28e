"""Embedding into a folder of vectors, and such a folder as X."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

sys.path.append(str(Path(__file__).parents[1] / "datasets"))
import layouts

import handful
from command import handful as handful_command
from handful import HandfulError, TACClassifier
from handful.embedders import bulk, load_embedder
from handful.embedders.bulk import embed_sources
from handful.embedders.shards import ShardFolder
from handful.embedders.vectors import VectorFolder
from handful.errors import Interrupted
from handful.estimator.benchmark import benchmark
from handful.estimator.rivals import choose
from handful.estimator.tasks import Case
from handful.experiments.comparison import read_source
from handful.labelling import find_labels

CONTENT = layouts.images(120)
TINY = """
import numpy as np
def tiny(images):
    return images.reshape(len(images), 4, 2, 4, 2, 3).astype(np.float32).mean((2, 4)).reshape(len(images), 48) + 1
tiny.image_size = 8
"""


@pytest.fixture(autouse=True)
def tiny(tmp_path, monkeypatch):
    """An embedder of the user's, beside the images."""
    monkeypatch.setenv("HANDFUL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    name = f"tiny_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(TINY)
    return f"{name}:tiny"


def as_dict(path):
    found = VectorFolder(path)
    names = list(found.names)
    assert len(set(names)) == len(names) == len(found)
    return dict(zip(names, found[:].tobytes().hex(" ", 4 * 48).split(" "), strict=True))


def test_the_same_vectors_from_every_layout_and_any_number_of_threads(tiny, tmp_path):
    one, two = layouts.halves(CONTENT)
    even, odd = (dict(entry for at, entry in enumerate(CONTENT.items()) if at % 2 == rest) for rest in (0, 1))
    sources = {
        "folder": [layouts.folder(tmp_path / "photos", CONTENT)],
        "zip": [layouts.zipped(tmp_path / "photos.zip", CONTENT)],
        "tar": [layouts.tarred(tmp_path / "1.tar", one), layouts.tarred(tmp_path / "2.tar", two)],
        "mixed": [layouts.tarred(tmp_path / "3.tar", odd), layouts.zipped(tmp_path / "4.zip", even)],
    }
    found = {}
    for number, (kind, paths) in enumerate(sources.items()):
        outcome = embed_sources(paths, tmp_path / kind, tiny, size=16, workers=1 + number)
        assert outcome.images == len(CONTENT) and not outcome.broken and not outcome.problems
        found[kind] = as_dict(tmp_path / kind)
    assert set(found["folder"]) == set(CONTENT) and all(one == found["folder"] for one in found.values())


def test_what_is_done_is_not_done_again(tiny, tmp_path, monkeypatch):
    path = layouts.folder(tmp_path / "photos", CONTENT)
    first = embed_sources([path], tmp_path / "v", tiny, size=8)
    before = as_dict(tmp_path / "v")
    again = embed_sources([path], tmp_path / "v", tiny, size=8)
    assert (again.images, again.before) == (0, first.units)
    (path / "a" / "new.png").write_bytes(CONTENT["a/0000.png"])
    (path / "b" / "0001.png").unlink()
    more = embed_sources([path], tmp_path / "v", tiny, size=8)
    assert 0 < more.images < 60 and more.removed >= 1
    after = as_dict(tmp_path / "v")
    assert set(after) == set(before) - {"b/0001.png"} | {"a/new.png"}
    assert after["a/new.png"] == before["a/0000.png"]
    layouts.tarred(tmp_path / "other.tar", {f"other/{name}": data for name, data in CONTENT.items()})
    embed_sources([tmp_path / "other.tar"], tmp_path / "v", tiny, size=8)
    assert len(as_dict(tmp_path / "v")) == 2 * len(CONTENT), "another source is added"


@pytest.mark.parametrize("kind", ["folder", "tar"])
def test_stopped_anywhere_it_goes_on(kind, tiny, tmp_path, monkeypatch):
    path = layouts.folder(tmp_path / "photos", CONTENT)
    if kind == "tar":
        path = layouts.tarred(tmp_path / "photos.tar", CONTENT)
    plain, writes = ShardFolder.write, []

    def stops(folder, part):
        if len(writes) % 3 == 2:
            writes.append(None)
            (folder.path / f"{part.name}.npy").write_bytes(part.content[:-7])  # its other file was never written
            raise KeyboardInterrupt
        writes.append(part)
        plain(folder, part)

    monkeypatch.setattr(ShardFolder, "write", stops)
    stops_seen = 0
    while True:
        try:
            embed_sources([path], tmp_path / "v", tiny, size=8, workers=2)
            break
        except Interrupted as error:
            assert "run the same command again" in str(error)
            stops_seen += 1
    assert stops_seen >= 3 and not list(VectorFolder(tmp_path / "v").damaged())
    assert set(as_dict(tmp_path / "v")) == set(CONTENT)
    seen = [name for part in writes if part is not None for name in part.about["names"]]
    assert len(seen) == len(CONTENT), "none was written twice"


def test_broken_images_and_hostile_shards_are_named_and_the_others_go_on(tiny, tmp_path):
    one, two = layouts.halves(CONTENT)
    first = layouts.folder(tmp_path / "photos", {**one, "a/text.png": b"no image", "a/empty.png": b""})
    cut = layouts.tarred(tmp_path / "cut.tar", two)
    cut.write_bytes(cut.read_bytes()[:20_000])
    (tmp_path / "not.zip").write_bytes(b"nothing")
    found = embed_sources([first, cut, tmp_path / "not.zip", tmp_path / "gone"], tmp_path / "v", tiny, size=16)
    assert found.broken["a/empty.png"] == "empty file" and "no image of a format" in found.broken["a/text.png"]
    names = set(as_dict(tmp_path / "v"))
    assert set(one) < names < set(CONTENT)
    problems = " ".join(found.problems.values())
    assert (
        len(found.problems) == 3 and "cut.tar is damaged or cut off" in problems and "not.zip is not a zip" in problems
    )
    assert dict(VectorFolder(tmp_path / "v").broken) == found.broken
    again = embed_sources([first, cut], tmp_path / "v", tiny, size=16)
    assert again.images == 0 and list(again.problems) == [str(cut)], "damage stays damage until the file changes"


def test_another_embedder_and_files_of_the_user_are_refused(tiny, tmp_path):
    path = layouts.folder(tmp_path / "photos", CONTENT)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(HandfulError, match="holds other files"):
        embed_sources([path], tmp_path / "mine", tiny)
    embed_sources([path], tmp_path / "v", tiny)
    with pytest.raises(HandfulError, match="was made with another embedder"):
        embed_sources([path], tmp_path / "v", "run:glyphs")
    with pytest.raises(HandfulError, match="holds vectors, and embeds no images"):
        embed_sources([path], tmp_path / "w", f"npy:{tmp_path / 'v'}")
    with (
        ShardFolder(tmp_path / "v", ".npy", json.loads((tmp_path / "v" / "shards.json").read_text())).alone(),
        pytest.raises(HandfulError, match="another process is writing"),
    ):
        embed_sources([path], tmp_path / "v", tiny)


def test_an_embedder_that_fails_is_one_sentence(tiny, tmp_path):
    (tmp_path / "failing.py").write_text(TINY.replace("return", "assert len(images) == 1, 'no more'\n    return"))
    with pytest.raises(HandfulError, match="embedder failing:tiny fails: AssertionError: no more"):
        embed_sources([layouts.folder(tmp_path / "photos", CONTENT)], tmp_path / "v", "failing:tiny")


def test_ray_that_is_not_installed_is_one_sentence(tiny, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    path = layouts.folder(tmp_path / "photos", CONTENT)
    with pytest.raises(HandfulError, match=r"pip install 'handful\[ray\]'"):
        embed_sources([path], tmp_path / "v", tiny, ray="local")


# --- The folder as X


@pytest.fixture
def vectors(tiny, tmp_path):
    embed_sources([layouts.folder(tmp_path / "photos", CONTENT)], tmp_path / "v", tiny, size=8)
    return VectorFolder(tmp_path / "v")


def test_rows_are_those_of_an_array(vectors):
    whole = vectors[:]
    assert len(vectors.shards) > 8 and whole.shape == vectors.shape == (120, 48)
    rng = np.random.default_rng(0)
    for rows in (slice(3, 77), slice(70, 2, -3), slice(5, 5), rng.integers(0, 120, 50), rng.random(120) < 0.3, [-1, 0]):
        np.testing.assert_array_equal(vectors[rows], whole[rows])
    np.testing.assert_array_equal(vectors[7], whole[7])
    some = vectors.take(np.array([5, 1, 100, 7]))
    np.testing.assert_array_equal(some[1:3], whole[[1, 100]])
    np.testing.assert_array_equal(np.asarray(some.take(np.array([3, 0]))), whole[[7, 5]])
    with pytest.raises(IndexError):
        vectors[[120]]


def test_nothing_is_read_before_it_is_needed(vectors, monkeypatch):
    inner = next(iter(vectors.shards))
    (vectors.path / f"{inner}.json").write_text("damaged")
    assert VectorFolder(vectors.path).shape == (120, 48)
    with pytest.raises(HandfulError, match="not valid JSON"):
        list(VectorFolder(vectors.path).names)


def test_damage_is_named(vectors):
    path = vectors.path / f"{vectors.shards[1]}.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"\x55")
    assert list(VectorFolder(vectors.path).damaged()) == [vectors.shards[1]]
    path.write_bytes(b"x" + whole[1:])
    with pytest.raises(HandfulError, match="is no array of"):
        VectorFolder(vectors.path)[:]
    path.write_bytes(whole[:-3])
    with pytest.raises(HandfulError, match="is damaged"):
        VectorFolder(vectors.path)


def test_npy_files_are_numpys_own(vectors):
    first = np.load(vectors.path / f"{vectors.shards[0]}.npy", allow_pickle=False)
    np.testing.assert_array_equal(first, vectors[: len(first)])


def test_fit_on_a_folder_is_fit_on_the_array(vectors):
    whole = np.array(vectors)
    y = np.full(120, -1)
    y[:6] = [0, 1, 2, 0, 1, 2]
    one, other = TACClassifier().fit(vectors, y), TACClassifier().fit(whole, y)
    np.testing.assert_array_equal(one.label_distributions_, other.label_distributions_)
    np.testing.assert_array_equal(one.predict_proba(vectors), other.predict_proba(whole))
    np.testing.assert_array_equal(one.predict_proba(vectors.take(np.arange(9))), other.predict_proba(whole[:9]))
    assert one.n_features_in_ == 48
    with pytest.raises(ValueError, match="features"):
        TACClassifier().fit(np.eye(50), np.arange(50) % 2).predict(vectors)


def test_a_vector_that_is_not_finite_is_refused(vectors):
    path = vectors.path / f"{vectors.shards[3]}.npy"
    path.write_bytes(path.read_bytes()[:-4] + np.float32(np.nan).tobytes())
    with pytest.raises(ValueError, match="NaN"):
        TACClassifier().fit(VectorFolder(vectors.path), np.arange(120) % 3 - 1)


def test_npy_folder_is_found_by_names(vectors, tiny, tmp_path):
    names = sorted(CONTENT)
    found = load_embedder(f"npy:{vectors.path}")
    whole = dict(zip(vectors.names, vectors[:], strict=True))
    np.testing.assert_array_equal(found.rows(names)[:], [whole[name] for name in names])
    np.testing.assert_array_equal(found.rows(names[5:9])[:], [whole[name] for name in names[5:9]])
    with pytest.raises(HandfulError, match=r"has no vector of 'x.png' \(1 images are missing\)"):
        found.rows(["x.png"])
    layouts.tarred(tmp_path / "same.tar", {"a/0000.png": CONTENT["a/0000.png"]})
    embed_sources([tmp_path / "same.tar"], vectors.path, tiny, size=8)
    load_embedder(f"npy:{vectors.path}").rows(["a/0000.png"])
    layouts.tarred(tmp_path / "other.tar", {"a/0000.png": CONTENT["b/0001.png"]})
    embed_sources([tmp_path / "other.tar"], vectors.path, tiny, size=8)
    with pytest.raises(HandfulError, match=r"has two vectors of 'a/0000\.png'"):
        load_embedder(f"npy:{vectors.path}").rows(["a/0000.png"])


def test_threads_end_when_nobody_wants_more(tiny, tmp_path):
    path = layouts.folder(tmp_path / "photos", CONTENT)
    from handful.datasets.units import plan
    from handful.embedders.shards import Task

    tasks = [Task(unit) for unit in plan([str(path)], 8).units]
    parts = bulk.by_threads(bulk.EmbedRecipe(tiny, "auto", 8), tasks, lambda more: None, 2)
    next(parts)
    parts.close()  # does not wait for the others


# --- Who takes such a folder


def test_embed_in_python_gives_the_folder(tiny, tmp_path):
    path = layouts.folder(tmp_path / "photos", {**CONTENT, "a/text.png": b"x"})
    here, there = handful.embed(path, tiny), handful.embed(path, tiny, out=tmp_path / "v", workers=2)
    assert isinstance(there.vectors, VectorFolder) and list(there.broken) == list(here.broken) == ["a/text.png"]
    order = [there.names.index(name) for name in here.names]
    np.testing.assert_array_equal(there.vectors[order], here.vectors)
    assert list(handful.embed(path, tiny, out=tmp_path / "v").broken) == ["a/text.png"], "also of what was done before"
    with pytest.raises(HandfulError, match="out="):
        handful.embed(path, tiny, ray="local")


def test_the_middle_of_a_wide_photograph_is_taken_here_too(tmp_path):
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 120, 3), dtype=np.uint8)).save(buffer, "PNG")
    photos = layouts.folder(tmp_path / "photos", {"a.png": buffer.getvalue()})
    here = handful.embed(photos, "efficientnet-lite0")
    there = handful.embed(photos, "efficientnet-lite0", out=tmp_path / "v")
    np.testing.assert_array_equal(there.vectors[:], here.vectors)


def test_label_takes_the_folder_and_its_model_knows_the_embedder(vectors, tiny, tmp_path):
    names = sorted(CONTENT)
    table = "".join(f"{name},{name[0]}\n" for name in names[:4] + names[-4:])
    (tmp_path / "labels.csv").write_text(f"path,label\n{table}")
    plain = find_labels(tmp_path / "photos", tmp_path / "labels.csv", embedder=tiny)
    found = find_labels(tmp_path / "photos", tmp_path / "labels.csv", embedder=f"npy:{vectors.path}")
    assert [one.label for one in found.predictions] == [one.label for one in plain.predictions]
    assert found.fitted is not None and isinstance(found.fitted.images.vectors, VectorFolder), "which stays on disk"
    assert found.fitted.model.embedder_ == plain.fitted.model.embedder_


def test_compare_takes_the_folder(vectors, tmp_path):
    x, y = read_source(vectors.path, "none")
    assert isinstance(x, VectorFolder) and y.tolist() == [name[0] == "b" for name in vectors.names]
    lines = benchmark({"v": (x, y)}, [Case(2, "even", 0.0, 60)], draws=2, rivals=choose("logistic"), jobs=1)
    same = benchmark({"v": (x[:], y)}, [Case(2, "even", 0.0, 60)], draws=2, rivals=choose("logistic"), jobs=1)
    assert [line.mean["accuracy"] for line in lines] == [line.mean["accuracy"] for line in same]


def test_the_command(tmp_path):
    layouts.folder(tmp_path / "photos", CONTENT)
    layouts.tarred(tmp_path / "x.tar", CONTENT)
    command = ["embed", tmp_path / "photos", "--out", tmp_path / "v", "--embedder", "run:glyphs", "--device", "cpu"]
    done = handful_command(*command)
    assert done.returncode == 0 and "120 images embedded" in done.stdout and f"npy:{tmp_path / 'v'}" in done.stderr
    done = handful_command(*command)
    assert done.returncode == 0 and "0 images embedded" in done.stdout and "units were done before" in done.stdout
    (tmp_path / "x.tar").write_bytes((tmp_path / "x.tar").read_bytes()[:9000])
    done = handful_command(*command, tmp_path / "x.tar", "--json")
    assert done.returncode == 1 and "x.tar is damaged or cut off" in done.stderr and "Traceback" not in done.stderr
    assert list(json.loads(done.stdout)["problems"]) == [str(tmp_path / "x.tar")]
    done = handful_command("embed", tmp_path / "nothing", "--out", tmp_path / "w")
    assert done.returncode == 2 and "no such file or folder" in done.stderr
