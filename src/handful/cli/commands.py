"""All commands together, and what becomes of errors.

PyTorch, Lightning and matplotlib take seconds to import: commands import what they need when they run, so that --help
need not wait.
"""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from typing import Annotated

import typer

from .. import __version__
from ..errors import HandfulError, Interrupted
from ..machine import RESEARCH_INSTALL, RESEARCH_PACKAGES, is_main_process, several_processes
from ..progress import messages
from .bench import bench
from .compare import compare
from .curves import curves
from .data import data_app
from .demo import demo
from .embed import embed
from .evaluate import evaluate
from .grid import grid
from .label import head_app, label
from .lists import datasets, methods
from .models import export, models, whiten
from .options import Command
from .predict import predict
from .reproduce import reproduce
from .studio import studio
from .train import train

app = typer.Typer(
    help="Few-shot image classification from a few labelled and many unlabelled images.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="markdown",
)
app.add_typer(data_app, name="data")
app.add_typer(head_app, name="head")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"handful {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


for command in (
    methods,
    datasets,
    models,
    train,
    evaluate,
    curves,
    grid,
    reproduce,
    whiten,
    export,
    demo,
    embed,
    label,
    predict,
    studio,
    compare,
    bench,
):
    app.command()(command)
for part in (app, data_app, head_app):
    for registered in part.registered_commands:
        registered.cls = Command


def main() -> None:
    """Entry point: bad input is one sentence and exit code 2; bugs keep their traceback."""
    if isinstance(sys.stdout, TextIOWrapper):  # names of files may hold what the terminal's encoding does not
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        _answer()
    except SystemExit as end:
        if not several_processes() or not isinstance(end.code, int | None):
            raise
        # PyTorch's threads that speak to the other processes now and then abort a program that takes its leave slowly.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code or 0)


def _answer() -> None:
    """Run the command; an error that a user can cause is one sentence."""
    try:
        app()
    except HandfulError as error:
        _say(str(error))
        sys.exit(error.exit_code)
    except Interrupted as stop:
        _say(str(stop))
        sys.exit(130)
    except ValueError as error:  # Python's own, of a name in an option or a file that is no name anywhere
        if "embedded null" not in str(error):
            raise
        _say("a name or a path holds a NUL character, which no file has in its name: remove it")
        sys.exit(2)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in RESEARCH_PACKAGES:
            raise
        _say(f"this command needs PyTorch and Lightning ({error.name} is not installed): {RESEARCH_INSTALL}")
        sys.exit(2)
    except OSError as error:  # a full disk, a folder that may not be written
        _say(f"{error.strerror or error}: {error.filename}" if error.filename else str(error))
        sys.exit(2 if isinstance(error, PermissionError | FileExistsError | NotADirectoryError) else 1)


def _say(sentence: str) -> None:
    if not is_main_process():  # the first of several processes speaks for all
        return
    messages.print("handful:", style="bold red", end=" ")
    messages.print(sentence, soft_wrap=True)
