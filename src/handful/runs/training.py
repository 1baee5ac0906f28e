"""Meta-training: episodes in, checkpoints and metrics out, on whatever device Lightning Fabric finds.

A run can be stopped at any moment, by Ctrl-C or by pulling the plug, and resumes to the weights it would have had.
What decides them is the settings, the number of episodes done, the model, the optimiser and the random state, and a
checkpoint holds all of these. The rate's schedule and the sampler are functions of the episode number.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor

from ..checkpoint import checksum, load_checkpoint, save_checkpoint
from ..datasets import ImageSet
from ..episode import Episode
from ..errors import HandfulError, Interrupted, JobFailed
from ..io import write_json
from ..methods import Method
from ..sampling import EpisodeSampler, split_labelled
from .auxiliary import Extra, draw_extra
from .config import RunConfig
from .distributed import check_shares, share, start_fabric, synchronise_batch_norm
from .episodes import MOST_ITERATIONS, Accuracy, NotFinite, best_iterations, embed_used, episode_accuracies, summarise
from .folder import check_state, seen_classes
from .learner import Learner, build_learner, load_model, load_start
from .optimiser import (
    Optimizers,
    build_optimizer,
    decay,
    learning_rate,
    optimizer_tensors,
    restore_optimizers,
    set_rate,
)
from .writing import METRICS, check_folder, locked, store_split, trim_metrics

SAVE_SECONDS = 60.0  # a checkpoint at least this often, beside those at validation


@dataclass
class Progress:
    """How far a run is; the JSON state of its checkpoints.

    Attributes:
        episode: episodes done.
        loss_sum, loss_steps: training loss (of the first turn) since the last validation.
        best: highest validation accuracy so far, and at which episode.
    """

    episode: int = 0
    loss_sum: float = 0.0
    loss_steps: int = 0
    best: float = -1.0
    best_episode: int = 0


Step = tuple[Episode, Extra | None]  # what the model sees in a step
Observer = Callable[[Progress, Accuracy | None], None]  # called after each step; with the accuracy after a validation


def train(
    config: RunConfig,
    folder: Path,
    train_images: ImageSet,
    validation_images: ImageSet,
    *,
    resume: bool = False,
    accelerator: str = "auto",
    devices: int = 1,
    num_nodes: int = 1,
    observe: Observer | None = None,
) -> Progress:
    """Train until ``config.episodes`` episodes are done; the best and the last model are in ``folder/checkpoint``.

    With ``devices`` or ``num_nodes`` above 1, each process takes its share of every step (:mod:`.distributed`).
    They are started by torchrun or, on one machine, by running this program again for each; the first one writes.

    Raises:
        HandfulError: if the folder holds another run, or one that was not asked to be resumed.
        Interrupted: after Ctrl-C (or SIGTERM), when everything is saved.
    """
    if shared := set(train_images.class_names) & set(validation_images.class_names):
        raise HandfulError(f"class '{min(shared)}' is both in train and val: see 'handful data check'")
    train_split = split_labelled(train_images.labels, train_images.class_names, config.labelled_ratio, config.seed)
    learner = build_learner(config, len(train_images.class_names))
    sampler = EpisodeSampler(train_split, config.train, (config.seed, 1), in_order=learner.method.in_order)
    validation_split = split_labelled(
        validation_images.labels, validation_images.class_names, config.labelled_ratio, config.seed
    )
    validation_sampler = EpisodeSampler(validation_split, config.validation, (config.seed, 2))
    learner.method.check_ways(config.validation.ways)
    fabric = start_fabric(accelerator, devices, num_nodes, turns=len(learner.method.turns))
    check_shares(config.episodes, config.episodes_per_step, fabric.world_size)
    if fabric.world_size > 1:
        synchronise_batch_norm(learner, fabric.device)
    turns = learner.turn_parameters()
    model, *wrapped = fabric.setup(learner, *(build_optimizer(config, moved) for moved in turns.values()))
    optimizers: Optimizers = dict(zip(turns, wrapped, strict=True))

    def fetch(start: int) -> Step:
        first, count = share(start, _step(config, start), fabric.global_rank, fabric.world_size)
        drawn = sampler.batch(first, count)
        extra = draw_extra(config, train_split, train_images, drawn, start, fabric.global_rank)
        return drawn.map_images(lambda rows: torch.from_numpy(train_images.images[rows.numpy()])), extra

    with _opened(fabric, config, folder, resume), stop_requests() as stop:
        writes = fabric.is_global_zero
        if writes:
            seen = {"train": list(train_images.class_names), "val": list(validation_images.class_names)}
            seen |= _seen_by_start(config, folder)
            write_json(folder / "config.json", config.to_json())
            write_json(folder / "classes.json", seen)
            store_split(folder, train=(train_split, train_images), val=(validation_split, validation_images))
        progress = _restore(config, folder, learner, optimizers)
        if writes:
            trim_metrics(folder, progress.episode)
        saved = time.monotonic()
        for step in _ahead(fetch, range(progress.episode, config.episodes, config.episodes_per_step)):
            before, progress.episode = progress.episode, progress.episode + _step(config, progress.episode)
            with _divergence(before):
                loss, stopping = _take_turns(fabric, config, model, optimizers, step, before, stop.is_set())
                progress.loss_sum += loss
            progress.loss_steps += 1
            accuracy = None
            due = progress.episode // config.validate_every > before // config.validate_every
            if writes and (due or progress.episode == config.episodes):
                with _divergence(before):
                    accuracy, others = validate(
                        learner, validation_images, validation_sampler, config.validation_episodes
                    )
                _record(config, folder, learner, optimizers, progress, accuracy, others)
                saved = time.monotonic()
            elif writes and time.monotonic() - saved > SAVE_SECONDS:
                _save(folder, "last", learner, optimizers, progress)
                saved = time.monotonic()
            if observe and writes:
                observe(progress, accuracy)
            if fabric.world_size == 1:  # several must agree, and hear of it a step later
                stopping = stop.is_set()
            if stopping and progress.episode < config.episodes:
                if writes:
                    _save(folder, "last", learner, optimizers, progress)
                raise Interrupted(
                    f"stopped after {progress.episode} of {config.episodes} episodes, saved in {folder}; "
                    "to go on, run the same command with --resume"
                )
    return progress


def _ahead(fetch: Callable[[int], Step], starts: range) -> Iterator[Step]:
    """What ``fetch`` gives for each start, read in a second thread while the model works on the one before."""
    with ThreadPoolExecutor(1) as thread:
        upcoming = thread.submit(fetch, starts[0]) if starts else None
        for start in starts:
            assert upcoming is not None
            step = upcoming.result()
            if start != starts[-1]:
                upcoming = thread.submit(fetch, start + starts.step)
            yield step


def _step(config: RunConfig, start: int) -> int:
    """How many episodes the step that starts with episode ``start`` has."""
    return min(config.episodes_per_step, config.episodes - start)


def _take_turns(
    fabric: Fabric, config: RunConfig, model: Any, optimizers: Optimizers, step: Step, start: int, stop: bool
) -> tuple[float, bool]:
    """One step of training; the loss of its first turn, and whether any process was asked to stop."""
    if fabric.world_size > 1:  # each process draws its own noise, and the same again if the run is resumed
        torch.manual_seed(int(np.random.SeedSequence((config.seed, start, fabric.global_rank)).generate_state(1)[0]))
    model.train()
    rate, losses = learning_rate(config, start), []
    episode, extra = (None if part is None else part.to(fabric.device) for part in step)
    for turn, optimizer in optimizers.items():
        set_rate(optimizer, rate)
        loss = model(episode, turn, extra)
        optimizer.zero_grad()
        fabric.backward(loss)
        optimizer.step()
        decay(config, optimizer, rate)
        losses.append(loss.detach())
    if (auxiliary := model.module.auxiliary) is not None:
        auxiliary.follow(model.module)
    outcome = torch.stack([*losses, torch.full_like(losses[0], float(stop))])
    if fabric.world_size > 1:
        outcome = cast(Tensor, fabric.all_reduce(outcome, reduce_op="mean"))
    *values, stopping = outcome.tolist()
    if not np.isfinite(values).all():
        raise FloatingPointError(f"the loss is {values}")
    return values[0], stopping > 0


def validate(
    learner: Learner, images: ImageSet, sampler: EpisodeSampler, episodes: int
) -> tuple[Accuracy, dict[str, float]]:
    """Accuracy on validation classes at the number of refinements that is best there; that of each ablation beside."""
    vectors = embed_used(learner.method, learner.backbone, images, sampler, episodes)

    def measure(method: Method) -> Accuracy:
        table = episode_accuracies(method, vectors, sampler, episodes, MOST_ITERATIONS)
        return summarise([table], best_iterations(table.mean(0)))

    return measure(learner.method), {name: measure(other).mean for name, other in learner.method.ablations().items()}


def _record(
    config: RunConfig, folder: Path, learner: Learner, optimizers: Optimizers, progress: Progress, accuracy: Accuracy,
    others: dict[str, float],
) -> None:  # fmt: skip
    """After a validation: a line of metrics, the best model if this is it, the last model."""
    line = {
        "episode": progress.episode,
        "loss": progress.loss_sum / progress.loss_steps,
        "learning_rate": learning_rate(config, progress.episode - 1),
        "val_accuracy": accuracy.mean,
        "val_interval": accuracy.interval,
        "val_iterations": accuracy.iterations,
        "val_by_iteration": accuracy.by_iteration,
        **{f"val_{name}": value for name, value in others.items()},
        **learner.method.metrics(),
    }
    if accuracy.mean > progress.best:
        progress.best, progress.best_episode = accuracy.mean, progress.episode
        kept = {name: value for name, value in _weights(learner).items() if not name.startswith("model.auxiliary.")}
        save_checkpoint(folder / "checkpoint", "best", kept, asdict(progress))
    progress.loss_sum, progress.loss_steps = 0.0, 0
    # Metrics before the checkpoint: if the plug is pulled between the two, resuming drops the line and writes it again.
    with (folder / METRICS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())
    _save(folder, "last", learner, optimizers, progress)


def _weights(learner: Learner) -> dict[str, Tensor]:
    return {f"model.{name}": value for name, value in learner.state_dict().items()}


def _save(folder: Path, name: str, learner: Learner, optimizers: Optimizers, progress: Progress) -> None:
    tensors = _weights(learner) | optimizer_tensors(optimizers) | {"random.cpu": torch.get_rng_state()}
    save_checkpoint(folder / "checkpoint", name, tensors, asdict(progress))


def _seen_by_start(config: RunConfig, folder: Path) -> dict[str, list[str]]:
    """The classes that the start of a run had seen: the accuracy on them would mean nothing either."""
    if config.start_weights is None:
        return {}
    known = seen_classes(folder) if (folder / "classes.json").exists() else {}  # the start itself may have moved since
    if "start" not in known:
        start = Path(config.start or "")
        if (folder / "checkpoint" / "last.json").exists() and not _is_start(config, start):
            raise HandfulError(
                f"nobody knows what classes the start of {folder} has seen: its classes.json does not say, and {start} "
                "is not the run that it started from; put one of them back"
            )
        known["start"] = sorted({name for names in seen_classes(start).values() for name in names})
    return {"start": known["start"]}


def _is_start(config: RunConfig, run: Path) -> bool:
    return (run / "checkpoint" / "best.json").is_file() and checksum(run / "checkpoint", "best") == config.start_weights


def _restore(config: RunConfig, folder: Path, learner: Learner, optimizers: Optimizers) -> Progress:
    """Continue from the last checkpoint, or start if there is none."""
    if not (folder / "checkpoint" / "last.json").exists():
        load_start(learner, config)
        return Progress()
    tensors, state = load_checkpoint(folder / "checkpoint", "last")
    check_state(state, folder)
    load_model(learner, tensors, folder)
    try:
        restore_optimizers(config, optimizers, tensors)
        torch.set_rng_state(tensors["random.cpu"])
        return Progress(**state)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise HandfulError(
            f"training cannot go on from the checkpoint 'last' in {folder}, whose optimiser or random state is "
            "damaged: remove the folder 'checkpoint' to start anew"
        ) from error


@contextmanager
def _opened(fabric: Fabric, config: RunConfig, folder: Path, resume: bool) -> Iterator[None]:
    """The run folder, checked and locked by the process that writes; if it may not be used, all processes say so."""
    refusal: HandfulError | None = None
    with ExitStack() as stack:
        if fabric.is_global_zero:
            try:
                check_folder(config, folder, resume)
                stack.enter_context(locked(folder))
            except HandfulError as error:
                refusal = error
        if fabric.world_size > 1:
            refusal = fabric.broadcast(refusal)
        if refusal is not None:
            raise refusal
        yield


@contextmanager
def _divergence(episode: int) -> Iterator[None]:
    """Numbers that run away end in one sentence, wherever they are noticed first."""
    try:
        yield
    except (torch.linalg.LinAlgError, FloatingPointError, NotFinite) as error:  # type: ignore[attr-defined]
        raise JobFailed(f"training diverged after {episode} episodes: start anew, lower --learning-rate") from error


@contextmanager
def stop_requests(stop: threading.Event | None = None) -> Iterator[threading.Event]:
    """An event that Ctrl-C or SIGTERM sets, so that a step ends whole; a second Ctrl-C stops at once."""
    stop = stop or threading.Event()
    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield stop
        return

    def request(number: int, _: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    former = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
