"""The experiments as data: figures as they were published, systems that can be built, budgets that change no result."""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise

import pytest

from handful.experiments.figures import FIGURES, TSNE_STEPS
from handful.experiments.paper import (
    ABLATION,
    BUDGETS,
    OVER_REFINEMENTS,
    PUBLISHED,
    PUBLISHED_WAYS,
    RECIPES,
    SHARES,
    START,
    SYSTEMS,
    TABLES,
    UNDER_DISTRACTORS,
    VARIANTS,
    recipe_for,
)
from handful.experiments.reproduce import check_what
from handful.methods import build_method, methods
from handful.reports import figures
from handful.runs.episodes import MOST_ITERATIONS

EVERY_SYSTEM = [*SYSTEMS.values(), *ABLATION.values(), *START.values()]


@pytest.mark.parametrize(
    ("dataset", "title", "figures"),
    [
        # Tables 1 and 2: 1-shot, 5-shot, then both with distractors.
        ("mini-imagenet", "PN", (43.61, 59.08, 43.61, 59.08)),
        ("mini-imagenet", "Masked Soft k-Means", (50.41, 64.39, 49.04, 62.96)),
        ("mini-imagenet", "TPN", (52.78, 66.42, 50.43, 64.95)),
        ("mini-imagenet", "MetaGAN + RN", (50.35, 64.43, None, None)),
        ("mini-imagenet", "IMP", (None, None, 49.2, 64.7)),
        ("mini-imagenet", "TapNet + Semi-Sup. Inference", (53.19, 69.53, 50.53, 66.93)),
        ("mini-imagenet", "TAC", (55.50, 69.21, 50.95, 66.39)),
        ("mini-imagenet", "TACdap", (52.60, 69.05, 51.56, 67.75)),
        ("tiered-imagenet", "Soft k-Means + Cluster", (51.85, 69.42, 51.36, 67.56)),
        ("tiered-imagenet", "TapNet", (51.84, 69.14, 51.84, 69.14)),
        ("tiered-imagenet", "TAC", (58.46, 72.05, 54.80, 69.35)),
        ("tiered-imagenet", "TACdap", (56.06, 71.37, 53.67, 70.72)),
        # Table 3 has no distractors.
        ("mini-imagenet", "TapNet + Soft-clustering", (52.82, 68.76, None, None)),
        ("tiered-imagenet", "TAC with 1 iteration", (55.20, 71.80, None, None)),
        # Ren et al. have no 5-shot Omniglot.
        ("omniglot", "PN", (94.62, None, 94.62, None)),
        ("omniglot", "PN + Semi-Sup. Inference", (97.45, None, 95.08, None)),
        ("omniglot", "Masked Soft k-Means", (97.52, None, 97.30, None)),
    ],
)
def test_published_figures(dataset, title, figures):
    columns = [(1, False), (5, False), (1, True), (5, True)]
    assert PUBLISHED[dataset][title] == {
        column: figure for column, figure in zip(columns, figures, strict=True) if figure is not None
    }


def test_what_the_paper_concludes_can_be_read_off_its_figures():
    for dataset in ("mini-imagenet", "tiered-imagenet"):
        found = PUBLISHED[dataset]
        one_shot = {title: line[1, False] for title, line in found.items() if (1, False) in line}
        assert max(one_shot, key=one_shot.__getitem__) == "TAC"
        five_shot = {title: line[5, True] for title, line in found.items() if (5, True) in line}
        assert max(five_shot, key=five_shot.__getitem__) == "TACdap"
        for title in ("PN", "TapNet"):  # they see no unlabelled images, so distractors do nothing to them
            assert [found[title][shots, False] for shots in (1, 5)] == [found[title][shots, True] for shots in (1, 5)]


def test_each_published_figure_belongs_to_a_system():
    titles = {system.title for system in EVERY_SYSTEM}
    assert all(title in titles for lines in PUBLISHED.values() for title in lines)


@pytest.mark.parametrize("system", EVERY_SYSTEM, ids=lambda system: f"{system.line}, {system.training}")
def test_the_weights_of_a_system_can_be_evaluated_as_it(system):
    ways = system.published_ways or recipe_for("mini-imagenet").train.ways
    trained, evaluated = (build_method(name, dim=64, ways=ways) for name in (system.training, system.method))
    shapes = [{name: value.shape for name, value in method.state_dict().items()} for method in (trained, evaluated)]
    assert shapes[0] == shapes[1]
    evaluated.load_state_dict(trained.state_dict())
    evaluated.check_ways(recipe_for("mini-imagenet").test.ways)


def test_semi_supervised_inference_is_trained_without_unlabelled_images():
    borrowed = {
        system.title: build_method(system.training, dim=64, ways=5) for system in SYSTEMS.values() if system.trained_as
    }
    assert set(borrowed) == {"PN + Semi-Sup. Inference", "TapNet + Semi-Sup. Inference"}
    assert not any(method.trains_on_unlabelled for method in borrowed.values())


BEYOND = {
    "prwn", "bd-cspn", "laplacian-shot", "pt-map", "paddle", "alpha-tim", "epnet", "ilpc", "ici",
    "matching", "siamese", "snail", "lst", "maml",
}  # fmt: skip # methods that Table 1 has no line of


def test_every_method_has_a_line_but_those_that_came_later():
    assert {system.method for system in EVERY_SYSTEM} == set(methods()) - BEYOND
    assert set(methods()) >= BEYOND
    assert {system.method for system in UNDER_DISTRACTORS} <= set(methods())
    for table in TABLES.values():
        assert len({system.line for system in table.systems}) == len(table.systems), "no two lines look the same"


def test_systems_are_named_by_what_they_are():
    for key, system in {**SYSTEMS, **START}.items():
        assert key in (system.method, f"{system.method}-{system.variant}", f"{system.training}-semi")
    assert [system.title for system in OVER_REFINEMENTS] == [
        "TAC", "TAC, cosines in M", "TAC, reference-free",
        "Soft k-Means", "Soft k-Means + Cluster", "Masked Soft k-Means",
    ]  # fmt: skip
    assert PUBLISHED_WAYS == {"pn": 5, "soft-kmeans": 5, "soft-kmeans-cluster": 5, "masked-soft-kmeans": 5,
                              "tapnet": 20, "tac": 20, "tacdap": 20}  # fmt: skip


def test_budgets_differ_only_in_episodes_and_splits():
    assert asdict(BUDGETS["paper"]) == {"episodes": 50_000, "splits": 10, "test_episodes": 3000}
    names = ["minutes", "hour", "day", "paper"]
    assert sorted(BUDGETS) == sorted(names)
    for less, more in pairwise(names):
        assert set(asdict(BUDGETS[less])) == {"episodes", "splits", "test_episodes"}
        assert all(asdict(BUDGETS[less])[name] <= value for name, value in asdict(BUDGETS[more]).items())


@pytest.mark.parametrize("dataset", ["mini-imagenet", "tiered-imagenet", "folder"])
def test_the_paper_s_episodes(dataset):
    recipe = recipe_for(dataset)
    assert (recipe.test.ways, recipe.test.queries, recipe.test.unlabelled) == (5, 15, 20)
    assert (recipe.train.ways, recipe.train.queries, recipe.train.unlabelled) == (20, 8, 5)
    assert recipe.shots == (1, 5)
    assert recipe.average_pool == (dataset == "tiered-imagenet")
    assert recipe.weight_decay == (0.0 if dataset == "tiered-imagenet" else 5e-4)
    assert recipe.learning_rate == 1e-3


@pytest.mark.parametrize(("ways", "again"), [(20, {"pn", "soft-kmeans", "masked-soft-kmeans"}), (5, {"tapnet", "tac"})])
def test_systems_published_with_other_training_ways_have_a_second_line(ways, again):
    lines = TABLES["table1"].lines(ways, classes=40)
    second = {line.training: line.published_ways for line in lines if line.published_ways}
    assert again <= set(second)
    assert set(second.values()) == {25 - ways}, "5 where the recipe has 20, and 20 where it has 5"
    assert [line for line in lines if not line.published_ways] == list(SYSTEMS.values())
    assert len({line.line for line in lines}) == len(lines), "no two lines are called the same"
    few = TABLES["table1"].lines(ways, classes=9)
    assert not [line for line in few if line.published_ways], "they need 10 or 40 classes"


def test_a_common_start_has_lines_of_its_own_where_systems_are_compared():
    lines = TABLES["table1"].lines(20, classes=40, start=True)
    assert lines[:2] == list(START.values())
    assert lines[2:] == TABLES["table1"].lines(20, classes=40)
    assert TABLES["table3"].lines(20, classes=40, start=True) == list(ABLATION.values())


def test_photographs_from_a_common_start_are_compared_by_cosines_at_a_learned_temperature():
    recipe = recipe_for("mini-imagenet")
    for method, options in recipe.started_options.items():
        built = build_method(method, 64, 20, **{**recipe.options.get(method, {}), **options})
        assert built.log_scale is not None or method in ("tpn", "imp"), "which have other parameters for it"
        if "cosine" in options:
            assert built.cosine
            assert built.scale.item() == pytest.approx(10.0)
    for name, options in recipe.started_variants.items():
        assert build_method("tac", 64, 20, **{**recipe.started_options["tac"], **options}).cosine_clustering, name
    assert set(recipe.started_variants) == set(VARIANTS)
    assert recipe.options == recipe_for("folder").options, "a random start is as before"


def test_letters_are_not_mirrored():
    assert [name for name, recipe in RECIPES.items() if not recipe.start_augment] == ["glyphs", "omniglot"]


def test_omniglot_has_two_labelled_drawings_of_a_character():
    for episode in (RECIPES["omniglot"].train, RECIPES["omniglot"].test):
        assert (episode.shots + episode.queries, episode.unlabelled) == (2, 5)


def test_the_share_of_distractors_goes_to_four_fifths():
    assert SHARES == (0.0, 0.2, 0.4, 0.6, 0.8)


def test_all_is_every_table_and_figure_once():
    assert check_what(["all"]) == ("table1", "table3", *(name for name, figure in FIGURES.items() if figure.in_all))
    assert [name for name, figure in FIGURES.items() if not figure.in_all] == ["distractors-per-share", "beyond"]
    assert check_what(["tsne", "table2", "tsne"]) == ("tsne", "table2")


def test_every_figure_has_its_drawing():
    assert all(callable(getattr(figures, figure.drawing)) for figure in FIGURES.values())
    assert max(TSNE_STEPS) <= MOST_ITERATIONS
