"""One self-contained HTML page: tables, pictures, and where every number comes from."""

from __future__ import annotations

import base64
import os
import platform
from datetime import datetime, timezone
from html import escape
from io import BytesIO
from pathlib import Path

import torch
from matplotlib.figure import Figure

from .. import __version__
from ..checkpoint import write_atomic
from ..evaluation import Accuracy

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 66rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
table { border-collapse: collapse; } th, td { padding: .35rem 1rem .35rem 0; text-align: left; }
th { border-bottom: 2px solid #1a1a1a; } td { border-bottom: 1px solid #ddd; font-variant-numeric: tabular-nums; }
td.best { font-weight: 700; } img { max-width: 100%; height: auto; } .note { color: #555; font-size: .92rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; font-size: .92rem; } dt { color: #555; }
dd { margin: 0; overflow-wrap: anywhere; }
"""


def page(title: str, sections: list[str]) -> str:
    """The whole page; sections are HTML."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>'
        f"<body><h1>{escape(title)}</h1>\n" + "\n".join(sections) + "</body></html>\n"
    )


def section(title: str, *parts: str) -> str:
    return f"<h2>{escape(title)}</h2>\n" + "\n".join(parts)


def paragraph(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


def accuracy_table(columns: list[str], rows: dict[str, list[Accuracy]], notes: dict[str, str]) -> str:
    """Methods down, settings across; the best of each column is bold. ``notes`` says how each was trained."""
    best = [max(rows.values(), key=lambda cells: cells[index].mean)[index].mean for index in range(len(columns))]
    head = "".join(f"<th>{escape(name)}</th>" for name in ["method", *columns, "trained as"])
    body = ""
    for title, cells in rows.items():
        body += f"<tr><td>{escape(title)}</td>"
        for cell, top in zip(cells, best, strict=True):
            steps = f" <small>({cell.iterations} it.)</small>" if len(cell.by_iteration) > 1 else ""
            body += f'<td class="{"best" if cell.mean == top else ""}">{cell}{steps}</td>'
        body += f"<td>{escape(notes[title])}</td></tr>\n"
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>"


def picture(figure: Figure, description: str, file: Path) -> str:
    """The figure inside the page, as PNG; also kept as a file."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    write_atomic(file, buffer.getvalue())
    content = base64.b64encode(buffer.getvalue()).decode()
    return f'<img alt="{escape(description)}" src="data:image/png;base64,{content}">'


def provenance(command: str, facts: dict[str, str]) -> str:
    """Version, command, machine and whatever else makes a number repeatable."""
    facts = {
        "command": command,
        "tacit": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors",
        "made": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        **facts,
    }
    entries = (f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items())
    return "<dl>" + "".join(entries) + "</dl>"
