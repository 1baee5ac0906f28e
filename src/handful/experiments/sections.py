"""The tables and figures of a reproduction's report, drawn from rows of plain values.

What a section needs is in ``report.json`` as well, so a later command in the same folder can show it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import HandfulError
from ..reports.figures import Row
from ..reports.page import Entry, Report, csv_bytes, ranks
from .cell import format_accuracy
from .figures import FIGURES
from .job import Section
from .paper import TABLES


def kept_sections(content: dict[str, Any]) -> dict[str, Section]:
    """The sections that a ``report.json`` holds; one of an older version says nothing of their settings."""
    try:
        about = content.get("sections", {})
        found = {what: Section(content[what], **about.get(what, {"notes": []}))
                 for what in (*TABLES, *FIGURES) if what in content}  # fmt: skip
        return found | {what: Section(**entry) for what, entry in content.get("others", {}).items()}
    except (AttributeError, KeyError, TypeError) as error:
        raise HandfulError(
            "report.json is not that of a reproduction: move it away, or choose another --out"
        ) from error


def show(report: Report, what: str, section: Section) -> None:
    """Append a table or figure to a report, with its files."""
    if what in TABLES:
        report.section(f"{TABLES[what].title} (%)")
        _show_table(report, section.rows)
        report.attach(f"{what}.csv", csv_bytes(section.rows))
    else:
        figure = FIGURES[what]
        report.section(figure.title)
        if section.rows and figure.table is not None:
            report.table(*figure.table(section.rows))
        if section.rows:
            report.picture(figure.draw(section.rows), figure.description, what, section.rows)
        elif section.missing:
            report.paragraph("Not drawn yet.")
    for note in section.notes:
        report.paragraph(note)


def _show_table(report: Report, rows: Sequence[Row]) -> None:
    """Our accuracy with its interval, the published one and the difference below it; best and second best marked."""
    columns = list(dict.fromkeys((row["shots"], row["distractors"]) for row in rows))
    lines: dict[str, list[Entry | str]] = {row["system"]: [row["system"]] for row in rows}
    for column in columns:
        cells = [row for row in rows if (row["shots"], row["distractors"]) == column]
        for row, rank in zip(cells, ranks([row["accuracy"] for row in cells]), strict=True):
            lines[row["system"]].append(_entry(row, rank))
    header = [f"{shots}-shot" + (", distractors" if others else "") for shots, others in columns]
    report.table(["system", *header], list(lines.values()))


def _entry(row: Row, rank: str) -> Entry:
    if row["accuracy"] is None:
        return Entry(row.get("state", "failed"))
    notes = [f"{row['refinements']} it."] if row["refinements"] else []
    if row.get("seeds", 1) > 1:
        notes.append(f"{row['seeds']} seeds {row['lowest']:.2f} to {row['highest']:.2f}")
    if row.get("cluster_multiplier"):
        notes.append(f"x {row['cluster_multiplier']:g}")
    if row["published"] is not None:
        notes.append(f"published {row['published']:.2f} ({row['accuracy'] - row['published']:+.2f})")
    return Entry(format_accuracy(row["accuracy"], row["interval"]), ", ".join(notes), rank)
