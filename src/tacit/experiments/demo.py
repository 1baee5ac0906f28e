"""The tour: four short trainings on the embedded data (all methods in full), one table, one report."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from lightning_fabric import Fabric
from rich.console import Console
from rich.table import Column, Table

from ..checkpoint import write_json
from ..datasets import ImageSet, dataset_spec, load_dataset
from ..errors import TacitError
from ..evaluation import MOST_ITERATIONS, Accuracy, Protocol, choose_iterations, embed, evaluate
from ..methods import METHODS, build_method
from ..progress import messages, progress_bar, training_bar
from ..run import RunConfig, load_run
from ..sampling import EpisodeSpec
from ..training import train
from . import figures
from .curves import first_episode
from .report import Entry, Report, provenance, ranks

DATASET = "glyphs"
EPISODES = 200  # per model: what fits into the tour, far from what a comparison needs
LEARNING_RATE = 3e-3  # three times the usual: there are few episodes to learn from
TRAIN = EpisodeSpec(ways=20, shots=1, queries=5, unlabelled=5)
SETTINGS = {
    "without distractors": EpisodeSpec(ways=5, shots=1, queries=15, unlabelled=20),
    "with distractors": EpisodeSpec(ways=5, shots=1, queries=15, unlabelled=20, distractor_ways=5, distractors=20),
}
SPLITS, TEST_EPISODES = 2, 300


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
    Model("soft-kmeans-cluster", ("soft-kmeans-cluster",), distractors=True, options={"scale": 0.1}),
    Model("masked-soft-kmeans", ("masked-soft-kmeans",), distractors=True, options={"scale": 0.1}),
    Model("tpn", ("tpn",)),
    Model("relation", ("relation",)),
    Model("metagan", ("metagan",)),
    Model("imp", ("imp",)),
    Model("tapnet-soft-clustering", ("tapnet-soft-clustering",)),
)


def run_demo(
    out: Path,
    *,
    full: bool = False,
    episodes: int = EPISODES,
    seed: int = 0,
    device: str = "auto",
    console: Console | None = None,
) -> dict[str, Any]:
    """Train, evaluate, print the table and write ``out/report.html``; finished trainings in ``out`` are used again.

    ``full`` is for every method there is, instead of the six of the tour.
    """
    started = time.perf_counter()
    if out.exists() and (not out.is_dir() or any(out.iterdir())) and not (out / MODELS[0].method).is_dir():
        raise TacitError(f"{out} exists and is not from a demo: choose another --out")
    images = {split: load_dataset(DATASET, split) for split in ("train", "val", "test")}
    ratio = dataset_spec(DATASET).labelled_ratio
    rows: dict[str, list[Accuracy]] = {}
    notes: dict[str, str] = {}
    for model in (*MODELS, *MORE_MODELS) if full else MODELS:
        folder = _train(model, out / model.method, images, ratio, episodes, seed, device)
        _evaluate(model, folder, images, ratio, seed, device, rows, notes)
    rows = {cls.title: rows[cls.title] for cls in METHODS.values() if cls.title in rows}
    _print(rows, episodes, console or Console())

    protocol = Protocol(SETTINGS["without distractors"], ratio, SPLITS, TEST_EPISODES, seed)
    caption = (
        f"{protocol.describe()}; with distractors, 5 more classes add 20 unlabelled images each. ± is the 95 % interval"
        f" over episodes; 'it.' is the number of refinements, chosen on validation classes. Each model saw only "
        f"{episodes} training episodes ({TRAIN.describe()}), so this shows how things work, not which method is best. "
        "The paper reports no figures for this data set."
    )
    report = Report("tacit demo: 5-way 1-shot on glyphs", out)
    report.section("Accuracy (%)")
    report.table(["method", *SETTINGS, "trained as"], _table(rows, notes))
    report.paragraph(caption)
    report.section("Accuracy against refinements")
    lines = [
        line
        for column, setting in enumerate(SETTINGS)
        for title, cells in rows.items()
        if len(cells[column].by_iteration) > 1
        for line in figures.iteration_rows(setting, title, cells[column])
    ]
    report.picture(figures.accuracy_by_iteration(lines), "accuracy against refinements", "refinements", lines)
    report.paragraph("Zero refinements use the labelled images only.")
    report.section("One episode")
    _episode_picture(report, out / "tac", images["test"], ratio, seed)
    report.section("Where this comes from")
    report.facts(
        provenance(
            f"tacit demo {'--full ' if full else ''}--episodes {episodes} --seed {seed}",
            {"seed": str(seed), "data": f"{DATASET}, fingerprint {images['test'].fingerprint()} (test)"},
        )
    )
    page = report.write()
    seconds = time.perf_counter() - started
    result = {
        "dataset": DATASET,
        "protocol": protocol.to_json(),
        "training_episodes": episodes,
        "rows": {title: {s: asdict(c) for s, c in zip(SETTINGS, cells, strict=True)} for title, cells in rows.items()},
        "report": str(page),
        "wall_seconds": round(seconds, 1),
    }
    write_json(out / "demo.json", result)
    messages.print(f"Took {seconds:.0f} s. Report: {page}", highlight=False)
    return result


def _train(
    model: Model, folder: Path, images: dict[str, ImageSet], ratio: float, episodes: int, seed: int, device: str
) -> Path:
    extra = {"distractor_ways": TRAIN.ways, "distractors": TRAIN.unlabelled} if model.distractors else {}
    if not build_method(model.method, dim=1, ways=TRAIN.ways).trains_on_unlabelled:
        extra = {"unlabelled": 0}
    config = RunConfig(
        method=model.method,
        dataset=DATASET,
        fingerprint=images["train"].fingerprint(),
        labelled_ratio=ratio,
        channels=images["train"].channels,
        image_size=images["train"].image_size,
        train=replace(TRAIN, **extra),
        validation=SETTINGS["with distractors" if model.distractors else "without distractors"],
        options=model.options,
        learning_rate=LEARNING_RATE,
        episodes=episodes,
        validate_every=episodes,
        seed=seed,
    )
    with training_bar(f"training {model.method}", config) as observe:
        train(config, folder, images["train"], images["val"], resume=True, accelerator=device, observe=observe)
    return folder


def _evaluate(
    model: Model, folder: Path, images: dict[str, ImageSet], ratio: float, seed: int, device: str,
    rows: dict[str, list[Accuracy]], notes: dict[str, str],
) -> None:  # fmt: skip
    """All methods that use this model's weights, in all settings; its images are embedded once."""
    _, learner, _ = load_run(folder)
    learner.to(Fabric(accelerator=device, devices=1).device)
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
        notes[method.title] = METHODS[model.method].title + (", with distractors" if model.distractors else "")


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
    points, spec = first_episode(folder, test, ratio, seed, shots=1, unlabelled=None, steps=(1, 4))
    report.picture(figures.tsne(points), "t-SNE of one episode", "episode", points)
    report.paragraph(
        f"The first test episode of seed {seed}: 1 labelled and {spec.unlabelled} unlabelled images of each class, by "
        "t-SNE. Coloured points lie in their own class's cluster (how many is written beside), grey ones in another's."
    )


def _print(rows: dict[str, list[Accuracy]], episodes: int, console: Console) -> None:
    title = "5-way 1-shot on glyphs: accuracy in %, ± 95 % interval"
    table = Table(Column("method", no_wrap=True), *SETTINGS, title=title)
    for title, cells in rows.items():
        table.add_row(title, *(str(cell) for cell in cells))
    console.print(table)
    console.print(
        f"Each model trained for only {episodes} episodes: a tour, not a ranking. "
        "'tacit train --episodes 2000' goes further."
    )
