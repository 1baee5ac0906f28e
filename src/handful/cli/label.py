"""``handful label`` and ``handful head``: label one's own images, and learn a head for an embedder."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table
from rich.text import Text

from ..errors import HandfulError
from ..progress import messages, progress_bar
from ..terminal import json_text
from .options import DataOptions, DataPath, Dataset, Device, JsonFlag, Seed, check_device, console, read_data_options

if TYPE_CHECKING:
    from ..labelling import Labelling

MOST_CLASSES = 40  # that the table on the screen has
MOST_BROKEN = 10  # images that could not be read that are named on the screen

HeadName = Annotated[
    str,
    typer.Option(
        help="Map of the vectors learned on other classes: none, auto (the one that comes with handful for the "
        "embedder), a name, or a file of 'handful head train'."
    ),
]
Distractors = Annotated[
    bool, typer.Option(help="Whether images may belong to none of the classes. If not, every image gets a class.")
]
EmbedderName = Annotated[
    str,
    typer.Option(
        help="efficientnet-lite0 (photographs) or -lite2, run:MODEL, npy:FILE or npy:FOLDER of 'handful embed', "
        "timm:NAME, onnx:FILE, transformers:FOLDER or module:callable."
    ),
]


def label(
    images: Annotated[Path, typer.Argument(metavar="IMAGES", help="Folder of images (with folders in it), or a .zip.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the predictions and the report.")],
    labels: Annotated[
        Path | None,
        typer.Option(
            help="CSV file with the columns path and label; a blank label means unlabelled. Without it, "
            "folders are classes."
        ),
    ] = None,
    embedder: EmbedderName = "efficientnet-lite0",
    model: Annotated[
        str | None, typer.Option(help="A run folder or a name of 'handful models': short for --embedder run:MODEL.")
    ] = None,
    head: HeadName = "none",
    distractors: Distractors = True,
    none_threshold: Annotated[
        float | None,
        typer.Option(
            help="Share (0 to 1) of the images of your classes that may be called none of these. Default: 0.1, or 0 if "
            "nothing looks foreign."
        ),
    ] = None,
    none_label: Annotated[
        str, typer.Option(help="Label, in your labels, of images that belong to none of the classes.")
    ] = "none-of-these",
    iterations: Annotated[int, typer.Option(min=0, help="Most refinements with the unlabelled images.")] = 6,
    suggestions: Annotated[int, typer.Option(min=0, help="How many images to suggest for labelling next.")] = 12,
    exports: Annotated[
        list[str] | None,
        typer.Option("--export", help="Also write label-studio, folders-copy or folders-link. Repeat for more."),
    ] = None,
    export_folders: Annotated[
        str | None, typer.Option(help="copy or link: sort the images into OUT/images/LABEL/. Never moves them.")
    ] = None,
    label_studio: Annotated[bool, typer.Option("--label-studio", help="Also write label-studio.json.")] = False,
    truth: Annotated[
        Path | None,
        typer.Option(help="CSV file path,label with the true labels: prints how many predictions are really right."),
    ] = None,
    report: Annotated[bool, typer.Option(help="Write report.html, with thumbnails and a map.")] = True,
    save_model: Annotated[
        bool, typer.Option(help="Write model.safetensors, for 'handful predict' to label further images.")
    ] = True,
    device: Device = "auto",
    as_json: JsonFlag = False,
) -> None:
    """Label your images from a few labels: OUT/predictions.csv, predictions.jsonl and report.html.

    Label a handful of images of each class in a CSV file with the columns path and label (a Hugging Face metadata.csv
    will do), or by sorting them into a folder per class beside the loose images or a folder 'unlabelled'. Every other
    image gets a label, a confidence, and whether it belongs to none of the classes. Images are embedded once, so that
    the next run, with more labels, takes seconds.

    Example: `handful label photos/ --labels labels.csv --out labelled`
    """
    from ..labelling import label_images, read_labels, true_accuracy

    check_device(device)
    known = {} if truth is None else read_labels(images, truth)
    with progress_bar() as bar:
        found = label_images(
            images, labels, out, report=report, exports=exports or (), label_studio=label_studio,
            folders=export_folders, save_model=save_model, command=shlex.join(["handful", *sys.argv[1:]]), bar=bar,
            embedder=embedder if model is None else f"run:{model}",
            head=None if head == "none" else head, distractors=distractors, none_threshold=none_threshold,
            none_label=none_label, iterations=iterations, suggestions=suggestions, device=device,
        )  # fmt: skip
    counts, real = found.counts(), true_accuracy(found, known, none_label)
    if as_json:
        content = {
            "images": len(found.predictions), "counts": counts, "none": len(found.none()),
            "doubtful": len(found.doubtful()), "threshold": found.threshold, "broken": found.broken,
            "label_next": found.next_to_label,
            "estimate": None if found.estimate is None else {
                "right": found.estimate.right, "total": found.estimate.total, "interval": found.estimate.interval,
                "logistic_regression": found.estimate.baseline, "single": found.estimate.single,
            },
            "expected_accuracy": found.expected, "truth": None if real is None else asdict(real), "alike": found.alike,
            "suspects": found.suspects(), "about": found.about, "out": str(out),
        }  # fmt: skip
        typer.echo(json_text(content))
        return
    _print(found, counts)
    if truth is not None:
        unknown = f"{truth} has the label of none of the predicted images: nothing to compare with"
        console.print(unknown if real is None else real.describe(), soft_wrap=True)
    print_broken(found.broken, f"named in {out / 'report.html'}" if report else "--json names them all")
    written = "report.html and predictions.csv" if report else "predictions.csv"
    messages.print(f"Written: {out} ({written})", soft_wrap=True)


def _print(found: Labelling, counts: dict[str, int]) -> None:
    """How many images each class has, how accurate that is, and what to label next."""
    from ..labelling.prediction import DOUBTFUL
    from ..labelling.report import describe, questions

    print_counts(counts, len(found.none()))
    doubtful = f"{len(found.doubtful())} labels are doubtful (less than {DOUBTFUL:.0%} sure)."
    console.print(f"{doubtful} {describe(found.estimate, found.expected)}", soft_wrap=True)
    for question in questions(found):
        console.print(question, soft_wrap=True)
    if found.next_to_label:
        console.print(f"Label next: {', '.join(found.next_to_label)}", soft_wrap=True)


def print_counts(counts: dict[str, int], none: int) -> None:
    """How many images each class has, of many classes the largest, and how many are none of these."""
    shown = counts
    if len(counts) > MOST_CLASSES:
        largest = sorted(counts, key=lambda name: -counts[name])[:MOST_CLASSES]
        shown = {name: counts[name] for name in largest}
    table = Table(Column("label", overflow="fold"), "images", box=None)
    for name, count in shown.items():
        table.add_row(name, str(count))
    table.add_row(Text("none of these", style="italic"), str(none))
    console.print(table)
    if more := len(counts) - len(shown):
        rest = sum(counts.values()) - sum(shown.values())
        console.print(f"... and {more:,} more classes of {rest:,} images: see predictions.csv")


def print_broken(broken: dict[str, str], where: str) -> None:
    """Name the first images that could not be read, and say where the others are named."""
    for name, reason in list(broken.items())[:MOST_BROKEN]:
        messages.print(f"not read: {name}: {reason}", soft_wrap=True)
    if len(broken) > MOST_BROKEN:
        messages.print(f"not read: {len(broken) - MOST_BROKEN:,} more: {where}", soft_wrap=True)


head_app = typer.Typer(
    help="Train and compare heads: maps of an embedder's vectors, learned on other classes.", no_args_is_help=True
)


@head_app.command("train")
def head_train(
    out: Annotated[Path, typer.Option("--out", help="File to write, .safetensors.")],
    embedder: EmbedderName = "efficientnet-lite0",
    dataset: Dataset = "folder",
    data: DataPath = None,
    data_options: DataOptions = None,
    episodes: Annotated[
        int, typer.Option(min=0, help="Training episodes of TAC's references; 0: no references.")
    ] = 1000,
    tasks: Annotated[int, typer.Option(min=2, help="Validation tasks of each kind, by which the head is chosen.")] = 40,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: JsonFlag = False,
) -> None:
    """Learn a head for an embedder on the training classes of a data set; the validation classes choose.

    Example: `handful head train --embedder run:runs/photos --data photos.zip --out photos.safetensors`
    """
    from ..estimator.head import SUFFIX, is_head
    from ..estimator.head_data import head_for

    check_device(device)
    if out.suffix != SUFFIX:
        raise HandfulError(f"a head is a file of kind {SUFFIX}, got {out}")
    if os.path.lexists(out) and not is_head(out):
        raise HandfulError(f"{out} exists and is not a head: choose another --out")
    options = read_data_options(dataset, data_options, None)
    with progress_bar() as bar:
        found = head_for(
            embedder, dataset, data, options, episodes=episodes, tasks=tasks, seed=seed, device=device, bar=bar
        )
    found.save(out)
    if as_json:
        typer.echo(json.dumps({"head": str(out), **found.facts}, indent=2))
        return
    tried = found.facts["tried"]
    table = Table(Column("head", no_wrap=True), *next(iter(tried.values())), box=None)
    for what, accuracies in tried.items():
        mark = "bold" if what == found.facts["chosen"] else ""
        table.add_row(what, *(f"{value:.1f}" for value in accuracies.values()), style=mark)
    console.print(table)
    console.print(f"Accuracy (%) on validation classes. Chosen: {found.facts['chosen']}.")
    messages.print(f"Written: {out} ({out.stat().st_size / 1e6:.1f} MB)", soft_wrap=True)


@head_app.command("evaluate")
def head_evaluate(
    embedder: EmbedderName = "efficientnet-lite0",
    head: Annotated[
        str,
        typer.Option(
            help="Map of the vectors learned on other classes: auto, none, a name, or a file of 'handful head train'."
        ),
    ] = "auto",
    dataset: Dataset = "folder",
    data: DataPath = None,
    data_options: DataOptions = None,
    ways: Annotated[list[int] | None, typer.Option(min=2, help="Classes of a task. Repeat for more.")] = None,
    shots: Annotated[list[int] | None, typer.Option(min=1, help="Labelled images per class. Repeat for more.")] = None,
    unlabelled: Annotated[int, typer.Option(min=1, help="Unlabelled images per class.")] = 80,
    others: Annotated[
        float,
        typer.Option(
            min=0,
            max=0.95,
            help="Share of distractors among the unlabelled images. They are of other test classes, or of validation "
            "classes if a task has all test classes.",
        ),
    ] = 0.0,
    draws: Annotated[int, typer.Option(min=2, help="Random tasks for each combination of ways and shots.")] = 100,
    jobs: Annotated[int, typer.Option(help="Number of processes; -1: one per core.")] = -1,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: JsonFlag = False,
) -> None:
    """Compare the estimator, with and without head, with scikit-learn's classifiers on the test classes of a data set.

    Each scikit-learn classifier has the settings that are best on the first five of these tasks.

    Example: `handful head evaluate --data photos.zip --ways 5 --shots 1 --shots 5`
    """
    from ..embedders import Precomputed, load_embedder
    from ..estimator.compare import compare
    from ..estimator.head import head_of
    from ..estimator.head_data import vectors_of
    from ..estimator.tasks import TaskKind, with_spare

    check_device(device)
    loaded = head_of(embedder, None if head == "none" else head)
    found = load_embedder(embedder, device)
    if isinstance(found, Precomputed):
        raise HandfulError("this needs an embedder that can be asked, not vectors of some images")
    options = read_data_options(dataset, data_options, None)
    with progress_bar() as bar:
        tested = vectors_of(found, dataset, "test", data, options, bar)
        rows, further = [], None
        for kind in [TaskKind(n, k, unlabelled, others) for n in ways or (5, 20) for k in shots or (1, 5)]:
            x, y, spare = *tested, None
            if others and kind.ways == len(set(y.tolist())):  # no test class is left over
                further = further or vectors_of(found, dataset, "val", data, options, bar)
                x, y, spare = with_spare(tested, further)
            rows += compare(x, y, kind, loaded, draws=draws, seed=seed, spare=spare, jobs=jobs, bar=bar)
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table(Column("classifier", no_wrap=True), "best setting", "accuracy (%)", "AUROC (%)", "s a task", box=None)
    for kind_name in dict.fromkeys(row["task"] for row in rows):
        table.add_row(kind_name, style="bold")
        for row in (row for row in rows if row["task"] == kind_name):
            area = "" if row["auroc"] is None else f"{row['auroc']:.1f}"
            accuracy = f"{row['accuracy']:.1f} ± {row['interval']:.1f}"
            table.add_row(row["classifier"], row["setting"], accuracy, area, f"{row['seconds']:.2f}")
    console.print(table)
    console.print(
        f"{embedder}, {dataset}: accuracy on unlabelled images that are of a class, {draws} random tasks of test "
        "classes, ± 95 % interval over tasks. AUROC: of the score for 'none of these', which should find the images of "
        "other classes."
        + ("" if further is None else " Those of tasks with all test classes are of validation classes."),
        soft_wrap=True,
    )
