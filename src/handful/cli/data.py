"""``handful data``: what is in a data set's files, and making them ready."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from ..errors import HandfulError
from ..progress import progress_bar
from .options import DataOptions, DataPath, Dataset, ImageSize, JsonFlag, Strict, console, read_data_options

if TYPE_CHECKING:
    from ..datasets.check import Report
    from ..datasets.fetch import Fetched
    from ..datasets.known import Known

MOST_NAMES = 20  # broken files of a split, near-empty classes, ... that are named on the screen

data_app = typer.Typer(help="Get, check and prepare the files of a data set.", no_args_is_help=True)


@data_app.command()
def check(
    dataset: Dataset = "folder",
    data: DataPath = None,
    image_size: ImageSize = None,
    data_options: DataOptions = None,
    strict: Strict = False,
    as_json: JsonFlag = False,
) -> None:
    """Read every image once and report what is there and what is wrong. Writes nothing.

    Classes that are in more than one split are an error (exit code 2); broken or duplicate images are warnings.

    Example: `handful data check --dataset folder --data photos.zip`
    """
    from ..datasets import dataset_spec
    from ..datasets.check import check_dataset

    options = read_data_options(dataset, data_options, image_size)
    with progress_bar() as bar:
        report = check_dataset(dataset_spec(dataset), data, options, strict=strict, bar=bar)
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=2))
    else:
        _print_report(report)
    if report.errors:
        raise typer.Exit(HandfulError.exit_code)


@data_app.command()
def prepare(
    dataset: Dataset = "folder",
    data: DataPath = None,
    image_size: ImageSize = None,
    data_options: DataOptions = None,
    strict: Strict = False,
    as_json: JsonFlag = False,
) -> None:
    """Decode all images ahead of time into a cache that training maps into memory.

    Training does this by itself when needed. If it is stopped, run it again to resume; a finished cache is verified.
    The cache is in the folder HANDFUL_CACHE, or in the system's cache folder, and may be deleted at any time.

    Example: `handful data prepare --dataset tiered-imagenet --data tiered-imagenet/`
    """
    from ..datasets import prepare_dataset

    options = read_data_options(dataset, data_options, image_size)
    with progress_bar() as bar:
        rows = prepare_dataset(dataset, data, options, strict=strict, bar=bar)
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table("split", "classes", "images", "left out", "MiB", box=None, header_style="bold")
    for row in rows:
        numbers = (f"{row[name]:,}" for name in ("classes", "images", "broken"))
        table.add_row(row["split"], *numbers, f"{row['bytes'] / 2**20:,.0f}")
    console.print(table)
    where = Path(rows[0]["cache"]).parent
    console.print(f"Ready, in {where}.", soft_wrap=True)


@data_app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="omniglot, mini-imagenet or tiered-imagenet.")],
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="PATH", help="What you downloaded: a file or a folder. Verified and prepared."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder to unpack the pickles of a tar archive to; only needed for these."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Say where a data set can be had; verify and prepare what you downloaded. Nothing is downloaded by handful.

    Checksums of the files are compared with those that other libraries publish; the numbers of classes and images with
    those of the paper; the images with those that our results were measured on, by their fingerprint.

    Example: `handful data fetch omniglot --from downloads/omniglot`
    """
    from ..datasets import fetch as fetching

    known = fetching.known_dataset(name)
    if source is None:
        if as_json:
            typer.echo(json.dumps(asdict(known), indent=2))
        else:
            _print_places(name, known)
        return
    with progress_bar() as bar:
        found = fetching.fetch(name, source, out, bar=bar)
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=2))
    else:
        _print_fetched(found)


def _print_places(name: str, known: Known) -> None:
    """Where a data set can be had, for people."""
    console.print(known.title, style="bold", highlight=False)
    lines = [known.terms, "", "Where to get it:"]
    for address, what in known.places.items():
        lines += [f"  {address}", f"    {what}"]
    lines += ["", "Files with a known checksum (MD5):"]
    lines += [f"  {file.md5}  {file.name}: {file.holds}; according to {file.publisher}" for file in known.files]
    lines += ["", f"Other copies are fine, too: docs/data/{name}.md lists the layouts. Then verify and prepare them:"]
    unpacking = ["  (with --out FOLDER for a tar archive of pickles, which are unpacked there)"] if known.packed else []
    _print_lines([*lines, f"  handful data fetch {name} --from PATH", *unpacking])


def _print_fetched(found: Fetched) -> None:
    """What was verified, for people."""
    for file in found.files:
        verdict = (
            f"as {file.publisher} has it" if file.publisher else "which is not the known one: see the images below"
        )
        _print_lines([f"{file.name}: MD5 {file.md5}, {verdict}"])
    table = Table("split", "classes", "images", "left out", "fingerprint", box=None, header_style="bold")
    for row in found.splits:
        table.add_row(row["split"], *(f"{row[key]:,}" for key in ("classes", "images", "broken")), row["fingerprint"])
    console.print(table)
    same = [row["as_measured"] for row in found.splits]
    if None not in same:
        verdict = "These are the images" if all(same) else "Not all pixels are those of the images"
        _print_lines([f"{verdict} that our results were measured on (fingerprints)."])
    _print_lines([
        f"All classes and images are there, ready in {Path(found.splits[0]['cache']).parent}. To train on them:",
        f"  handful train --dataset {found.dataset} --data {shlex.quote(found.data)} --method tac --out runs/tac",
    ])  # fmt: skip


def _print_lines(lines: list[str]) -> None:
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


def _print_report(report: Report) -> None:
    """The result of ``handful data check`` for people."""
    layouts = " / ".join(dict.fromkeys(found.layout for found in report.splits.values()))
    console.print(report.dataset, style="bold", end=": ")
    console.print(layouts)
    table = Table("split", "classes", "images", "per class", "sizes", "broken", box=None, header_style="bold")
    for split, found in report.splits.items():
        turned = f" (x {found.turns} by rotation = {found.classes * found.turns:,})" if found.turns > 1 else ""
        low, middle, high = found.per_class
        sizes = list(found.sizes)
        more = f" and {len(sizes) - 2:,} more" if len(sizes) > 2 else ""
        table.add_row(
            split, f"{found.classes:,}{turned}", f"{found.images:,}",
            str(low) if low == high else f"{low} to {high}, median {middle:g}",
            ", ".join(sizes[:2]) + more, f"{len(found.broken):,}",
        )  # fmt: skip
    console.print(table)
    for kind, style, sentences in (("error", "bold red", report.errors), ("warning", "yellow", report.warnings)):
        for sentence in sentences:
            console.print(f"{kind}:", style=style, end=" ")
            console.print(sentence, soft_wrap=True)
    for title, entries in _lists(report):
        console.print(f"{title}:")
        for entry in entries[:MOST_NAMES]:
            console.print(f"  {entry}", soft_wrap=True)
        if len(entries) > MOST_NAMES:
            console.print(f"  ... and {len(entries) - MOST_NAMES:,} more: --json names them all")
    total = sum(found.images + len(found.broken) for found in report.splits.values())
    verdict = "nothing is wrong" if not report.errors + report.warnings else "see above"
    console.print(f"{total:,} images read in {report.seconds:.1f} s: {verdict}.")


def _lists(report: Report) -> Iterator[tuple[str, list[str]]]:
    """What a sentence of the report only gives one example of: a title, and all of them."""
    from ..datasets.check import one_of_each_split

    lists = {"in more than one split": [f"{name}: {', '.join(at)}" for name, at in report.shared_classes.items()]}
    for split, found in report.splits.items():
        lists[f"cannot be read in {split}"] = [f"{name}: {reason}" for name, reason in found.broken.items()]
        lists[f"few images in {split}"] = [f"{name}: {images}" for name, images in found.near_empty.items()]
    lists["the same image"] = [one_of_each_split(names) for names in report.duplicates]
    yield from ((title, entries) for title, entries in lists.items() if len(entries) > 1)
