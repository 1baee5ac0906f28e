"""Grids: the same numbers whoever runs them and whatever dies meanwhile; nothing twice, nothing lost."""

from __future__ import annotations

import csv
import errno
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from joblib.externals.loky import get_reusable_executor

from command import start_handful
from handful import HandfulError
from handful.cli import app
from handful.datasets import load_dataset
from handful.errors import JobFailed
from handful.experiments import work
from handful.experiments.cell import Cell, Measurement, Outcome, finished, worked
from handful.experiments.grid import RETRIES, run_grid
from handful.experiments.work import Session
from handful.experiments.workers import Workers
from handful.runs.config import RunConfig
from handful.runs.episodes import Protocol
from handful.sampling import EpisodeSpec
from traps import Traps, wait_until

posix = pytest.mark.skipif(os.name != "posix", reason="sends signals")


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
    run_grid(cells, folder, Workers(jobs=2, device="cpu"))
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


@pytest.fixture
def trapped(traps, monkeypatch) -> Iterator[Traps]:
    """Traps for the workers of the grids of this process, which are started anew for it."""
    monkeypatch.setenv("PYTHONPATH", traps.environment()["PYTHONPATH"])
    get_reusable_executor().shutdown(wait=True)
    yield traps
    get_reusable_executor().shutdown(wait=True)


def test_a_grid_finishes_every_cell(reference, cells):
    found = numbers(reference, cells)
    assert len(found) == 8
    assert len({json.dumps(value) for value in found.values()}) == 8, "the cells differ"
    assert all(25 < results[0][0] < 100 for results in found.values()), "better than guessing, and not perfect"
    assert not litter(reference)


def test_finished_cells_are_skipped(reference, cells):
    before = {path: path.stat().st_mtime_ns for path in reference.rglob("*")}
    outcomes = run_grid(cells, reference, Workers(device="cpu"))
    assert all(outcome.skipped and outcome.results for outcome in outcomes)
    assert [outcome.name for outcome in outcomes] == [cell.name for cell in cells]
    assert {path: path.stat().st_mtime_ns for path in reference.rglob("*")} == before


def test_one_at_a_time_gives_the_same_numbers(reference, cells, tmp_path):
    run_grid(cells[3:6], tmp_path, Workers(jobs=1, device="cpu"))
    assert numbers(tmp_path, cells[3:6]) == numbers(reference, cells[3:6])


def test_results_of_another_training_are_refused(reference, cells):
    before = numbers(reference, cells)
    changed = replace(cells[4], config=replace(cells[4].config, seed=7))
    with pytest.raises(HandfulError, match=r"holds another run, which differs in seed \(0 here, 7 there\)"):
        run_grid([changed, *cells[:2]], reference, Workers(device="cpu"))
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
    (outcome,) = run_grid([more], tmp_path, Workers(device="cpu"))
    assert not outcome.skipped
    assert [(result.n, result.iterations_chosen_on is None) for result in outcome.results] == [
        (22, False), (20, False), (20, True)
    ]  # fmt: skip
    assert outcome.results[2].iterations == 2
    assert {path: path.stat().st_mtime_ns for path in (run / "checkpoint").iterdir()} == trained
    content = json.loads((run / "cell.json").read_text())
    assert content["measured"][:1] == old, "what was measured before stays, and is not measured again"
    assert [entry["result"] for entry in content["measured"][1:]] == [
        outcome.results[0].to_json(), outcome.results[2].to_json()
    ]  # fmt: skip
    for wanted in (cell, more):
        assert run_grid([wanted], tmp_path, Workers(device="cpu"))[0].skipped


def test_data_may_move(reference, cells, photos, tmp_path):
    (tmp_path / "elsewhere").symlink_to(photos)
    moved = [replace(cell, config=replace(cell.config, data=str(tmp_path / "elsewhere"))) for cell in cells]
    assert all(outcome.skipped for outcome in run_grid(moved, reference, Workers(device="cpu")))


def test_other_data_are_noticed(cells, tmp_path):
    other = replace(cells[0], config=replace(cells[0].config, fingerprint="0" * 16))
    with pytest.raises(HandfulError, match="are not those that the grid was made for"):
        run_grid([other], tmp_path / "grid")
    assert not (tmp_path / "grid").exists()


def test_a_failing_cell_is_reported_and_the_rest_go_on(reference, cells, tmp_path):
    diverges = replace(cells[0], name="diverges", config=replace(cells[0].config, learning_rate=1e30))
    (asked,) = cells[1].measurements
    wrong = replace(asked, protocol=replace(asked.protocol, splits="2"))  # a bug, as it were
    broken = replace(cells[1], name="broken", measurements=(wrong,))
    wanted = [diverges, cells[0], broken, cells[4]]
    ends: list[Outcome] = []
    outcomes = {o.name: o for o in run_grid(wanted, tmp_path, Workers(jobs=2, device="cpu"), report=ends.append)}
    assert sorted(end.name for end in ends) == sorted(cell.name for cell in wanted)
    assert outcomes["diverges"].results is None
    assert "training diverged" in outcomes["diverges"].reason
    assert outcomes["diverges"].traceback is None
    assert outcomes["broken"].reason.startswith("TypeError: ")
    assert "Traceback" in outcomes["broken"].traceback
    good = [cells[0], cells[4]]
    assert numbers(tmp_path, good) == numbers(reference, good)

    mended = replace(broken, measurements=cells[1].measurements)
    again = {outcome.name: outcome for outcome in run_grid([cells[0], mended], tmp_path, Workers(jobs=2, device="cpu"))}
    assert again[cells[0].name].skipped
    assert again["broken"].results and not again["broken"].skipped


def test_one_training_can_be_measured_in_several_ways(cells, tmp_path):
    base = cells[0]
    config = replace(base.config, method="tapnet", episodes=4)
    protocol = base.measurements[0].protocol
    protocols = (protocol, replace(protocol, spec=replace(protocol.spec, shots=2)))
    measurements = [Measurement(test, method) for method in ("tapnet", "tapnet-semi") for test in protocols]
    (outcome,) = run_grid([Cell("tapnet", config, tuple(measurements))], tmp_path, Workers(device="cpu"))
    found = [(result.method, result.protocol["spec"]["shots"]) for result in outcome.results]
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
    with pytest.raises(HandfulError, match=sentence):
        run_grid([cells[0], replace(cells[1], name=name)], tmp_path / "grid", Workers(**options))
    assert not (tmp_path / "grid").exists()


# --- folders that were damaged or removed between runs, or meanwhile


@pytest.fixture
def one(reference, cells, tmp_path) -> tuple[Cell, Path]:
    """A finished cell in a grid of its own."""
    shutil.copytree(reference / cells[0].name, tmp_path / "grid" / cells[0].name)
    return cells[0], tmp_path / "grid"


@pytest.mark.parametrize(
    "change",
    [
        {"mean": 934.0}, {"mean": -1.0}, {"mean": "50"}, {"mean": None}, {"interval": -0.1}, {"interval": "0.1"},
        {"n": 0}, {"n": 2.5}, {"n": True}, {"split_interval": -1}, {"by_iteration": []}, {"by_iteration": [101]},
        {"by_iteration": 7}, {"intervals": [-1]}, {"trained": None}, {"trained": {"episodes": 1, "val_accuracy": 200}},
    ],
)  # fmt: skip
def test_results_that_nobody_can_have_measured_are_refused(one, change):
    cell, folder = one
    path = folder / cell.name / "cell.json"
    content = json.loads(path.read_text())
    content["measured"][0]["result"] |= change
    path.write_text(json.dumps(content))
    with pytest.raises(HandfulError, match="remove it to evaluate the run again") as error:
        run_grid([cell], folder, Workers(device="cpu"))
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"measured": 7}', '{"measured": [7]}', '{"measured": [{"asked": {}, "result": NaN}]}',
             "[" * 100_000, '{"measured": [{"asked": {}, "result": {"mean": 50}}]}'],
)  # fmt: skip
def test_a_result_file_that_is_none_is_one_sentence(one, text):
    cell, folder = one
    (folder / cell.name / "cell.json").write_text(text)
    with pytest.raises(HandfulError, match=r"damaged|not the result of a cell"):
        finished(cell, folder)


@pytest.mark.parametrize("seconds", [None, "1", -1.0, True])
def test_the_time_that_a_cell_took_is_a_number(one, seconds):
    cell, folder = one
    path = folder / cell.name / "cell.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "wall_seconds": seconds}))
    with pytest.raises(HandfulError, match="remove it to evaluate the run again"):
        worked(folder / cell.name)


def test_a_removed_cell_is_done_again(reference, one, cells):
    cell, folder = one
    for gone in ("", "cell.json"):
        path = folder / cell.name / gone
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        (outcome,) = run_grid([cell], folder, Workers(device="cpu"))
        assert outcome.results and not outcome.skipped
        assert numbers(folder, [cell]) == numbers(reference, [cell])


@pytest.mark.parametrize(
    ("gone", "sentence"),
    [
        (["checkpoint/best.json", "cell.json"], "has no weights"),
        (["config.json", "cell.json"], "exists and is not a run folder"),
        (["classes.json", "labelled.npz", "cell.json"], None),  # training writes them again
    ],
)
def test_a_cell_of_which_something_was_removed(one, gone, sentence):
    cell, folder = one
    for name in gone:
        (folder / cell.name / name).unlink()
    (outcome,) = run_grid([cell], folder, Workers(device="cpu"))
    assert outcome.traceback is None
    assert outcome.results if sentence is None else sentence in outcome.reason


def test_a_file_where_a_cell_should_be(cells, tmp_path):
    (tmp_path / cells[0].name).write_text("mine")
    (outcome,) = run_grid(cells[:1], tmp_path, Workers(device="cpu"))
    assert "exists and is not a run folder" in outcome.reason
    assert outcome.traceback is None
    assert (tmp_path / cells[0].name).read_text() == "mine"


def test_a_link_where_a_cell_should_be(cells, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "grid").mkdir()
    (tmp_path / "grid" / cells[0].name).symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    with pytest.raises(HandfulError, match="is a link, and files would be written to where it leads"):
        run_grid(cells[:1], tmp_path / "grid", Workers(device="cpu"))
    assert not any((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("moment", ["training", "measuring", "measured"])
def test_a_cell_that_is_removed_while_it_runs_is_one_sentence_or_done(cells, tmp_path, monkeypatch, moment):
    cell = replace(cells[0], config=replace(cells[0].config, episodes=4, validate_every=2))
    run, session = tmp_path / cell.name, tmp_path / ".running-test"
    session.mkdir()
    train, evaluate_run = work.train, work.evaluate_run

    def training(*arguments, observe, **options):
        def remove(progress, _):
            if moment == "training" and progress.episode == 1:
                shutil.rmtree(run)

        return train(*arguments, observe=remove, **options)

    def measuring(*arguments, **options):
        if moment == "measuring":
            shutil.rmtree(run)
        found = evaluate_run(*arguments, **options)
        if moment == "measured":
            shutil.rmtree(run)
        return found

    monkeypatch.setattr(work, "train", training)
    monkeypatch.setattr(work, "evaluate_run", measuring)
    outcome = work.end_of(cell, Session(tmp_path, session, device="cpu"))
    assert outcome.traceback is None, outcome.traceback
    assert outcome.results or "\n" not in outcome.reason


def test_the_result_of_a_cell_does_not_hang_on_its_file(one, tmp_path, monkeypatch):
    """What was measured is known, whatever becomes of the file that it was written to."""
    cell, folder = one
    (folder / cell.name / "cell.json").unlink()
    monkeypatch.setattr(work, "write_measured", lambda *_: None)
    (folder / ".running-test").mkdir()
    outcome = work.end_of(cell, Session(folder, folder / ".running-test", device="cpu"))
    assert outcome.results and outcome.traceback is None


def test_a_full_disk_is_one_sentence(one, monkeypatch):
    cell, folder = one
    (folder / cell.name / "cell.json").unlink()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device", "cell.json")

    monkeypatch.setattr(work, "write_measured", full)
    (folder / ".running-test").mkdir()
    outcome = work.end_of(cell, Session(folder, folder / ".running-test", device="cpu"))
    assert outcome.reason == "No space left on device: cell.json"
    assert outcome.traceback is None


def test_what_a_killed_grid_left_is_no_obstacle(one, cells):
    """Its session stays, for nobody can tell whether its machine is still at it; it hinders nothing."""
    cell, folder = one
    left = folder / ".running-abcdefgh"
    left.mkdir()
    for name in ("stop", f"{cell.name}.taken", f"{cell.name}.ended"):
        (left / name).touch()
    (folder / cell.name / "cell.json").unlink()
    (outcome,) = run_grid([cell], folder, Workers(device="cpu"))
    assert outcome.results
    assert {path.name for path in folder.glob(".running-*")} == {left.name}
    assert len(list(left.iterdir())) == 3


def test_without_ray_the_message_says_how_to_get_it(cells, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(HandfulError, match=r"pip install handful\[ray\]"):
        run_grid(cells, tmp_path, Workers(engine="ray"))


@posix
@pytest.mark.slow
def test_a_killed_worker_loses_nothing(reference, cells, tmp_path, trapped):
    trapped.send(signal.SIGKILL, f"{tmp_path}/{cells[2].name}/checkpoint/last.json", at=2)
    outcomes = run_grid(cells, tmp_path, Workers(jobs=2, device="cpu"))
    assert trapped.sprung() == 1
    assert all(outcome.results and not outcome.skipped for outcome in outcomes)
    assert numbers(tmp_path, cells) == numbers(reference, cells)
    assert not litter(tmp_path)


@posix
@pytest.mark.slow
def test_a_cell_that_always_kills_its_worker_is_given_up_and_the_rest_go_on(reference, cells, tmp_path, trapped):
    poison = cells[1]
    others = [cells[0], cells[4]]
    trapped.send(signal.SIGKILL, f"{tmp_path}/{poison.name}/config.json", times=99)
    outcomes = {o.name: o for o in run_grid([poison, *others], tmp_path, Workers(jobs=2, device="cpu"))}
    assert trapped.sprung() == 1 + RETRIES
    assert "its worker was killed" in outcomes[poison.name].reason
    assert numbers(tmp_path, others) == numbers(reference, others)


@posix
@pytest.mark.slow
def test_ray_gives_the_same_numbers_though_a_worker_is_killed(reference, cells, tmp_path, trapped):
    ray = pytest.importorskip("ray")
    trapped.send(signal.SIGKILL, f"{tmp_path}/{cells[2].name}/checkpoint/last.json", at=2)
    outcomes = run_grid(cells, tmp_path, Workers(engine="ray", jobs=2, device="cpu"))
    assert trapped.sprung() == 1
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


def handful(*words: str) -> None:
    """In this process, whose workers are warm; the errors are raised that ``main`` makes sentences of."""
    app(list(words), standalone_mode=False)


def test_the_command(photos, tmp_path, capsys):
    grid = arguments(photos, tmp_path, "--method", "pn", "--method", "tac", "--set", "scale=0.5",
                     "--set", "grad_through_projection=true", "--distractors", "both", "--episodes", 5)  # fmt: skip
    handful(*grid)
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
    handful(*grid, "--seed", "0", "--seed", "1", "--json")
    out, errors = capsys.readouterr()
    assert [row["seeds"] for row in json.loads(out)["summary"]] == [2] * 4
    assert errors.count("finished before") == 4

    with pytest.raises(HandfulError, match="differs in learning_rate"):
        handful(*grid, "--learning-rate", "0.1")
    with pytest.raises(HandfulError, match="--distractors takes without, with, both, got 'some'"):
        handful(*grid, "--distractors", "some")
    with pytest.raises(HandfulError, match="'pn/tac' takes NAME=VALUE"):
        handful(*grid, "--set", "depth=3")


def test_the_command_reports_failed_cells(photos, tmp_path, capsys):
    grid = arguments(photos, tmp_path, "--method", "pn", "--shots", 1, "--shots", 2, "--episodes", 40)
    with pytest.raises(JobFailed, match="2 of 2 cells failed: pn-1-shot-seed-0, pn-2-shot-seed-0"):
        handful(*grid, "--learning-rate", "1e30")
    out, errors = capsys.readouterr()
    assert "pn-1-shot-seed-0: failed: training diverged" in errors
    assert "failed" in out
    assert "training diverged" in json.loads((tmp_path / "grid.json").read_text())["cells"][0]["error"]["reason"]


@posix
@pytest.mark.slow
def test_ctrl_c_saves_and_the_same_command_goes_on(photos, tmp_path, traps):
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    names = ["pn-1-shot-seed-0", "tac-1-shot-seed-0"]
    # Validated at the end only, so that a checkpoint before it is there because of Ctrl-C.
    more = ("--method", "pn", "--method", "tac", "--episodes", 60, "--validate-every", 60)
    grids = [arguments(photos, out, *more) for out in (straight, stopped)]
    for name in names:
        traps.hold(f"{stopped}/{name}/config.json", until=f"{stopped}/.running-*/stop")
    process = start_handful(traps, *grids[1])
    wait_until(lambda: traps.sprung() == 2, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130, errors
    assert "run the same command again" in errors
    assert "Traceback" not in errors
    assert not litter(stopped)
    states = [json.loads((stopped / name / "checkpoint" / "last.json").read_text())["state"] for name in names]
    assert all(0 < state["episode"] < 60 for state in states), "saved where it was"
    for command in grids:
        handful(*command)
    for name in names:
        heads = [json.loads((folder / name / "checkpoint" / "last.json").read_text()) for folder in (stopped, straight)]
        assert heads[0]["sha256"] == heads[1]["sha256"]


@pytest.mark.slow
def test_two_processes_may_run_the_same_grid(photos, tmp_path, capsys, traps):
    grid = arguments(photos, tmp_path, "--method", "pn", "--method", "tac", "--episodes", 60, "--json")
    # The other one is at a cell when we begin, and goes on with it when we have begun.
    traps.hold(f"{tmp_path}/*/config.json", until=f"{tmp_path}/.running-*", paths=2)
    other = start_handful(traps, *grid)
    wait_until(lambda: traps.sprung() == 1, other)
    handful(*grid)
    theirs, _ = other.communicate()
    assert other.returncode == 0
    assert capsys.readouterr().out == theirs, "each cell was trained and evaluated once"
    assert not litter(tmp_path)
