"""``handful demo``: short trainings, one table, one report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ..machine import keep_memory
from ..progress import messages
from .options import Device, JsonFlag, Seed, check_device, console


def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for the runs and the report.")] = Path("handful-demo"),
    episodes: Annotated[
        int | None,
        typer.Option(min=1, show_default="200", help="Training episodes of each model. More give better models."),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Train all methods of the paper, which takes three times as long.")
    ] = False,
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model", help="Use this model, trained on glyphs, instead of training its method. Repeat for more."
        ),
    ] = None,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: JsonFlag = False,
) -> None:
    """Train a few methods briefly on the built-in data set glyphs, compare them, and write an HTML report.

    Takes a minute or two on two cores. If it is stopped, run the same command again to resume.

    Example with a trained model (a name from 'handful models' or a run folder): `handful demo --model tac-glyphs`
    """
    from ..experiments.demo import EPISODES, run_demo

    keep_memory()
    check_device(device)
    to = messages if as_json else console
    result = run_demo(
        out, full=full, episodes=episodes or EPISODES, models=models or (), seed=seed, device=device, console=to
    )
    if as_json:
        typer.echo(json.dumps(result, indent=2))
