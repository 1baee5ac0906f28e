"""The demo is a selection of the paper's systems, trained as a reproduction trains them."""

from __future__ import annotations

import pytest

from handful.experiments.paper import ABLATION, RECIPES, START, SYSTEMS
from handful.experiments.plan import Plan
from handful.experiments.presets import DEMO, FULL_DEMO
from handful.runs.episodes import MOST_ITERATIONS


def test_trainings_and_what_is_evaluated_with_them():
    assert DEMO.trainings == {
        "pn": ["pn", "soft-kmeans"], "tapnet": ["tapnet", "tapnet-semi"], "tac": ["tac"], "tacdap": ["tacdap"]
    }  # fmt: skip
    evaluated = [name for names in FULL_DEMO.trainings.values() for name in names]
    published = {system.method for system in (*SYSTEMS.values(), *ABLATION.values(), *START.values())} - {"tac-free"}
    assert sorted(evaluated) == sorted(published), "each method of the paper's tables, once"


@pytest.mark.parametrize("method", FULL_DEMO.trainings)
def test_the_demo_trains_by_the_recipe_of_its_data(method, blobs):
    recipe = RECIPES[DEMO.dataset]
    plan = Plan(FULL_DEMO.setting(blobs["train"], seed=3))
    FULL_DEMO.ask(plan)
    (cell,) = (cell for cell in plan.cells if cell.config.method == method)
    config, distractors = cell.config, method in DEMO.with_distractors
    assert (config.method, config.options) == (method, recipe.options.get(method, {}))
    assert (config.episodes, config.validate_every, config.learning_rate, config.seed) == (200, 200, 3e-3, 3)
    assert config.validation == plan.setting.spec(1, distractors)
    assert (config.train.distractor_ways, config.train.distractors) == ((20, 5) if distractors else (0, 0))


def test_each_line_is_measured_with_and_without_distractors_and_over_refinements(blobs):
    plan = Plan(DEMO.setting(blobs["train"], seed=0))
    asked = DEMO.ask(plan)
    assert len(plan.cells) == 4, "lines of the same weights share a training"
    for system, columns in asked.items():
        specs = [found.best.measurement.protocol.spec for found in columns.values()]
        assert [(spec.distractor_ways, spec.distractors) for spec in specs] == [(0, 0), (5, 20)]
        steps = {(found.best.measurement.iterations, found.curve.measurement.iterations) for found in columns.values()}
        assert steps == {(None, None if system.method in ("pn", "tapnet") else MOST_ITERATIONS)}
