"""Episodes: disjoint, reproducible, independent of batching, and distributed as they should be."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from handful import HandfulError
from handful.sampling import EpisodeSampler, EpisodeSpec, _apportioned, split_labelled

CLASSES, IMAGES = 14, 50
LABELS = np.repeat(np.arange(CLASSES), IMAGES)
NAMES = tuple(f"class {index}" for index in range(CLASSES))
SPECS = {
    "even": EpisodeSpec(5, 2, 3, 4),
    "distractors": EpisodeSpec(5, 1, 6, 4, distractor_ways=5, distractors=7),
    "realistic": EpisodeSpec(4, 1, 3, realistic_total=60, realistic_share=0.6),
    "no unlabelled": EpisodeSpec(3, 1, 2, 0),
    "uneven": EpisodeSpec(5, 2, 3, 4, distractor_ways=3, distractors=6, concentration=2.0),
    "uneven, classes used up": EpisodeSpec(5, 2, 3, 25, concentration=0.3),
}


def sampler(spec: EpisodeSpec, seed: int = 0, ratio: float = 0.4) -> EpisodeSampler:
    return EpisodeSampler(split_labelled(LABELS, NAMES, ratio, seed), spec, seed)


def test_labelled_and_unlabelled_parts_are_disjoint_complete_and_reproducible():
    split = split_labelled(LABELS, NAMES, 0.4, seed=3)
    for index in range(CLASSES):
        both = np.concatenate([split.labelled[index], split.unlabelled[index]])
        assert len(split.labelled[index]) == 20
        assert sorted(both) == list(np.flatnonzero(index == LABELS))
    again, other = (split_labelled(LABELS, NAMES, 0.4, seed) for seed in (3, 4))
    assert all((a == b).all() for a, b in zip(split.labelled, again.labelled, strict=True))
    assert any((a != b).any() for a, b in zip(split.labelled, other.labelled, strict=True))
    assert split.mask(len(LABELS)).sum() == 20 * CLASSES


@pytest.mark.parametrize("name", SPECS)
def test_support_and_query_are_the_same_without_unlabelled_images(name):
    whole, bare = sampler(SPECS[name]).batch(3, 20), sampler(SPECS[name]).batch(3, 20, unlabelled=False)
    for part in ("support", "query", "query_labels"):
        assert torch.equal(getattr(whole, part), getattr(bare, part))
    assert bare.unlabelled.shape == bare.unlabelled_labels.shape == (20, 0)


@pytest.mark.parametrize("name", SPECS)
def test_parts_come_from_the_right_images(name):
    spec = SPECS[name]
    split = split_labelled(LABELS, NAMES, 0.4, seed=0)
    labelled = torch.from_numpy(split.mask(len(LABELS)))
    batch, labels = sampler(spec).batch(0, 100), torch.from_numpy(LABELS)
    assert labelled[batch.support].all()
    assert labelled[batch.query].all()
    assert not labelled[batch.unlabelled].any()
    for index in range(100):
        support, query, unlabelled = batch.support[index], batch.query[index], batch.unlabelled[index]
        everything = torch.cat([support.flatten(), query, unlabelled])
        assert len(everything.unique()) == len(everything), "no image twice in an episode"
        classes = labels[support[:, 0]]
        assert len(classes.unique()) == spec.ways
        assert (labels[support] == classes[:, None]).all()
        assert (labels[query] == classes[batch.query_labels[index]]).all()
        own = batch.unlabelled_labels[index] >= 0
        assert (labels[unlabelled[own]] == classes[batch.unlabelled_labels[index][own]]).all()
        assert not np.isin(labels[unlabelled[~own]], classes).any()


def test_sizes():
    batch = sampler(SPECS["distractors"]).batch(0, 3)
    assert batch.support.shape == (3, 5, 1)
    assert batch.query.shape == batch.query_labels.shape == (3, 30)
    assert batch.unlabelled.shape == batch.unlabelled_labels.shape == (3, 5 * 4 + 5 * 7)
    assert (batch.unlabelled_labels == -1).sum(1).tolist() == [35] * 3
    assert sampler(SPECS["no unlabelled"]).batch(0, 2).unlabelled.shape == (2, 0)


@settings(max_examples=40)
@given(st.sampled_from(sorted(SPECS)), st.integers(0, 10**6), st.integers(1, 40), st.integers(0, 2**32))
def test_an_episode_is_the_same_in_whatever_batch(name, start, count, seed):
    whole = sampler(SPECS[name], seed % 100).batch(start, count)
    one = sampler(SPECS[name], seed % 100).batch(start + count - 1, 1)
    for field, value in vars(one).items():
        assert torch.equal(getattr(whole, field)[-1:], value)


def test_seeds_give_different_episodes():
    first, second = (
        EpisodeSampler(split_labelled(LABELS, NAMES, 0.4, 0), SPECS["even"], s).batch(0, 5) for s in (0, 1)
    )
    assert not torch.equal(first.support, second.support)


def test_classes_and_images_are_drawn_uniformly():
    batch = sampler(SPECS["distractors"]).batch(0, 4000)
    labels = torch.from_numpy(LABELS)
    ways = labels[batch.support[:, :, 0]]
    # Each class is in 5 of 14 episodes' ways, and at each place of the order in 1 of 14. Five standard errors.
    for counts, chance in ((ways.flatten().bincount(), 5 / CLASSES), (ways[:, 0].bincount(), 1 / CLASSES)):
        assert (counts / 4000 - chance).abs().max() < 5 * (chance * (1 - chance) / 4000) ** 0.5
    supports = batch.support.flatten().bincount(minlength=len(LABELS))
    drawn = supports[supports > 0]
    assert len(drawn) == 20 * CLASSES, "every labelled image gets its turn as support"
    expected = 4000 * 5 / (20 * CLASSES)
    assert (drawn - expected).abs().max() < 5 * expected**0.5


def test_realistic_episodes_fix_totals_only():
    spec = SPECS["realistic"]
    batch = sampler(spec).batch(0, 500)
    labels = torch.from_numpy(LABELS)
    distractor = batch.unlabelled_labels == -1
    assert (distractor.sum(1) == 36).all()
    counts = torch.stack([(batch.unlabelled_labels == way).sum(1) for way in range(4)], 1)  # (500, 4)
    assert (counts.sum(1) == 24).all()
    assert counts.max() <= 30, "no more than a class has"
    assert (counts.float().std(1) > 3).float().mean() > 0.6, "uneven over the classes"
    assert (counts.float().mean(0) - 6).abs().max() < 1, "but none is favoured"
    kinds = [len(labels[row[mask]].unique()) for row, mask in zip(batch.unlabelled, distractor, strict=True)]
    assert min(kinds) >= 7, "distractors come from all other classes"
    spread = labels[batch.unlabelled[distractor]].bincount() / (500 * 36)
    assert (spread - 1 / CLASSES).abs().max() < 0.02


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_realistic_extremes(share):
    batch = sampler(EpisodeSpec(4, 1, 1, realistic_total=30, realistic_share=share)).batch(0, 3)
    assert ((batch.unlabelled_labels == -1).float().mean(1) == share).all()


def test_classes_of_unequal_size():
    sizes = [30, 12, 25, 18, 40]
    labels = np.repeat(np.arange(5), sizes)
    split = split_labelled(labels, NAMES[:5], 0.5, 0)
    batch = EpisodeSampler(split, EpisodeSpec(3, 1, 2, 5), 0).batch(0, 200)
    assert batch.unlabelled.max() < sum(sizes)
    assert (torch.from_numpy(labels)[batch.query.reshape(200, 3, 2)].diff(dim=-1) == 0).all()


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (
            EpisodeSpec(5, 18, 3, 4),
            r"class 'class 0' has 20 labelled images, but 21 are needed \(18 support \+ 3 query\)",
        ),
        (EpisodeSpec(5, 1, 3, 31), "class 'class 0' has 30 unlabelled images, but 31 are needed"),
        (EpisodeSpec(15, 1, 3, 4), "15 ways need 15 classes, but there are only 14"),
        (EpisodeSpec(10, 1, 3, 4, 5, 4), "10 ways and 5 distractor classes need 15 classes, but there are only 14"),
        (EpisodeSpec(4, 1, 3, realistic_total=200), "needs 200 unlabelled candidate images, but .* only 120"),
    ],
)
def test_too_few_images_or_classes_are_said_in_a_sentence(spec, sentence):
    with pytest.raises(HandfulError, match=sentence):
        sampler(spec)


@pytest.mark.parametrize(
    "wrong",
    [
        {"ways": 0}, {"shots": 0}, {"unlabelled": -1}, {"distractors": -3}, {"distractor_ways": -2},
        {"realistic_total": -5}, {"realistic_share": 1.5}, {"concentration": 0.0}, {"concentration": float("nan")},
        {"concentration": 2.0, "realistic_total": 5},
    ],
)  # fmt: skip
def test_impossible_specs_are_refused(wrong):
    with pytest.raises(HandfulError):
        EpisodeSpec(**wrong)


def test_all_classes_in_their_order():
    labels = np.repeat(np.arange(7), 10)
    split = split_labelled(labels, tuple("abcdefg"), 0.5, 0)
    episode = EpisodeSampler(split, EpisodeSpec(7, 2, 1, 0), 0, in_order=True).batch(0, 20)
    assert (labels[episode.support.numpy()] == np.arange(7)[:, None]).all()
    assert (labels[episode.query.numpy()] == episode.query_labels.numpy()).all()
    assert len(np.unique(episode.support[:, 0].numpy())) == 5, "every labelled image has its turn"
    with pytest.raises(HandfulError, match="learns all 7 training classes at once"):
        EpisodeSampler(split, EpisodeSpec(6, 2, 1, 0), 0, in_order=True)


def shares_of_classes(batch, ways: int) -> torch.Tensor:
    """How many unlabelled images of each class: (episodes, ways)."""
    return torch.stack([(batch.unlabelled_labels == way).sum(1) for way in range(ways)], 1)


def test_uneven_shares_are_dirichlet_distributed_and_totals_fixed():
    """Mean 1/N and variance (N - 1) / (N^2 (N a + 1)) of each share; the distractors' likewise."""
    labels = np.repeat(np.arange(8), 700)
    split = split_labelled(labels, tuple("abcdefgh"), 0.1, 0)
    ways, each = 4, 100
    for concentration in (0.7, 2.0):
        spec = EpisodeSpec(ways, 1, 1, each, distractor_ways=4, distractors=each, concentration=concentration)
        batch = EpisodeSampler(split, spec, 0).batch(0, 4000)
        own = shares_of_classes(batch, ways)
        assert (own.sum(1) == ways * each).all()
        assert ((batch.unlabelled_labels == -1).sum(1) == 4 * each).all()
        shares = own.double() / (ways * each)
        variance = (ways - 1) / (ways**2 * (ways * concentration + 1))
        assert torch.allclose(shares.mean(0), torch.full((ways,), 1 / ways, dtype=torch.float64), atol=0.02)
        assert torch.allclose(shares.var(0), torch.full((ways,), variance, dtype=torch.float64), rtol=0.1)
        others = torch.from_numpy(labels)[batch.unlabelled[batch.unlabelled_labels == -1]].reshape(4000, -1)
        counts = torch.stack([(others == index).sum(1) for index in range(8)], 1).double()
        present = counts.gather(1, counts.argsort(1, descending=True)[:, :4]) / (4 * each)
        assert present.square().sum(1).mean() == pytest.approx(4 * (variance + 1 / 16), rel=0.05)


def test_a_class_gives_no_more_than_it_has_and_the_others_make_up_for_it():
    batch = sampler(SPECS["uneven, classes used up"]).batch(0, 300)
    counts = shares_of_classes(batch, 5)
    assert (counts.sum(1) == 125).all()
    assert counts.max() == 30  # all that a class has
    assert (counts == 30).any(1).float().mean() > 0.9


def test_shares_are_rounded_by_largest_remainders():
    shares, size = np.array([[0.5, 0.26, 0.24], [0.34, 0.33, 0.33], [1.0, 0.0, 0.0]]), np.full((3, 3), 10)
    assert _apportioned(shares, size, 10).tolist() == [[5, 3, 2], [4, 3, 3], [10, 0, 0]]
    assert _apportioned(shares[2:], np.array([[4, 9, 9]]), 10).tolist() == [[4, 3, 3]]


def test_even_episodes_are_what_they_were_and_say_nothing_of_shares():
    """Run folders and kept measurements name an episode by these entries."""
    assert "concentration" not in EpisodeSpec().to_json()
    assert EpisodeSpec(concentration=2.0).to_json()["concentration"] == 2.0
    assert "Dirichlet(2)" in EpisodeSpec(concentration=2.0).describe()
