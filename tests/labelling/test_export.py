"""What ``handful label`` puts into a folder of the user's, and that it never costs them a file."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import random
import signal
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from album import COLOURS, truth, write_labels
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from handful import HandfulError
from handful.cli import main
from handful.labelling import label_images
from handful.labelling.export import EXPORTERS, Exporter, copy_images, folder_names
from handful.publish import DRAFT, LOCK, MANIFEST, publishing

Tree = dict[str, bytes]


def tree(folder: Path) -> Tree:
    """Every file and link below a folder; but for those that say what is ours."""
    return {
        path.relative_to(folder).as_posix(): os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if (path.is_symlink() or path.is_file()) and path.name not in (MANIFEST, DRAFT, LOCK)
    }


@pytest.fixture
def album(photos, labels, tmp_path) -> dict[str, object]:
    """Arguments of `label_images` that take no time: vectors of the pictures' colours."""
    names = sorted(path.relative_to(photos).as_posix() for path in photos.rglob("*.png"))
    rng = np.random.default_rng(0)
    colours = [np.array(COLOURS[truth(name)]) - 128 + rng.normal(0, 5, 3) for name in names]
    np.savez(tmp_path / "vectors.npz", paths=names, vectors=np.array(colours, dtype=np.float32))
    return {"images": photos, "labels": labels, "embedder": f"npy:{tmp_path / 'vectors.npz'}", "report": False}


def run(album: dict[str, object], out: Path, **options: object) -> None:
    label_images(**{"folders": "copy", **album, **options}, out=out)  # type: ignore[arg-type]


def refused(album: dict[str, object], out: Path, sentence: str, **options: object) -> None:
    top = out.parent
    before = tree(top)
    with pytest.raises(HandfulError, match=sentence):
        run(album, out, **options)
    assert tree(top) == before


def test_the_images_are_not_exported_onto_themselves(album, photos, tmp_path):
    project = tmp_path / "project"
    project.mkdir()
    photos.rename(project / "images")
    refused({**album, "images": project / "images"}, project, "is where the images would be exported to")
    inside = {**album, "images": project / "images" / "day 0"}
    refused(inside, project, "is where the images would be exported to")


def test_a_folder_of_the_users_is_not_replaced(album, tmp_path):
    (tmp_path / "out" / "images").mkdir(parents=True)
    (tmp_path / "out" / "images" / "holiday.jpg").write_bytes(b"mine")
    refused(album, tmp_path / "out", r"holiday\.jpg is not a file that handful wrote")
    (tmp_path / "out" / "images" / "holiday.jpg").unlink()
    run(album, tmp_path / "out")
    assert len(tree(tmp_path / "out" / "images")) == 72


@pytest.mark.parametrize(
    "name", ["predictions.csv", "predictions.jsonl", "label-studio.json", "report.html", "map.svg"]
)
def test_no_file_of_the_users_is_replaced(album, tmp_path, name):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_bytes(b"mine")
    refused(album, tmp_path / "out", f"{name} is not a file that handful wrote", report=True, label_studio=True)


@pytest.mark.parametrize("name", [MANIFEST, DRAFT, LOCK])
def test_nor_one_that_has_the_name_of_our_lists(album, tmp_path, name):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_bytes(b"mine")
    refused(album, tmp_path / "out", "is not a")
    assert (tmp_path / "out" / name).read_bytes() == b"mine"


def test_an_export_that_was_corrected_by_hand_is_kept(album, tmp_path):
    out = tmp_path / "out"
    run(album, out)
    moved = next((out / "images" / "red").iterdir())
    moved.rename(out / "images" / "blue" / moved.name)
    refused(album, out, "is not a file that handful wrote")
    refused({**album, "images": out / "images", "labels": None}, out, "is where the images would be exported to")
    (out / "images" / "blue" / moved.name).rename(moved)
    moved.write_bytes(moved.read_bytes() + b"edited")
    refused(album, out, "was changed since handful wrote it")


def test_predictions_that_were_corrected_by_hand_are_kept(album, tmp_path):
    out = tmp_path / "out"
    run(album, out)
    with (out / "predictions.csv").open("a") as file:
        file.write("mine\n")
    refused(album, out, r"predictions\.csv was changed since handful wrote it")


def test_a_new_export_replaces_the_old_one(album, tmp_path):
    out = tmp_path / "out"
    run(album, out, report=True, label_studio=True)
    (out / "notes.txt").write_bytes(b"mine")
    (out / "images" / "red").rename(tmp_path / "red")  # files of ours may go
    rows = [("day 0/00.png", "warm"), ("day 1/01.png", "cold"), ("day 0/02.png", "cold")]
    run({**album, "labels": write_labels(tmp_path / "other.csv", rows)}, out)
    assert {path.name for path in (out / "images").iterdir()} <= {"warm", "cold", "none-of-these"}
    assert len(tree(out / "images")) == 72
    assert (out / "notes.txt").read_bytes() == b"mine"
    assert not [path.name for path in out.iterdir() if path.name.startswith(".") and path.name not in (MANIFEST, LOCK)]


@pytest.mark.parametrize("where", ["images", "predictions.csv", MANIFEST, DRAFT, LOCK])
def test_links_in_the_way_are_not_followed(album, tmp_path, where):
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "out").mkdir()
    if where == "images":
        elsewhere.mkdir()
        (elsewhere / "holiday.jpg").write_bytes(b"mine")
    else:
        elsewhere.write_bytes(b"")
    (tmp_path / "out" / where).symlink_to(elsewhere)
    refused(album, tmp_path / "out", "is a link")
    assert (tmp_path / "out" / where).is_symlink()


def test_an_export_that_cannot_be_made_leaves_the_old_one(album, photos, tmp_path, monkeypatch):
    out = tmp_path / "out"
    run(album, out)
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        for path in sorted(photos.rglob("*.png")):
            archive.write(path, path.relative_to(photos).as_posix())
    zipped = {**album, "images": tmp_path / "photos.zip"}
    refused(zipped, out, "images in an archive cannot be linked to", folders="link")
    monkeypatch.setattr("handful.labelling.find_labels", lambda *_, **__: pytest.fail("it is refused before the work"))
    refused(zipped, out, "images in an archive cannot be linked to", folders="link")
    monkeypatch.undo()
    before = tree(out)
    gone = photos / "other 11.png"

    def vanish(found, files, out):
        gone.unlink()
        copy_images(found, files, out)

    monkeypatch.setitem(EXPORTERS, "folders-copy", replace(EXPORTERS["folders-copy"], write=vanish))
    with pytest.raises(HandfulError, match=r"cannot copy other 11\.png: No such file"):
        run(album, out)
    assert tree(out) == before


def test_names_that_meet_when_flattened_are_all_exported(photos, embedder, tmp_path):
    first = (photos / "day 0" / "00.png").read_bytes()
    meeting = ["a/b.png", "a__b.png", "A__B.png", "a/b~2.png", f"{'x' * 250}.png", f"{'y' * 200}/{'ä' * 100}.png"]
    for number, name in enumerate(meeting):
        (photos / name).parent.mkdir(exist_ok=True)
        (photos / name).write_bytes(first + bytes([number]))
    rows = [("day 0/00.png", "red"), ("day 1/01.png", "green"), ("day 0/02.png", "blue")]
    table = write_labels(tmp_path / "few.csv", rows)
    label_images(photos, table, tmp_path / "out", embedder=embedder, report=False, folders="copy", distractors=False)
    copies = tree(tmp_path / "out" / "images")
    assert sorted(copies.values()) == sorted(tree(photos).values())
    assert len({name.casefold() for name in copies}) == len(copies)
    assert all(len(os.fsencode(part)) <= 255 for name in copies for part in name.split("/"))


def test_no_two_labels_share_a_folder():
    labels = ["cat", "Cat", "CAT", "cat.", "cat ", "con", "COM1.jpg", "nul", "none-of-these", "None-Of-These", ".git",
              "a:b", "a_b", "stra\u00dfe", "STRASSE", "e\u0301", "\u00e9", "."]  # fmt: skip
    folders = folder_names(labels)
    assert set(folders) == set(labels)
    names = [*folders.values(), "none-of-these"]
    assert len({name.casefold() for name in names}) == len(names)
    for name in folders.values():
        assert not name.endswith((".", " ")) and name[0] != "." and not set(name) & set('<>:"/\\|?*')
        assert name.split(".")[0].lower() not in ("con", "com1", "nul")
    assert folder_names(reversed(labels)) == folders
    assert [folders[name] for name in ("cat", "a_b")] == ["cat", "a_b"]


def test_a_spreadsheet_runs_nothing_of_a_name(photos, embedder, tmp_path):
    """Names that begin like formulas are escaped in CSV, raw in JSON, and read back as they were."""
    hostile = ["=cmd|'calc'!A1.png", "+1.png", "-1.png", "@SUM(A1).png", "'quoted.png"]
    rows = [(name, name[:-4]) for name in hostile]
    for name in hostile:
        (photos / "day 0" / "00.png").rename(photos / name)
        (photos / "day 0" / "00.png").write_bytes((photos / name).read_bytes())
    table = write_labels(tmp_path / "few.csv", rows)
    options = {"embedder": embedder, "distractors": False}
    label_images(photos, table, tmp_path / "out", report=False, **options)
    with (tmp_path / "out" / "predictions.csv").open(newline="") as file:
        cells = [(row["path"], row["label"]) for row in csv.DictReader(file)]
    assert not [cell for row in cells for cell in row if cell.startswith(("=", "+", "-", "@"))]
    assert {(f"'{path}", f"'{label}") for path, label in rows} <= set(cells)
    lines = [json.loads(line) for line in (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()]
    assert set(rows) <= {(line["path"], line["label"]) for line in lines}
    again = label_images(photos, tmp_path / "out" / "predictions.csv", **options)
    assert [(one.path, one.label) for one in again.predictions] == [(line["path"], line["label"]) for line in lines]


def test_a_format_of_ones_own_is_one_entry(album, tmp_path, monkeypatch):
    def write(found, files, out):
        (out / "mine.txt").write_text("\n".join(one.label for one in found.predictions))

    monkeypatch.setitem(EXPORTERS, "mine", Exporter(write, files=("mine.txt",)))
    run(album, tmp_path / "out", folders=None, exports=["mine", "label-studio"])
    assert len((tmp_path / "out" / "mine.txt").read_text().splitlines()) == 72
    assert (tmp_path / "out" / "label-studio.json").exists()
    (tmp_path / "out" / "mine.txt").write_text("changed")
    refused(album, tmp_path / "out", r"mine\.txt was changed since handful wrote it", folders=None, exports=["mine"])
    refused(album, tmp_path / "out", "--export takes label-studio", folders=None, exports=["magic"])
    both = ["folders-copy", "folders-link"]
    refused(album, tmp_path / "out", "two exports would both write images", folders=None, exports=both)


def test_label_studio_links_are_addresses(photos, labels, embedder, tmp_path):
    (photos / "day 0" / "00.png").rename(photos / "day 0" / "50 % #1&d=ä?.png")
    rows = [("day 0/50 % #1&d=ä?.png", "red"), ("day 1/01.png", "green"), ("day 0/02.png", "blue")]
    table = write_labels(tmp_path / "few.csv", rows)
    label_images(photos, table, tmp_path / "out", embedder=embedder, report=False, label_studio=True)
    tasks = json.loads((tmp_path / "out" / "label-studio.json").read_text())
    assert "/data/local-files/?d=day%200/50%20%25%20%231%26d%3D%C3%A4%3F.png" in [t["data"]["image"] for t in tasks]


def test_the_command_says_what_is_in_the_way(album, tmp_path, capsys, monkeypatch):
    (tmp_path / "out" / "images").mkdir(parents=True)
    (tmp_path / "out" / "images" / "holiday.jpg").write_bytes(b"mine")
    words = ["handful", "label", album["images"], "--labels", album["labels"], "--embedder", album["embedder"],
             "--out", tmp_path / "out", "--export-folders", "copy"]  # fmt: skip
    monkeypatch.setattr(sys, "argv", [str(word) for word in words])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "holiday.jpg is not a file that handful wrote: move it away" in capsys.readouterr().err


# --- whatever stands around


NAMES = st.sampled_from([
    "predictions.csv", "report.html", "images", "images/red/x.png", "images/holiday.jpg", "images/none-of-these/00.png",
    ".handful.json", ".handful.lock", ".handful.json.part", ".handful-0123456789ab.part/images/a.png",
    "images.kept-1/a", ".images.part", "map.png",
    "notes.txt", "label-studio.json", "images/.handful.json", "photos/day 0/00.png", "Images/a.png",
])  # fmt: skip
CONTENTS = st.sampled_from([b"", b"mine", b"{}", b'{"format": 1, "files": {"notes.txt": []}, "stage": null}'])


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    around=st.dictionaries(NAMES, CONTENTS, max_size=5),
    again=st.dictionaries(NAMES, CONTENTS, max_size=2),
    how=st.sampled_from(["copy", "link", None]),
    studio=st.booleans(),
)
def test_every_file_that_was_there_is_still_there(album, tmp_path_factory, around, again, how, studio):
    """Whatever tree stands around: only what our manifest lists may change, in the first run and in the second."""
    out = tmp_path_factory.mktemp("around") / "out"
    for files in (around, again):
        for name, content in files.items():
            path = out / name
            if not any(parent.is_file() for parent in path.parents) and not path.is_dir():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        images, before = tree(Path(str(album["images"]))), every_file(out)
        ours = listed(out)
        if before.get(DRAFT) == b"":  # what a kill may leave of a manifest
            ours.add(DRAFT)
        try:
            run(album, out, folders=how, label_studio=studio)
        except HandfulError:
            assert every_file(out) == before, "what is refused changes nothing"
        after = every_file(out)
        assert {name: after.get(name) for name in before if name not in ours} == {
            name: content for name, content in before.items() if name not in ours
        }
        assert tree(Path(str(album["images"]))) == images


def every_file(folder: Path) -> Tree:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def listed(out: Path) -> set[str]:
    """What the manifest says is ours and still what we wrote, with the manifest and the lock themselves."""
    import hashlib

    try:
        manifest = json.loads((out / MANIFEST).read_text())
        sums = {name: manifest["files"][name] for name in manifest["files"]}
        sound = manifest["format"] == 1
    except (OSError, ValueError, KeyError, TypeError):
        return set()
    ours = {name for name, known in sums.items() if (out / name).is_symlink() or (
        (out / name).is_file() and hashlib.sha256((out / name).read_bytes()).hexdigest() in known
    )}  # fmt: skip
    return ours | {MANIFEST} if sound else set()


# --- killed at any moment, and several at once


def label_once(album: dict[str, object], out: Path, kill_at: int | None = None, seen: object = None) -> None:
    """Label in a process of its own, which is killed at its file operation number ``kill_at``."""
    count = 0

    def at_a_file_operation(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal count
        if event not in ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.symlink", "os.truncate",
                         "os.scandir", "os.listdir", "ctypes.dlsym"):  # fmt: skip
            return
        if event != "ctypes.dlsym" and str(out) not in str(arguments[0]):
            return
        count += 1
        if count == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(at_a_file_operation)
    run(album, out)
    if seen is not None:
        seen.value = count  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def processes() -> multiprocessing.context.BaseContext:
    """Processes that start with everything imported."""
    if sys.platform == "win32":
        pytest.skip("needs processes that can be forked and killed")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["handful.labelling", "test_export"])
    return context


def whole(out: Path, photos: Path) -> frozenset[tuple[str, bytes]]:
    """The export, which must hold each image once, under the label that one labels file gives."""
    found = tree(out / "images") if (out / "images").exists() else {}
    assert not found or sorted(found.values()) == sorted(tree(photos).values()), "each image once"
    return frozenset(found.items())


@pytest.mark.slow
def test_a_hundred_kills_lose_nothing(album, photos, tmp_path, processes):
    """100 kills at random moments, with an older export and the user's own files around."""
    out = tmp_path / "out"
    rows = [("day 0/00.png", "warm"), ("day 1/01.png", "cold"), ("day 0/02.png", "cold")]
    other = {**album, "labels": write_labels(tmp_path / "other.csv", rows)}
    exports = []
    for number, arguments in enumerate((other, album)):
        run(arguments, tmp_path / str(number))
        exports.append(whole(tmp_path / str(number), photos))
    assert exports[0] != exports[1]
    out.mkdir()
    (out / "notes.txt").write_bytes(b"mine")
    (out / "holiday").mkdir()
    (out / "holiday" / "00.png").write_bytes(b"mine too")
    (out / "images.old").mkdir()
    (out / "images.old" / "a.png").write_bytes(b"and mine")
    run(other, out)
    seen = processes.Value("i", 0)
    full = processes.Process(target=label_once, args=(album, out, None, seen))
    full.start()
    full.join()
    assert full.exitcode == 0 and seen.value > 200
    mine = {name: content for name, content in every_file(out).items() if name.split("/")[0] in
            ("notes.txt", "holiday", "images.old")}  # fmt: skip
    assert len(mine) == 3
    images, draw, killed = tree(photos), random.Random(0), 0
    for trial in range(100):
        arguments = (other, album)[trial % 2]
        process = processes.Process(target=label_once, args=(arguments, out, draw.randint(1, seen.value)))
        process.start()
        process.join()
        killed += process.exitcode == -signal.SIGKILL
        assert process.exitcode in (0, -signal.SIGKILL)
        assert whole(out, photos) in exports, "the old export or the new one"
        after = every_file(out)
        assert {name: after.get(name) for name in mine} == mine
        assert tree(photos) == images
    assert killed > 80
    run(album, out)
    assert whole(out, photos) == exports[1]
    assert {path.name for path in out.iterdir()} == {
        "notes.txt", "holiday", "images.old", "images", "predictions.csv", "predictions.jsonl",
        "model.safetensors", MANIFEST, LOCK,
    }  # fmt: skip


@pytest.mark.slow
def test_four_at_once_leave_one_result(album, photos, tmp_path, processes):
    out = tmp_path / "out"
    named = [f"day {index % 2}/{index:02d}.png" for index in range(9)]
    tables = [
        write_labels(tmp_path / f"{run}.csv", [(name, f"{truth(name)} {run}") for name in named]) for run in range(4)
    ]
    runs = [processes.Process(target=label_once, args=({**album, "labels": table}, out)) for table in tables]
    for process in runs:
        process.start()
    for process in runs:
        process.join()
    assert [process.exitcode for process in runs] == [0] * 4
    whole(out, photos)
    with (out / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    (number,) = {row["label"].split()[1] for row in rows}
    folders = {path.name for path in (out / "images").iterdir()} - {"none-of-these"}
    assert folders <= {f"{name} {number}" for name in COLOURS}, "tables and folders of the same run"


# --- where two names cannot be swapped at once


def test_without_swapping_a_kill_between_two_renames_is_mended(album, photos, tmp_path, monkeypatch):
    out = tmp_path / "out"
    run(album, out)
    before = whole(out, photos)
    monkeypatch.setattr("handful.publish._swap", lambda *_: False)
    rename = Path.rename

    def killed(self, target):
        if self.name == "images" and self.parent != out:
            raise SystemExit  # stands for a kill: nothing of ours runs after it
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", killed)
    with monkeypatch.context() as inner:
        inner.setattr("handful.publish._tidy", lambda *_: None)
        with pytest.raises(SystemExit):
            run(album, out)
    assert not (out / "images").exists()
    monkeypatch.setattr(Path, "rename", rename)
    with publishing(out):
        assert whole(out, photos) == before
    run(album, out)
    assert whole(out, photos) == before


def test_what_is_written_into_an_export_while_it_is_replaced_is_kept(tmp_path, monkeypatch, caplog):
    def write(content: bytes) -> None:
        with publishing(tmp_path) as stage:
            (stage / "images").mkdir()
            (stage / "images" / "a.png").write_bytes(content)

    write(b"first")

    def meanwhile(out: Path) -> None:
        for former in out.glob(".handful-*/images"):
            if (former / "a.png").read_bytes() == b"first":
                (former / "b.png").write_bytes(b"mine")

    monkeypatch.setattr("handful.publish.flush_folder", meanwhile)
    write(b"second")
    assert tree(tmp_path) == {"images/a.png": b"second", "images.kept-1/b.png": b"mine"}
    assert "images.kept-1" in caplog.text
