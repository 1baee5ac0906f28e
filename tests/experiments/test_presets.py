"""The tour is a selection of the paper's systems, trained as a reproduction trains them."""

from __future__ import annotations

import pytest

from handful.experiments import demo
from handful.experiments.paper import RECIPES
from handful.experiments.plan import Setting
from handful.experiments.presets import DEMO, FULL_DEMO
from handful.methods import methods


def test_trainings_and_what_is_evaluated_with_them():
    assert DEMO.trainings == {
        "pn": ["pn", "soft-kmeans"], "tapnet": ["tapnet", "tapnet-semi"], "tac": ["tac"], "tacdap": ["tacdap"]
    }  # fmt: skip
    evaluated = [name for names in FULL_DEMO.trainings.values() for name in names]
    assert sorted(evaluated) == sorted(methods()), "each method there is, once"


@pytest.mark.parametrize("method", FULL_DEMO.trainings)
def test_the_demo_trains_by_the_recipe_of_its_data(method, blobs, tmp_path, monkeypatch):
    configs = []
    monkeypatch.setattr(demo, "train", lambda config, *_, **__: configs.append(config))
    recipe = RECIPES[DEMO.dataset]
    setting = Setting(
        DEMO.dataset, None, {}, blobs["train"], 0.4, recipe, DEMO.budget, shots=(1,), seed=3, pretraining=200
    )  # fmt: skip
    distractors = method in DEMO.with_distractors
    demo._train(method, distractors, tmp_path, demo.Tested(setting, blobs, "cpu"))
    (config,) = configs
    assert (config.method, config.options) == (method, recipe.options.get(method, {}))
    assert (config.episodes, config.validate_every, config.learning_rate, config.seed) == (200, 200, 3e-3, 3)
    assert config.validation == demo.SETTINGS["with distractors" if distractors else "without distractors"]
    assert (config.train.distractor_ways, config.train.distractors) == ((20, 5) if distractors else (0, 0))
