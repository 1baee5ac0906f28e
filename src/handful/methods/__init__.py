"""The registry of methods: one dict, and the entry points ``handful.methods`` of other packages."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import Any

from ..errors import HandfulError
from ..plugins import Registry
from .alpha_tim import AlphaTim
from .base import Method
from .bd_cspn import PrototypeRectification
from .classifier import Classifier, ClassifierSemi
from .epnet import EmbeddingPropagation
from .ici import CredibilityInference
from .ilpc import LabelCleaning
from .imp import InfiniteMixture
from .laplacian_shot import LaplacianShot
from .lst import SelfTraining
from .maml import Maml
from .matching import MatchingNetwork
from .metagan import MetaGan
from .paddle import PartitionPenalty
from .pn import PrototypicalNetwork
from .prwn import RandomWalks
from .pt_map import PowerTransport
from .relation import RelationNetwork
from .siamese import SiameseNetwork
from .snail import Snail
from .soft_kmeans import MaskedSoftKMeans, SoftKMeans, SoftKMeansCluster
from .tac import Tac, TacDap
from .tac_free import TacFree
from .tapnet import TapNet, TapNetSemi, TapNetSoftClustering
from .tpn import LabelPropagation

DEFAULT_FORM = "default"  # of a method: its options have the values that `method_options` lists

_OWN: dict[str, type[Method]] = {
    "pn": PrototypicalNetwork,
    "soft-kmeans": SoftKMeans,
    "soft-kmeans-cluster": SoftKMeansCluster,
    "masked-soft-kmeans": MaskedSoftKMeans,
    "tpn": LabelPropagation,
    "relation": RelationNetwork,
    "metagan": MetaGan,
    "imp": InfiniteMixture,
    "tapnet": TapNet,
    "tapnet-semi": TapNetSemi,
    "tapnet-soft-clustering": TapNetSoftClustering,
    "tac": Tac,
    "tacdap": TacDap,
    "classifier": Classifier,
    "classifier-semi": ClassifierSemi,
    "prwn": RandomWalks,
    "tac-free": TacFree,
    "bd-cspn": PrototypeRectification,
    "laplacian-shot": LaplacianShot,
    "pt-map": PowerTransport,
    "paddle": PartitionPenalty,
    "alpha-tim": AlphaTim,
    "epnet": EmbeddingPropagation,
    "ilpc": LabelCleaning,
    "ici": CredibilityInference,
    "matching": MatchingNetwork,
    "siamese": SiameseNetwork,
    "snail": Snail,
    "lst": SelfTraining,
    "maml": Maml,
}


def _fault(name: str, loaded: Any) -> str | None:
    sound = isinstance(loaded, type) and issubclass(loaded, Method)
    return None if sound else f"it is {loaded!r:.60}, not a subclass of handful.methods.Method"


METHODS: Registry[type[Method]] = Registry("method", _OWN, _fault)


def methods() -> list[str]:
    """Names of all methods, in the order of the paper's tables, then those that are not in them."""
    return list(METHODS)


def method_class(name: str) -> type[Method]:
    """The class behind a name, or an error that lists the names there are."""
    if name not in METHODS:
        raise HandfulError(f"unknown method '{name}': choose one of {', '.join(METHODS)}")
    return METHODS[name]


def method_options(name: str) -> dict[str, Any]:
    """The options that a method uses and their defaults; ``form`` is one of them if the method has several."""
    cls = method_class(name)
    own = {option: default for option, default in _parameters(cls).items() if option not in cls.unused}
    return {"form": DEFAULT_FORM, **own} if cls.forms else own


def used_options(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Options without those that have no effect on the method, for settings from when they were accepted."""
    return {option: value for option, value in options.items() if option not in method_class(name).unused}


def _parameters(method: type[Method]) -> dict[str, Any]:
    """Keyword-only arguments of a class and of those it derives from, with the nearest class's default."""
    options: dict[str, Any] = {}
    for cls in method.__mro__:
        if issubclass(cls, Method) and "__init__" in vars(cls):
            for parameter in inspect.signature(cls.__init__).parameters.values():
                if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                    options.setdefault(parameter.name, parameter.default)
    return options


def build_method(name: str, dim: int, ways: int, **options: Any) -> Method:
    """Build a method by name.

    Args:
        name: one of :func:`methods`.
        dim: length of an embedding.
        ways: classes of a training episode.
        options: as :func:`method_options` lists them. ``form`` sets several at once, and those that are given beside it
            override it: ``form="published"`` is the method as its authors have it. Also ``feature_shape``, that of the
            backbone, which only matters to methods that read feature maps.

    Example:
        >>> build_method("tac", dim=64, ways=20, iterations=3).iterations
        3
        >>> build_method("tac", dim=64, ways=20, form="published").matching
        'greedy'
    """
    cls, known = method_class(name), method_options(name)
    if cls.forms:
        options = {**_form(name, options.pop("form", DEFAULT_FORM)), **options}
    shape = options.pop("feature_shape", None)
    for option in sorted(set(options) & set(cls.unused)):
        if options.pop(option) != _parameters(cls)[option]:  # settings may spell out a default
            raise HandfulError(f"the method '{name}' makes no use of the option '{option}': leave it out")
    if unknown := sorted(set(options) - set(known)):
        raise HandfulError(f"the method '{name}' has no option '{unknown[0]}': choose from {', '.join(sorted(known))}")
    return cls(dim, ways, *([shape] if cls.reads_maps else []), **options)


def _form(name: str, form: Any) -> dict[str, Any]:
    """The options of a form of a method."""
    forms = {DEFAULT_FORM: {}, **method_class(name).forms}
    if form not in forms:
        raise HandfulError(f"the method '{name}' has no form '{form!s:.40}': choose one of {', '.join(forms)}")
    return forms[form]


class _Package(ModuleType):
    """``handful.methods()`` lists the names, although Python binds ``handful.methods`` to this package."""

    def __call__(self) -> list[str]:
        return methods()


sys.modules[__name__].__class__ = _Package

__all__ = ["METHODS", "Method", "build_method", "method_class", "method_options", "methods", "used_options"]
