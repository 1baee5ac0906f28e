"""Training: learns, resumes to the same weights, and never overwrites another run."""

from __future__ import annotations

import json
import os
import shutil
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

from handful import HandfulError
from handful.checkpoint import load_checkpoint, save_checkpoint
from handful.errors import Interrupted, JobFailed
from handful.runs.config import RunConfig, read_config, training_spec
from handful.runs.episodes import Protocol
from handful.runs.evaluation import evaluate_run
from handful.runs.folder import load_run, started_from
from handful.runs.learner import build_learner
from handful.runs.training import learning_rate, train
from handful.sampling import EpisodeSampler, EpisodeSpec, split_labelled


@pytest.fixture(scope="module")
def config(blobs) -> RunConfig:
    return RunConfig(
        method="tac",
        dataset="blobs",
        fingerprint=blobs["train"].fingerprint(),
        labelled_ratio=0.5,
        channels=1,
        image_size=28,
        train=EpisodeSpec(4, 1, 2, 2),
        validation=EpisodeSpec(4, 1, 3, 3),
        episodes=13,
        episodes_per_step=2,
        validate_every=5,
        validation_episodes=6,
        seed=3,
    )


def run(config, folder, blobs, **options):
    return train(config, folder, blobs["train"], blobs["val"], accelerator="cpu", **options)


def everything(folder):
    """All that a run leaves behind, but for wall-clock times: tensors, states, metrics, settings."""
    tensors, state = load_checkpoint(folder / "checkpoint", "last")
    best, best_state = load_checkpoint(folder / "checkpoint", "best")
    texts = [(folder / name).read_text() for name in ("metrics.jsonl", "config.json")]
    return {**tensors, **{f"best.{k}": v for k, v in best.items()}}, [state, best_state, *texts]


def assert_same_run(first, second):
    (tensors, texts), (other_tensors, other_texts) = everything(first), everything(second)
    assert tensors.keys() == other_tensors.keys()
    for name, value in tensors.items():
        assert torch.equal(value, other_tensors[name]), f"{name} differs"
    assert texts == other_texts


@pytest.fixture(scope="module")
def unbroken(config, blobs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "unbroken"
    run(config, folder, blobs)
    return folder


def test_run_folder(unbroken, config, blobs):
    lines = [json.loads(line) for line in (unbroken / "metrics.jsonl").read_text().splitlines()]
    assert [line["episode"] for line in lines] == [6, 10, 13], "after each 5 episodes, in steps of 2, and at the end"
    assert all(0 < line["val_accuracy"] <= 100 and line["loss"] > 0 for line in lines)
    masks = np.load(unbroken / "labelled.npz", allow_pickle=False)
    assert masks["train"].sum() == masks["val"].sum() == 12 * 10
    loaded, learner, state = load_run(unbroken)
    assert loaded == config
    assert state["best"] == max(line["val_accuracy"] for line in lines)
    assert not learner.training


def test_the_same_seed_gives_the_same_run_and_another_does_not(unbroken, config, blobs, tmp_path):
    run(config, tmp_path / "again", blobs)
    assert_same_run(unbroken, tmp_path / "again")
    run(replace(config, seed=4), tmp_path / "other", blobs)
    first, second = (load_checkpoint(folder / "checkpoint", "last")[0] for folder in (unbroken, tmp_path / "other"))
    assert not torch.equal(first["model.method.references"], second["model.method.references"])


def test_metrics_say_what_learning_the_references_has_gained(unbroken):
    lines = [json.loads(line) for line in (unbroken / "metrics.jsonl").read_text().splitlines()]
    assert all(0 < line["val_random_references"] <= 100 for line in lines)


class Killed(Exception):
    pass


@pytest.mark.parametrize("moment", [2, 6, 8, 12])
def test_a_run_killed_without_warning_resumes_to_the_same_weights(unbroken, config, blobs, tmp_path, moment):
    def kill(progress, _):
        if progress.episode == moment:
            raise Killed

    with pytest.raises(Killed):
        run(config, tmp_path / "run", blobs, observe=kill)
    torch.manual_seed(999)  # whatever happened in between
    run(config, tmp_path / "run", blobs, resume=True)
    assert_same_run(unbroken, tmp_path / "run")


@pytest.mark.parametrize("moment", [8, 12])
def test_a_method_with_two_turns_and_noise_resumes_to_the_same_weights(config, blobs, tmp_path, moment):
    settings = replace(config, method="metagan")

    def kill(progress, _):
        if progress.episode == moment:
            raise Killed

    run(settings, tmp_path / "unbroken", blobs)
    with pytest.raises(Killed):
        run(settings, tmp_path / "run", blobs, observe=kill)
    torch.manual_seed(999)
    run(settings, tmp_path / "run", blobs, resume=True)
    assert_same_run(tmp_path / "unbroken", tmp_path / "run")
    tensors, _ = load_checkpoint(tmp_path / "run" / "checkpoint", "last")
    assert {"optimizer.0.exp_avg", "optimizer.generator.0.exp_avg"} < tensors.keys()
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert 0 <= line["real_recognised"] <= 100
    assert 0 <= line["generated_recognised"] <= 100


def test_each_turn_has_an_optimiser_for_its_own_parameters(config):
    learner = build_learner(replace(config, method="metagan"))
    turns = learner.turn_parameters()
    assert list(turns) == ["learner", "generator"]
    ids = [id(parameter) for parameters in turns.values() for parameter in parameters]
    assert len(ids) == len(set(ids)) == len(list(learner.parameters()))
    assert set(turns["generator"]) == set(learner.method.generator.parameters())


def test_metrics_of_lost_episodes_and_torn_lines_are_dropped(unbroken, config, blobs, tmp_path):
    def kill(progress, _):
        if progress.episode == 10:
            raise Killed

    with pytest.raises(Killed):
        run(config, tmp_path / "run", blobs, observe=kill)
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"episode": 11, "loss": 1}\n{"episode": 13, "lo')
    run(config, tmp_path / "run", blobs, resume=True)
    assert_same_run(unbroken, tmp_path / "run")


@pytest.fixture(scope="module")
def killed(config, blobs, tmp_path_factory):
    """A run that was killed after episode 12, with two lines of metrics."""
    folder = tmp_path_factory.mktemp("runs") / "killed"

    def kill(progress, _):
        if progress.episode == 12:
            raise Killed

    with pytest.raises(Killed):
        run(config, folder, blobs, observe=kill)
    return folder


@pytest.fixture
def stopped(killed, tmp_path):
    """The killed run, to be damaged and resumed."""
    shutil.copytree(killed, tmp_path / "run")
    return tmp_path / "run"


DAMAGED = [
    b"not json", b"\xff\xfe\x00", b"\x00" * 40, b"[" * 100_000, b"7", b'{"loss": 1}', b'{"episode": "6"}',
    b'{"episode": ' + b"9" * 5000 + b"}",
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGED)
def test_good_metrics_behind_a_damaged_line_stay(unbroken, stopped, config, blobs, damage, caplog):
    path = stopped / "metrics.jsonl"
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + damage + b"\n" + second)
    before = path.read_bytes()
    run(config, stopped, blobs, resume=True)
    assert_same_run(unbroken, stopped)
    assert (stopped / "metrics.jsonl.damaged").read_bytes() == before, "nothing is lost"
    assert "line 2 of" in caplog.text
    assert "metrics.jsonl.damaged" in caplog.text


@pytest.mark.parametrize("damage", [b'{"episode": 13, "lo', b"\xff\n", b"\x00" * 40])
def test_a_line_that_was_cut_off_is_dropped_without_a_word_and_kept_in_a_copy(
    unbroken, stopped, config, blobs, damage, caplog
):
    path = stopped / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + damage)
    before = path.read_bytes()
    (stopped / "metrics.jsonl.damaged").write_text("an earlier one")
    run(config, stopped, blobs, resume=True)
    assert_same_run(unbroken, stopped)
    assert (stopped / "metrics.jsonl.damaged").read_text() == "an earlier one"
    assert (stopped / "metrics.jsonl.damaged-1").read_bytes() == before
    assert "metrics" not in caplog.text


def test_whole_metrics_are_not_copied(unbroken, stopped, config, blobs):
    path = stopped / "metrics.jsonl"
    path.write_bytes(path.read_bytes().rstrip(b"\n"))  # a line may lack but its end
    run(config, stopped, blobs, resume=True)
    assert_same_run(unbroken, stopped)
    assert not list(stopped.glob("*.damaged*"))


def test_a_stop_request_saves_and_resumes(unbroken, config, blobs, tmp_path):
    def interrupt(progress, _):
        if progress.episode == 4:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        run(config, tmp_path / "run", blobs, observe=interrupt)
    _, state = load_checkpoint(tmp_path / "run" / "checkpoint", "last")
    assert state["episode"] == 4
    run(config, tmp_path / "run", blobs, resume=True)
    assert_same_run(unbroken, tmp_path / "run")


def test_resuming_a_finished_run_changes_nothing(unbroken, config, blobs):
    before = everything(unbroken)
    assert run(config, unbroken, blobs, resume=True).episode == 13
    after = everything(unbroken)
    assert before[1] == after[1]


@pytest.mark.parametrize(
    ("change", "resume", "sentence"),
    [
        ({}, False, "already holds this run: add --resume"),
        ({"method": "pn"}, False, r"holds another run, which differs in method \(tac here, pn there\)"),
        ({"method": "pn"}, True, "holds another run"),
        ({"seed": 9}, True, r"differs in seed \(3 here, 9 there\)"),
        ({"fingerprint": "x"}, True, "differs in fingerprint"),
    ],
)
def test_another_run_is_never_overwritten(unbroken, config, blobs, change, resume, sentence):
    before = everything(unbroken)[1]
    with pytest.raises(HandfulError, match=sentence):
        run(replace(config, **change), unbroken, blobs, resume=resume)
    assert everything(unbroken)[1] == before


def test_a_folder_with_other_things_in_it_is_left_alone(config, blobs, tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(HandfulError, match="not a run folder"):
        run(config, tmp_path, blobs)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_damaged_checkpoint_is_one_sentence_and_stays(config, blobs, tmp_path):
    run(replace(config, episodes=2), tmp_path / "run", blobs)
    broken = next((tmp_path / "run" / "checkpoint").glob("last-*.safetensors"))
    broken.write_bytes(broken.read_bytes()[:-10])
    with pytest.raises(HandfulError, match="is damaged"):
        run(replace(config, episodes=2), tmp_path / "run", blobs, resume=True)
    assert broken.exists()


def test_links_in_a_run_folder_are_not_followed(config, blobs, tmp_path):
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    run(replace(config, episodes=2), folder, blobs)
    (folder / "checkpoint").rename(elsewhere)
    (folder / "checkpoint").symlink_to(elsewhere, target_is_directory=True)
    (folder / "results").symlink_to(elsewhere, target_is_directory=True)
    before = {path.name: path.read_bytes() for path in elsewhere.iterdir()}
    with pytest.raises(HandfulError, match="checkpoint is a link, and files would be written to where it leads"):
        run(replace(config, episodes=2), folder, blobs, resume=True)
    with pytest.raises(HandfulError, match="results is a link"):
        evaluate_run(folder, Protocol(config.validation, 0.4, 1, 2))
    assert {path.name: path.read_bytes() for path in elsewhere.iterdir()} == before


def test_schedule(config):
    schedule = replace(config, episodes=100, learning_rate=1e-3, decay_at=0.8, decay=0.1)
    assert learning_rate(schedule, 79) == 1e-3
    assert learning_rate(schedule, 80) == pytest.approx(1e-4)


@pytest.mark.parametrize("method", ["pn", "tac"])
def test_numbers_that_run_away_end_in_a_sentence(config, blobs, tmp_path, method):
    with pytest.raises(JobFailed, match="training diverged after"):
        run(replace(config, method=method, learning_rate=1e30, episodes=40), tmp_path / "run", blobs)


def test_two_processes_do_not_train_in_one_folder(config, blobs, tmp_path):
    def second(progress, _):
        if progress.episode == 2:
            run(config, tmp_path / "run", blobs, resume=True)

    with pytest.raises(HandfulError, match="another process is training"):
        run(config, tmp_path / "run", blobs, observe=second)


def test_half_written_files_of_a_killed_run_are_no_obstacle(unbroken, config, blobs, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".config.json.x7_0abcd.part").write_text("{")
    run(config, tmp_path / "run", blobs)
    assert_same_run(unbroken, tmp_path / "run")
    assert not list((tmp_path / "run").rglob("*.part"))


def test_files_of_others_in_a_run_folder_stay(config, blobs, tmp_path):
    """Only what our own writing leaves behind when it is killed is removed: its names are known."""
    folder = tmp_path / "run"
    run(replace(config, episodes=2), folder, blobs)
    ours = [
        ".metrics.jsonl.0a_9zzzz.part",
        "checkpoint/.last.json.abcdefgh.part",
        "checkpoint/.best-0123456789ab.safetensors.abcdefgh.part",
        "results/.tac-blobs-0123abcd.json.abcdefgh.part",
    ]
    theirs = [
        ".foo.part",
        ".config.json.part",
        ".config.json.mine.part",
        "notes/.config.json.abcdefgh.part",
        "checkpoint/.weights.part",
        "config.json.abcdefgh.part",
    ]
    for name in (*ours, *theirs):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("mine")
    (folder / ".cell.json.abcdefgh.part").mkdir()
    run(replace(config, episodes=2), folder, blobs, resume=True)
    assert [name for name in ours if (folder / name).exists()] == []
    assert [name for name in theirs if (folder / name).read_text() != "mine"] == []
    assert (folder / ".cell.json.abcdefgh.part").is_dir()


@pytest.mark.parametrize("name", [".foo.part", ".lock"])
def test_a_folder_with_hidden_files_of_others_is_not_a_run_folder(config, blobs, tmp_path, name):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_text("mine")
    with pytest.raises(HandfulError, match="exists and is not a run folder"):
        run(config, tmp_path / "run", blobs)
    assert [path.read_text() for path in (tmp_path / "run").iterdir()] == ["mine"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no symbolic links by default")
def test_a_lock_that_is_a_link_is_not_followed(config, blobs, tmp_path):
    run(replace(config, episodes=2), tmp_path / "run", blobs)
    (tmp_path / "thesis.txt").write_text("mine")
    (tmp_path / "run" / ".lock").unlink(missing_ok=True)
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "thesis.txt")
    with pytest.raises(HandfulError, match="is a link"):
        run(replace(config, episodes=2), tmp_path / "run", blobs, resume=True)
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def rewrite_last(folder, **changes):
    """A checkpoint whose checksum is right, and whose numbers are not."""
    tensors, state = load_checkpoint(folder / "checkpoint", "last")
    changed = {name.replace("__", "."): change for name, change in changes.items()}
    for name, change in changed.items():
        tensors[name] = change(tensors[name])
    save_checkpoint(folder / "checkpoint", "last", {k: v for k, v in tensors.items() if v is not None}, state)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"model__method__references": lambda value: value * float("nan")},
            "references has numbers that are not finite",
        ),
        ({"model__method__references": torch.zeros_like}, "references is all zeros"),
        ({"optimizer__0__exp_avg": lambda value: value * float("inf")}, "optimiser or random state is damaged"),
        ({"optimizer__0__exp_avg": lambda value: value[:1]}, "optimiser or random state is damaged"),
        ({"optimizer__0__exp_avg_sq": lambda value: value - 1}, "optimiser or random state is damaged"),
        ({"optimizer__0__step": lambda value: None}, "optimiser or random state is damaged"),
        ({"random__cpu": lambda value: None}, "optimiser or random state is damaged"),
        ({"random__cpu": lambda value: value[:7]}, "optimiser or random state is damaged"),
    ],
)
def test_training_does_not_go_on_from_numbers_that_are_none(stopped, config, blobs, changes, sentence):
    rewrite_last(stopped, **changes)
    with pytest.raises(HandfulError, match=sentence):
        run(config, stopped, blobs, resume=True)


@pytest.mark.parametrize("change", [{"episode": "10"}, {"best": 934.0}, {"loss_steps": None}, {"episode": -1}])
def test_a_state_that_is_none_is_one_sentence(stopped, config, blobs, change):
    tensors, state = load_checkpoint(stopped / "checkpoint", "last")
    save_checkpoint(stopped / "checkpoint", "last", tensors, {**state, **change})
    with pytest.raises(HandfulError, match="is damaged: its"):
        run(config, stopped, blobs, resume=True)


def test_too_few_references_for_validation_are_noticed_before_training(config, blobs, tmp_path):
    with pytest.raises(HandfulError, match="train it with --ways 6"):
        run(replace(config, validation=EpisodeSpec(6, 1, 3, 3)), tmp_path / "run", blobs)
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def short(config) -> RunConfig:
    """The run in bfloat16."""
    return replace(config, precision="bfloat16")


@pytest.mark.parametrize("moment", [4, 8])
def test_a_run_in_bfloat16_resumes_to_the_same_weights(unbroken, short, blobs, tmp_path, moment):
    def interrupt(progress, _):
        if progress.episode == moment:
            os.kill(os.getpid(), signal.SIGINT)

    run(short, tmp_path / "unbroken", blobs)
    with pytest.raises(Interrupted):
        run(short, tmp_path / "run", blobs, observe=interrupt)
    torch.manual_seed(999)
    run(short, tmp_path / "run", blobs, resume=True)
    assert_same_run(tmp_path / "unbroken", tmp_path / "run")
    tensors, _ = load_checkpoint(tmp_path / "run" / "checkpoint", "last")
    exact, _ = load_checkpoint(unbroken / "checkpoint", "last")
    assert not torch.equal(tensors["model.method.references"], exact["model.method.references"]), (
        "it makes a difference"
    )
    assert {name: value.dtype for name, value in tensors.items()} == {name: v.dtype for name, v in exact.items()}


def test_bfloat16_is_for_convolutions_only(config, short, blobs):
    """Embeddings, loss, gradients and weights are float32, and agree to the three digits that bfloat16 has."""
    split = split_labelled(blobs["train"].labels, blobs["train"].class_names, 0.5, 0)
    episode = EpisodeSampler(split, config.train, 0).batch(0, 2)
    images = episode.map_images(lambda rows: torch.from_numpy(blobs["train"].images[rows.numpy()]))
    seen, losses = [], []
    for settings in (config, short):
        learner = build_learner(settings).train()
        inside = []
        convolution = next(layer for layer in learner.backbone.modules() if isinstance(layer, torch.nn.Conv2d))
        convolution.register_forward_hook(lambda *found, kept=inside: kept.append(found[-1].dtype))
        learner.method.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        loss = learner(images)
        loss.backward()
        losses.append(loss.detach())
        assert set(inside) == {torch.bfloat16 if settings is short else torch.float32}
        assert all(parameter.dtype == parameter.grad.dtype == torch.float32 for parameter in learner.parameters())
    for name in ("support", "query", "unlabelled"):
        exact, rough = (getattr(embedded, name) for embedded in seen)
        assert exact.dtype == rough.dtype == torch.float32
        assert not torch.equal(exact, rough)
        assert (exact - rough).norm() < 0.02 * exact.norm()
    assert losses[0].dtype == losses[1].dtype == torch.float32
    assert losses[1].item() == pytest.approx(losses[0].item(), rel=0.05)


def test_an_unknown_precision_is_refused(config):
    with pytest.raises(HandfulError, match="unknown precision 'float8': choose one of float32, bfloat16"):
        replace(config, precision="float8")


def test_precision_belongs_to_the_run(unbroken, short, blobs):
    with pytest.raises(HandfulError, match=r"differs in precision \(float32 here, bfloat16 there\)"):
        run(short, unbroken, blobs, resume=True)


@pytest.fixture(scope="module")
def classifier(config, blobs, tmp_path_factory):
    """A run of a classifier, with images that are moved."""
    folder = tmp_path_factory.mktemp("runs") / "classifier"
    spec = training_spec("classifier", {}, config.train, len(blobs["train"].class_names))
    run(replace(config, method="classifier", train=spec, augment=True), folder, blobs)
    return folder


def test_a_classifier_sees_two_images_of_every_class(classifier, config, blobs):
    spec = read_config(classifier).train
    assert (spec.ways, spec.shots, spec.queries, spec.unlabelled) == (12, 1, 1, 0)
    with pytest.raises(HandfulError, match="learns all 12 training classes at once"):
        run(replace(config, method="classifier"), classifier.with_name("other"), blobs)


def test_moved_images_resume_to_the_same_weights(classifier, blobs, tmp_path):
    def interrupt(progress, _):
        if progress.episode == 6:
            os.kill(os.getpid(), signal.SIGINT)

    config = read_config(classifier)
    with pytest.raises(Interrupted):
        run(config, tmp_path / "run", blobs, observe=interrupt)
    torch.manual_seed(999)
    run(config, tmp_path / "run", blobs, resume=True)
    assert_same_run(classifier, tmp_path / "run")


def test_a_run_starts_from_the_embedder_of_another(classifier, config, blobs, tmp_path):
    started = started_from(config, classifier)
    first = load_run(classifier)[1].backbone.state_dict()
    still = replace(started, learning_rate=1e-12, weight_decay=0.0, episodes=2)
    run(still, tmp_path / "still", blobs)
    trained = load_run(tmp_path / "still")[1].backbone.state_dict()
    learned = dict(load_run(classifier)[1].backbone.named_parameters())
    assert all(torch.allclose(trained[name], first[name], atol=1e-9) for name in learned), "nothing has moved yet"
    assert json.loads((tmp_path / "still" / "classes.json").read_text())["start"] == sorted(
        [*blobs["train"].class_names, *blobs["val"].class_names]
    ), "what the start has seen cannot be a test"

    run(started, tmp_path / "unbroken", blobs)
    with pytest.raises(Interrupted):
        run(started, tmp_path / "run", blobs, observe=lambda *_: os.kill(os.getpid(), signal.SIGINT))
    moved = replace(started, start=str(tmp_path / "nowhere"))  # a checkpoint needs no start any more
    run(moved, tmp_path / "run", blobs, resume=True)
    for name, value in everything(tmp_path / "unbroken")[0].items():
        assert torch.equal(value, everything(tmp_path / "run")[0][name])


def test_a_start_of_another_kind_or_with_other_weights_is_refused(classifier, config, blobs, tmp_path):
    with pytest.raises(HandfulError, match="it has image size 28, this run 32"):
        started_from(replace(config, image_size=32), classifier)
    other = replace(started_from(config, classifier), start_weights="another")
    with pytest.raises(HandfulError, match="not those that this run is to start from"):
        run(other, tmp_path / "run", blobs)
    with pytest.raises(HandfulError, match="differs in start_weights"):
        run(config, tmp_path / "run", blobs, resume=True)


def test_what_a_start_has_seen_is_never_forgotten(classifier, config, blobs, tmp_path):
    start = tmp_path / "start"
    shutil.copytree(classifier, start)
    started = replace(started_from(config, start), episodes=2)
    run(started, tmp_path / "run", blobs)
    before = (tmp_path / "run" / "classes.json").read_text()
    (tmp_path / "run" / "classes.json").unlink()
    run(started, tmp_path / "run", blobs, resume=True)
    assert (tmp_path / "run" / "classes.json").read_text() == before, "resuming writes it again"
    (tmp_path / "run" / "classes.json").unlink()
    shutil.move(start, tmp_path / "moved")
    with pytest.raises(HandfulError, match="nobody knows what classes the start"):
        run(started, tmp_path / "run", blobs, resume=True)
    assert not (tmp_path / "run" / "classes.json").exists()

    (tmp_path / "moved" / "classes.json").unlink()
    with pytest.raises(HandfulError, match=r"has no classes.json, which says what classes it has seen"):
        started_from(config, tmp_path / "moved")


def test_a_start_with_weights_that_are_none_is_refused(classifier, config, blobs, tmp_path):
    start = tmp_path / "start"
    shutil.copytree(classifier, start)
    tensors, state = load_checkpoint(start / "checkpoint", "best")
    tensors["model.backbone.blocks.2.0.weight"].zero_()
    save_checkpoint(start / "checkpoint", "best", tensors, state)
    with pytest.raises(HandfulError, match=r"blocks.2.0.weight is all zeros"):
        run(started_from(config, start), tmp_path / "run", blobs)
    save_checkpoint(start / "checkpoint", "best", {"model.backbone.x": tensors["model.method.centre"]}, state)
    with pytest.raises(HandfulError, match="do not fit its settings"):
        run(started_from(config, start), tmp_path / "other", blobs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("pn", {}),
        ("tpn", {"neighbours": 5}),  # the usual 20 are all nodes of these episodes: no neighbour is nearer than others
        ("relation", {}),
        ("metagan", {}),
        ("imp", {}),
        ("tapnet", {}),
        ("tac", {}),
        ("tacdap", {}),
    ],
)
def test_training_learns(config, blobs, tmp_path, method, options):
    """On patterns under noise: far above the 25 % of guessing after 100 episodes."""
    settings = replace(config, method=method, options=options, episodes=100, episodes_per_step=1, validate_every=50)
    assert run(settings, tmp_path / "run", blobs).best > 60
