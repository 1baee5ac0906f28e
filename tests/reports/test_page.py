"""Reports of names that strangers wrote: HTML, Markdown and CSV show them as they are."""

from __future__ import annotations

import csv
import io
import warnings

import pytest
from matplotlib.figure import Figure

from handful.reports.figures import add_legend
from handful.reports.page import Entry, Report, csv_bytes

HOSTILE = "a|b `c` *d* _e_ [f](http://g) <script>alert(1)</script> &amp; \"q\" 'r' $x$ \\ ~~s~~\n# h"


def cells(line: str) -> list[str]:
    """A table's line as GitHub reads it: bars behind a backslash divide nothing."""
    return [cell.strip() for cell in line.replace("\\|", "\0").strip("|").split("|")]


def written(report: Report) -> tuple[str, str]:
    files = report.files()
    return files["report.html"].decode(), files["report.md"].decode()


def test_a_table_keeps_its_columns():
    report = Report("x")
    report.table([HOSTILE, "b"], [[HOSTILE, "1"], [Entry(HOSTILE, HOSTILE, "best"), "2"]])
    _, text = written(report)
    title, _, *lines = text.splitlines()
    assert title == "# x" and len(lines) == 4 and all(len(cells(line)) == 2 for line in lines)


def test_no_name_is_markup():
    report = Report(HOSTILE)
    report.section(HOSTILE)
    report.paragraph(HOSTILE)
    report.gallery([(b"", HOSTILE)])
    report.facts({HOSTILE: HOSTILE})
    report.table([HOSTILE], [[HOSTILE]])
    page, text = written(report)
    assert page.count("<script") == 0 and page.count("&lt;script&gt;") == 9
    for markup in ("<script", "[f](", "`c`", "*d*", "_e_", "$x$", "~~s~~", "&amp;"):
        assert markup not in text.replace(f"\\{markup[0]}", "\0"), markup
    assert sum(line.startswith("#") for line in text.splitlines()) == 2, "the title and the section"


@pytest.mark.parametrize("start", ["# x", "- x", "+ x", "> x", "1. x", "12) x", "---", "===", "    code"])
def test_no_name_begins_a_heading_or_a_list(start):
    report = Report("x")
    report.paragraph(start)
    (line,) = written(report)[1].splitlines()[2:]
    assert line in (f"\\{start}", start.replace(".", "\\."), start.replace(")", "\\)"), "code")
    assert line != start


def test_plain_words_stay_plain():
    report = Report("handful label")
    report.paragraph("Early_Aramaic/character01: 71.20 ± 0.31 %, as of 2 - 3 (95 % interval).")
    assert "\\" not in written(report)[1]


def test_quotes_in_an_attribute():
    report = Report("x")
    report.picture(Figure(), '" onerror="alert(1)', "picture", [{"x": 1}])
    page, text = written(report)
    assert 'alt="&quot; onerror=&quot;alert(1)"' in page and "](picture.png)" in text


def test_names_that_are_no_text():
    report = Report("x")
    report.facts({"caf\udce9.jpg": "empty file", "a\x1b[2J": "\u202egpj"})
    page, text = written(report)
    assert "<dt>caf\\udce9.jpg</dt>" in page and "\x1b" not in page + text and "\u202e" not in page + text
    rows = list(csv.DictReader(io.StringIO(csv_bytes([{"path": "caf\udce9,\n.jpg"}]).decode())))
    assert rows == [{"path": "caf\\udce9,\n.jpg"}]


def test_long_lists_scroll():
    report = Report("x")
    for count in (10, 400):
        report.table(["label"], [[f"class {number}"] for number in range(count)])
        report.facts({f"{number}.jpg": "empty file" for number in range(count)})
    page, _ = written(report)
    assert page.count(' tall"') == 2 and page.count("<tr>") == 2 + 410


def test_letters_without_a_font_are_no_flood():
    report, figure = Report("x"), Figure()
    axis = figure.subplots()
    add_legend(figure, [(axis.scatter([0], [0]), "\U00012000\U00012001\U00012002")])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report.picture(figure, "x", "x", [{"x": 1}])


def test_a_title_is_no_mathematics():
    report, figure = Report("x"), Figure()
    axis = figure.subplots()
    axis.set(title="$\\frac{1$", xlabel="costs $", ylabel="$x$ and $y$", yscale="log", ylim=(1, 1000))
    report.picture(figure, "x", "x", [{"x": 1}])
    assert "costs $" in report.files()["x.svg"].decode()
    ticks = [text.get_text() for text in axis.get_yticklabels()]
    assert all(text.get_parse_math() for text in axis.get_yticklabels()) and any("10^" in text for text in ticks)
