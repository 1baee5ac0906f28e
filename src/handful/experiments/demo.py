"""The tour: four short trainings on the embedded data (all methods in full), one table, one report."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from ..datasets import ImageSet, dataset_spec, load_dataset
from ..embedders.shipped import model_folder
from ..errors import HandfulError
from ..machine import compute_device
from ..methods import METHODS
from ..progress import messages, progress_bar, training_bar
from ..publish import check_free, publish
from ..reports import figures
from ..reports.page import PAGE, TEXT, Entry, Report, provenance, ranks
from ..runs.config import RunConfig, training_spec
from ..runs.episodes import MOST_ITERATIONS, Accuracy, Protocol, choose_iterations, embed, evaluate
from ..runs.folder import check_unseen, load_run
from ..runs.training import train
from ..sampling import EpisodeSpec
from .curves import first_episode

DATASET = "glyphs"
EPISODES = 200  # per model: what fits into the tour, far from what a comparison needs
LEARNING_RATE = 3e-3  # three times the usual: there are few episodes to learn from
TRAIN = EpisodeSpec(ways=20, shots=1, queries=5, unlabelled=5)
SETTINGS = {
    "without distractors": EpisodeSpec(ways=5, shots=1, queries=15, unlabelled=20),
    "with distractors": EpisodeSpec(ways=5, shots=1, queries=15, unlabelled=20, distractor_ways=5, distractors=20),
}
SPLITS, TEST_EPISODES = 2, 300
NUMBERS = "demo.json"


@dataclass(frozen=True)
class Model:
    """One training, and the methods that are evaluated with its weights."""

    method: str
    evaluated_as: tuple[str, ...]
    distractors: bool = False
    options: dict[str, Any] = field(default_factory=dict)


MODELS = (
    Model("pn", ("pn", "soft-kmeans"), options={"scale": 0.1}),  # at 1, PN is far too sure of itself at first
    Model("tapnet", ("tapnet", "tapnet-semi")),
    Model("tac", ("tac",)),
    Model("tacdap", ("tacdap",), distractors=True),
)
MORE_MODELS = (  # of the full table
    Model("classifier", ("classifier", "classifier-semi")),
    Model("soft-kmeans-cluster", ("soft-kmeans-cluster",), distractors=True, options={"scale": 0.1}),
    Model("masked-soft-kmeans", ("masked-soft-kmeans",), distractors=True, options={"scale": 0.1}),
    Model("tpn", ("tpn",)),
    Model("relation", ("relation",)),
    Model("metagan", ("metagan",)),
    Model("imp", ("imp",)),
    Model("tapnet-soft-clustering", ("tapnet-soft-clustering",)),
)


@dataclass(frozen=True)
class Ready:
    """A model that was trained before: what it is called, its folder, and how it was trained, in a line."""

    name: str
    folder: Path
    recipe: str


def run_demo(
    out: Path,
    *,
    full: bool = False,
    episodes: int = EPISODES,
    models: Sequence[str] = (),
    seed: int = 0,
    device: str = "auto",
    console: Console | None = None,
) -> dict[str, Any]:
    """Train, evaluate, print the table and write ``out/report.html``; finished trainings in ``out`` are used again.

    ``full`` is for every method there is, instead of the six of the tour. ``models`` are names of models that come with
    the package, or run folders: they are taken instead of training their methods.
    """
    started = time.perf_counter()
    tour = (*MODELS, *MORE_MODELS) if full else MODELS
    check_free(out, (PAGE, TEXT, NUMBERS))
    ours = (out / NUMBERS).exists() or any((out / model.method).is_dir() for model in tour)
    if out.exists() and (not out.is_dir() or any(out.iterdir())) and not ours:
        raise HandfulError(f"{out} exists and is not from a demo: choose another --out")
    images = {split: load_dataset(DATASET, split) for split in ("train", "val", "test")}
    ratio = dataset_spec(DATASET).labelled_ratio
    rows: dict[str, list[Accuracy]] = {}
    notes: dict[str, str] = {}
    ready = _ready(models, tour, images["test"])
    folders: dict[str, Path] = {}
    for model in tour:
        known = ready.get(model.method)
        folders[model.method] = folder = known.folder if known else out / model.method
        if not known:
            _train(model, folder, images, ratio, episodes, seed, device)
        _evaluate(model, folder, known, images, ratio, seed, device, rows, notes)
    order = [cls.title for cls in METHODS.values()]  # an option may have made another title: such rows come last
    rows = {title: rows[title] for title in sorted(rows, key=lambda t: order.index(t) if t in order else len(order))}
    budget = _budget(episodes, ready, tour)
    _print(rows, budget, console or Console())

    protocol = Protocol(SETTINGS["without distractors"], ratio, SPLITS, TEST_EPISODES, seed)
    caption = (
        f"{protocol.describe()}; with distractors, 5 more classes add 20 unlabelled images each. ± is the 95 % interval"
        f" over episodes; 'it.' is the number of refinements, chosen on validation classes. "
        f"{budget} The paper reports no figures for this data set."
    )
    report = Report("handful demo: 5-way 1-shot on glyphs")
    report.section("Accuracy (%)")
    report.table(["method", *SETTINGS, "trained as"], _table(rows, notes))
    report.paragraph(caption)
    report.section("Accuracy against refinements")
    lines = [
        line
        for column, setting in enumerate(SETTINGS)
        for title, cells in rows.items()
        if len(cells[column].by_iteration) > 1
        for line in figures.iteration_rows(setting, title, cells[column].by_iteration, cells[column].intervals)
    ]
    report.picture(figures.accuracy_by_iteration(lines), "accuracy against refinements", "refinements", lines)
    report.paragraph("Zero refinements use the labelled images only.")
    report.section("One episode")
    _episode_picture(report, folders["tac"], images["test"], ratio, seed)
    report.section("Where this comes from")
    given = "".join(f"--model {model} " for model in models)
    report.facts(
        provenance(
            f"handful demo {'--full ' if full else ''}{given}--episodes {episodes} --seed {seed}",
            {"seed": str(seed), "data": f"{DATASET}, fingerprint {images['test'].fingerprint()} (test)"},
        )
    )
    page = out / PAGE
    seconds = time.perf_counter() - started
    result = {
        "dataset": DATASET,
        "protocol": protocol.to_json(),
        "training_episodes": episodes,
        "models": {method: {"name": known.name, "recipe": known.recipe} for method, known in ready.items()},
        "rows": {title: {s: asdict(c) for s, c in zip(SETTINGS, cells, strict=True)} for title, cells in rows.items()},
        "report": str(page),
        "wall_seconds": round(seconds, 1),
    }
    report.attach(NUMBERS, (json.dumps(result, indent=2) + "\n").encode())
    publish(out, report.files())
    messages.print(f"Took {seconds:.0f} s. Report: {page}", highlight=False)
    return result


def _ready(models: Sequence[str], tour: Sequence[Model], test: ImageSet) -> dict[str, Ready]:
    """The models that are not trained in the tour, by their methods."""
    ready: dict[str, Ready] = {}
    for model in models:
        folder = model_folder(model)
        config, learner, state = load_run(folder)
        if (config.dataset, config.image_size, config.channels) != (DATASET, test.image_size, test.channels):
            raise HandfulError(
                f"{model} was trained on '{config.dataset}', and the demo is on '{DATASET}': leave it out"
            )
        if config.method not in [one.method for one in tour]:
            known = ", ".join(one.method for one in tour)
            raise HandfulError(f"{model} is of the method '{config.method}', and the demo takes models of {known}")
        if config.method in ready:
            raise HandfulError(
                f"{model} and {ready[config.method].name} are both of '{config.method}': give one of them"
            )
        learner.method.check_ways(max(spec.ways for spec in SETTINGS.values()))
        check_unseen(folder, test)
        recipe = f"{state['episode']:,} training episodes ({config.train.describe()})"
        ready[config.method] = Ready(folder.resolve().name, folder, recipe)
    return ready


def _budget(episodes: int, ready: dict[str, Ready], tour: Sequence[Model]) -> str:
    """How much training there was, in words."""
    sentences = [f"{known.name} was not trained here but before: {known.recipe}." for known in ready.values()]
    if len(ready) < len(tour):
        who = "Each model that was trained here" if ready else "Each model"
        also = "; the classifier two images of every class" if "classifier" in [one.method for one in tour] else ""
        sentences.append(
            f"{who} saw only {episodes} training episodes ({TRAIN.describe()}{also}), so this shows how things work, "
            "not which method is best."
        )
    return " ".join(sentences)


def _train(
    model: Model, folder: Path, images: dict[str, ImageSet], ratio: float, episodes: int, seed: int, device: str
) -> None:
    extra = {"distractor_ways": TRAIN.ways, "distractors": TRAIN.unlabelled} if model.distractors else {}
    config = RunConfig(
        method=model.method,
        dataset=DATASET,
        fingerprint=images["train"].fingerprint(),
        labelled_ratio=ratio,
        channels=images["train"].channels,
        image_size=images["train"].image_size,
        train=training_spec(model.method, model.options, replace(TRAIN, **extra), len(images["train"].class_names)),
        validation=SETTINGS["with distractors" if model.distractors else "without distractors"],
        options=model.options,
        learning_rate=LEARNING_RATE,
        episodes=episodes,
        validate_every=episodes,
        seed=seed,
    )
    with training_bar(f"training {model.method}", config.episodes) as show:
        train(
            config, folder, images["train"], images["val"], resume=True, accelerator=device,
            observe=lambda p, found: show(p.episode, p.loss_sum, p.loss_steps, p.best, found.mean if found else None),
        )  # fmt: skip


def _evaluate(
    model: Model, folder: Path, ready: Ready | None, images: dict[str, ImageSet], ratio: float, seed: int, device: str,
    rows: dict[str, list[Accuracy]], notes: dict[str, str],
) -> None:  # fmt: skip
    """All methods that use this model's weights, in all settings; its images are embedded once."""
    config, learner, _ = load_run(folder)
    learner.to(compute_device(device))
    with progress_bar() as bar:
        tick = bar(f"evaluating {model.method}", sum(len(images[split].images) for split in ("val", "test")))
        vectors = {split: embed(learner.backbone, images[split].images, progress=tick) for split in ("val", "test")}
    for name in model.evaluated_as:
        method = load_run(folder, name)[1].method.to(vectors["test"].device)
        cells = []
        for spec in SETTINGS.values():
            protocol = Protocol(spec, ratio, SPLITS, TEST_EPISODES, seed)
            best = choose_iterations(method, vectors["val"], images["val"], protocol)
            cells.append(evaluate(method, vectors["test"], images["test"], protocol, best, record=MOST_ITERATIONS))
        rows[method.title] = cells
        trained_as = METHODS[model.method].title + (", with distractors" if config.train.distractor_ways else "")
        notes[method.title] = f"{trained_as}; {ready.name}, not trained here" if ready else trained_as


def _table(rows: dict[str, list[Accuracy]], notes: dict[str, str]) -> list[list[Entry | str]]:
    """Methods down, settings across; the last column says how each was trained."""
    ranked = [ranks([cells[column].mean for cells in rows.values()]) for column in range(len(SETTINGS))]
    lines: list[list[Entry | str]] = []
    for line, (title, cells) in enumerate(rows.items()):
        entries = [
            Entry(str(cell), f"{cell.iterations} it." if len(cell.by_iteration) > 1 else "", ranked[column][line])
            for column, cell in enumerate(cells)
        ]
        lines.append([title, *entries, notes[title]])
    return lines


def _episode_picture(report: Report, folder: Path, test: ImageSet, ratio: float, seed: int) -> None:
    wanted = replace(SETTINGS["without distractors"], unlabelled=len(test.images))  # all that there are
    points, spec = first_episode(folder, test, ratio, seed, wanted, steps=(1, 4))
    report.picture(figures.tsne(points), "t-SNE of one episode", "episode", points)
    report.paragraph(
        f"The first test episode of seed {seed}: 1 labelled and {spec.unlabelled} unlabelled images of each class, by "
        "t-SNE. Coloured points lie in their own class's cluster (how many is written beside), grey ones in another's."
    )


def _print(rows: dict[str, list[Accuracy]], budget: str, console: Console) -> None:
    title = "5-way 1-shot on glyphs: accuracy in %, ± 95 % interval"
    table = Table(Column("method", no_wrap=True), *SETTINGS, title=title)
    for title, cells in rows.items():
        table.add_row(title, *(str(cell) for cell in cells))
    console.print(table)
    console.print(f"{budget} 'handful train --episodes 2000' goes further.", highlight=False, markup=False)
