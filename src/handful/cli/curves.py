"""``handful curves``: how validation went while runs were trained."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table

from ..progress import messages
from .options import JsonFlag, console

NOTE = "The gain is the slope of a straight line through the validations of the last third of the training."


def curves(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders of 'handful train', also unfinished.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder for report.html, the picture and its numbers as CSV.")],
    as_json: JsonFlag = False,
) -> None:
    """Draw learning curves: validation accuracy against the images that a run was shown.

    Images, not episodes, since an episode of 20 classes shows four times as many as one of 5. Methods with learned
    references have a second panel: how much they gain over random ones. For each run, the gain over the last third of
    the training says what a longer one might still bring.

    Example: `handful curves runs/pn runs/tac --out curves`
    """
    from ..publish import check_free, publish
    from ..reports.figures import learning_curves
    from ..reports.page import PAGE, TEXT, Report, provenance
    from ..runs.curves import curve_rows, late_gain
    from ..runs.results import format_accuracy

    check_free(out, (PAGE, TEXT))
    rows = curve_rows(runs)
    by_run = {name: [row for row in rows if row["run"] == name] for name in dict.fromkeys(row["run"] for row in rows)}
    found = [
        {"run": name, "images": line[-1]["images"], "accuracy": line[-1]["accuracy"], "interval": line[-1]["interval"],
         "best": max(row["accuracy"] for row in line), "late_gain": late_gain(line)}
        for name, line in by_run.items()
    ]  # fmt: skip
    header = ("run", "images shown", "validation (%)", "best", "gain per million images")
    lines = [
        [one["run"], f"{one['images']:,}", format_accuracy(one["accuracy"], one["interval"]), f"{one['best']:.2f}",
         "-" if one["late_gain"] is None else f"{one['late_gain']:+.2f}"]
        for one in found
    ]  # fmt: skip
    report = Report("Learning curves")
    report.picture(learning_curves(rows), "validation accuracy against the images shown", "curves", rows)
    report.table(header, lines)
    report.paragraph(NOTE)
    report.facts(provenance(shlex.join(["handful", *sys.argv[1:]]), {}))
    publish(out, report.files())
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    table = Table(Column("run", overflow="fold"), *header[1:], box=None)
    for line in lines:
        table.add_row(*line)
    console.print(table)
    console.print(NOTE, soft_wrap=True)
    messages.print(f"Report: {out / PAGE}", soft_wrap=True)
