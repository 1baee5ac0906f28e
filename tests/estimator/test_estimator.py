"""The estimator: scikit-learn's conventions, what is promised of unlabelled rows, and of rows of no class."""

from __future__ import annotations

import copy
import tracemalloc

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

from handful import Head, TACClassifier
from handful.estimator.confidence import folds
from handful.estimator.refinement import BAYES, PRIOR, prior, temperature
from handful.estimator.rows import CHUNK_BYTES, Frame, Points, chunks

# The checks below label their rows -1 and 1. Here, as in sklearn.semi_supervised, -1 says that a row is unlabelled, so
# what they pass has one class only, which is refused.
MINUS_ONE = "-1 is a class there, and means unlabelled here"


def expected(estimator):
    return {"check_classifiers_classes": MINUS_ONE}


@parametrize_with_checks(
    [TACClassifier(), TACClassifier(distractors=False), TACClassifier(iterations=0, scale=3.0, distractors=True)],
    expected_failed_checks=expected,
)
def test_scikit_learn_s_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def clusters():
    """Five classes in 32 dimensions, 60 rows each, far from zero and of unequal lengths; and three classes more."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(8, 32))
    truth = np.repeat(np.arange(8), 60)
    x = (centres[truth] + 0.9 * rng.normal(size=(480, 32)) + 3.0) * rng.uniform(0.5, 2.0, size=(480, 1))
    order = rng.permutation(480)
    return x[order], truth[order]


@pytest.fixture(scope="module")
def task(clusters):
    """Rows of the five classes, two of each labelled."""
    x, truth = clusters
    x, truth = x[truth < 5], truth[truth < 5]
    return x, truth, hidden(truth)


def hidden(truth, shots=2, classes=5):
    """All labels but the first few of each of the five classes hidden."""
    y = np.full(len(truth), -1)
    for label in range(classes):
        rows = np.flatnonzero(truth == label)[:shots]
        y[rows] = label
    return y


def test_unlabelled_rows_help(task):
    x, truth, _ = task
    x, y = x + 2 * np.random.default_rng(3).normal(size=x.shape), hidden(truth, shots=1)
    model = TACClassifier().fit(x, y)
    alone = TACClassifier(iterations=0).fit(x, y)
    free = y < 0
    assert (model.transduction_ == truth)[free].mean() > (alone.transduction_ == truth)[free].mean() + 0.1
    assert 1 <= model.n_iter_ <= 6 and alone.n_iter_ == 0
    assert (model.transduction_ == y)[~free].all(), "what was given is kept"
    assert model.label_distributions_.shape == (300, 5)
    np.testing.assert_allclose(model.label_distributions_.sum(1), 1, rtol=1e-6)
    assert (model.predict(x[free]) == model.transduction_[free]).all()


def test_row_order_does_not_matter(task):
    x, _, y = task
    order = np.random.default_rng(1).permutation(len(x))
    for distractors in (False, True, "auto"):
        straight, mixed = (
            TACClassifier(distractors=distractors).fit(x[rows], y[rows]) for rows in (np.arange(len(x)), order)
        )
        np.testing.assert_allclose(mixed.label_distributions_, straight.label_distributions_[order], atol=1e-9)
        np.testing.assert_allclose(mixed.none_score(x), straight.none_score(x), atol=1e-9)
        assert mixed.none_threshold_ == pytest.approx(straight.none_threshold_)


def test_chunks_change_nothing(task, monkeypatch):
    x, _, y = task
    whole = TACClassifier(distractors=True).fit(x, y)
    monkeypatch.setattr("handful.estimator.rows.CHUNK_BYTES", 7 * 32 * 8)
    parts = TACClassifier(distractors=True).fit(x, y)
    np.testing.assert_allclose(parts.label_distributions_, whole.label_distributions_, atol=1e-9)
    np.testing.assert_allclose(parts.none_score(x), whole.none_score(x), atol=1e-9)


def test_float32_and_memory_maps(task, tmp_path):
    x, _, y = task
    np.save(tmp_path / "x.npy", x.astype(np.float32))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    model = TACClassifier().fit(mapped, y)
    assert model.predict_proba(mapped).dtype == np.float32
    full = TACClassifier().fit(x, y)
    np.testing.assert_allclose(model.label_distributions_, full.label_distributions_, atol=1e-4)


@pytest.mark.parametrize("blank", [None, np.nan, ""])
def test_names_with_blanks(task, blank):
    x, _, y = task
    names = np.array(["ant", "bee", "cat", "dog", "eel"], dtype=object)
    given = np.array([names[label] if label >= 0 else blank for label in y], dtype=object)
    model = TACClassifier().fit(x, given)
    assert model.classes_.tolist() == names.tolist()
    assert (model.transduction_ == names[TACClassifier().fit(x, y).transduction_].astype(str)).all()


def test_uneven_shots(clusters):
    x, truth = clusters
    x, truth = x[truth < 5], truth[truth < 5]
    y = np.full(len(truth), -1)
    for label, shots in enumerate((1, 2, 5, 20, 40)):
        y[np.flatnonzero(truth == label)[:shots]] = label
    model = TACClassifier().fit(x, y)
    assert (model.transduction_ == truth)[y < 0].mean() > 0.97


def test_the_unit_vectors_are_those_of_the_definition(task):
    x, _, _ = task
    rng = np.random.default_rng(2)
    for mapping in (None, rng.normal(size=(9, 32))):
        frame = Frame.of(x, mapping)
        points = Points(x, frame)
        unit = x / np.linalg.norm(x, axis=1, keepdims=True)
        unit = unit - unit.mean(0)
        unit = unit if mapping is None else unit @ mapping.T
        unit /= np.linalg.norm(unit, axis=1, keepdims=True)
        np.testing.assert_allclose(points.vectors(slice(None)), unit, atol=1e-12)


def test_rows_of_other_classes_are_none_of_these(clusters):
    x, truth = clusters
    y = hidden(truth)
    other, free = truth >= 5, y < 0
    model = TACClassifier(distractors=True).fit(x, y)
    none = model.is_none(x)
    assert none[other].mean() > 0.9
    assert none[free & ~other].mean() < 0.2
    assert (model.transduction_ == truth)[free & ~other].mean() > 0.95
    naive = TACClassifier().fit(x, y)
    assert (naive.transduction_ == truth)[free & ~other].mean() <= (model.transduction_ == truth)[free & ~other].mean()
    rates = model.none_score(x)
    assert ((rates >= 0) & (rates <= 1)).all()
    assert (none == (rates <= model.none_threshold_)).all() and model.none_threshold_ == 0.1
    sure = TACClassifier().fit(x, hidden(truth, shots=10))
    assert sure.none_share_ == pytest.approx(other.mean(), abs=0.15)


def test_rows_known_to_be_none(clusters):
    x, truth = clusters
    y = hidden(truth, shots=4)
    none = np.zeros(len(y), dtype=bool)
    none[np.flatnonzero(truth >= 5)[:12]] = True
    model = TACClassifier(none_rate=0.05).fit(x, y, none=none)
    rest = (y < 0) & ~none
    assert model.is_none(x[rest & (truth >= 5)]).mean() > 0.95
    assert model.is_none(x[rest & (truth < 5)]).mean() < 0.1
    one = np.zeros(len(y), dtype=bool)
    one[np.flatnonzero(none)[0]] = True
    assert model.refit(y, none=one).none_threshold_ == 0.05, "a single one says that there are such rows"


@pytest.mark.parametrize("distractors", [False, True])
def test_points_from_nowhere(task, distractors):
    x, _, y = task
    strange = np.array([np.zeros(32), np.full(32, 1e30), np.full(32, -1e300), 1e-300 * np.eye(32)[0], -10 * x[0]])
    model = TACClassifier(distractors=distractors).fit(np.concatenate([x, strange]), np.append(y, [-1] * 5))
    assert np.isfinite(model.label_distributions_).all()
    assert np.isfinite(model.none_score(strange)).all()
    assert model.is_none(strange[[0]]).all() == distractors, "nothing is known of it"
    clean = TACClassifier(distractors=distractors).fit(x, y)
    assert (model.transduction_[:-5] == clean.transduction_).mean() > 0.97, "and the others do not mind"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"iterations": -1}, "iterations must be a whole number from 0 on, got -1"),
        ({"iterations": 2.5}, "iterations must be a whole number from 0 on, got 2.5"),
        ({"scale": 0}, "scale must be 'auto' or a number above 0, got 0"),
        ({"scale": "large"}, "scale must be 'auto' or a number above 0, got 'large'"),
        ({"head": "nonsense"}, "there is no head 'nonsense'"),
        ({"head": "x" * 5000}, "there is no head 'xxx"),
        ({"head": 3}, "a head must be a name, a path or a handful.Head, got int"),
        ({"iterations": True}, "iterations must be a whole number from 0 on, got True"),
        ({"scale": True}, "scale must be 'auto' or a number above 0, got True"),
        ({"scale": np.ones(2)}, "scale must be 'auto' or a number above 0, got array"),
        ({"distractors": "no"}, "distractors must be True, False or 'auto', got 'no'"),
        ({"distractors": 1}, "distractors must be True, False or 'auto', got 1"),
        ({"none_rate": 1.5}, "none_rate must be a number from 0 to 1, got 1.5"),
        ({"none_rate": True}, "none_rate must be a number from 0 to 1, got True"),
    ],
)
def test_bad_settings(task, change, sentence):
    x, _, y = task
    with pytest.raises(Exception, match=sentence):
        clone(TACClassifier()).set_params(**change).fit(x, y)


def test_a_scale_without_end_is_a_hard_choice(task):
    x, _, y = task
    found = TACClassifier(scale=1e300).fit(x.astype(np.float32), y).label_distributions_
    assert set(np.unique(found)) == {0.0, 1.0}


def test_bad_labels(task):
    x, _, y = task
    for labels, sentence in [
        (np.full(len(x), -1), "no row is labelled"),
        (np.where(y == 0, 0, -1), "at least two classes to tell apart, got one class: "),
        (y[:-1], "X has 300 rows, but y has 299 labels"),
        (np.where(y == 0, np.nan, y), "y has NaN or infinity"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            TACClassifier().fit(x, labels)
    with pytest.raises(ValueError, match="labelled and of no class"):
        TACClassifier().fit(x, y, none=np.ones(len(x), dtype=bool))
    with pytest.raises(ValueError, match="none must be a bool for each of 300 rows"):
        TACClassifier().fit(x, y, none=[True])


def test_it_says_where_it_clusters():
    assert "without a head: the space is adapted to the soft labels" in repr(TACClassifier())
    assert "TACClassifier(" in repr(TACClassifier(head="x")) and "without" not in repr(TACClassifier(head="x"))


@pytest.mark.parametrize("kind", [list, tuple, "series", "object"])
def test_blanks_in_what_is_no_array(task, kind):
    """NumPy makes text of the blanks of a list, 'nan' and '-1', which would be classes."""

    class Series:
        def __init__(self, values):
            self.values = values

        def __array__(self, dtype=None, copy=None):
            return np.array(self.values, dtype=dtype)

    make = {"series": Series, "object": lambda values: np.array(values, dtype=object)}.get(kind, kind)
    x, _, y = task
    blanks = [float("nan"), np.float32("nan"), None, "", -1, np.int64(-1), -1.0]
    for some in ([float("nan")], [-1], [None], [""], [-1.0, ""], blanks):
        given = make([f"class {label}" if label >= 0 else some[row % len(some)] for row, label in enumerate(y)])
        model = TACClassifier().fit(x, given)
        assert model.classes_.tolist() == [f"class {label}" for label in range(5)]
        np.testing.assert_array_equal(model.label_distributions_, TACClassifier().fit(x, y).label_distributions_)


def test_labels_keep_their_kind(task):
    x, _, y = task
    for given, classes in [
        (y.tolist(), [0, 1, 2, 3, 4]),
        ([label if label >= 0 else None for label in y.tolist()], [0, 1, 2, 3, 4]),
        ([float(label) for label in y], [0.0, 1.0, 2.0, 3.0, 4.0]),
        (np.array([float(label) for label in y], dtype=object), [0.0, 1.0, 2.0, 3.0, 4.0]),
        ([label > 1 if label >= 0 else None for label in y], [False, True]),
        ([2**63 + label if label >= 0 else -1 for label in y.tolist()], [2**63 + label for label in range(5)]),
        (np.ma.masked_array(np.maximum(y, 0), y < 0), [0, 1, 2, 3, 4]),
        ([b"ab"[:label] if 0 < label < 3 else b"" for label in y], [b"a", b"ab"]),
    ]:
        model = TACClassifier().fit(x, given)
        assert model.classes_.tolist() == classes
        if len(classes) == 5:
            np.testing.assert_array_equal(model.label_distributions_, TACClassifier().fit(x, y).label_distributions_)
    with pytest.warns(match="A column-vector y was passed"):
        assert TACClassifier().fit(x, y[:, None]).classes_.tolist() == [0, 1, 2, 3, 4]


def test_labels_of_no_one_kind(task):
    x, _, y = task
    for given, sentence in [
        ([label if row % 2 else str(label) for row, label in enumerate(y)], "all strings or all numbers, got both"),
        ([label if row % 2 else b"a" for row, label in enumerate(y)], "all strings or all numbers, got both"),
        (np.array([{label} for label in y.tolist()]), "labels must be strings or whole numbers, got set"),
        (y.astype("datetime64[D]"), "labels must be strings or whole numbers, got datetime64"),
        (y.astype(complex), "labels must be strings or whole numbers, got complex128"),
        (y + 0.5, "Unknown label type: continuous"),
        (np.stack([y, y], axis=1), "1d array"),
        ("cat", "1d array"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            TACClassifier().fit(x, given)
    text = np.array(["cat" if label == 0 else "dog" if label == 1 else np.nan for label in y])
    with pytest.warns(UserWarning, match="the class 'nan', which is what NumPy makes of a blank among strings"):
        TACClassifier().fit(x, text)


def test_one_label_a_class_is_no_regression(recwarn):
    x = np.random.default_rng(0).normal(size=(90, 16))
    TACClassifier().fit(x, np.where(np.arange(90) < 30, np.arange(90), -1))
    assert not recwarn.list


# Of float32 and float64: squares overflow, squares underflow, lengths overflow, rows lose digits as they are denormal.
SIZES = {np.float32: [1e-13, 1e-30, 1e-37, 1e15, 1e30, 1e36], np.float64: [1e-13, 1e-160, 1e-300, 1e160, 1e300, 1e306]}


@pytest.mark.parametrize(("dtype", "size"), [(dtype, size) for dtype, sizes in SIZES.items() for size in sizes])
@pytest.mark.parametrize(("with_head", "distractors"), [(False, False), (False, True), (True, False)])
def test_only_directions_count(task, dtype, size, with_head, distractors):
    x, truth, y = task
    x = x.astype(dtype)
    rng = np.random.default_rng(5)
    head = Head("h", 32, rng.normal(size=(20, 32)).astype("f4"), rng.normal(size=(6, 20)).astype("f4"))
    plain, other = (
        TACClassifier(head if with_head else None, distractors=distractors).fit(rows, y)
        for rows in (x, (x * dtype(size)).astype(dtype))
    )
    assert with_head or distractors or (plain.transduction_ == truth).mean() > 0.9
    close = {"atol": 1e-3 if dtype == np.float32 else 1e-9}
    assert (plain.transduction_ == other.transduction_).mean() > 0.99
    np.testing.assert_allclose(other.label_distributions_, plain.label_distributions_, **close)
    for rows, model in [(x, other), (x * dtype(size), other), (x * dtype(size), plain)]:
        assert rows.dtype == dtype
        np.testing.assert_allclose(model.predict_proba(rows), plain.predict_proba(x), **close)
        np.testing.assert_allclose(model.none_score(rows), plain.none_score(x), **close)
        assert (model.predict(rows) == plain.predict(x)).mean() > 0.99
        np.testing.assert_allclose(model.unit_vectors(rows), plain.unit_vectors(x), **close)
    assert other.none_threshold_ == pytest.approx(plain.none_threshold_, abs=close["atol"])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_powers_of_two_change_not_a_bit(task, dtype):
    x, _, y = task
    x = x.astype(dtype)
    plain = TACClassifier(distractors=True).fit(x, y)
    for power in (-100, -40, 40, 100) if dtype == np.float32 else (-900, -40, 40, 900):
        other = TACClassifier(distractors=True).fit(np.ldexp(x, power), y)
        np.testing.assert_array_equal(other.label_distributions_, plain.label_distributions_)
        np.testing.assert_array_equal(other.none_score(x), plain.none_score(x))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_lengths_of_all_kinds_together(task, dtype):
    """Each row may be as long as it likes, and does not disturb the others."""
    x, _, y = task
    x, kind = x.astype(dtype), np.finfo(dtype)
    plain = TACClassifier().fit(x, y)
    rng, powers = np.random.default_rng(6), kind.maxexp - 8
    mixed = TACClassifier().fit(np.ldexp(x, rng.integers(-powers, powers, size=(len(x), 1))), y)
    np.testing.assert_allclose(mixed.label_distributions_, plain.label_distributions_, atol=1e-5)
    for row in (
        np.full(32, kind.max),
        np.full(32, -kind.max),
        np.eye(32)[0] * kind.smallest_subnormal,
        kind.tiny * x[0],
    ):
        rows = np.concatenate([x, [row.astype(dtype)]])
        found = plain.predict_proba(rows)
        np.testing.assert_allclose(found[:-1], plain.predict_proba(x), atol=1e-6)
        assert np.isfinite(found).all() and found[-1].max() > 0.25, "it has a direction"
        fitted = TACClassifier().fit(rows, np.append(y, -1))
        assert np.isfinite(fitted.label_distributions_).all()
        assert (fitted.transduction_[:-1] == plain.transduction_).mean() > 0.98
    nothing = plain.predict_proba(np.zeros((1, 32), dtype=dtype))
    np.testing.assert_allclose(nothing, 0.2, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_cancels_out_has_no_direction(dtype):
    """Not that of the rounding: a class of opposite rows, and rows that are the centre."""
    rng = np.random.default_rng(7)
    half = rng.normal(size=(40, 16)).astype(dtype)
    x = np.concatenate([half, -half])
    y = np.full(80, -1)
    y[[0, 40]], y[[1, 2]] = 0, 1
    model = TACClassifier(iterations=0).fit(x, y)
    assert not model._model.means[0].any() and model._model.means[1].any()
    same = TACClassifier().fit(np.tile(x[:1], (7, 1)), [0, 0, 1, 1, -1, -1, -1])
    np.testing.assert_array_equal(same.label_distributions_[4:], 0.5)


@pytest.mark.parametrize("error", ["labels", "none", "features", "head", "clustering", "interrupt", "threshold"])
def test_a_fit_that_fails_leaves_the_last_one(task, error, monkeypatch):
    x, _, y = task
    model = TACClassifier().fit(x, y)
    before = {name: copy.deepcopy(value) for name, value in vars(model).items()}
    chances, scores = model.predict_proba(x), model.none_score(x)
    given, none, rows = y + 10 * (y >= 0), None, x[:, ::-1]
    if error == "labels":
        given = given[:-1]
    elif error == "none":
        none = np.ones(len(x), dtype=bool)
    elif error == "head":
        model.set_params(head=Head("other", 12))
        before["head"] = model.head
    elif error == "features":
        rows, none = x[:, :7], [True]
    else:
        where = {"clustering": "refine", "interrupt": "softmax", "threshold": "judge"}[error]
        kind = KeyboardInterrupt if error == "interrupt" else RuntimeError

        def fail(*args):
            raise kind

        monkeypatch.setattr(f"handful.estimator.classifier.{where}", fail)
    with pytest.raises((ValueError, RuntimeError, KeyboardInterrupt)):
        model.fit(rows, given, none)
    monkeypatch.undo()
    assert set(vars(model)) == set(before)
    assert model.n_features_in_ == 32 and model.classes_.tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(model.predict_proba(x), chances)
    np.testing.assert_array_equal(model.none_score(x), scores)
    np.testing.assert_array_equal(model.transduction_, before["transduction_"])


def test_a_fit_that_fails_at_first_leaves_nothing(task):
    x, _, y = task
    model = TACClassifier()
    with pytest.raises(ValueError, match="X has 300 rows"):
        model.fit(x, y[:-1])
    assert not hasattr(model, "n_features_in_") and not hasattr(model, "classes_")
    with pytest.raises(NotFittedError):
        model.predict(x)
    model.fit(x, y)
    model.feature_names_in_ = np.array([f"column {number}" for number in range(32)])  # as of a table
    with pytest.raises(ValueError, match="X has 300 rows"):
        model.fit(x, y[:-1])
    assert model.feature_names_in_[31] == "column 31"
    assert not hasattr(model.fit(x, y), "feature_names_in_")


@pytest.mark.slow
def test_the_memory_of_many_classes(monkeypatch):
    """Beyond the answer, (rows, classes), some chunks, and soft labels of no more rows times classes than CELLS."""
    monkeypatch.setattr("handful.estimator.rows.CHUNK_BYTES", chunk := 64 << 10)
    cells = 1 << 17
    for module in ("classifier", "confidence", "foreign", "refinement"):
        monkeypatch.setattr(f"handful.estimator.{module}.CELLS", cells)
    rng = np.random.default_rng(8)
    classes, count = 700, 4200
    truth = np.arange(count) % classes
    x = rng.normal(size=(classes, 24))[truth] + 0.1 * rng.normal(size=(count, 24))
    none = np.arange(count) >= count - 400
    for y in (np.where(np.arange(count) < classes, truth, -1), np.where(none, -1, truth)):
        tracemalloc.start()
        model = TACClassifier().fit(x, y, none=none if (y >= 0).sum() > classes else None)
        _, most = tracemalloc.get_traced_memory()
        answer, kept, means = model.label_distributions_.nbytes, 4 * x.nbytes, 8 * classes * 24
        labels = min(2000, int((y >= 0).sum()))
        support = 4 * 8 * labels * (labels + classes)  # of the regressions
        assert most < answer + kept + 12 * 8 * cells + 10 * chunk + 20 * means + support
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        model.predict(x)
        model.none_score(x)
        _, later = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert later < before + answer / 4
        assert (model.transduction_ == truth)[~none].mean() > 0.95


def test_chunks_are_bounded_by_columns_too():
    x = np.zeros((1000, 8), dtype=np.float32)
    for width in (0, 8, 100, 10**9):
        parts = list(chunks(x, width))
        assert sum(part.stop - part.start for part in parts) == 1000
    most = CHUNK_BYTES // (4 * 10**6)
    assert [part.stop for part in chunks(x, 10**6)][:2] == [most, 2 * most]
    assert [(part.start, part.stop) for part in chunks(x, 10**9, 3)] == [(0, 1), (1, 2), (2, 3)]


def test_a_refit_is_a_fit(task):
    x, truth, y = task
    more = hidden(truth, shots=4)
    fitted = TACClassifier().fit(x, more)
    again = TACClassifier().fit(x, y).refit(more)
    quick = TACClassifier().fit(x, y).refit(more, check=False)
    for model in (again, quick.check()):
        np.testing.assert_array_equal(model.label_distributions_, fitted.label_distributions_)
        np.testing.assert_array_equal(model.none_score(x), fitted.none_score(x))
        assert model.expected_accuracy_ == fitted.expected_accuracy_
    with pytest.raises(ValueError, match="X has 300 rows, but y has 299 labels"):
        again.refit(y[:-1])
    np.testing.assert_array_equal(again.label_distributions_, fitted.label_distributions_)
    named = again.refit([f"class {label}" if label >= 0 else "" for label in y])
    assert named.classes_.tolist() == [f"class {label}" for label in range(5)]


def test_the_order_of_classes_does_not_matter(task):
    x, _, y = task
    turned = np.where(y >= 0, 4 - y, -1)
    straight, other = (TACClassifier().fit(x, labels) for labels in (y, turned))
    np.testing.assert_allclose(other.label_distributions_[:, ::-1], straight.label_distributions_, atol=1e-9)
    np.testing.assert_allclose(other.none_score(x), straight.none_score(x), atol=1e-9)
    assert other.expected_accuracy_ == pytest.approx(straight.expected_accuracy_)


def noisy(clusters, noise, classes=5):
    x, truth = clusters
    x, truth = x[truth < classes], truth[truth < classes]
    return x + noise * np.random.default_rng(3).normal(size=x.shape), truth


@pytest.mark.parametrize("shots", [1, 2, 5, 10])
@pytest.mark.parametrize("noise", [0.5, 1.5, 2.5])
def test_confidence_is_accuracy(clusters, noise, shots):
    """Also where most is wrong; within what may be expected of one draw."""
    x, truth = noisy(clusters, noise)
    y = hidden(truth, shots)
    model = TACClassifier(distractors=False).fit(x, y)
    accuracy = (model.transduction_ == truth)[y < 0].mean()
    assert model.label_distributions_[y < 0].max(1).mean() == pytest.approx(accuracy, abs=0.2)
    low, high = model.expected_accuracy_interval_
    assert low <= model.expected_accuracy_ <= high
    assert low - 0.05 <= accuracy <= high + 0.05


def test_noise_is_not_trusted():
    """Rows of which nothing can be learned: no confidence to speak of."""
    x = np.random.default_rng(0).normal(size=(500, 64))
    y = np.where(np.arange(500) < 25, np.arange(500) % 5, -1)
    model = TACClassifier().fit(x, y)
    assert model.label_distributions_[25:].max(1).mean() < 0.4
    assert model.expected_accuracy_ < 0.4


def test_uneven_and_absent_classes(clusters):
    """A labelled class without other rows gets few; shares are estimated, not taken to be even."""
    x, truth = noisy(clusters, 0.5)
    y = hidden(truth, shots=3)
    keep = (y >= 0) | ((truth != 0) & (np.arange(len(x)) % 10 < np.array([0, 1, 3, 9, 10])[truth]))
    x, truth, y = x[keep], truth[keep], y[keep]
    model = TACClassifier(distractors=False).fit(x, y)
    assert (model.transduction_ == truth)[y < 0].mean() > 0.93
    assert (model.transduction_[y < 0] == 0).mean() < 0.03
    np.testing.assert_allclose(model.class_shares_, np.bincount(truth[y < 0], minlength=5) / (y < 0).sum(), atol=0.06)


def test_a_labelled_class_without_other_rows(clusters):
    """The others are even, so classes are nearly taken to be even; the absent one gets few rows for all that."""
    x, truth = noisy(clusters, 1.5, classes=8)
    y = hidden(truth, shots=4, classes=8)
    keep = (y >= 0) | (truth != 0)
    model = TACClassifier(distractors=False).fit(x[keep], y[keep])
    found = model.transduction_[y[keep] < 0]
    assert model._model.evenness > 0.5
    assert (found == 0).mean() < 0.05
    assert (found == truth[keep & (y < 0)]).mean() > 0.89


def test_long_tails(clusters):
    """Rows of large classes that are mistaken for those of small ones do not move the means of these; eight draws."""
    rows, classes = clusters
    place = np.array([(classes[:row] == label).sum() for row, label in enumerate(classes)])
    found = []
    for seed in range(8):
        sizes = np.maximum(4, np.round(60 * 20.0 ** -(np.random.default_rng(100 + seed).permutation(8) / 7)))
        kept = place < sizes[classes]
        x, truth = (rows + 2.5 * np.random.default_rng(seed).normal(size=rows.shape))[kept], classes[kept]
        y = np.where(place[kept] < np.minimum(8, sizes // 2)[truth], truth, -1)
        model = TACClassifier(distractors=False).fit(x, y)
        found.append((model.transduction_ == truth)[y < 0].mean())
    assert np.mean(found) > 0.675


def test_shares_count_more_where_logits_are_sharper_than_right():
    """By Bayes' rule; not where there is one label a class, nor where the accuracy is high or not known."""
    logits = np.random.default_rng(0).normal(size=(500, 6)) * 6
    assert prior(logits, 1.0, None) == prior(logits, 1.0, 0.95) == prior(logits, 0.0, 0.3) == PRIOR
    half, low = prior(logits, 1.0, 0.5), prior(logits, 1.0, 0.35)
    assert PRIOR < half < low
    assert half == pytest.approx(BAYES / temperature(logits, 0.5), rel=0.2)
    assert prior(logits, 0.5, 0.5) == pytest.approx((PRIOR + half) / 2)


def test_no_rows_of_no_class_are_flagged_unless_there_are_any(clusters):
    x, truth = clusters
    alone, y = truth < 5, hidden(truth, shots=5)
    closed = TACClassifier().fit(x[alone], y[alone])
    assert closed.none_threshold_ == 0 and not closed.is_none(x[alone]).any() and closed.none_share_ == 0
    rates = closed.none_score(x[alone & (y < 0)])
    assert 0.02 < (rates <= 0.1).mean() < 0.25, "they are rates nevertheless"
    never = TACClassifier(distractors=False).fit(x, y)
    assert not never.is_none(x).any() and (never.none_score(x) == 1).all()
    few, many = (TACClassifier(none_rate=rate).fit(x, y).is_none(x) for rate in (0.02, 0.3))
    assert few[truth < 5].mean() < many[truth < 5].mean() < 0.45


def test_the_accuracy_of_all_counts_rows_of_no_class(clusters):
    x, truth = clusters
    y = hidden(truth, shots=8)
    model = TACClassifier().fit(x, y)
    free, none = y < 0, model.is_none(x)
    right = np.where(none, truth >= 5, model.transduction_ == truth)[free].mean()
    low, high = model.expected_accuracy_interval_
    assert low <= right <= high and model.expected_accuracy_ == pytest.approx(right, abs=0.15)


@pytest.mark.parametrize("shots", [6, 10, 20])
def test_rows_of_no_class_are_counted_where_they_are_hard_to_tell(clusters, shots):
    """Many of them look like rows of the classes; how many do, the classes say of one another."""
    x, truth = noisy(clusters, 2.5, classes=8)
    y = hidden(truth, shots)
    model = TACClassifier(distractors=True).fit(x, y)
    assert 0.6 < model._judge.seen < 0.85
    assert model.none_share_ == pytest.approx((truth >= 5)[y < 0].mean(), abs=0.16)
    low, high = model._judge.shares()
    assert 0 <= low < model.none_share_ < high < 1


def test_nothing_is_excluded_where_nothing_is_seen():
    """Rows of noise: any share of them may be of no class, and the interval of the accuracy says so."""
    x = np.random.default_rng(0).normal(size=(300, 64))
    model = TACClassifier().fit(x, np.where(np.arange(300) < 15, np.arange(300) % 5, -1))
    low, high = model._judge.shares()
    assert low < 0.1 and high > 0.9
    assert model.expected_accuracy_interval_[0] < 0.05


def test_the_labels_left_out_are_no_stranger_than_rows(clusters):
    """In every fold, near and far ones are left out; so labels rank among unlabelled rows as these do."""
    x, truth = noisy(clusters, 1.5, classes=8)
    y = hidden(truth, shots=3, classes=8)
    model = TACClassifier().fit(x, y)
    space, labelled = model._space, np.flatnonzero(y >= 0)
    fold, count = folds(space, labelled, y[labelled])
    assert count == 3
    for label in range(8):
        assert sorted(fold[y[labelled] == label]) == [0, 1, 2]
    nearest = [fold[y[labelled] == label][space.order[labelled[y[labelled] == label]].argmin()] for label in range(8)]
    assert set(nearest) == {0, 1, 2}
    assert abs(model._judge.excess) < 1.3


def test_many_rows_are_seen_through_anchors(clusters, monkeypatch):
    """Fewer anchors than rows: new rows and those of fit go the same way, and little is lost."""
    x, truth = noisy(clusters, 0.5)
    y = hidden(truth, shots=3)
    full = TACClassifier().fit(x, y)
    monkeypatch.setattr("handful.estimator.space.ANCHORS", 150)
    monkeypatch.setattr("handful.estimator.space.FEWEST_ANCHORS", 150)
    model = TACClassifier().fit(x, y)
    assert len(model._space.core) == 150
    np.testing.assert_allclose(model.predict_proba(x)[y < 0], model.label_distributions_[y < 0], atol=1e-9)
    assert (model.transduction_ == truth).mean() > (full.transduction_ == truth).mean() - 0.03
    order = np.random.default_rng(1).permutation(len(x))
    mixed = TACClassifier().fit(x[order], y[order])
    np.testing.assert_allclose(mixed.label_distributions_, model.label_distributions_[order], atol=1e-9)


@pytest.mark.parametrize("distractors", [True, False, "auto"])
def test_rows_that_are_all_the_same(distractors):
    """Nothing tells them apart, and nothing is foreign; all that can be asked is an answer."""
    X, y = np.ones((20, 8)), np.repeat([0, 1, -1], [3, 3, 14])  # noqa: N806
    model = TACClassifier(distractors=distractors).fit(X, y)
    assert np.isfinite(model.none_score(X)).all() and np.isfinite(model.predict_proba(X)).all()
    assert model.is_none(X).shape == (20,)
