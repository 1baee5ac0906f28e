"""Grids: the same numbers whoever runs them and whatever dies meanwhile; nothing twice, nothing lost."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tacit import TacitError
from tacit.cli import app
from tacit.datasets import load_dataset
from tacit.errors import JobFailed
from tacit.evaluation import Protocol
from tacit.experiments.cell import Cell, Measurement, Outcome
from tacit.experiments.grid import RETRIES, run_grid
from tacit.run import RunConfig
from tacit.sampling import EpisodeSpec

needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="finds the worker of a cell in /proc")


@pytest.fixture(scope="module")
def cells(photos) -> list[Cell]:
    """Two methods, one and two shots, with and without distractors: eight cells."""
    options = {"image_size": 28}
    train = load_dataset("folder", "train", photos, options=options)
    found = []
    for method in ("pn", "tac"):
        for shots in (1, 2):
            for others in (0, 4):
                test = EpisodeSpec(4, shots, 3, 3, distractor_ways=others, distractors=3 if others else 0)
                config = RunConfig(
                    method=method,
                    dataset="folder",
                    data=str(photos),
                    data_options={**options, "split_seed": 0},
                    fingerprint=train.fingerprint(),
                    labelled_ratio=0.5,
                    channels=train.channels,
                    image_size=train.image_size,
                    train=replace(test, queries=2) if method == "tac" else EpisodeSpec(4, shots, 2, 0),
                    validation=test,
                    episodes=60,
                    validate_every=20,
                    validation_episodes=6,
                )
                name = f"{method}-{shots}{'-distractors' if others else ''}"
                protocol = Protocol(test, 0.5, splits=2, episodes=10)
                found.append(Cell(name, config, (Measurement(protocol, method),)))
    return found


@pytest.fixture(scope="module")
def reference(cells, tmp_path_factory) -> Path:
    """The grid, undisturbed, two cells at a time."""
    folder = tmp_path_factory.mktemp("grids") / "reference"
    run_grid(cells, folder, jobs=2, device="cpu")
    return folder


def numbers(folder: Path, cells: list[Cell]) -> dict[str, list[object]]:
    """Everything that was measured, to the last digit, and the weights' checksums."""
    found: dict[str, list[object]] = {}
    for cell in cells:
        run = folder / cell.name
        names = ("mean", "interval", "split_means", "split_interval", "by_iteration", "iterations", "n")
        results = [entry["result"] for entry in json.loads((run / "cell.json").read_text())["measured"]]
        heads = [json.loads((run / "checkpoint" / f"{name}.json").read_text()) for name in ("best", "last")]
        found[cell.name] = [[result[name] for name in names] for result in results]
        found[cell.name] += [head["sha256"] for head in heads]
    return found


def litter(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.name.startswith(".running") or path.suffix == ".part"]


def holder(lock: Path) -> int | None:
    """The process that trains in a folder: it has the folder's lock open."""
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and int(process.name) != os.getpid():
            try:
                if any(lock == descriptor.readlink() for descriptor in (process / "fd").iterdir()):
                    return int(process.name)
            except OSError:  # it has just ended, or is not ours
                continue
    return None


@contextmanager
def killer(folder: Path, names: list[str], times: int) -> Iterator[list[str]]:
    """Kills, without warning, whoever trains one of these cells; so many times. Gives the names of the victims."""
    victims: list[str] = []
    over = threading.Event()

    def hunt() -> None:
        last = None
        while not over.wait(0.05) and len(victims) < times:
            for name in names:
                found = holder(folder / name / ".lock")
                if found is not None and found != last:
                    os.kill(found, signal.SIGKILL)
                    victims.append(name)
                    last = found
                    break

    thread = threading.Thread(target=hunt)
    thread.start()
    try:
        yield victims
    finally:
        over.set()
        thread.join()


def test_a_grid_finishes_every_cell(reference, cells):
    found = numbers(reference, cells)
    assert len(found) == 8
    assert len({json.dumps(value) for value in found.values()}) == 8, "the cells differ"
    assert all(25 < results[0][0] < 100 for results in found.values()), "better than guessing, and not perfect"
    assert not litter(reference)


def test_finished_cells_are_skipped(reference, cells):
    before = {path: path.stat().st_mtime_ns for path in reference.rglob("*")}
    outcomes = run_grid(cells, reference, device="cpu")
    assert all(outcome.skipped and outcome.results for outcome in outcomes)
    assert [outcome.name for outcome in outcomes] == [cell.name for cell in cells]
    assert {path: path.stat().st_mtime_ns for path in reference.rglob("*")} == before


def test_one_at_a_time_gives_the_same_numbers(reference, cells, tmp_path):
    run_grid(cells[3:6], tmp_path, jobs=1, device="cpu")
    assert numbers(tmp_path, cells[3:6]) == numbers(reference, cells[3:6])


def test_results_of_another_training_are_refused(reference, cells):
    before = numbers(reference, cells)
    changed = replace(cells[4], config=replace(cells[4].config, seed=7))
    with pytest.raises(TacitError, match=r"holds another run, which differs in seed \(0 here, 7 there\)"):
        run_grid([changed, *cells[:2]], reference, device="cpu")
    assert numbers(reference, cells) == before


def test_another_measurement_of_a_finished_cell_is_added_without_training_again(reference, cells, tmp_path):
    cell = cells[4]
    run = tmp_path / cell.name
    shutil.copytree(reference / cell.name, run)
    (asked,) = cell.measurements
    longer = replace(asked, protocol=replace(asked.protocol, episodes=11))
    fixed = replace(asked, iterations=2)
    trained = {path: path.stat().st_mtime_ns for path in (run / "checkpoint").iterdir()}
    old = json.loads((run / "cell.json").read_text())["measured"]

    more = replace(cell, measurements=(longer, asked, fixed))
    (outcome,) = run_grid([more], tmp_path, device="cpu")
    assert not outcome.skipped
    assert [(result["n"], result["iterations_chosen_on"] is None) for result in outcome.results] == [
        (22, False), (20, False), (20, True)
    ]  # fmt: skip
    assert outcome.results[2]["iterations"] == 2
    assert {path: path.stat().st_mtime_ns for path in (run / "checkpoint").iterdir()} == trained
    content = json.loads((run / "cell.json").read_text())
    assert content["measured"][:1] == old, "what was measured before stays, and is not measured again"
    assert [entry["result"] for entry in content["measured"][1:]] == [outcome.results[0], outcome.results[2]]
    for wanted in (cell, more):
        assert run_grid([wanted], tmp_path, device="cpu")[0].skipped


def test_data_may_move(reference, cells, photos, tmp_path):
    (tmp_path / "elsewhere").symlink_to(photos)
    moved = [replace(cell, config=replace(cell.config, data=str(tmp_path / "elsewhere"))) for cell in cells]
    assert all(outcome.skipped for outcome in run_grid(moved, reference, device="cpu"))


def test_other_data_are_noticed(cells, tmp_path):
    other = replace(cells[0], config=replace(cells[0].config, fingerprint="0" * 16))
    with pytest.raises(TacitError, match="are not those that the grid was made for"):
        run_grid([other], tmp_path / "grid")
    assert not (tmp_path / "grid").exists()


def test_a_failing_cell_is_reported_and_the_rest_go_on(reference, cells, tmp_path):
    diverges = replace(cells[0], name="diverges", config=replace(cells[0].config, learning_rate=1e30))
    (asked,) = cells[1].measurements
    wrong = replace(asked, protocol=replace(asked.protocol, splits="2"))  # a bug, as it were
    broken = replace(cells[1], name="broken", measurements=(wrong,))
    wanted = [diverges, cells[0], broken, cells[4]]
    ends: list[Outcome] = []
    outcomes = {o.name: o for o in run_grid(wanted, tmp_path, jobs=2, device="cpu", report=ends.append)}
    assert sorted(end.name for end in ends) == sorted(cell.name for cell in wanted)
    assert outcomes["diverges"].results is None
    assert "training diverged" in outcomes["diverges"].reason
    assert outcomes["diverges"].traceback is None
    assert outcomes["broken"].reason.startswith("TypeError: ")
    assert "Traceback" in outcomes["broken"].traceback
    good = [cells[0], cells[4]]
    assert numbers(tmp_path, good) == numbers(reference, good)

    mended = replace(broken, measurements=cells[1].measurements)
    again = {outcome.name: outcome for outcome in run_grid([cells[0], mended], tmp_path, jobs=2, device="cpu")}
    assert again[cells[0].name].skipped
    assert again["broken"].results and not again["broken"].skipped


def test_one_training_can_be_measured_in_several_ways(cells, tmp_path):
    base = cells[0]
    config = replace(base.config, method="tapnet", episodes=4)
    protocol = base.measurements[0].protocol
    protocols = (protocol, replace(protocol, spec=replace(protocol.spec, shots=2)))
    measurements = [Measurement(test, method) for method in ("tapnet", "tapnet-semi") for test in protocols]
    (outcome,) = run_grid([Cell("tapnet", config, tuple(measurements))], tmp_path, device="cpu")
    found = [(result["method"], result["protocol"]["spec"]["shots"]) for result in outcome.results]
    assert found == [("tapnet", 1), ("tapnet", 2), ("tapnet-semi", 1), ("tapnet-semi", 2)]


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("../up", {}, "cannot name a cell"),
        (".hidden", {}, "cannot name a cell"),
        ("PN-1", {}, "2 cells are called 'pn-1'"),
        ("x", {"engine": "spark"}, "unknown engine 'spark': choose one of local, ray"),
        ("x", {"jobs": 0}, "jobs must be at least 1, got 0"),
    ],
)
def test_bad_grids(cells, tmp_path, name, options, sentence):
    with pytest.raises(TacitError, match=sentence):
        run_grid([cells[0], replace(cells[1], name=name)], tmp_path / "grid", **options)
    assert not (tmp_path / "grid").exists()


def test_without_ray_the_message_says_how_to_get_it(cells, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(TacitError, match=r"pip install tacit\[ray\]"):
        run_grid(cells, tmp_path, engine="ray")


@needs_proc
@pytest.mark.slow
def test_a_killed_worker_loses_nothing(reference, cells, tmp_path):
    with killer(tmp_path, [cell.name for cell in cells[2:]], times=1) as victims:
        outcomes = run_grid(cells, tmp_path, jobs=2, device="cpu")
    assert len(victims) == 1
    assert all(outcome.results and not outcome.skipped for outcome in outcomes)
    assert numbers(tmp_path, cells) == numbers(reference, cells)
    assert not litter(tmp_path)


@needs_proc
@pytest.mark.slow
def test_a_cell_that_always_kills_its_worker_is_given_up_and_the_rest_go_on(reference, cells, tmp_path):
    poison = cells[1]
    others = [cells[0], cells[4]]
    with killer(tmp_path, [poison.name], times=99) as victims:
        outcomes = {o.name: o for o in run_grid([poison, *others], tmp_path, jobs=2, device="cpu")}
    assert len(victims) == 1 + RETRIES
    assert "its worker was killed" in outcomes[poison.name].reason
    assert numbers(tmp_path, others) == numbers(reference, others)


@needs_proc
@pytest.mark.slow
def test_ray_gives_the_same_numbers_though_a_worker_is_killed(reference, cells, tmp_path):
    ray = pytest.importorskip("ray")
    with killer(tmp_path, [cell.name for cell in cells[2:]], times=1) as victims:
        outcomes = run_grid(cells, tmp_path, engine="ray", jobs=2, device="cpu")
    assert len(victims) == 1
    assert all(outcome.results and not outcome.skipped for outcome in outcomes)
    assert numbers(tmp_path, cells) == numbers(reference, cells)
    assert not ray.is_initialized(), "what we started is shut down"


def arguments(photos: Path, out: Path, *more: object) -> list[str]:
    return [
        "grid", "--dataset", "folder", "--data", str(photos), "--image-size", "28", "--labelled-ratio", "0.5",
        "--ways", "4", "--queries", "2", "--unlabelled", "2", "--test-ways", "4", "--test-queries", "3",
        "--test-unlabelled", "3", "--validation-episodes", "6", "--validate-every", "20", "--splits", "2",
        "--test-episodes", "10", "--jobs", "2", "--device", "cpu", "--out", str(out), *map(str, more),
    ]  # fmt: skip


def tacit(*words: str) -> None:
    """In this process, whose workers are warm; the errors are raised that ``main`` makes sentences of."""
    app(list(words), standalone_mode=False)


def test_the_command(photos, tmp_path, capsys):
    grid = arguments(photos, tmp_path, "--method", "pn", "--method", "tac", "--set", "scale=0.5",
                     "--set", "grad_through_projection=true", "--distractors", "both", "--episodes", 5)  # fmt: skip
    tacit(*grid)
    out, errors = capsys.readouterr()
    for word in ("pn", "tac", "1-shot", "1-shot, distractors", "±", "2 splits x 10 test episodes"):
        assert word in out
    assert sum("± " in line for line in errors.splitlines()) == 4, "a line per cell in a log file"
    content = json.loads((tmp_path / "grid.json").read_text())
    assert [cell["cell"] for cell in content["cells"]][:2] == ["pn-1-shot-seed-0", "pn-1-shot-distractors-seed-0"]
    config = json.loads((tmp_path / "tac-1-shot-seed-0" / "config.json").read_text())
    assert config["options"] == {"scale": 0.5, "grad_through_projection": True}
    with (tmp_path / "grid.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["mean"]) for row in rows] == [cell["result"]["mean"] for cell in content["cells"]]

    # More seeds: only these are run.
    tacit(*grid, "--seed", "0", "--seed", "1", "--json")
    out, errors = capsys.readouterr()
    assert [row["seeds"] for row in json.loads(out)["summary"]] == [2] * 4
    assert errors.count("finished before") == 4

    with pytest.raises(TacitError, match="differs in learning_rate"):
        tacit(*grid, "--learning-rate", "0.1")
    with pytest.raises(TacitError, match="--distractors takes without, with, both, got 'some'"):
        tacit(*grid, "--distractors", "some")
    with pytest.raises(TacitError, match="'pn/tac' takes NAME=VALUE"):
        tacit(*grid, "--set", "depth=3")


def test_the_command_reports_failed_cells(photos, tmp_path, capsys):
    grid = arguments(photos, tmp_path, "--method", "pn", "--shots", 1, "--shots", 2, "--episodes", 40)
    with pytest.raises(JobFailed, match="2 of 2 cells failed: pn-1-shot-seed-0, pn-2-shot-seed-0"):
        tacit(*grid, "--learning-rate", "1e30")
    out, errors = capsys.readouterr()
    assert "pn-1-shot-seed-0: failed: training diverged" in errors
    assert "failed" in out
    assert "training diverged" in json.loads((tmp_path / "grid.json").read_text())["cells"][0]["error"]["reason"]


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sends Ctrl-C")
def test_ctrl_c_saves_and_the_same_command_goes_on(photos, tmp_path):
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    names = ["pn-1-shot-seed-0", "tac-1-shot-seed-0"]
    # Validated at the end only, so that a checkpoint before it is there because of Ctrl-C.
    more = ("--method", "pn", "--method", "tac", "--episodes", 600, "--validate-every", 600)
    grids = [arguments(photos, out, *more) for out in (straight, stopped)]
    process = subprocess.Popen([sys.executable, "-m", "tacit", *grids[1]], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not all((stopped / name / "config.json").exists() for name in names):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "run the same command again" in errors
    assert "Traceback" not in errors
    assert not litter(stopped)
    states = [json.loads((stopped / name / "checkpoint" / "last.json").read_text())["state"] for name in names]
    assert all(0 < state["episode"] < 600 for state in states), "saved where it was"
    for grid in grids:
        tacit(*grid)
    for name in names:
        heads = [json.loads((folder / name / "checkpoint" / "last.json").read_text()) for folder in (stopped, straight)]
        assert heads[0]["sha256"] == heads[1]["sha256"]


@pytest.mark.slow
def test_two_processes_may_run_the_same_grid(photos, tmp_path, capsys):
    grid = arguments(photos, tmp_path, "--method", "pn", "--method", "tac", "--episodes", 60, "--json")
    other = subprocess.Popen([sys.executable, "-m", "tacit", *grid], stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("*/config.json")):
        assert time.monotonic() < deadline and other.poll() is None
        time.sleep(0.05)
    tacit(*grid)
    theirs, _ = other.communicate(timeout=120)
    assert other.returncode == 0
    assert capsys.readouterr().out == theirs, "each cell was trained and evaluated once"
    assert not litter(tmp_path)
