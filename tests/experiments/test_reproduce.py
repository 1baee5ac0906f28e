"""Tables and figures from one command: complete, rightly marked, and the same however often it was stopped."""

from __future__ import annotations

import csv
import io
import json
import os
import pickle
import re
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from command import start_handful
from handful import HandfulError
from handful import functional as F
from handful.cli import main
from handful.datasets import load_dataset
from handful.errors import Interrupted
from handful.experiments.cell import Outcome
from handful.experiments.figures import FIGURES, FigureSpec
from handful.experiments.paper import SYSTEMS, TABLES, Budget, Recipe
from handful.experiments.plan import Plan, plan_table
from handful.experiments.reproduce import check_what, reproduce
from handful.experiments.setting import Setting
from handful.experiments.workers import Workers
from handful.io import write_json
from handful.publish import publish
from handful.reports import figures
from handful.runs.episodes import embed
from handful.runs.folder import load_run
from handful.runs.results import format_accuracy, measured
from handful.runs.tuning import MULTIPLIERS
from handful.sampling import EpisodeSampler, EpisodeSpec, split_labelled
from traps import Traps, wait_until

EVERYTHING = ("table1", "table3", "iterations", "entropy", "tsne", "distractors")
PICTURES = EVERYTHING[2:]


@pytest.fixture(scope="module")
def setting(photos) -> Setting:
    """A few episodes of everything: what is asked of the numbers here does not depend on how good they are."""
    options = {"image_size": 28, "split_seed": 0}
    return Setting(
        dataset="folder",
        data=str(photos),
        data_options=options,
        images=load_dataset("folder", "train", photos, options=options),
        labelled_ratio=0.5,
        recipe=Recipe(EpisodeSpec(6, queries=2, unlabelled=2), EpisodeSpec(5, queries=3, unlabelled=3)),
        budget=Budget(episodes=2, splits=2, test_episodes=6),
        shots=(1,),
    )


@pytest.fixture(scope="module")
def out(setting, tmp_path_factory) -> Path:
    """Everything at once, undisturbed."""
    folder = tmp_path_factory.mktemp("report")
    content = reproduce(
        EVERYTHING, setting, folder, command="handful reproduce all", workers=Workers(jobs=2, device="cpu")
    )
    assert not content["failed"]
    return folder


def read_csv(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def read_content(folder: Path) -> dict[str, Any]:
    """``report.json`` but for where it lies and what was typed."""
    content = json.loads((folder / "report.json").read_text(), parse_constant=pytest.fail)
    del content["report"]
    for section in (*content["sections"].values(), *content["others"].values()):
        del section["command"]
    return content


def markdown_tables(folder: Path) -> list[list[list[str]]]:
    """The cells of each table of ``report.md``, its header first."""
    blocks = re.findall(r"(?:^\|.*\n?)+", (folder / "report.md").read_text(), re.MULTILINE)
    lines = [[re.split(r" \| ", line.strip("| ")) for line in block.splitlines()] for block in blocks]
    return [[head, *body] for head, _, *body in lines]


class Page(HTMLParser):
    """What a page refers to, and its tables: of each cell the class and the text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.references: list[str] = []
        self.tables: list[list[list[tuple[str, str]]]] = []
        self.rank: str | None = None  # of the cell that is being read
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.references += [value or "" for name, value in attrs if name in ("src", "srcset", "href", "action", "data")]
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag == "span":
            self.rank = dict(attrs)["class"] or ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "span":
            self.rank = None

    def handle_data(self, data: str) -> None:
        if self.rank is not None:
            self.tables[-1][-1].append((self.rank, data))


def test_a_folder_with_other_things_in_it_is_left_alone(setting, tmp_path):
    for name in ("report.html", "table1.csv"):
        (tmp_path / name).write_text("mine")
    with pytest.raises(HandfulError, match="exists and is not from a reproduction: choose another --out"):
        reproduce(("table1",), setting, tmp_path, command="handful reproduce table1", workers=Workers(device="cpu"))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"report.html": "mine", "table1.csv": "mine"}


# --- tables


def test_one_training_can_serve_the_columns_without_and_with_distractors(setting):
    def planned(**how: bool) -> dict[str, dict[bool, tuple[str, bool]]]:
        plan = Plan(replace(setting, **how))
        table = plan_table(plan, TABLES["table1"])
        trained = {cell.name: cell.config.train for cell in plan.cells}
        found = {}
        for system, columns in table.items():
            sources = {others: by_seed[0] for (_, others), by_seed in columns.items()}
            assert all(bool(one.measurement.protocol.spec.distractor_ways) == others for others, one in sources.items())
            found[system.line] = {
                others: (one.cell, bool(trained[one.cell].distractor_ways)) for others, one in sources.items()
            }
        return found

    each, once = planned(), planned(train_once=True)
    assert each["TAC"] == {False: ("tac-1-shot-6-way", False), True: ("tac-1-shot-6-way-distractors", True)}
    for line, columns in once.items():
        aware = line.startswith(("TACdap", "Soft k-Means + Cluster", "Masked Soft k-Means"))
        assert columns[False] == columns[True], "the same model"
        assert columns[True][1] == aware
    assert len({cell for columns in once.values() for cell, _ in columns.values()}) < len(
        {cell for columns in each.values() for cell, _ in columns.values()}
    )
    assert "without and with distractors (methods that learn" in replace(setting, train_once=True).caption()
    assert "trained with them" not in setting.caption()


def test_figures_show_the_models_of_the_tables_if_one_training_serves_all_columns(setting):
    plan = Plan(replace(setting, train_once=True))
    plan_table(plan, TABLES["table1"])
    trained = {cell.name for cell in plan.cells}
    for what in ("tsne", "iterations", "entropy", "distractors"):
        FIGURES[what].plan(plan)
    assert {cell.name for cell in plan.cells} == trained


def test_every_system_has_a_number_in_every_column(out):
    content = read_content(out)
    for what, columns in {"table1": [(1, False), (1, True)], "table3": [(1, False)]}.items():
        lines = TABLES[what].lines(ways=6, classes=12)
        expected = [(system.line, *column) for system in lines for column in columns]
        assert [(row["system"], row["shots"], row["distractors"]) for row in content[what]] == expected
        assert all(0 <= row["accuracy"] <= 100 and row["interval"] >= 0 for row in content[what])
        assert all(row["published"] is None for row in content[what]), "nobody published figures of these images"
    assert "no published figures" in (out / "report.md").read_text()


def test_the_best_and_the_second_best_of_each_column_are_marked(out):
    tables = [read_content(out)[what] for what in ("table1", "table3")]
    pages = [[line for line in table if line] for table in Page(out / "report.html").tables]
    for rows, page, (header, *text) in zip(tables, pages, markdown_tables(out), strict=True):
        assert header == ["system", "1-shot", "1-shot, distractors"][: len(header)]
        for column, others in enumerate((False, True)[: len(header) - 1], 1):
            accuracies = [row["accuracy"] for row in rows if row["distractors"] == others]
            order = sorted(set(accuracies), reverse=True)
            for accuracy, line, cells in zip(accuracies, page, text, strict=True):
                rank = {0: "best", 1: "second"}.get(order.index(accuracy), "")
                assert line[column][0] == rank
                mark = {"best": "**", "second": "_", "": ""}[rank]
                number = f"{mark}{line[column][1]}{mark}"
                assert cells[column].split("<br>")[0] == number


def test_page_markdown_csv_and_json_agree(out):
    content, page = read_content(out), Page(out / "report.html")
    for index, what in enumerate(("table1", "table3")):
        lines = [line for line in page.tables[index] if line]
        texts = [(line[0][1], text) for line in lines for _, text in line[1:]]
        rows = content[what]
        assert texts == [(row["system"], format_accuracy(row["accuracy"], row["interval"])) for row in rows]
        markdown = [(line[0], cell.strip("*_")) for line in markdown_tables(out)[index][1:] for cell in line[1:]]
        assert [(system, re.split(r"(?:\*\*|_)?<br>", cell)[0]) for system, cell in markdown] == texts
        kept = [{name: "" if value is None else str(value) for name, value in row.items()} for row in rows]
        assert read_csv(out / f"{what}.csv") == kept


def test_what_can_be_shared_is_trained_once(out):
    runs = {path.parent.name: json.loads(path.read_text()) for path in (out / "runs").glob("*/cell.json")}
    labelled_only, others = ["pn", "relation", "tapnet"], ["tpn", "metagan", "imp", "tac", "tacdap"]
    others += ["tac-cosine", "tacdap-cosine", "tac-free"]
    soft = ["soft-kmeans", "soft-kmeans-cluster", "masked-soft-kmeans"]
    expected = {f"{method}-1-shot-6-way" for method in [*labelled_only, *soft, *others, "tapnet-soft-clustering"]}
    expected |= {f"{method}-1-shot-6-way-distractors" for method in [*soft, *others]}
    expected |= {"pn-1-shot-5-way"} | {f"{method}-1-shot-5-way{end}" for method in soft for end in ("", "-distractors")}
    assert set(runs) == expected

    measured = [(entry["asked"]["method"], entry["asked"]["protocol"]["spec"]["distractor_ways"] > 0)
                for entry in runs["pn-1-shot-5-way"]["measured"]]  # fmt: skip
    assert sorted(measured) == [("pn", False), ("pn", True), ("soft-kmeans", False), ("soft-kmeans", True)]
    assert runs["pn-1-shot-6-way"]["config"]["train"]["unlabelled"] == 0
    options = {name: runs[f"{name}-1-shot-{ways}-way"]["config"]["options"]
               for name, ways in {"pn": 5, "soft-kmeans": 6, "tac": 6, "tac-cosine": 6}.items()}  # fmt: skip
    assert options["pn"] == options["tac"] == {}, "trained as published"
    assert options["soft-kmeans"] == {"scale": 0.1}, "as the recipe says"
    assert options["tac-cosine"]["cosine_clustering"]
    content = read_content(out)
    (first,) = (row for row in content["table1"] if row["system"] == "TAC" and not row["distractors"])
    (third,) = (row for row in content["table3"] if row["system"] == "TAC")
    assert first == third
    (once,) = (row for row in content["table3"] if row["system"] == "TAC with 1 iteration")
    assert once["refinements"] == 1


def test_the_page_needs_nothing_but_itself(out):
    page, text = Page(out / "report.html"), (out / "report.html").read_text()
    assert len(page.references) == len(PICTURES)
    assert all(reference.startswith("data:image/png;base64,") for reference in page.references)
    assert not page.tags & {"link", "script", "iframe", "object", "embed"}
    assert not re.search(r"https?://|url\(|@import", text)
    assert "handful reproduce all" in text


# --- figures


@pytest.mark.parametrize("name", PICTURES)
def test_each_figure_comes_with_its_numbers(out, name):
    with Image.open(out / f"{name}.png") as image:
        image.verify()
    assert b"<svg" in (out / f"{name}.svg").read_bytes()
    rows = read_csv(out / f"{name}.csv")
    kept = read_content(out)[name]
    assert rows == [{key: "" if value is None else str(value) for key, value in row.items()} for row in kept]
    assert "![" in (out / "report.md").read_text() and f"]({name}.png)" in (out / "report.md").read_text()


def test_refinements_start_with_none_and_tac_has_one_rival(out):
    content = read_content(out)
    lines: dict[str, list[float]] = {}
    for row in content["iterations"]:
        lines.setdefault(row["method"], []).append(row["accuracy"])
        assert row["refinements"] == len(lines[row["method"]]) - 1
    *ours, rival = lines
    assert ours == ["TAC", "TAC, cosines in M", "TAC, reference-free"]
    assert all(len(line) == 6 for line in lines.values())
    (chosen,) = (row for row in content["table3"] if row["system"] == "TAC")
    assert lines["TAC"][chosen["refinements"]] == chosen["accuracy"], "the same weights, the same episodes"

    best = {}
    for method in ("soft-kmeans", "soft-kmeans-cluster", "masked-soft-kmeans"):
        measured = json.loads((out / "runs" / f"{method}-1-shot-6-way" / "cell.json").read_text())["measured"]
        (curve,) = (entry["result"] for entry in measured if entry["asked"]["iterations"] == 5)
        best[curve["title"]] = max(curve["by_iteration"])
    assert best[rival] == max(best.values())


def test_shares_of_distractors(out):
    lines: dict[str, dict[int, float]] = {}
    for row in read_content(out)["distractors"]:
        assert row["setting"] == "1-shot"
        lines.setdefault(row["method"], {})[row["share"]] = row["accuracy"]
    assert list(lines) == ["PN", "Soft k-Means", "Soft k-Means + Cluster", "Masked Soft k-Means", "TapNet", "TAC",
                           "TACdap", "TACdap, cosines in M", "TAC, reference-free"]  # fmt: skip
    assert all(list(line) == [0, 20, 40, 60, 80] for line in lines.values())
    for method in ("PN", "TapNet"):
        assert len(set(lines[method].values())) == 1, "without unlabelled images distractors do nothing"


def test_points_of_the_t_sne(out):
    rows = read_content(out)["tsne"]
    spaces = list(dict.fromkeys(row["space"] for row in rows))
    assert spaces == ["embedding space", "TAC space, 1 refinement", *(f"TAC space, {n} refinements" for n in (2, 3, 4))]
    for space in spaces:
        classes = [row["class"] for row in rows if row["space"] == space]
        assert len(set(classes)) == 5
        assert {classes.count(name) for name in classes} == {10}, "all unlabelled images of a class, if fewer than 80"
    assert {row["cluster"] for row in rows} <= {row["class"] for row in rows}


def directly(setting: Setting, run: Path, project: bool) -> np.ndarray:
    """Mean cross-entropy of the soft labels of each of five refinements, one episode after the other, by the book."""
    _, learner, _ = load_run(run)
    test = load_dataset("folder", "test", setting.data, options=setting.data_options)
    vectors = embed(learner.backbone, test.images).double()
    found = []
    for split in range(setting.budget.splits):
        parts = split_labelled(test.labels, test.class_names, setting.labelled_ratio, (setting.seed, split))
        sampler = EpisodeSampler(parts, setting.spec(1, False), (setting.seed, split))
        for number in range(setting.budget.test_episodes):
            one = sampler.batch(number, 1)
            support, unlabelled = vectors[one.support[0]], vectors[one.unlabelled[0]]  # (N, K, D), (U, D)
            references = learner.method.class_references(support.mean(1).float()).double()
            means, losses = support.mean(1), []
            for _ in range(5):
                offsets = unlabelled[:, None] - means  # (U, N, D)
                if project:  # onto the null space of the errors: the right singular vectors past their rank
                    errors = F.error_vectors(means, references)
                    offsets = offsets @ torch.linalg.svd(errors).Vh[len(errors) :].T
                soft = torch.softmax(-offsets.square().sum(-1), -1)
                losses.append(float(torch.nn.functional.nll_loss(soft.log(), one.unlabelled_labels[0])))
                means = (support.sum(1) + soft.T @ unlabelled) / (support.shape[1] + soft.sum(0)[:, None])
            found.append(losses)
    return np.mean(found, axis=0)


@pytest.mark.parametrize(("space", "project"), [("in M", True), ("in the embedding space", False)])
def test_cross_entropies_agree_with_a_direct_computation(out, setting, space, project):
    rows = [row for row in read_content(out)["entropy"] if row["clustering"] == space]
    assert [row["refinements"] for row in rows] == [1, 2, 3, 4, 5]
    with torch.inference_mode():
        expected = directly(setting, out / "runs" / "tac-1-shot-6-way", project)
    assert [row["cross_entropy"] for row in rows] == pytest.approx(expected, rel=1e-3)


def test_one_test_episode_has_no_interval(out, setting, tmp_path):
    shutil.copytree(out / "runs" / "tac-1-shot-6-way", tmp_path / "runs" / "tac-1-shot-6-way")
    once = replace(setting, budget=replace(setting.budget, splits=1, test_episodes=1), methods=("tac",))
    once = replace(once, distractors=(False,))
    reproduce(["table1", "entropy"], once, tmp_path, command="handful", workers=Workers(jobs=2, device="cpu"))
    content = read_content(tmp_path)  # which must be JSON, and that has no word for what is not a number
    assert [row["interval"] for row in content["table1"]] == [None, None]
    assert {(row["accuracy_interval"], row["cross_entropy_interval"]) for row in content["entropy"]} == {(None, None)}


def test_figures_at_the_fewest_shots_in_whatever_order_they_are_named(setting):
    for shots in ((1, 2), (2, 1)):
        plan = Plan(replace(setting, shots=shots))
        sources = [FIGURES["tsne"].plan(plan), *FIGURES["iterations"].plan(plan).values()]
        assert all("-1-shot-" in source.cell for source in sources)
        assert all(source.measurement.protocol.spec.shots == 1 for source in sources)


def test_a_figure_is_a_drawing_and_one_entry(out, setting, tmp_path, monkeypatch):
    def draw(rows: list[dict[str, Any]]) -> Figure:
        figure = Figure()
        figure.subplots().bar([row["method"] for row in rows], [row["accuracy"] for row in rows])
        return figure

    added = FigureSpec(
        title="TAC as a bar",
        description="accuracy of TAC",
        drawing="bars",
        plan=lambda plan: {"TAC": plan.ask(SYSTEMS["tac"], 1, False)},
        numbers=lambda job, planned, bar: (
            [{"method": name, "accuracy": job.result(source).mean} for name, source in planned.items()],
            ["One bar."],
        ),
    )
    monkeypatch.setattr(figures, "bars", draw, raising=False)
    monkeypatch.setitem(FIGURES, "bar", added)
    assert "bar" in check_what(["all"])
    shutil.copytree(out / "runs", tmp_path / "runs")
    reproduce(
        check_what(["bar"]), setting, tmp_path, command="handful reproduce bar", workers=Workers(jobs=2, device="cpu")
    )
    (tac,) = (row for row in read_content(out)["table3"] if row["system"] == "TAC")
    assert read_csv(tmp_path / "bar.csv") == [{"method": "TAC", "accuracy": str(tac["accuracy"])}]
    text = (tmp_path / "report.md").read_text()
    assert "## TAC as a bar" in text and "![accuracy of TAC](bar.png)" in text and "One bar." in text


# --- stopped and started again


def test_what_is_missing_is_made_again_and_nothing_else(out, setting, tmp_path):
    """A folder as a stop leaves it: cells without a result, with some results only, and not even begun."""
    shutil.copytree(out / "runs", tmp_path / "runs")
    runs = tmp_path / "runs"
    shutil.rmtree(runs / "tacdap-1-shot-6-way")
    (runs / "tac-1-shot-6-way-distractors" / "cell.json").unlink()
    partly = runs / "pn-1-shot-6-way" / "cell.json"
    content = json.loads(partly.read_text())
    partly.write_text(json.dumps({**content, "measured": content["measured"][:2]}))
    before = {path: path.stat().st_mtime_ns for path in runs.glob("*/checkpoint/*")}

    again = reproduce(
        EVERYTHING, setting, tmp_path, command="handful reproduce all", workers=Workers(jobs=2, device="cpu")
    )
    assert not again["failed"]
    assert read_content(tmp_path) == read_content(out)
    assert markdown_tables(tmp_path) == markdown_tables(out)
    for name in PICTURES:
        assert (tmp_path / f"{name}.svg").read_bytes() == (out / f"{name}.svg").read_bytes(), "drawn the same"
    after = {path: path.stat().st_mtime_ns for path in runs.glob("*/checkpoint/*")}
    assert before.items() <= after.items(), "what was trained is not trained again"


def test_another_table_in_the_same_folder_uses_the_runs_there_are(out, setting, tmp_path):
    shutil.copytree(out / "runs", tmp_path / "runs")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*")}
    reproduce(["table3"], setting, tmp_path, command="handful reproduce table3", workers=Workers(jobs=2, device="cpu"))
    assert read_content(tmp_path)["table3"] == read_content(out)["table3"]
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*")} == before


def test_a_report_holds_what_was_made_in_the_folder_before(out, setting, tmp_path):
    shutil.copytree(out / "runs", tmp_path / "runs")
    settings = replace(setting, methods=("tac",))
    reproduce(["table1", "tsne"], settings, tmp_path, command="first command", workers=Workers(jobs=2, device="cpu"))
    first, table = read_content(tmp_path), markdown_tables(tmp_path)[0]
    content = reproduce(["table3"], settings, tmp_path, command="second command", workers=Workers(jobs=2, device="cpu"))
    assert content["table1"] == first["table1"] and content["tsne"] == first["tsne"]
    text = (tmp_path / "report.md").read_text()
    assert text.startswith("# table3, table1, tsne on folder")
    assert markdown_tables(tmp_path)[1] == table and "](tsne.png)" in text
    assert text.count("Made before in this folder, with the same settings: first command.") == 2
    assert len(Page(tmp_path / "report.html").references) == 1
    assert not [path for path in (tmp_path / "runs").iterdir() if not (out / "runs" / path.name).exists()]

    longer = replace(settings, budget=replace(setting.budget, test_episodes=5))
    content = reproduce(["table3"], longer, tmp_path, command="third command", workers=Workers(jobs=2, device="cpu"))
    text = (tmp_path / "report.md").read_text()
    assert "table1" not in content and len(markdown_tables(tmp_path)) == 1, "measured otherwise: not mixed"
    assert "table1 (table1.csv), by first command; tsne (tsne.csv), by first command" in text
    content = reproduce(["table3"], settings, tmp_path, command="fourth command", workers=Workers(jobs=2, device="cpu"))
    assert content["table1"] == first["table1"], "nothing was forgotten"
    assert not content["others"]


def test_a_report_of_an_older_version_is_named(out, setting, tmp_path):
    shutil.copytree(out / "runs", tmp_path / "runs")
    old = {"dataset": "folder", "caption": "as it was", "failed": {}, "table1": read_content(out)["table1"]}
    publish(tmp_path, {"report.json": json.dumps(old).encode()})
    reproduce(
        ["table3"], replace(setting, methods=("tac",)), tmp_path, command="", workers=Workers(jobs=2, device="cpu")
    )
    assert (
        "Not shown, as it cannot be compared with the above: table1 (table1.csv)"
        in (tmp_path / "report.md").read_text()
    )


def test_a_report_of_what_is_there_so_far(out, setting, tmp_path, monkeypatch):
    """After each cell that ends, as far as the time between two reports allows; and when it is stopped."""
    cells = ["tac-1-shot-6-way", "tac-cosine-1-shot-6-way", "tac-1-shot-6-way-distractors"]
    drafts = []

    def run_two(planned, runs, workers, *, report, **_):
        for name in cells[:2]:
            shutil.copytree(out / "runs" / name, runs / name)
            report(Outcome(name, list(measured(runs / name).values())))
            drafts.append(read_content(tmp_path / "out")["missing"] if (tmp_path / "out").exists() else None)
        report(Outcome(cells[2], reason="no such luck"))
        raise Interrupted("stopped")

    monkeypatch.setattr("handful.experiments.reproduce.run_grid", run_two)
    monkeypatch.setattr("handful.experiments.reproduce.DRAFT_SECONDS", 0.0)
    wanted = replace(setting, methods=("tac",))
    with pytest.raises(Interrupted):
        reproduce(["table1", "tsne"], wanted, tmp_path / "out", command="the command", workers=Workers(device="cpu"))
    last = "tac-cosine-1-shot-6-way-distractors"
    assert [set(names) for names in drafts] == [{*cells[1:], last}, {cells[2], last}]
    content, text = read_content(tmp_path / "out"), (tmp_path / "out" / "report.md").read_text()
    assert content["missing"] == [last]
    assert f"1 of 4 cells are missing: {last}. Run the same command again to resume: the command" in text
    states = {(row["system"], row["distractors"]): row["state"] for row in content["table1"]}
    assert states == {
        ("TAC", False): "measured", ("TAC", True): "failed",
        ("TAC, cosines in M", False): "measured", ("TAC, cosines in M", True): "missing",
    }  # fmt: skip
    assert "| TAC, cosines in M |" in text and "| missing |" in text and "no such luck" in text

    monkeypatch.undo()
    content = reproduce(
        ["table1", "tsne"], wanted, tmp_path / "out", command="the command", workers=Workers(jobs=2, device="cpu")
    )
    assert content["missing"] == [] and content["tsne"]
    assert "are missing" not in (tmp_path / "out" / "report.md").read_text()


def test_a_stopped_start_names_all_cells(setting, tmp_path, monkeypatch):
    def stop(*_: object, **__: object) -> None:
        raise Interrupted("stopped")

    monkeypatch.setattr("handful.experiments.reproduce.run_grid", stop)
    wanted = replace(setting, methods=("tac",), pretraining=3, distractors=(False,))
    with pytest.raises(Interrupted):
        reproduce(["table1"], wanted, tmp_path / "out", command="", workers=Workers(device="cpu"))
    assert "2 of 2 cells are missing" in (tmp_path / "out" / "report.md").read_text()


def test_each_split_is_loaded_once(photos, tmp_path, handful, monkeypatch):
    """In this process; the workers, which are others, open the cache for themselves."""
    loaded = []

    def counting(name: str, split: str, *args: Any, **options: Any) -> Any:
        loaded.append(split)
        return load_dataset(name, split, *args, **options)

    for place in ("handful.datasets", "handful.experiments.reproduce", "handful.runs.folder"):
        monkeypatch.setattr(f"{place}.load_dataset", counting)
    monkeypatch.setattr("handful.experiments.paper.recipe_for", lambda name: Recipe(
        EpisodeSpec(6, queries=2, unlabelled=2), EpisodeSpec(5, queries=3, unlabelled=3)
    ))  # fmt: skip
    code, _, errors = handful(
        "reproduce", "table3", "tsne", "entropy", "--dataset", "folder", "--data", photos, "--image-size", 28,
        "--labelled-ratio", 0.5, "--out", tmp_path, "--method", "tac", "--shots", 1, "--pretrain", 2, *SHORT,
    )  # fmt: skip
    assert code == 0, errors
    assert sorted(loaded) == ["test", "train", "val"]


def test_all_models_can_start_from_one_classifier(setting, tmp_path):
    started = replace(setting, pretraining=3, shots=(1, 2), methods=("classifier", "classifier-semi", "pn", "tac"))
    content = reproduce(("table1",), started, tmp_path, command="", workers=Workers(jobs=2, device="cpu"))
    assert not content["failed"]
    assert "3 steps of two labelled images of each, moved and mirrored" in content["caption"]
    assert [row["system"] for row in content["table1"]][::4][:2] == ["Classifier", "Classifier + Semi-Sup. Inference"]
    start = tmp_path / "runs" / "classifier-1-shot-12-way"
    assert [path.name for path in (tmp_path / "runs").glob("classifier*")] == [start.name], "one for all columns"
    settings = {path.parent.name: json.loads(path.read_text()) for path in (tmp_path / "runs").glob("*/config.json")}
    weights = json.loads((start / "checkpoint" / "best.json").read_text())["sha256"]
    for name, config in settings.items():
        assert config["start_weights"] == (None if name == start.name else weights)
        assert config["augment"] == (name == start.name)
        assert config["episodes"] == (3 if name == start.name else 2)

    page = (tmp_path / "report.md").read_text()
    assert "The lines called Classifier are of the common start alone." in page
    more = replace(started, shots=(2,), methods=("tac",))
    fewer = reproduce(("table1",), more, tmp_path, command="", workers=Workers(jobs=2, device="cpu"))
    assert not fewer["failed"], "the same start, although another number of shots is asked for"
    assert "lines called Classifier" not in (tmp_path / "report.md").read_text()

    content = reproduce(("table1",), started, tmp_path, command="", workers=Workers(jobs=2, device="cpu"))
    first = (tmp_path / "table1.csv").read_bytes()
    shutil.rmtree(tmp_path / "runs" / "pn-1-shot-6-way")
    again = reproduce(("table1",), started, tmp_path, command="", workers=Workers(jobs=2, device="cpu"))
    assert not again["failed"]
    assert (tmp_path / "table1.csv").read_bytes() == first


def test_the_temperature_is_chosen_for_every_system_alike(setting, tmp_path):
    tuned = replace(setting, tuned=True, distractors=(False,), methods=("pn", "soft-kmeans"))
    content = reproduce(("table1",), tuned, tmp_path, command="", workers=Workers(jobs=2, device="cpu"))
    assert not content["failed"]
    found = {row["system"]: row["cluster_multiplier"] for row in content["table1"]}
    assert [found.pop("PN"), found.pop("PN, 5-way training")] == [None, None], "it has no soft labels"
    assert set(found.values()) <= set(MULTIPLIERS)
    assert (
        f"Temperature and refinements chosen on validation classes, {len(MULTIPLIERS)} x 5 trials each"
        in (tmp_path / "report.md").read_text()
    )
    plain = reproduce(("table1",), replace(tuned, tuned=False), tmp_path, command="", workers=Workers(device="cpu"))
    assert {row["cluster_multiplier"] for row in plain["table1"]} == {None}, "another measurement of the same weights"


def test_all_models_can_start_from_a_run_that_is_there(setting, tmp_path):
    training = {"optimiser": "sgd", "schedule": "cosine", "classifier_loss": 0.5}
    narrow = replace(setting, distractors=(False,), methods=("pn",), training=training)
    origin = reproduce(
        ("table1",), replace(narrow, training={"linear_output": True}), tmp_path / "first", command="",
        workers=Workers(jobs=2, device="cpu"),
    )  # fmt: skip
    assert not origin["failed"]
    start = tmp_path / "first" / "runs" / "pn-1-shot-6-way"
    content = reproduce(
        ("table1",), replace(narrow, start=start), tmp_path / "second", command="",
        workers=Workers(jobs=2, device="cpu"),
    )  # fmt: skip
    assert not content["failed"]
    assert "All start from the backbone of one run, pn-1-shot-6-way: pn, 2 episodes." in content["caption"]
    weights = json.loads((start / "checkpoint" / "best.json").read_text())["sha256"]
    settings = [json.loads(path.read_text()) for path in (tmp_path / "second" / "runs").glob("*/config.json")]
    assert len(settings) == 1, "no line with the published ways: nothing was published with this start"
    for config in settings:
        assert config["start_weights"] == weights
        assert config["backbone_options"] == {"linear_output": True}, "as in the start"
        assert {name: config[name] for name in training} == training
        assert config["learning_rate"] == narrow.recipe.started_rate
    wrong = replace(narrow, start=start, training={"linear_output": False})
    with pytest.raises(HandfulError, match=r"cannot start from .*: it has backbone options"):
        reproduce(("table1",), wrong, tmp_path / "third", command="", workers=Workers(device="cpu"))


def test_a_classifier_that_is_there_has_lines_of_its_own(setting, tmp_path):
    narrow = replace(setting, distractors=(False,), methods=("classifier", "classifier-semi", "pn"))
    first = reproduce(
        ("table1",), replace(narrow, pretraining=3), tmp_path / "first", command="",
        workers=Workers(jobs=2, device="cpu"),
    )  # fmt: skip
    start = tmp_path / "first" / "runs" / "classifier-1-shot-12-way"
    before = {path.name: path.read_bytes() for path in start.rglob("*") if path.is_file()}
    given = replace(narrow, start=start, seed=4)
    second = reproduce(
        ("table1",), given, tmp_path / "second", command="", workers=Workers(jobs=2, device="cpu")
    )  # fmt: skip
    assert not second["failed"]
    systems = [row["system"] for row in second["table1"]]
    assert systems == ["Classifier", "Classifier + Semi-Sup. Inference", "PN"]
    assert "The lines called Classifier are of the common start alone." in (tmp_path / "second/report.md").read_text()
    copy = tmp_path / "second" / "runs" / start.name
    assert (copy / "config.json").read_bytes() == before["config.json"]
    assert {path.name: path.read_bytes() for path in start.rglob("*") if path.is_file()} == before, "the start is kept"
    (start / "checkpoint" / "last.json").unlink()  # as in a model that comes with the package, which also
    write_json(start / "config.json", {**json.loads(before["config.json"]), "data": None})  # knows of no data here
    other = tmp_path / "third"
    same = reproduce(("table1",), replace(given, seed=0), other, command="", workers=Workers(jobs=2, device="cpu"))
    found = [{row["system"]: row["accuracy"] for row in content["table1"]} for content in (first, same)]
    assert found[0]["Classifier"] == found[1]["Classifier"], "the same weights on the same episodes"


def test_later_methods_from_one_start_in_one_table(setting, tmp_path):
    assert "beyond" not in check_what(["all"])
    wanted = ("classifier-semi", "soft-kmeans", "pt-map", "prwn", "tac")
    narrow = replace(setting, methods=wanted, trials=3, pretraining=2)
    workers = Workers(jobs=2, device="cpu")
    content = reproduce(("beyond",), narrow, tmp_path, command="", workers=workers)
    assert not content["failed"]
    rows = content["beyond"]
    systems = list(dict.fromkeys(row["system"] for row in rows))
    assert systems[:3] == ["Classifier + Semi-Sup. Inference", "Soft k-Means", "PT-MAP (even classes)"]
    assert set(systems[3:]) >= {"PRWN, trained", "TAC, trained", "TAC with PRWN's loss, trained"}
    for system in systems:
        found = [row for row in rows if row["system"] == system]
        kinds = {(row["distractors"], row["uneven"]) for row in found}
        assert kinds == {(False, False), (False, True), (True, False), (True, True)}
        assert {row["trials"] for row in found} == {3}, "the same effort for all"
        assert {row["training_episodes"] for row in found} == {2 if system.endswith("trained") else 0}
        assert all(row["milliseconds"] > 0 for row in found)
    runs = tmp_path / "runs"
    weights = {json.loads((runs / f"start-{name}/checkpoint/best.json").read_text())["sha256"]
               for name in ("classifier-semi", "soft-kmeans", "pt-map")}  # fmt: skip
    assert weights == {json.loads((runs / "classifier-1-shot-12-way/checkpoint/best.json").read_text())["sha256"]}
    walked = json.loads((runs / "tac-walk-1-shot-6-way/config.json").read_text())
    assert (walked["options"]["walk"], walked["start_weights"]) == (0.5, *weights)
    assert {row["system"] for row in read_csv(tmp_path / "beyond.csv")} == set(systems)
    (table,) = markdown_tables(tmp_path)
    assert [line[0] for line in table[1:]] == systems
    assert table[0][1:] == ["1-shot", "1-shot, uneven", "1-shot, distractors", "1-shot, distractors, uneven"]
    text = (tmp_path / "report.md").read_text()
    assert "3 trials for each line and column, of 12 episodes of validation classes each" in text

    measured = {path: path.stat().st_mtime_ns for path in runs.glob("*/cell.json")}
    (runs / "start-pt-map" / "cell.json").unlink()
    again = reproduce(("beyond",), narrow, tmp_path, command="", workers=workers)
    changed = {path.parent.name for path, before in measured.items() if path.stat().st_mtime_ns != before}
    assert changed == {"start-pt-map"}
    assert [row["accuracy"] for row in again["beyond"]] == [row["accuracy"] for row in rows]


def test_without_training_beyond_says_what_is_left_out(setting, tmp_path, monkeypatch):
    narrow = replace(setting, distractors=(False,), untrained=True, pretraining=1)
    monkeypatch.setattr("handful.experiments.beyond.UNTRAINED", {"pn": {}})
    content = reproduce(("beyond",), replace(narrow, trials=1), tmp_path, command="", workers=Workers(device="cpu"))
    assert {row["training_episodes"] for row in content["beyond"]} == {0}
    text = (tmp_path / "report.md").read_text()
    assert "Left out (--untrained)" in text
    assert "Training, the same for every model" not in text, "there is none"
    assert "TACdap" in text
    assert "Left out: MAML" in text
    with pytest.raises(HandfulError, match="beyond compares methods from one start"):
        reproduce(("beyond",), setting, tmp_path / "other", command="", workers=Workers(device="cpu"))


def test_a_model_for_each_share_of_distractors(setting, tmp_path):
    assert "distractors-per-share" not in check_what(["all"])
    content = reproduce(
        ("distractors-per-share",), setting, tmp_path, command="", workers=Workers(jobs=2, device="cpu")
    )  # fmt: skip
    assert not content["failed"]
    lines: dict[str, list[int]] = {}
    for row in content["distractors-per-share"]:
        lines.setdefault(row["method"], []).append(row["share"])
    assert set(map(tuple, lines.values())) == {(0, 20, 40, 60, 80)}
    for share in (0, 20, 40, 60, 80):
        for split in ("train", "validation"):
            config = json.loads((tmp_path / "runs" / f"tac-1-shot-6-way-share-{share}" / "config.json").read_text())
            spec = config[split]
            assert (spec["realistic_share"], spec["distractor_ways"]) == (share / 100, 0)
            assert spec["realistic_total"] == 2 * spec["ways"] * spec["unlabelled"]
    assert (tmp_path / "runs" / "pn-1-shot-6-way").is_dir(), "one training for all: it sees no unlabelled images"


def test_several_seeds_of_a_line_are_averaged_and_their_spread_is_shown(setting, tmp_path):
    seeded = replace(
        setting, distractors=(False,), methods=("pn", "tapnet"), seeds=2, seeded=("tapnet",), seed=3
    )  # fmt: skip
    content = reproduce(("table1",), seeded, tmp_path, command="", workers=Workers(jobs=2, device="cpu"))
    assert not content["failed"]
    rows = {row["system"]: row for row in content["table1"]}
    assert (rows["PN"]["seeds"], rows["TapNet"]["seeds"]) == (1, 2)
    found = [
        next(iter(measured(tmp_path / "runs" / f"tapnet-1-shot-6-way{name}").values())) for name in ("", "-seed-4")
    ]
    assert [one.trained.seed for one in found] == [3, 4]
    assert {one.seed for one in found} == {3}, "on the same test episodes"
    means = [one.mean for one in found]
    row = rows["TapNet"]
    assert (row["accuracy"], row["lowest"], row["highest"]) == (sum(means) / 2, min(means), max(means))
    assert [part.split(":")[0] for part in row["by_seed"].split("; ")] == ["3", "4"]
    assert f"2 seeds {min(means):.2f} to {max(means):.2f}" in (tmp_path / "report.md").read_text()
    assert "2 training seeds for tapnet: the accuracy is the mean over seeds" in content["caption"]


def test_what_cannot_be_planned_is_said_before_the_start_is_trained(setting, tmp_path):
    wrong = replace(setting, pretraining=3, methods=("pn",))
    with pytest.raises(HandfulError, match="the table has no line of pn"):
        reproduce(("table3",), wrong, tmp_path, command="", workers=Workers(jobs=2, device="cpu"))
    assert not list(tmp_path.iterdir())


def test_a_cell_that_fails_is_named_and_the_rest_stands(setting, tmp_path):
    recipe = replace(setting.recipe, learning_rate=1e30)
    options = {"episodes": 40, "splits": 1, "test_episodes": 2}
    wild = replace(setting, recipe=recipe, methods=("tac",), distractors=(False,), budget=Budget(**options))
    content = reproduce(
        ["table1", "iterations", "entropy", "tsne"], wild, tmp_path, command="handful", workers=Workers(jobs=2)
    )
    assert "training diverged" in content["failed"]["tac-1-shot-6-way"]
    assert [row["accuracy"] for row in content["table1"]] == [None, None]
    text = (tmp_path / "report.md").read_text()
    assert "failed" in text and "tac-1-shot-6-way: training diverged" in text


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"methods": ("pn",)}, "the table has no line of pn"),
        ({"distractors": (True,)}, "has no columns with distractors"),
    ],
)
def test_an_empty_table_is_refused(setting, tmp_path, change, sentence):
    with pytest.raises(HandfulError, match=sentence):
        reproduce(["table3"], replace(setting, **change), tmp_path / "out", command="handful")
    assert not (tmp_path / "out").exists()


# --- the command, on small files of the data sets that the paper uses


def flat(number: int) -> np.ndarray:
    """A plain image (84, 84, 3) with a corner of its own for every number: quickly written, quickly read."""
    rng = np.random.default_rng(number)
    image = np.empty((84, 84, 3), np.uint8)
    image[:] = rng.integers(0, 200, 3)
    image[:42, :42] = rng.integers(0, 256, 3)
    return image


@pytest.fixture(scope="module")
def mini(own_cache, tmp_path_factory) -> Path:
    """miniImageNet as cached pickles: as many classes and images as 20-way training with distractors needs."""
    folder = tmp_path_factory.mktemp("mini")
    # 40 % labelled: 13 of 33 for 5 shots and 8 queries in training, 20 of 50 for 5 and 15 in testing.
    for split, (classes, images) in {"train": (40, 33), "val": (10, 50), "test": (10, 50)}.items():
        pixels = np.stack([flat(len(split) * 10_000 + index) for index in range(classes * images)])
        rows = {
            f"n{len(split)}{index:07}": list(range(index * images, (index + 1) * images)) for index in range(classes)
        }
        content = {"image_data": pixels, "class_dict": rows}
        (folder / f"mini-imagenet-cache-{split}.pkl").write_bytes(pickle.dumps(content))
    return folder


@pytest.fixture(scope="module")
def tiered(own_cache, tmp_path_factory) -> Path:
    """tieredImageNet in its original files: PNG images in pickles."""
    folder = tmp_path_factory.mktemp("tiered")
    # 10 % labelled: 9 of 90 in training, 16 of 160 in testing.
    for split, (classes, images) in {"train": (40, 90), "val": (10, 160), "test": (10, 160)}.items():
        files = []
        for index in range(classes * images):
            buffer = io.BytesIO()
            Image.fromarray(flat(index)[::2, ::2]).save(buffer, "PNG", compress_level=1)
            files.append(np.frombuffer(buffer.getvalue(), np.uint8))
        labels = np.repeat(np.arange(classes), images)
        names = {"label_specific": labels, "label_specific_str": [f"{split} {index}" for index in range(classes)],
                 "label_general": 0 * labels, "label_general_str": ["thing"]}  # fmt: skip
        (folder / f"{split}_images_png.pkl").write_bytes(pickle.dumps(files, 2))
        (folder / f"{split}_labels.pkl").write_bytes(pickle.dumps(names, 2))
    return folder


@pytest.fixture
def handful(monkeypatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """The command in this process, whose workers are warm: exit code, standard output and error."""

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["handful", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        return (int(end.value.code or 0), *capsys.readouterr())

    return run


SHORT = ["--episodes", 2, "--splits", 1, "--test-episodes", 3, "--jobs", 2, "--device", "cpu"]


def test_table_1_on_mini_imagenet(mini, tmp_path, handful):
    code, out, errors = handful(
        "reproduce", "table1", "--dataset", "mini-imagenet", "--data", mini, "--image-size", 28, "--out", tmp_path,
        "--method", "pn", "--method", "tac", "--shots", 1, *SHORT,
    )  # fmt: skip
    assert code == 0, errors
    rows = {(row["system"], row["distractors"]): row for row in read_content(tmp_path)["table1"]}
    lines = ("PN, 5-way training", "PN", "TAC", "TAC, cosines in M")
    assert list(rows) == [(line, others) for line in lines for others in (False, True)]
    assert [row["published"] for row in rows.values()] == [43.61] * 4 + [55.50, 50.95, None, None]
    for folder in (tmp_path / "report.html", tmp_path / "report.md"):
        text = folder.read_text()
        for published in ("43.61", "55.50", "50.95"):
            assert f"published {published}" in text
        difference = rows["TAC", True]["accuracy"] - 50.95
        assert f"published 50.95 ({difference:+.2f})" in text
        assert "trained too briefly to be compared" in text, "2 episodes are not 50,000"
        assert "--method tac --shots 1 --episodes 2" in text, "the command that made it"
    assert "(55.50)" in out and "TAC" in out
    assert "report.html" in errors


def test_five_shots_on_mini_imagenet(mini, tmp_path, handful):
    code, out, errors = handful(
        "reproduce", "table1", "--dataset", "mini-imagenet", "--data", mini, "--image-size", 28, "--out", tmp_path,
        "--method", "tapnet", "--method", "tapnet-semi", "--shots", 5, "--precision", "bfloat16", "--json", *SHORT,
    )  # fmt: skip
    assert code == 0, errors
    rows = json.loads(out)["table1"]
    assert [(row["system"], row["shots"], row["distractors"], row["published"]) for row in rows] == [
        ("TapNet", 5, False, 66.86),
        ("TapNet", 5, True, 66.86),
        ("TapNet + Semi-Sup. Inference", 5, False, 69.53),
        ("TapNet + Semi-Sup. Inference", 5, True, 66.93),
    ]
    (run,) = (tmp_path / "runs").glob("*/config.json")
    config = json.loads(run.read_text())
    assert (config["method"], config["train"]["shots"], config["precision"]) == ("tapnet", 5, "bfloat16")


def test_table_2_on_tiered_imagenet(tiered, tmp_path, handful):
    code, _, errors = handful(
        "reproduce", "table2", "--dataset", "tiered-imagenet", "--data", tiered, "--image-size", 32, "--out", tmp_path,
        "--method", "tacdap", "--method", "tapnet", "--shots", 1, *SHORT,
    )  # fmt: skip
    assert code == 0, errors
    rows = read_content(tmp_path)["table2"]
    assert [(row["system"], row["distractors"], row["published"]) for row in rows] == [
        ("TapNet", False, 51.84), ("TapNet", True, 51.84), ("TACdap", False, 56.06), ("TACdap", True, 53.67),
        ("TACdap, cosines in M", False, None), ("TACdap, cosines in M", True, None),
    ]  # fmt: skip
    assert all(f"published {figure}" in (tmp_path / "report.html").read_text() for figure in ("51.84", "53.67"))
    config = json.loads((tmp_path / "runs" / "tacdap-1-shot-20-way-distractors" / "config.json").read_text())
    assert config["backbone_options"] == {"average_pool": True}
    assert (config["labelled_ratio"], config["weight_decay"]) == (0.1, 0.0)
    assert (config["train"]["distractor_ways"], config["train"]["distractors"]) == (20, 5)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["table4"], "cannot reproduce 'table4': choose from table1, table2, table3, tsne"),
        (["table1", "figure9"], "cannot reproduce 'figure9'"),
        (["table1", "--budget", "year"], "unknown budget 'year': choose one of paper, day, hour, minutes"),
        (["table1", "--method", "magic"], "unknown method 'magic': choose one of pn, "),
        (["table1", "--distractors", "some"], "--distractors takes without, with, both, got 'some'"),
        (["table1", "--dataset", "nothing"], "unknown data set 'nothing'"),
        (["table1", "--device", "abacus"], "unknown device 'abacus'"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, handful, words, sentence):
    code, out, errors = handful("reproduce", *words, "--out", tmp_path / "out")
    assert (code, out) == (2, "")
    assert errors.startswith(f"handful: {sentence}")
    assert len(errors.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def small(own_cache, tmp_path_factory) -> Path:
    """6, 4 and 5 classes of 40 images: at 40 % labelled, 16 for 1 shot and 15 queries."""
    folder = tmp_path_factory.mktemp("small")
    for split, classes in {"train": 6, "val": 4, "test": 5}.items():
        for name in (f"{split} {index}" for index in range(classes)):
            (folder / split / name).mkdir(parents=True)
            for index in range(40):
                Image.fromarray(flat(index)[::3, ::3]).save(folder / split / name / f"{index}.png")
    return folder


def test_too_few_classes_are_said_once_before_anything_is_trained(small, tmp_path, handful):
    words = ["reproduce", "table1", "--dataset", "folder", "--data", small, "--out", tmp_path / "out", *SHORT]
    code, out, errors = handful(*words)
    assert (code, out) == (2, "")
    said = [line for line in errors.splitlines(keepends=True) if not line.startswith("preparing ")]
    assert "".join(said) == (
        "handful: the training episodes need 40 classes (20 ways + 20 of distractors), the validation and test "
        "episodes 10 classes (5 ways + 5 of distractors), but 'folder' has fewer (classes: train 6, val 4, test 5): "
        "add classes, or give --ways 3 --test-ways 2\n"
    )
    assert not (tmp_path / "out").exists()
    errors = handful(*words, "--distractors", "without")[2]
    assert "need 20 classes (20 ways), " in errors and errors.endswith("--ways 6 --test-ways 4\n")
    errors = handful(*words, "--ways", 3, "--test-ways", 4, "--distractors", "without", "--method", "tac")[2]
    assert "tac cannot be tested with 4 ways after training with 3: give --ways 4 or more" in errors


def test_with_other_ways_it_runs_and_the_caption_says_so(small, tmp_path, handful):
    code, _, errors = handful(
        "reproduce", "table1", "tsne", "--dataset", "folder", "--data", small, "--image-size", 28, "--out", tmp_path,
        "--method", "tac", "--ways", 3, "--test-ways", 2, "--shots", 1, "--labelled-ratio", 0.4, *SHORT,
    )  # fmt: skip
    assert code == 0, errors
    text = (tmp_path / "report.md").read_text()
    assert "Test: 2 ways" in text and "2 episodes of 3 ways" in text


def test_failed_cells_are_named_and_the_exit_code_tells(mini, tmp_path, handful):
    code, out, errors = handful(
        "reproduce", "table1", "--dataset", "mini-imagenet", "--data", mini, "--image-size", 28, "--out", tmp_path,
        "--method", "tac", "--distractors", "without", "--shots", 1, "--labelled-ratio", 0.1, *SHORT,
    )  # fmt: skip
    assert code == 1
    assert "failed" in out
    assert "2 cells failed: tac-1-shot-20-way, tac-cosine-1-shot-20-way" in errors
    assert "has 3 labelled images, but 9 are needed" in (tmp_path / "report.md").read_text()
    assert not list(tmp_path.glob("runs/*/config.json"))


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sends SIGTERM")
def test_stopped_twice_it_ends_in_the_same_report(mini, tmp_path, tmp_path_factory, handful):
    def words(out: Path) -> list[str]:
        command = ["reproduce", "table1", "--dataset", "mini-imagenet", "--data", mini, "--image-size", 28,
                   "--out", out, "--method", "tac", "--method", "tapnet", "--method", "tapnet-semi", "--shots", 1,
                   "--distractors", "without", *SHORT, "--episodes", 12, "--jobs", 1]  # fmt: skip
        return list(map(str, command))

    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    for moment in ("config.json", "cell.json"):
        traps = Traps(tmp_path_factory.mktemp("traps") / "set")
        traps.hold(f"{stopped}/runs/tac-1-shot-20-way/{moment}", until=f"{stopped}/runs/.running-*/stop")
        process = start_handful(traps, *words(stopped))
        wait_until(lambda traps=traps: traps.sprung() == 1, process)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate()
        assert process.returncode == 130, errors
        assert "run the same command again" in errors
        assert "Traceback" not in errors
        assert "cells are missing: " in (stopped / "report.md").read_text()
    for out in (straight, stopped):
        assert handful(*words(out))[0] == 0
    assert read_content(stopped) == read_content(straight)
    assert markdown_tables(stopped) == markdown_tables(straight)
    for name in ("tac", "tapnet"):
        heads = [out / "runs" / f"{name}-1-shot-20-way" / "checkpoint" / "last.json" for out in (straight, stopped)]
        assert len({json.loads(head.read_text())["sha256"] for head in heads}) == 1
