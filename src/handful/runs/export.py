"""``handful export``: a run folder without what only training needs, with a card that says what the model is."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..checkpoint import save_checkpoint
from ..datasets import dataset_spec
from ..embedders.shipped import CARD, FACTS, model_facts
from ..errors import HandfulError
from ..io import read_json, write_atomic, write_json
from ..methods import Method
from .config import RunConfig
from .folder import load_run, seen_classes
from .results import Result, Unsound, format_accuracy, measured, unsound

LICENCE = "Apache-2.0"
_KEPT = (
    "method", "title", "dataset", "data_options", "fingerprint", "protocol", "n", "mean", "interval", "split_interval",
    "iterations", "iterations_chosen_on",
)  # fmt: skip
_CHOSEN = ("cluster_multiplier", "values", "trials")  # what was tuned, where anything was


def export_run(
    run: Path, out: Path, *, name: str | None = None, about: str | None = None, licence: str | None = None
) -> dict[str, Any]:
    """Make a model that can be handed on out of a run; what ``model.json`` says of it is returned.

    Args:
        run: a run folder, or one that was exported before.
        out: the folder to make; it appears at once, when all is in it.
        name: of the model; that of the folder by default.
        about: what the images are, for the card; the data set's own line by default.
        licence: of the weights, for the card; that of handful by default.

    Raises:
        HandfulError: if ``out`` exists and is not empty, if the run has no weights yet, or if they do not fit it.
    """
    name = out.resolve().name if name is None else name
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
        raise HandfulError(f"a model's name is of letters, digits, '-', '_' and '.', got '{name}': choose with --name")
    if out.is_symlink():
        raise HandfulError(f"{out} is a link: choose another --out")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise HandfulError(f"{out} exists and is not empty: choose another --out")
    config, learner, state = load_run(run)
    config = replace(config, data=None, start=None)  # where the files were is nobody else's business
    tensors = {
        f"model.{key}": value.float() if value.is_floating_point() else value
        for key, value in learner.state_dict().items()
    }
    known = _known(run) if (run / FACTS).exists() else {}  # it was exported before
    classes = seen_classes(run)
    facts: dict[str, Any] = {
        "name": name,
        "method": config.method,
        "title": learner.method.title,
        "dataset": config.dataset,
        "about": about or known.get("about") or dataset_spec(config.dataset).summary,
        "shots": config.train.shots,
        "episodes": state["episode"],
        "val_accuracy": state["best"],
        "parameters": sum(parameter.numel() for parameter in learner.parameters()),
        "most_ways": _most_ways(learner.method, config.train.ways),
        "licence": licence or known.get("licence") or LICENCE,
        "measured": _measured(run, config, state, known.get("measured", [])),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    # A folder that is being filled has no business under its final name.
    part = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}.", suffix=".part"))
    try:
        made = part / "model"  # mkdtemp's folder is private; this one is as any other
        save_checkpoint(made / "checkpoint", "best", tensors, state)
        write_json(made / "config.json", config.to_json())
        write_json(made / "classes.json", classes)
        write_json(made / FACTS, facts)
        write_atomic(made / CARD, card(config, facts, {split: len(names) for split, names in classes.items()}).encode())
        if out.exists():
            out.rmdir()  # only ever an empty folder
        made.rename(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return facts


def _known(run: Path) -> dict[str, Any]:
    """What the ``model.json`` of a model says that is taken over."""
    facts = model_facts(run)
    for name, kind in {"about": str, "licence": str, "measured": list}.items():
        if name in facts and not isinstance(facts[name], kind):
            raise HandfulError(f"{run / FACTS} is damaged: its {name} is {facts[name]!r:.60}; export the run again")
    for result in facts.get("measured", []):
        if wrong := unsound(result, _KEPT):
            raise HandfulError(f"{run / FACTS} is damaged, it has {wrong}: export the run again")
    return facts


def card(config: RunConfig, facts: dict[str, Any], classes: dict[str, int]) -> str:
    """The model card, in Markdown: data, recipe, accuracy, limits."""
    needs = " --data PATH" if dataset_spec(config.dataset).needs_path else ""
    return "\n".join([
        f"# {facts['name']}",
        "",
        f"{facts['title']} trained for {facts['episodes']:,} episodes of {config.train.shots} labelled image"
        f"{'s' if config.train.shots > 1 else ''} per class on `{config.dataset}`. Weights as safetensors, settings as "
        "JSON: loading them runs nothing.",
        "",
        "```console",
        f"handful evaluate {facts['name']}{needs}",
        "```",
        "",
        "## Data",
        "",
        *_table(("", ""), _data(config, facts, classes).items()),
        "",
        "## Recipe",
        "",
        *_table(("", ""), _recipe(config, facts).items()),
        "",
        "## Accuracy",
        "",
        *_accuracies(facts["measured"]),
        "",
        "## Limits",
        "",
        *(f"- {limit}" for limit in _limits(config, facts)),
        "",
    ])  # fmt: skip


def _size(config: RunConfig) -> str:
    return f"{config.image_size} x {config.image_size} pixels, {'grey' if config.channels == 1 else 'colour'}"


def _data(config: RunConfig, facts: dict[str, Any], classes: dict[str, int]) -> dict[str, str]:
    counts = ", ".join(f"{count:,} classes in {split}" for split, count in classes.items())
    return {
        "data set": f"`{config.dataset}`: {facts['about']}",
        "options": _listed(config.data_options) or "none",
        "images": f"{_size(config)}, {config.channels} channel{'s' if config.channels > 1 else ''}",
        "seen": counts or "unknown",
        "labelled": f"{config.labelled_ratio:.0%} of each class",
        "fingerprint of the training images": f"`{config.fingerprint}`",
    }


def _recipe(config: RunConfig, facts: dict[str, Any]) -> dict[str, str]:
    falls = {
        "step": f"x {config.decay:g} after {config.decay_at:.0%} of the episodes",
        "cosine": "falling to zero along a cosine",
        "constant": "constant",
    }
    fall = falls.get(config.schedule, f"schedule {config.schedule}")
    optimiser = {"adam": "Adam", "sgd": "SGD, Nesterov momentum"}[config.optimiser]
    losses = {
        "a classifier of the training classes": config.classifier_loss,
        "rotations": config.rotation_loss,
        "pseudo-labels": config.pseudo_label_loss,
    }
    beside = ", ".join(f"{name} x {weight:g}" for name, weight in losses.items() if weight)
    images = (
        f"moved and mirrored at random{', colours changed' * bool(config.jitter)}" if config.augment else "as they are"
    )
    start = f"the embedder of another run, weights `{config.start_weights[:12]}`" if config.start_weights else None
    return {
        "method": f"{facts['title']} (`{config.method}`)",
        "options": _listed(config.options) or "the defaults",
        "embedder": f"{config.backbone} ({_listed(config.backbone_options) or 'the defaults'})",
        "parameters": f"{facts['parameters']:,}",
        "starts from": start or "random weights",
        "training images": images,
        **({"losses beside the method's": beside} if beside else {}),
        "a training episode": config.train.describe(),
        "episodes": f"{config.episodes:,}, {config.episodes_per_step} a step; these weights are of episode "
        f"{facts['episodes']:,}, the best in validation ({facts['val_accuracy']:.2f} %)",
        "learning rate": f"{config.learning_rate:g} ({optimiser}), {fall}; weight decay {config.weight_decay:g}",
        "precision": config.precision,
        "seed": str(config.seed),
    }


def _limits(config: RunConfig, facts: dict[str, Any]) -> list[str]:
    return [
        f"It knows images like those it was trained on (above), of {_size(config)}. Of images of other kinds nothing "
        "was measured, and little should be expected: train on yours.",
        "The accuracy is that of tasks drawn from the test classes of this data set, with the number of classes, of "
        "labelled and of unlabelled images that the table names. With more classes, or fewer images, expect less.",
        "One training with one seed: variance between training runs is not included in the interval.",
        *([f"It tells at most {facts['most_ways']} classes apart at a time."] if facts["most_ways"] else []),
        f"The weights are licensed under {facts['licence']}. The training images are not part of them, and have terms "
        "of their own.",
    ]


def _accuracies(results: list[dict[str, Any]]) -> Iterator[str]:
    if not results:
        yield "Not measured on test classes: `handful evaluate` does it, and `handful export` takes it over."
        return
    rows = [
        (
            result["title"], result["dataset"], format_accuracy(result["mean"], result["interval"]),
            str(result["iterations"]), _chosen(result), result["protocol"]["description"],
            f"`{result['fingerprint']}`",
        )
        for result in results
    ]  # fmt: skip
    header = ("as", "data set", "accuracy (%)", "refinements", "chosen in validation", "test", "test images")
    yield from _table(header, rows)
    yield ""
    yield (
        "± is the 95 % interval over episodes, for these weights. The test classes of the data set that it was trained "
        "on were seen neither in training nor in validation."
    )


def _chosen(result: dict[str, Any]) -> str:
    """What of a measurement was chosen on validation classes."""
    multiplier, values = result.get("cluster_multiplier"), result.get("values") or {}
    named = [
        *(["refinements"] if result["iterations_chosen_on"] else []),
        *([] if multiplier is None else [f"soft labels' scale x {multiplier:g}"]),
        *(f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in values.items()),
    ]
    return ", ".join(named) or "nothing"


def _table(header: tuple[str, ...], rows: Any) -> Iterator[str]:
    for row in (header, ("---",) * len(header), *rows):
        yield f"| {' | '.join(cell.replace('|', '/') for cell in row)} |"


def _listed(options: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items())


def _most_ways(method: Method, ways: int) -> int | None:
    """How many classes a method can tell apart that has learned something for each; None if any number."""
    try:
        method.check_ways(ways + 1)
    except HandfulError:
        return ways
    return None


def _measured(run: Path, config: RunConfig, state: dict[str, Any], known: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All that was measured with these weights, each once; first what the model was trained for, in the most episodes.

    A run may have been trained further since: what was measured with its former weights is left out.
    """
    found: dict[str, dict[str, Any]] = {}
    ours = (state["episode"], state["best"])
    results: list[Result] = []
    for path in sorted((run / "results").glob("*.json")):
        try:
            results.append(Result.from_json(read_json(path)))
        except Unsound as error:
            raise HandfulError(
                f"{run} has results that are not of 'handful evaluate': {path} has {error}; remove it to evaluate again"
            ) from error
    results += measured(run).values()
    fresh = [asdict(r) for r in results if (r.trained.episodes, r.trained.val_accuracy) == ours]
    for result in [*known, *fresh]:
        kept = {key: result[key] for key in _KEPT} | {key: result[key] for key in _CHOSEN if result.get(key)}
        same = ("method", "dataset", "fingerprint", "protocol", "iterations", *_CHOSEN)
        found[json.dumps([kept.get(key) for key in same])] = kept
    return sorted(
        found.values(),
        key=lambda r: (
            r["method"] != config.method,
            r["dataset"] != config.dataset,
            r["protocol"]["spec"] != config.validation.to_json(),
            -r["n"],
        ),
    )
