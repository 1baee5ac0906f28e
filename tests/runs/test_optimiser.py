"""Optimisers, schedules, decay and the losses beside the method's: each does what its option says, and resumes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from handful import HandfulError
from handful.checkpoint import load_checkpoint
from handful.embedders.backbones import build_backbone
from handful.runs.augmentation import colour_jitter
from handful.runs.auxiliary import draw_extra
from handful.runs.config import RunConfig, training_spec
from handful.runs.folder import load_run, started_from
from handful.runs.learner import build_learner, load_start
from handful.runs.optimiser import build_optimizer, decay, learning_rate
from handful.runs.training import train
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
        episodes=8,
        validate_every=4,
        validation_episodes=4,
        seed=3,
    )


def classifier(config, **options):
    spec = training_spec("classifier", {}, config.train, 12)
    return replace(config, method="classifier", options={"head": "cosine"}, train=spec, **options)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("step", [1.0, 1.0, 0.1]),
        ("constant", [1.0, 1.0, 1.0]),
        ("cosine", [1.0, 0.5, 0.5 * (1 + np.cos(0.9 * np.pi))]),
        ("halve:250", [1.0, 0.25, 0.125]),
    ],
)
def test_the_rate_falls_as_the_schedule_says(config, schedule, expected):
    config = replace(config, episodes=1000, learning_rate=0.2, schedule=schedule)
    assert [learning_rate(config, episode) for episode in (0, 500, 900)] == pytest.approx([0.2 * f for f in expected])


@pytest.mark.parametrize(
    ("option", "word"),
    [
        ("schedule", "halve:0"), ("schedule", "halve:x"), ("schedule", "linear"), ("schedule", "halve:"),
        ("optimiser", "lion"), ("decay_form", "L1"), ("decay_on", "none"),
    ],
)  # fmt: skip
def test_an_unknown_word_is_refused_with_the_known_ones(config, option, word):
    with pytest.raises(HandfulError, match=f"unknown {option.replace('_', ' ')} '{word}': choose one of"):
        replace(config, **{option: word})


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
@pytest.mark.parametrize(("form", "shrunk"), [("decoupled", 1 - 0.1 * 0.2), ("constant", 1 - 0.2), ("l2", 1.0)])
def test_decay_beside_the_gradient_shrinks_the_weights_and_nothing_else(config, optimiser, form, shrunk):
    config = replace(config, optimiser=optimiser, decay_form=form, weight_decay=0.2, learning_rate=0.1)
    weight = nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = build_optimizer(config, [weight])
    if form != "l2":  # without a gradient, the optimiser itself leaves the weights alone
        weight.grad = torch.zeros(2)
        optimizer.step()
        torch.testing.assert_close(weight.detach(), torch.tensor([1.0, -2.0]))
    decay(config, optimizer, 0.1)
    torch.testing.assert_close(weight.detach(), shrunk * torch.tensor([1.0, -2.0]))


def test_only_convolutions_decay_when_asked(config):
    config = replace(config, decay_on="convolutions", optimiser="sgd", weight_decay=0.5, learning_rate=0.1)
    model = build_backbone("conv4", 1, 28)
    before = {name: value.clone() for name, value in model.named_parameters()}
    optimizer = build_optimizer(config, list(model.parameters()))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, value in model.named_parameters():
        assert torch.equal(value, before[name]) == (value.dim() != 4), name


EVERYTHING = {"augment": True, "jitter": 0.4, "optimiser": "sgd", "schedule": "cosine", "learning_rate": 0.05,
              "rotation_loss": 0.5, "pseudo_label_loss": 1.0, "extra_unlabelled": 6}  # fmt: skip


@pytest.mark.parametrize("method", ["classifier", "tac"])
def test_a_run_with_every_option_resumes_to_the_same_weights(config, blobs, tmp_path, method):
    if method == "classifier":
        config = classifier(config, **EVERYTHING)
    else:
        config = replace(config, classifier_loss=0.5, decay_form="constant", decay_on="convolutions", **EVERYTHING)

    class Killed(Exception):
        pass

    def kill(progress, _):
        if progress.episode == 6:
            raise Killed

    def run(folder, **options):
        return train(config, folder, blobs["train"], blobs["val"], accelerator="cpu", **options)

    run(tmp_path / "unbroken")
    with pytest.raises(Killed):
        run(tmp_path / "run", observe=kill)
    torch.manual_seed(999)
    run(tmp_path / "run", resume=True)
    for name in ("last", "best"):
        ours, theirs = (load_checkpoint(tmp_path / run / "checkpoint", name)[0] for run in ("run", "unbroken"))
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert any(
        key.startswith("model.auxiliary.teacher") for key in load_checkpoint(tmp_path / "run/checkpoint", "last")[0]
    )
    assert not any("auxiliary" in key for key in ours), "what was learned for training only is not in the model"
    load_run(tmp_path / "run")


def test_the_classifier_beside_the_episodes_names_the_training_classes(config, blobs):
    config = replace(config, classifier_loss=0.5)
    learner = build_learner(config, 12).eval()  # batch norm by averages: the loss is that of each image by itself
    images, split = blobs["train"], split_labelled(blobs["train"].labels, blobs["train"].class_names, 0.5, 0)
    drawn = EpisodeSampler(split, config.train, 0).batch(0, 3)
    extra = draw_extra(config, split, images, drawn, 0)
    pictures = drawn.map_images(lambda rows: torch.from_numpy(images.images[rows.numpy()]))
    with torch.no_grad():
        found = learner(pictures, extra=extra) - learner(pictures)
        rows = torch.cat([drawn.support.flatten(), drawn.query.flatten()]).numpy()
        logits = learner.auxiliary.head(learner.embed(torch.from_numpy(images.images[rows])))
        expected = nn.functional.cross_entropy(logits, torch.from_numpy(images.labels[rows]))
    torch.testing.assert_close(found, 0.5 * expected)


def test_only_images_whose_labels_may_not_be_used_are_drawn_as_unlabelled(config, blobs):
    images, split = blobs["train"], split_labelled(blobs["train"].labels, blobs["train"].class_names, 0.5, 0)
    config = replace(config, rotation_loss=1.0, extra_unlabelled=500)
    drawn = EpisodeSampler(split, config.train, 0).batch(0, 1)
    extra = draw_extra(config, split, images, drawn, 0)
    unlabelled = {image.tobytes() for image in images.images[np.concatenate(split.unlabelled)]}
    assert {image.numpy().tobytes() for image in extra.images} <= unlabelled
    again, later = (draw_extra(config, split, images, drawn, start) for start in (0, 1))
    assert torch.equal(extra.images, again.images)
    assert not torch.equal(extra.images, later.images)


def test_the_teacher_is_a_moving_average_of_the_model(config):
    learner = build_learner(classifier(config, pseudo_label_loss=1.0), 12)
    learner.auxiliary.begin(learner)
    start = learner.method.head.weight.detach().clone()
    with torch.no_grad():
        learner.method.head.weight += 1
    learner.auxiliary.follow(learner)
    torch.testing.assert_close(learner.auxiliary.teacher_head.weight, start + (1 - 0.999))


def test_a_start_hands_its_classifier_of_the_training_classes_on(config, blobs, tmp_path):
    train(classifier(config), tmp_path / "start", blobs["train"], blobs["val"], accelerator="cpu")
    config = started_from(replace(config, classifier_loss=0.5), tmp_path / "start")
    learner = build_learner(config, 12)
    load_start(learner, config)
    known = load_checkpoint(tmp_path / "start" / "checkpoint", "best")[0]
    assert torch.equal(learner.auxiliary.head.weight, known["model.method.head.weight"])


def test_a_teacher_may_stay_the_classifier_of_the_start(config, blobs, tmp_path):
    train(classifier(config), tmp_path / "start", blobs["train"], blobs["val"], accelerator="cpu")
    known = load_checkpoint(tmp_path / "start" / "checkpoint", "best")[0]
    distilled = classifier(config, pseudo_label_loss=1.0, teacher_momentum=1.0, extra_unlabelled=6)
    with pytest.raises(HandfulError, match="a teacher that never learns has to know"):
        train(distilled, tmp_path / "none", blobs["train"], blobs["val"], accelerator="cpu")
    distilled = started_from(distilled, tmp_path / "start")
    train(distilled, tmp_path / "run", blobs["train"], blobs["val"], accelerator="cpu")
    last = load_checkpoint(tmp_path / "run" / "checkpoint", "last")[0]
    for name, value in last.items():
        if name.startswith("model.auxiliary.teacher_head."):
            assert torch.equal(value, known[name.replace("auxiliary.teacher_head", "method.head")])
        elif name.startswith("model.auxiliary.teacher."):
            assert torch.equal(value, known[name.replace("auxiliary.teacher", "backbone")])
    assert not torch.equal(last["model.method.head.weight"], known["model.method.head.weight"]), "the model learns"


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [("classifier", {"classifier_loss": 1.0}, "classifier already"), ("tac", {"pseudo_label_loss": 1.0}, "add --cla")],
)
def test_losses_that_make_no_sense_together_are_refused(config, blobs, tmp_path, method, options, words):
    config = classifier(config, **options) if method == "classifier" else replace(config, **options)
    with pytest.raises(HandfulError, match=words):
        train(config, tmp_path / "run", blobs["train"], blobs["val"], accelerator="cpu")


def test_jitter_of_strength_0_changes_nothing_and_a_grey_image_stays_grey():
    torch.manual_seed(0)
    images = torch.randint(0, 256, (20, 5, 7, 3), dtype=torch.uint8)
    torch.testing.assert_close(colour_jitter(images, 0.0), images.float(), atol=1e-3, rtol=0)
    grey = images[..., :1].expand_as(images)
    found = colour_jitter(grey, 0.4)
    torch.testing.assert_close(found, found[..., :1].expand_as(found), atol=1e-2, rtol=0)
    found = colour_jitter(images, 0.4)
    assert 0 <= found.min() < found.max() <= 255
    assert (found - images).abs().mean() > 5
    assert colour_jitter(images[..., :1], 0.4).shape == (20, 5, 7, 1)


def test_in_evaluation_a_mirror_makes_an_image_and_its_mirror_image_one():
    torch.manual_seed(0)
    images = torch.rand(6, 3, 32, 32) * 2 - 1
    plain, mirror = (build_backbone("conv4", 3, 32, mirror=value) for value in (False, True))
    mirror.load_state_dict(plain.state_dict())
    torch.testing.assert_close(mirror(images), plain(images))  # in training, which moves their statistics alike
    plain, mirror = plain.eval(), mirror.eval()
    assert str(plain) != str(mirror), "stored vectors go by how a network is written"
    with torch.no_grad():
        one, other, both = plain(images), plain(images.flip(-1)), mirror(images)
        torch.testing.assert_close(mirror(images.flip(-1)), both)
    directions = torch.nn.functional.normalize(one, dim=-1) + torch.nn.functional.normalize(other, dim=-1)
    torch.testing.assert_close(both, directions / 2 * (one.norm(dim=-1) + other.norm(dim=-1))[:, None] / 2)
    assert (both - one).norm() > 0.01 * one.norm()


def test_a_linear_output_may_be_negative_and_is_the_other_before_its_relu():
    torch.manual_seed(0)
    usual, linear = (build_backbone("conv4", 3, 32, linear_output=value).eval() for value in (False, True))
    linear.load_state_dict(usual.state_dict())
    images = torch.randn(4, 3, 32, 32)
    assert (linear(images) < 0).any()
    torch.testing.assert_close(usual(images), linear(images).relu())
