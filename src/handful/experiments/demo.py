"""The tour: short trainings on the embedded data (`presets.DEMO`), one table, one report."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from ..datasets import SPLITS, ImageSet, dataset_spec, load_dataset
from ..embedders.shipped import model_folder
from ..errors import HandfulError
from ..machine import compute_device
from ..methods import METHODS
from ..progress import messages, progress_bar, training_bar
from ..publish import check_free, publish
from ..reports import figures
from ..reports.page import PAGE, TEXT, Entry, Report, provenance, ranks
from ..runs.episodes import MOST_ITERATIONS, Accuracy, choose_iterations, embed, evaluate
from ..runs.folder import check_unseen, load_run
from ..runs.training import train
from .curves import first_episode
from .paper import System, recipe_for
from .plan import Setting
from .presets import DEMO, FULL_DEMO

DATASET = DEMO.dataset
EPISODES, TEST_EPISODES = DEMO.budget.episodes, DEMO.budget.test_episodes
RECIPE = recipe_for(DATASET)
_TEST = replace(RECIPE.test, shots=DEMO.shots)
SETTINGS = {
    "without distractors": _TEST,
    "with distractors": replace(_TEST, distractor_ways=_TEST.ways, distractors=_TEST.unlabelled),
}
NUMBERS = "demo.json"


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
    preset = FULL_DEMO if full else DEMO
    tour = preset.trainings
    check_free(out, (PAGE, TEXT, NUMBERS))
    ours = (out / NUMBERS).exists() or any((out / method).is_dir() for method in tour)
    if out.exists() and (not out.is_dir() or any(out.iterdir())) and not ours:
        raise HandfulError(f"{out} exists and is not from a demo: choose another --out")
    images = {split: load_dataset(DATASET, split) for split in SPLITS}
    ready = _ready(models, tour, images["test"])
    budget = replace(preset.budget, episodes=episodes, test_episodes=TEST_EPISODES)
    setting = Setting(
        DATASET, None, {}, images["train"], dataset_spec(DATASET).labelled_ratio, RECIPE, budget,
        shots=(preset.shots,), seed=seed, pretraining=episodes,
    )  # fmt: skip
    tested = Tested(setting, images, device)
    folders: dict[str, Path] = {}
    for method, evaluated_as in tour.items():
        known = ready.get(method)
        folders[method] = folder = known.folder if known else out / method
        if not known:
            _train(method, method in preset.with_distractors, folder, tested)
        _evaluate(method, evaluated_as, folder, known, tested)
    order = [cls.title for cls in METHODS.values()]  # an option may have made another title: such rows come last
    rows = {title: tested.rows[title]
            for title in sorted(tested.rows, key=lambda t: order.index(t) if t in order else len(order))}  # fmt: skip
    trained = _training(episodes, ready, list(tour))
    _print(rows, trained, console or Console())

    given = "".join(f"--model {model} " for model in models)
    command = f"handful demo {'--full ' if full else ''}{given}--episodes {episodes} --seed {seed}"
    report = _report(replace(tested, rows=rows), trained, folders["tac"], command)
    seconds = time.perf_counter() - started
    result = {
        "dataset": DATASET,
        "protocol": setting.protocol(_TEST).to_json(),
        "training_episodes": episodes,
        "models": {method: {"name": known.name, "recipe": known.recipe} for method, known in ready.items()},
        "rows": {title: {s: asdict(c) for s, c in zip(SETTINGS, cells, strict=True)} for title, cells in rows.items()},
        "report": str(out / PAGE),
        "wall_seconds": round(seconds, 1),
    }
    report.attach(NUMBERS, (json.dumps(result, indent=2) + "\n").encode())
    publish(out, report.files())
    messages.print(f"Took {seconds:.0f} s. Report: {out / PAGE}", highlight=False)
    return result


@dataclass(frozen=True)
class Tested:
    """What is trained and tested on, and what has been found so far.

    Attributes:
        setting: data, recipe and budget, as those of a reproduction.
        images: all splits.
        device: auto, cpu, cuda or mps.
        rows: accuracies in all settings, by the title of the method.
        notes: how each was trained, in words.
    """

    setting: Setting
    images: dict[str, ImageSet]
    device: str
    rows: dict[str, list[Accuracy]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)


def _report(tested: Tested, trained: str, tac: Path, command: str) -> Report:
    """The table, accuracy against refinements, and one episode as the run of TAC sees it."""
    setting, rows = tested.setting, tested.rows
    caption = (
        f"{setting.protocol(_TEST).describe()}; with distractors, {_TEST.ways} more classes add {_TEST.unlabelled} "
        "unlabelled images each. ± is the 95 % interval over episodes; 'it.' is the number of refinements, chosen on "
        f"validation classes. {trained} The paper reports no figures for this data set."
    )
    report = Report(f"handful demo: {_TEST.ways}-way {_TEST.shots}-shot on {DATASET}")
    report.section("Accuracy (%)")
    report.table(["method", *SETTINGS, "trained as"], _table(rows, tested.notes))
    report.paragraph(caption)
    report.section("Accuracy against refinements")
    lines = [
        line
        for column, name in enumerate(SETTINGS)
        for title, cells in rows.items()
        if len(cells[column].by_iteration) > 1
        for line in figures.iteration_rows(name, title, cells[column].by_iteration, cells[column].intervals)
    ]
    report.picture(figures.accuracy_by_iteration(lines), "accuracy against refinements", "refinements", lines)
    report.paragraph("Zero refinements use the labelled images only.")
    report.section("One episode")
    _episode_picture(report, tac, tested.images["test"], setting.labelled_ratio, setting.seed)
    report.section("Where this comes from")
    data = f"{DATASET}, fingerprint {tested.images['test'].fingerprint()} (test)"
    report.facts(provenance(command, {"seed": str(setting.seed), "data": data}))
    return report


def _ready(models: Sequence[str], tour: Collection[str], test: ImageSet) -> dict[str, Ready]:
    """The models that are not trained in the tour, by their methods."""
    ready: dict[str, Ready] = {}
    for model in models:
        folder = model_folder(model)
        config, learner, state = load_run(folder)
        if (config.dataset, config.image_size, config.channels) != (DATASET, test.image_size, test.channels):
            raise HandfulError(
                f"{model} was trained on '{config.dataset}', and the demo is on '{DATASET}': leave it out"
            )
        if config.method not in tour:
            known = ", ".join(tour)
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


def _training(episodes: int, ready: dict[str, Ready], tour: Collection[str]) -> str:
    """How much training there was, in words."""
    sentences = [f"{known.name} was not trained here but before: {known.recipe}." for known in ready.values()]
    if len(ready) < len(tour):
        who = "Each model that was trained here" if ready else "Each model"
        also = "; the classifier two images of every class" if "classifier" in tour else ""
        sentences.append(
            f"{who} saw only {episodes} training episodes ({RECIPE.train.describe()}{also}), so this shows how things "
            "work, not which method is best."
        )
    return " ".join(sentences)


def _train(method: str, distractors: bool, folder: Path, tested: Tested) -> None:
    """With the settings that a reproduction would have, validated once at the end."""
    system = System(METHODS[method].title, method)
    config = tested.setting.config(system, DEMO.shots, distractors)
    config = replace(config, validate_every=config.episodes)
    with training_bar(f"training {method}", config.episodes) as show:
        train(
            config, folder, tested.images["train"], tested.images["val"], resume=True, accelerator=tested.device,
            observe=lambda p, found: show(p.episode, p.loss_sum, p.loss_steps, p.best, found.mean if found else None),
        )  # fmt: skip


def _evaluate(trained: str, evaluated_as: Sequence[str], folder: Path, ready: Ready | None, tested: Tested) -> None:
    """All methods that use this model's weights, in all settings; its images are embedded once."""
    images = tested.images
    config, learner, _ = load_run(folder)
    learner.to(compute_device(tested.device))
    with progress_bar() as bar:
        tick = bar(f"evaluating {trained}", sum(len(images[split].images) for split in ("val", "test")))
        vectors = {split: embed(learner.backbone, images[split].images, progress=tick) for split in ("val", "test")}
    for name in evaluated_as:
        method = load_run(folder, name)[1].method.to(vectors["test"].device)
        cells = []
        for spec in SETTINGS.values():
            protocol = tested.setting.protocol(spec)
            best = choose_iterations(method, vectors["val"], images["val"], protocol)
            cells.append(evaluate(method, vectors["test"], images["test"], protocol, best, record=MOST_ITERATIONS))
        tested.rows[method.title] = cells
        trained_as = METHODS[trained].title + (", with distractors" if config.train.distractor_ways else "")
        tested.notes[method.title] = f"{trained_as}; {ready.name}, not trained here" if ready else trained_as


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


def _print(rows: dict[str, list[Accuracy]], trained: str, console: Console) -> None:
    title = "5-way 1-shot on glyphs: accuracy in %, ± 95 % interval"
    table = Table(Column("method", no_wrap=True), *SETTINGS, title=title)
    for title, cells in rows.items():
        table.add_row(title, *(str(cell) for cell in cells))
    console.print(table)
    console.print(f"{trained} 'handful train --episodes 2000' goes further.", highlight=False, markup=False)
