"""Names in pictures: shown as they are, and all of them."""

from __future__ import annotations

import ast
import io
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from handful.reports import figures, page
from handful.reports.figures import MOST_LETTERS, accuracy_by_iteration, add_legend, iteration_rows, shortened, tsne

NAMES = ["_private", "__", "$\\frac{1$", "$x$", "$", "\\$5", "a\nb", "\x1b[2J", "x" * 200, "grün"]


def legend_of(figure: Figure) -> list[str]:
    figure.savefig(io.BytesIO(), format="png")
    (legend,) = figure.legends
    assert not any(text.get_parse_math() for text in legend.get_texts())
    return [text.get_text() for text in legend.get_texts()]


def test_every_class_is_in_the_legend_of_a_map_of_an_episode():
    rows = [{"space": "embedding space", "x": index, "y": 0, "class": name, "cluster": name}
            for index, name in enumerate(NAMES)]  # fmt: skip
    assert legend_of(tsne(rows)) == [*map(shortened, NAMES), "in the wrong cluster"]


def test_every_method_is_in_the_legend_of_the_curves():
    rows = [{"setting": setting, "method": method, "refinements": step, "accuracy": 50.0, "interval": 1.0}
            for setting, methods in {"1-shot $": ["_a", "$b$"], "5-shot": ["_a", "only here"]}.items()
            for method in methods for step in range(2)]  # fmt: skip
    assert legend_of(accuracy_by_iteration(rows)) == ["_a", "$b$", "only here"]


def test_refinements_are_counted_from_none():
    rows = iteration_rows("1-shot", "TAC", [50.0, 60.0], [1.0, None])
    assert [(row["refinements"], row["accuracy"], row["interval"]) for row in rows] == [(0, 50.0, 1.0), (1, 60.0, None)]


@pytest.mark.parametrize("module", [figures, page])
def test_reports_know_nothing_of_runs(module):
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level}
    assert not [name for name in imported if name.startswith(("runs", "experiments", "labelling", "cli"))]


def test_a_legend_of_axes():
    figure = Figure()
    axis = figure.subplots()
    add_legend(axis, [(artist, name) for artist, name in zip(axis.plot([[0] * 10, [1] * 10]), NAMES, strict=True)])
    figure.savefig(io.BytesIO(), format="svg")
    assert [text.get_text() for text in axis.get_legend().get_texts()] == list(map(shortened, NAMES))


@pytest.mark.parametrize("name", NAMES)
def test_names_are_short_and_printable(name):
    assert shortened(name).isprintable() and len(shortened(name)) <= MOST_LETTERS


def cost_row(system, milliseconds, accuracy, uneven=False, trained=0):
    return {"system": system, "shots": 1, "distractors": False, "uneven": uneven, "accuracy": accuracy,
            "interval": None, "milliseconds": milliseconds, "training_episodes": trained}  # fmt: skip


def test_what_nothing_beats_in_cost_and_accuracy_is_joined():
    rows = [cost_row("a", 1.0, 50.0), cost_row("b", 2.0, 49.0), cost_row("c", 4.0, 55.0), cost_row("d", 4.0, 54.0)]
    figure = figures.accuracy_by_cost([*rows, cost_row("a", 1.0, 48.0, uneven=True), cost_row("e", None, None)])
    balanced, uneven = figure.axes
    assert [tuple(point) for point in balanced.lines[0].get_xydata()] == [(1.0, 50.0), (4.0, 55.0)]
    assert (balanced.get_title(), uneven.get_title()) == ("1-shot, balanced", "1-shot, uneven")


def test_every_line_over_costs_has_a_look_of_its_own_and_none_squeezes_the_others():
    names = [f"line {number}" for number in range(50)]
    rows = [cost_row(name, 1.0, 50.0, trained=number % 2) for number, name in enumerate(names)]
    figure = figures.accuracy_by_cost([*rows, cost_row("worst", 1.0, 20.0)])
    (axis,) = figure.axes
    looks = [(line.get_color(), line.get_marker(), line.get_markerfacecolor()) for line in axis.lines[1:]]
    assert len(set(looks)) == len(names) + 1
    assert [look[2] == "white" for look in looks[: len(names)]] == [number % 2 == 1 for number in range(len(names))]
    assert axis.get_ylim()[0] == 35.0 and [text.get_text() for text in axis.texts] == ["1 below 35 %"]


def test_costs_before_anything_is_measured_are_an_empty_picture():
    figures.accuracy_by_cost([cost_row("a", None, None)]).savefig(io.BytesIO(), format="svg")
