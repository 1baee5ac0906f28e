"""Forms of a method: sets of options by name, ``published`` among them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from episodes import make_episode, method

from handful import HandfulError, build_method
from handful.methods import METHODS, method_class, method_options
from handful.methods.tapnet import TapNet

DOCS = Path(__file__).parents[2] / "docs"
FORMS = [(name, form) for name, cls in METHODS.items() for form in cls.forms]


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_a_form_is_the_same_as_its_options_one_by_one(name, form):
    options = {key: value for key, value in method_class(name).forms[form].items() if key in method_options(name)}
    episode = make_episode(spread=2.0)
    ours, theirs = (method(name, **given) for given in ({"form": form}, options))
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    torch.manual_seed(1)
    expected = theirs.train().loss(episode)
    torch.manual_seed(1)
    assert torch.equal(ours.train().loss(episode), expected)
    assert torch.equal(ours.eval()(episode), theirs.eval()(episode))


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_a_form_has_options_that_settings_can_spell_and_no_other_number_of_training_refinements(name, form):
    options = method_class(name).forms[form]
    assert json.loads(json.dumps(options)) == options
    assert "train_iterations" not in options  # what a training episode shows is decided without the form
    for key, value in options.items():
        default = {**method_options(name), "cluster_scale": 1.0}[key]
        assert type(value) is type(default)


def test_an_option_beside_a_form_overrides_it():
    assert build_method("tapnet", 8, 5, form="published", matching="optimal").matching == "optimal"
    assert build_method("tapnet", 8, 5, form="default").matching == "optimal"


def test_unknown_forms_are_named():
    with pytest.raises(HandfulError, match=r"'tac' has no form 'best': choose one of default, published"):
        build_method("tac", 8, 5, form="best")
    with pytest.raises(HandfulError, match="'classifier' has no option 'form'"):
        build_method("classifier", 8, 5, form="published")


def documented() -> dict[tuple[str, str], dict[str, str]]:
    """The tables of options in the docs: (method, option) -> row by column."""
    found = {}
    for path in (DOCS / "methods.md", DOCS / "methods" / "tac.md"):
        columns: list[str] = []
        for line in path.read_text(encoding="utf-8").splitlines():
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            if cells[:1] == ["option"] and "published" in cells:
                columns = cells
            elif columns and len(cells) == len(columns) and "`" in cells[0]:
                row = dict(zip(columns, cells, strict=True))
                family = [name for name, cls in METHODS.items() if issubclass(cls, TapNet)]
                methods = re.findall("`([^`]+)`", row.get("method", "")) or family
                for name in methods:
                    for option in re.findall("`([^`]+)`", row["option"]):
                        found[name, option] = row
            elif not cells:
                columns = []
    return found


def spelled(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


@pytest.mark.parametrize("name", [*dict.fromkeys(name for name, _ in FORMS), "metagan"])
def test_the_docs_list_every_option_with_its_default_and_its_published_value(name):
    tables = documented()
    published = method_class(name).forms.get("published", {})
    for option, default in method_options(name).items():
        if option == "form":
            continue
        row = tables[name, option]
        assert spelled(default) in re.split(r"[;\s]+", row["default"]), (option, row)
        if option in published:
            assert spelled(published[option]) in re.split(r"[;\s]+", row["published"]), (option, row)
