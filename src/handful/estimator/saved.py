"""A fitted classifier as one file: safetensors and a line of JSON, so loading it runs nothing.

The file holds what new rows need and nothing else of the rows of `fit` than the anchors: at most 5,000 reduced rows,
among which the neighbours of a new row are looked for. Arrays are stored as they are, so a loaded model answers bit for
bit as the one that was saved.

The parts are dataclasses, and all of their fields are stored, found by their types: a new field of floats, whether
array or number, needs a line in `NUMBERS` and nothing else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, is_dataclass
from numbers import Real
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ..embedders.origin import Origin
from ..errors import HandfulError
from ..io import write_atomic
from .foreign import Judge
from .refinement import Model
from .space import Projection

_KEY, FORMAT = "handful-classifier", 1
KINDS = ("float32", "float64")
UNIT = 1.01  # lengths of vectors that are no longer than 1
WIDE = 1e6  # numbers that are about 1
FAR = 1e16  # scores, of which those of equal rows are divided by a spread of nearly nothing


@dataclass(frozen=True)
class Fitted:
    """The attributes of a fitted classifier that new rows need."""

    _projection: Projection
    _model: Model
    _judge: Judge | None
    _temperature: float
    none_threshold_: float
    none_share_: float
    expected_accuracy_: float


@dataclass(frozen=True)
class About:
    """What is known of a fitted classifier beside numbers.

    Attributes:
        settings: of its constructor.
        classes: the labels.
        kind: the type of the rows that it was fitted to, float32 or float64.
        refinements: that were made.
        interval: of the expected accuracy.
        feature_names: if X had any.
        embedder: which made the rows, if that is known.
    """

    settings: dict[str, Any]
    classes: NDArray[Any]
    kind: str
    refinements: int
    interval: tuple[float, float]
    feature_names: list[str] | None = None
    embedder: Origin | None = None


# The shape of each array by the names of its sides, which mean the same number throughout, or none for a number. Then
# the least and the largest value, or length of a vector if that is UNIT: what is beyond is damage.
NUMBERS: dict[str, tuple[tuple[str, ...], float, float]] = {
    "_projection.frame.centre": (("features",), -UNIT, UNIT),
    "_projection.frame.map": (("dim", "features"), -WIDE, WIDE),
    "_projection.centre": (("dim",), -UNIT, UNIT),
    "_projection.axes": (("dim", "reduced"), -UNIT, UNIT),
    "_projection.anchors": (("anchors", "reduced"), -WIDE, WIDE),
    "_projection.smoothing": ((), 0, 0.99),
    "_model.map": (("reduced", "reduced"), -WIDE, WIDE),
    "_model.centre": (("reduced",), -WIDE, WIDE),
    "_model.means": (("classes", "reduced"), -UNIT, UNIT),
    "_model.sharpness": ((), 0, 1e30),
    "_model.regression.support": (("support", "reduced"), -UNIT, UNIT),
    "_model.regression.weights": (("support", "classes"), -WIDE, WIDE),
    "_model.trust": ((), 0, 1e10),
    "_model.bias": (("classes",), -WIDE, WIDE),
    "_model.shares": (("classes",), 0, 1),
    "_model.evenness": ((), 0, 1),
    "_model.agreement": ((), 0, 1),
    "_model.logistic.weights": (("reduced", "classes"), -WIDE, WIDE),
    "_model.logistic.offset": (("classes",), -WIDE, WIDE),
    "_model.doubt": ((), 0, 1),
    "_judge.scales": (("reduced",), 0, UNIT),
    "_judge.means": (("folds", "classes", "reduced"), -UNIT, UNIT),
    "_judge.met": (("anchors", "folds"), 0, FAR),
    "_judge.centres": (("2", "folds"), -WIDE, WIDE),
    "_judge.spreads": (("2", "folds"), 1e-10, WIDE),
    "_judge.none": (("none", "reduced"), -UNIT, UNIT),
    "_judge.none_met": (("anchors", "1"), 0, FAR),
    "_judge.scores": (("grid",), -FAR, FAR),
    "_judge.ranks": (("grid",), 0, 1),
    "_judge.labels": (("left out",), 0, 1),
    "_judge.weights": (("left out",), 0, 1),
    "_judge.seen": ((), 0, 1),
    "_judge.seen_error": ((), 0, 1),
    "_temperature": ((), 1e-6, WIDE),
    "none_threshold_": ((), 0, 1),
    "none_share_": ((), 0, 1),
    "expected_accuracy_": ((), 0, 1),
}
_LEAST = {"features": 1, "reduced": 1, "folds": 1, "grid": 1, "classes": 2}  # of a side; of others 0


def save_attributes(model: Any, path: Path) -> None:
    """Write the attributes of a fitted classifier that new rows need."""
    fitted = Fitted(**{field.name: getattr(model, field.name) for field in fields(Fitted)})
    names, head = getattr(model, "feature_names_in_", None), model.head
    settings = {
        "head": head if head is None or isinstance(head, str) else str(getattr(head, "name", head)),
        "iterations": int(model.iterations),
        "distractors": "auto" if isinstance(model.distractors, str) else bool(model.distractors),
        "scale": "auto" if isinstance(model.scale, str) else float(model.scale),
        "none_rate": float(model.none_rate),
    }
    about = About(
        settings, model.classes_, str(model._kind), int(model.n_iter_), model.expected_accuracy_interval_,
        None if names is None else names.tolist(), model.embedder_,
    )  # fmt: skip
    _write(path, fitted, about)


def load_attributes(model: Any, path: Path) -> None:
    """Give a new classifier the settings and attributes that :func:`save_attributes` wrote."""
    fitted, about = _read(path)
    try:
        model.set_params(**about.settings)
        model._settings()
    except (TypeError, ValueError, AttributeError) as error:
        raise HandfulError(f"{path} is a damaged model: its settings are not those of a model") from error
    for field in fields(Fitted):
        setattr(model, field.name, getattr(fitted, field.name))
    model.classes_, model.n_iter_, model.embedder_ = about.classes, about.refinements, about.embedder
    model.class_shares_, model.expected_accuracy_interval_ = fitted._model.shares, about.interval
    model.n_features_in_, model._kind = len(fitted._projection.frame.centre), np.dtype(about.kind)
    if about.feature_names is not None:
        model.feature_names_in_ = np.array(about.feature_names, dtype=object)


def _write(path: Path, fitted: Fitted, about: About) -> None:
    flat = dict(flattened(fitted))
    arrays = {name: value for name, value in flat.items() if isinstance(value, np.ndarray)}
    if fault := _fault(flat, about):
        raise HandfulError(f"the model cannot be saved: {fault}")
    # Also the order of an array in memory is kept, on which the last digit of a product may depend.
    turned = [name for name, value in arrays.items() if value.flags.f_contiguous and not value.flags.c_contiguous]
    words = {
        "format": FORMAT, "numbers": {name: value for name, value in flat.items() if name not in arrays},
        "columns_first": turned, "settings": about.settings, "classes": _class_words(about.classes),
        "kind": about.kind, "refinements": about.refinements, "interval": about.interval,
        "feature_names": about.feature_names,
        "embedder": None if about.embedder is None else asdict(about.embedder),
    }  # fmt: skip
    content = {name: np.ascontiguousarray(value.T if name in turned else value) for name, value in arrays.items()}
    text = json.dumps({"sha256": checksum(content, words), "words": words})
    write_atomic(path, save(content, metadata={_KEY: text}))


def _read(path: Path) -> tuple[Fitted, About]:
    """Read a fitted classifier; a file that is none, or a damaged one, is an error of one sentence."""
    if not _is_file(path):
        raise HandfulError(f"there is no model at {path}: give a file that TACClassifier.save or 'handful label' wrote")
    damaged = f"{path} is not a model that TACClassifier.save or 'handful label' wrote, or a damaged one"
    try:
        with safe_open(path, framework="numpy") as file:
            written = json.loads((file.metadata() or {})[_KEY])
            words = written["words"]
            if words["format"] != FORMAT:
                raise HandfulError(f"{path} is a model of another version of handful: label, or fit, anew")
            names = set(file.keys())
            if unknown := names - NUMBERS.keys():
                raise HandfulError(f"{damaged}: it has an array {min(unknown)[:40]!a}, which no model has")
            arrays = {name: file.get_tensor(name) for name in NUMBERS if name in names}
        if checksum(arrays, words) != written["sha256"]:
            raise HandfulError(f"{path} is a damaged model: its contents do not match its checksum")
        flat: dict[str, Any] = {name: float(value) for name, value in words["numbers"].items()} | arrays
        for name in words["columns_first"]:
            flat[name] = flat[name].T
        embedder = None if words["embedder"] is None else Origin(**words["embedder"])
        about = About(words["settings"], _class_array(words["classes"]), words["kind"], words["refinements"],
                      tuple(words["interval"]), words["feature_names"], embedder)  # fmt: skip
        fault = _fault(flat, about)
    except HandfulError:
        raise
    except (OSError, SafetensorError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError,
            RecursionError) as error:  # fmt: skip
        raise HandfulError(damaged) from error
    if fault:
        raise HandfulError(f"{path} is a damaged model: {fault}")
    try:
        return built(Fitted, flat, "", {}), about
    except KeyError as error:
        raise HandfulError(f"{path} is a damaged model: it has no '{error.args[0]}'") from error


def checksum(arrays: dict[str, NDArray[Any]], words: dict[str, Any]) -> str:
    """Of all that a file holds: a flipped bit in a mean would change answers, and no other check could tell."""
    digest = hashlib.sha256(json.dumps(words, sort_keys=True).encode())
    for name, value in sorted(arrays.items()):
        digest.update(f"{name} {value.dtype.str} {value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()


def flattened(part: Any, prefix: str = "", seen: dict[type, Any] | None = None) -> Iterator[tuple[str, Any]]:
    """The arrays and numbers of a dataclass and of those in it, by their path; None is left out.

    A part that occurs twice, as the projection, is stored once.
    """
    seen = {} if seen is None else seen
    seen[type(part)] = part
    for field in fields(part):
        name, value = prefix + field.name, getattr(part, field.name)
        if is_dataclass(value):
            if type(value) in seen and seen[type(value)] is not value:
                raise TypeError(f"{name} is a second {type(value).__name__}: only one can be saved")
            if type(value) not in seen:
                yield from flattened(value, f"{name}.", seen)
        elif isinstance(value, np.ndarray):
            yield name, value
        elif isinstance(value, Real | np.bool_):
            yield name, float(value)
        elif value is not None:
            raise TypeError(f"{name} is of a kind that is not saved: {type(value).__name__}")


def built(kind: type, flat: dict[str, Any], prefix: str, made: dict[type, Any]) -> Any:
    """A dataclass from its flat form; what is missing is None where that may be, and else a KeyError."""
    values, hints = {}, get_type_hints(kind)
    for field in fields(kind):
        name, hint = prefix + field.name, hints[field.name]
        options = get_args(hint) if type(None) in get_args(hint) else (hint,)
        inner = next((option for option in options if isinstance(option, type) and is_dataclass(option)), None)
        if inner is None:
            value = flat.get(name) if len(options) > 1 else flat[name]
            number = next((option for option in options if option in (bool, int)), None)  # stored as floats
            values[field.name] = value if number is None or value is None else number(value)
        elif inner in made:
            values[field.name] = made[inner]
        elif len(options) == 1 or any(key.startswith(f"{name}.") for key in flat):
            values[field.name] = made[inner] = built(inner, flat, f"{name}.", made)
        else:
            values[field.name] = None
    return kind(**values)


def _fault(flat: dict[str, Any], about: About) -> str | None:
    """What makes a model unusable, if anything does."""
    if unknown := flat.keys() - NUMBERS.keys():
        return f"no model has a {min(unknown)[:40]!a}"
    sides = {"classes": len(about.classes), "1": 1, "2": 2}
    if "_projection.axes" not in flat:  # unit vectors are not reduced
        sides["reduced"] = sides["dim"] = len(flat.get("_projection.centre", ()))
    if "_projection.frame.map" not in flat:
        sides["dim"] = sides["features"] = len(flat.get("_projection.frame.centre", ()))
    if not len(flat.get("_projection.anchors", ())):
        return "it was fitted to rows that are all alike, and tells nothing apart"
    for name, value in flat.items():
        shape, least, most = NUMBERS[name]
        if shape and (not isinstance(value, np.ndarray) or value.dtype not in KINDS or value.ndim != len(shape)):
            return f"'{name}' should be {' or '.join(KINDS)} with {len(shape)} axes"
        if not shape and isinstance(value, np.ndarray):
            return f"'{name}' should be a number"
        for side, length in zip(shape, np.shape(value), strict=True):
            if length < _LEAST.get(side, 0) or sides.setdefault(side, length) != length:
                wanted = ", ".join(str(sides.get(one, one)) for one in shape)
                return f"'{name}' should be of shape ({wanted}), got {np.shape(value)}"
        measured = np.linalg.norm(value, axis=-1) if least == -UNIT else value
        if not (np.min(measured, initial=most) >= least and np.max(measured, initial=least) <= most):  # nor is NaN
            return f"'{name}' should hold numbers from {least:g} to {most:g}"
    scores = flat.get("_judge.scores", np.zeros(1))
    if (np.diff(scores) < -1e-6 * np.abs(scores).max()).any():  # equal ones may be out of order by rounding
        return "'_judge.scores' should be sorted"
    if about.embedder is not None and about.embedder.dim != sides["features"]:
        return f"its rows should have {sides['features']} numbers, as many as its embedder gives"
    return _word_fault(about) or (None if about.embedder is None else about.embedder.fault())


def _word_fault(about: About) -> str | None:
    if len(np.unique(about.classes)) != len(about.classes):
        return "a class is there twice"
    if about.kind not in KINDS:
        return f"its rows should be {' or '.join(KINDS)}, got {about.kind!r:.40}"
    if type(about.refinements) is not int or about.refinements < 0:
        return f"its refinements should be a whole number, got {about.refinements!r:.40}"
    if not isinstance(about.settings, dict):
        return "its settings should be names and values"
    low_high = about.interval
    if len(low_high) != 2 or not all(isinstance(end, float | int) and 0 <= end <= 1 for end in low_high):
        return "its interval should be two numbers from 0 to 1"
    names = about.feature_names
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        return "its names of features should be texts"
    return None


def _class_words(classes: NDArray[Any]) -> dict[str, Any]:
    kind = classes.dtype.kind
    values = [value.decode("latin-1") for value in classes.tolist()] if kind == "S" else classes.tolist()
    return {"type": kind if kind in "USO" else classes.dtype.str, "values": values}


def _class_array(words: dict[str, Any]) -> NDArray[Any]:
    """The classes as they were read from the labels: texts, bytes, bools or numbers."""
    kind, values = np.dtype(words["type"]), words["values"]
    expected = {"U": str, "S": str, "b": bool, "i": int, "u": int, "f": float, "O": int}[kind.kind]
    if not isinstance(values, list) or not all(type(value) is expected for value in values):
        raise TypeError(f"the classes should be a list of {expected.__name__}")
    if kind.kind in "US":  # as wide as the longest, whatever the file says
        return np.array([value.encode("latin-1") for value in values] if kind.kind == "S" else values)
    return np.array(values, dtype=kind)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that no file can have
        return False


__all__ = ["NUMBERS", "Fitted", "built", "checksum", "flattened", "load_attributes", "save_attributes"]
