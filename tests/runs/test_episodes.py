"""Evaluation: the right mean, the right interval, the same whatever the batch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from handful import build_method
from handful.embedders.backbones import build_backbone, to_input
from handful.runs.episodes import Protocol, _right, choose_iterations, embed, episode_accuracies, evaluate, summarise
from handful.sampling import EpisodeSampler, EpisodeSpec, split_labelled

SPEC = EpisodeSpec(4, 1, 3, 3)


@pytest.fixture(scope="module")
def setting(blobs):
    torch.manual_seed(0)
    backbone = build_backbone("conv4", 1, 28).eval()
    vectors = embed(backbone, blobs["test"].images, batch=50)
    split = split_labelled(blobs["test"].labels, blobs["test"].class_names, 0.5, 0)
    return backbone, vectors, EpisodeSampler(split, SPEC, 0)


def test_embedding_once_equals_embedding_each_episode(setting, blobs):
    backbone, vectors, sampler = setting
    method = build_method("tac", 64, 6).eval()
    table = episode_accuracies(method, vectors, sampler, 5, 2)
    with torch.inference_mode():
        for index in range(5):
            pixels = sampler.batch(index, 1).map_images(lambda i: torch.from_numpy(blobs["test"].images[i.numpy()]))
            logits = method.trajectory(pixels.map_images(lambda x: backbone(to_input(x))), 2)
            right = (logits.argmax(-1) == pixels.query_labels).double().mean(-1)[:, 0]
            np.testing.assert_allclose(table[index], 100 * right.numpy())


def test_batch_size_changes_nothing(setting):
    _, vectors, sampler = setting
    method = build_method("tacdap", 64, 6)
    tables = [episode_accuracies(method, vectors, sampler, 30, 2, batch=batch) for batch in (1, 7, 64)]
    np.testing.assert_array_equal(tables[0], tables[1])
    np.testing.assert_array_equal(tables[0], tables[2])


@pytest.mark.parametrize("layout", ["queries first", "classes first"])
def test_an_answer_is_right_where_the_first_of_the_largest_logits_is(layout):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randint(0, 4, (3, 6, 40, 5), generator=generator).double()  # many are equal
    labels = torch.randint(0, 5, (6, 40), generator=generator)
    if layout == "classes first":
        logits = logits.mT.contiguous().mT
    assert torch.equal(_right(logits, labels), logits.argmax(-1) == labels)
    assert not _right(torch.full_like(logits, torch.nan), labels).any()


@pytest.mark.parametrize("name", ["pn", "tapnet", "classifier", "relation", "tac"])
def test_only_a_method_that_refines_gets_unlabelled_images(name, setting, monkeypatch):
    _, vectors, sampler = setting
    method, seen = build_method(name, 64, 6).eval(), []
    with torch.inference_mode():
        episode = sampler.batch(0, 9).map_images(lambda index: vectors[index])
        right = method.trajectory(episode, 2).argmax(-1) == episode.query_labels
    called = "compare" if method.prepares else "trajectory"
    answer = getattr(method, called)
    monkeypatch.setattr(method, called, lambda e, i: (seen.append(e.unlabelled.shape[-2]), answer(e, i))[1])
    table = episode_accuracies(method, vectors, sampler, 9, 2)
    assert set(seen) == {12 if name == "tac" else 0}
    np.testing.assert_array_equal(table, 100 * right.double().mean(-1).T.numpy(), "the same episodes all the same")


def test_mean_and_intervals():
    tables = [np.array([[50.0, 60.0], [70.0, 80.0]]), np.array([[90.0, 40.0], [30.0, 20.0]])]
    result = summarise(tables, 1)
    assert result.mean == 50.0
    assert result.interval == pytest.approx(1.96 * np.std([60, 80, 40, 20], ddof=1) / 2)
    assert result.split_means == [70.0, 30.0]
    assert result.split_interval == pytest.approx(12.706 * np.std([70, 30], ddof=1) / math.sqrt(2), rel=1e-3)
    assert result.by_iteration == [60.0, 50.0]
    assert (result.episodes, result.iterations) == (4, 1)
    assert summarise(tables[:1], 5).iterations == 1, "a method without that many refinements gives its last"


def test_interval_covers_the_truth_95_times_in_100():
    rng = np.random.default_rng(0)
    covered = [abs((r := summarise([rng.normal(50, 10, (200, 1))], 0)).mean - 50) <= r.interval for _ in range(2000)]
    assert 0.93 < np.mean(covered) < 0.97


def test_protocol_fixes_the_result_and_the_seed_changes_it(blobs):
    vectors = torch.randn(len(blobs["test"].labels), 64, generator=torch.Generator().manual_seed(0))
    method = build_method("pn", 64, 4)
    first, again, other = (
        evaluate(method, vectors, blobs["test"], Protocol(SPEC, 0.5, splits=2, episodes=20, seed=seed), 0)
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first.split_means != other.split_means
    assert first.episodes == 40
    assert len(first.split_means) == 2


def test_iterations_are_chosen_where_validation_is_best(setting, blobs):
    _, vectors, _ = setting
    method = build_method("tac", 64, 6)
    protocol = Protocol(SPEC, 0.5, splits=3, episodes=10)
    chosen = choose_iterations(method, vectors, blobs["test"], protocol)
    assert 1 <= chosen <= 5
    assert choose_iterations(build_method("pn", 64, 6), vectors, blobs["test"], protocol) == 0
    longer = evaluate(method, vectors, blobs["test"], protocol, 1, record=4)
    assert len(longer.by_iteration) == 5
    assert longer.mean == longer.by_iteration[1]
