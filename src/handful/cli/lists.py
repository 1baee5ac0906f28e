"""``handful methods`` and ``handful datasets``: what there is to choose from."""

from __future__ import annotations

import json
from typing import Any

import typer

from .options import JsonFlag, console


def methods(as_json: JsonFlag = False) -> None:
    """List the methods and their options."""
    from ..methods import METHODS, method_options

    rows: list[dict[str, Any]] = [
        {"name": name, "title": cls.title, "summary": cls.summary, "options": method_options(name)}
        for name, cls in METHODS.items()
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        options = ", ".join(f"{name}={value}" for name, value in row["options"].items())
        console.print(row["name"], style="bold", end=" ")
        console.print(f"({row['title']})")
        console.print(f"  {row['summary']}", soft_wrap=True)
        console.print(f"  --set {options}", style="dim", soft_wrap=True)


def datasets(as_json: JsonFlag = False) -> None:
    """List the data sets."""
    from ..datasets import DATASETS

    rows: list[dict[str, Any]] = [
        {
            "name": spec.name,
            "summary": spec.summary,
            "labelled_ratio": spec.labelled_ratio,
            "needs_data": spec.needs_path,
            "options": spec.options,
        }
        for spec in DATASETS.values()
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        files = "files at --data PATH" if row["needs_data"] else "comes with handful"
        options = ", ".join(f"{name}={value}" for name, value in row["options"].items())
        console.print(row["name"], style="bold", end=" ")
        console.print(f"({files}, {row['labelled_ratio']:.0%} labelled)")
        console.print(f"  {row['summary']}", soft_wrap=True)
        if options:
            console.print(f"  --data-option {options}", style="dim", soft_wrap=True)
