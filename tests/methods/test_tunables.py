"""What each method declares as tunable."""

from __future__ import annotations

import pytest
import torch
from episodes import make_episode, method

from handful.methods import METHODS, method_options
from handful.runs.tuning import trial_values


@pytest.mark.parametrize("name", METHODS)
def test_another_value_is_that_of_a_method_built_with_it(name):
    """`with_values` sets attributes of a copy: each tunable must be one, and be read when the method is used."""
    episode, own = make_episode(unlabelled=40, spread=3.0), method(name).eval()
    assert set(own.tunables) <= set(method_options(name))
    with torch.inference_mode():
        plain, matters = own(episode), not own.tunables
        for values in trial_values(own, 5)[1:]:
            varied = own.with_values(values)(episode)
            assert torch.equal(varied, method(name, **values).eval()(episode)), values
            matters = matters or not torch.equal(varied, plain)
        assert matters
        assert torch.equal(own(episode), plain), "the method itself is left alone"


@pytest.mark.parametrize("name", ["pn", "tapnet", "classifier", "relation", "siamese", "snail"])
def test_what_has_nothing_to_choose_at_test_time_declares_nothing(name):
    assert method(name).tunables == {}
