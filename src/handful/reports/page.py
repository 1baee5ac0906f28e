"""A report, twice: one self-contained HTML page, and Markdown beside its pictures; every picture with its numbers."""

from __future__ import annotations

import base64
import csv
import io
import os
import platform
import re
import subprocess
import sys
import warnings
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape as escape_html
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from .. import __version__
from ..terminal import printable
from .figures import Row, literal

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; } .wide { overflow-x: auto; }
table { border-collapse: collapse; } th, td { padding: .35rem 1rem .35rem 0; text-align: left; vertical-align: top; }
th { border-bottom: 2px solid #1a1a1a; } td { border-bottom: 1px solid #ddd; font-variant-numeric: tabular-nums; }
.best { font-weight: 700; } .second { text-decoration: underline; } img { max-width: 100%; height: auto; }
.note { color: #555; font-size: .92rem; } small { color: #555; display: block; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; font-size: .92rem; } dt { color: #555; }
dd { margin: 0; overflow-wrap: anywhere; } .tall { max-height: 32rem; overflow: auto; }
.gallery { display: flex; flex-wrap: wrap; gap: .6rem; } figure { margin: 0; width: 7rem; }
figure img { width: 7rem; height: 7rem; object-fit: cover; border-radius: 4px; background: #eee; }
figcaption { font-size: .75rem; color: #555; overflow-wrap: anywhere; line-height: 1.25; }
"""
FORMULA = (
    "=",
    "+",
    "-",
    "@",
    "\t",
    "\r",
    "\n",
    "\uff1d",
    "\uff0b",
    "\uff0d",
    "\uff20",
    "'",
)  # how a spreadsheet's begin
PAGE, TEXT = "report.html", "report.md"
MOST_LINES = 40  # of a table or list, from which on it scrolls
# What Markdown would take for markup: anywhere, at the edge of a word, at the start of a line.
_MARKUP = re.compile(r"[\\`*\[\]<|~$]|&(?=#?\w+;)|(?<![^\W_])_|_(?![^\W_])|(?<!\w)#|^>|^[-+=](?=[-=\s]|$)")
_NUMBERED = re.compile(r"^(\d+)([.)])(?=\s|$)")


@dataclass(frozen=True)
class Entry:
    """What stands in a table's cell: a value, a smaller note under it, and its rank: ``best``, ``second`` or none."""

    text: str
    note: str = ""
    rank: str = ""


class Report:
    """Sections one after another, kept as HTML and as Markdown, and the files that belong to them."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._attached: dict[str, bytes] = {}
        self._html: list[str] = []
        self._markdown: list[str] = [f"# {_markdown(title)}"]

    def section(self, title: str) -> None:
        self._html.append(f"<h2>{escape(title)}</h2>")
        self._markdown.append(f"## {_markdown(title)}")

    def paragraph(self, text: str) -> None:
        self._html.append(f'<p class="note">{escape(text)}</p>')
        self._markdown.append(_markdown(text))

    def table(self, header: Sequence[str], lines: Sequence[Sequence[Entry | str]]) -> None:
        entries = [[Entry(cell) if isinstance(cell, str) else cell for cell in line] for line in lines]
        head = "".join(f"<th>{escape(name)}</th>" for name in header)
        body = "\n".join("<tr>" + "".join(map(_td, line)) + "</tr>" for line in entries)
        self._html.append(
            f'<div class="wide{_tall(lines)}">'
            f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>"
        )
        rows = [
            [_markdown(name) for name in header], ["---"] * len(header),
            *([_markdown_cell(cell) for cell in line] for line in entries),
        ]  # fmt: skip
        self._markdown.append("\n".join(f"| {' | '.join(row)} |" for row in rows))

    def picture(self, figure: Figure, description: str, name: str, rows: Sequence[Row]) -> None:
        """The figure in the page, and ``name`` as PNG, SVG and the CSV that it was drawn from."""
        png, svg = io.BytesIO(), io.BytesIO()
        literal(figure)
        with warnings.catch_warnings(), rc_context({"svg.hashsalt": name}):  # the same picture is the same file
            warnings.filterwarnings("ignore", message="Glyph .* missing from")  # one a letter, of scripts without font
            figure.savefig(png, format="png", dpi=130)
            figure.savefig(svg, format="svg", metadata={"Date": None})
        for kind, content in {"png": png.getvalue(), "svg": svg.getvalue(), "csv": csv_bytes(rows)}.items():
            self.attach(f"{name}.{kind}", content)
        source = base64.b64encode(png.getvalue()).decode()
        self._html.append(f'<img alt="{escape(description)}" src="data:image/png;base64,{source}">')
        self._markdown.append(f"![{_markdown(description)}]({name}.png)")

    def gallery(self, images: Sequence[tuple[bytes, str]]) -> None:
        """Small JPEG pictures in a row, each with a line under it; in the page only."""
        figures = (
            f'<figure><img alt="" src="data:image/jpeg;base64,{base64.b64encode(content).decode()}">'
            f"<figcaption>{escape(line)}</figcaption></figure>"
            for content, line in images
        )
        self._html.append(f'<div class="gallery">{"".join(figures)}</div>')
        self._markdown.append("\n".join(f"- {_markdown(line)}" for _, line in images))

    def facts(self, facts: dict[str, str]) -> None:
        entries = (f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items())
        self._html.append(f'<dl class="facts{_tall(facts)}">' + "".join(entries) + "</dl>")
        self._markdown.append("\n".join(f"- {_markdown(name)}: {_markdown(value)}" for name, value in facts.items()))

    def attach(self, name: str, content: bytes) -> None:
        """A file that belongs to the report and stands beside it."""
        self._attached[name] = content

    def files(self) -> dict[str, bytes]:
        """``report.html``, ``report.md`` and what is attached to them, by name."""
        page = (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(self.title)}</title>'
            f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>'
            f"<body><h1>{escape(self.title)}</h1>\n" + "\n".join(self._html) + "</body></html>\n"
        )
        text = "\n\n".join(self._markdown) + "\n"
        return {PAGE: page.encode("utf-8", "backslashreplace"), TEXT: text.encode("utf-8", "backslashreplace"),
                **self._attached}  # fmt: skip


def escape(text: str) -> str:
    """Text for a page: between tags, or in the quotes of an attribute."""
    return escape_html(printable(text))


def _markdown(text: str) -> str:
    r"""Text that Markdown shows as it is, in one line, also in a table.

    >>> print(_markdown("snake_case | _file_ *1*.jpg"))
    snake_case \| \_file\_ \*1\*.jpg
    """
    escaped = _MARKUP.sub(lambda found: "\\" + found[0], printable(text).strip())
    return _NUMBERED.sub(r"\1\\\2", escaped)


def _tall(lines: Sized) -> str:
    return " tall" if len(lines) > MOST_LINES else ""


def _td(entry: Entry) -> str:
    note = f"<small>{escape(entry.note)}</small>" if entry.note else ""
    return f'<td><span class="{entry.rank}">{escape(entry.text)}</span>{note}</td>'


def _markdown_cell(entry: Entry) -> str:
    mark = {"best": "**", "second": "_"}.get(entry.rank, "")
    return f"{mark}{_markdown(entry.text)}{mark}" + (f"<br>{_markdown(entry.note)}" if entry.note else "")


def csv_bytes(rows: Sequence[Row], columns: Sequence[str] | None = None, *, header: bool = True) -> bytes:
    r"""Rows with the same keys as a CSV file; bytes of names that are no text are written as escapes.

    A long table may be written in parts: of these, all but the first have no header.

    A text that a spreadsheet would take for a formula, and one that begins with an apostrophe, gets an apostrophe in
    front. So :func:`from_cell` always takes exactly one away.

    >>> csv_bytes([{"label": "=1+1", "share": -0.5}])
    b"label,share\n'=1+1,-0.5\n"
    """
    text = io.StringIO()
    columns = (list(rows[0]) if rows else []) if columns is None else columns
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue().encode("utf-8", "backslashreplace")


def _cell(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def from_cell(text: str) -> str:
    """A text as it was before :func:`csv_bytes` wrote it."""
    return text.removeprefix("'")


def ranks(values: Sequence[float | None]) -> list[str]:
    """Which of a column's values are the best and the second best.

    >>> ranks([70.0, None, 72.0, 71.0])
    ['', '', 'best', 'second']
    """
    order = sorted({value for value in values if value is not None}, reverse=True)
    names = dict(zip(order, ("best", "second"), strict=False))
    return ["" if value is None else names.get(value, "") for value in values]


def provenance(command: str, facts: dict[str, str]) -> dict[str, str]:
    """Version, command, machine and whatever else makes a number repeatable."""
    return {
        "command": command,
        "handful": __version__,
        "revision": _revision(),
        **{name: str(sys.modules[name].__version__) for name in ("torch", "onnxruntime") if name in sys.modules},
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors",
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        **facts,
    }


def _revision() -> str:
    """The commit that this code is of, if it runs from a checkout."""
    here = Path(__file__).parent
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=here, capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
        tracked = subprocess.run(
            ["git", "ls-files", "--error-unmatch", Path(__file__).name],
            cwd=here, capture_output=True, timeout=10, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return found.stdout.strip() if tracked.returncode == 0 else "unknown"  # installed into somebody else's repository
