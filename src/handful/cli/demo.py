"""``handful demo``: the tour."""

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
        int | None, typer.Option(min=1, help="Training episodes of each model; more is better.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="All methods: three times as long.")] = False,
    models: Annotated[
        list[str] | None,
        typer.Option("--model", help="Trained on glyphs: used instead of training its method; repeatable."),
    ] = None,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: JsonFlag = False,
) -> None:
    """The tour on the embedded data: train briefly, compare, write one HTML report. A few minutes on two cores.

    Example, with weights from 'handful models' (or a run folder) for TAC: `handful demo --model tac-glyphs`
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
