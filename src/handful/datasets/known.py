"""Data sets that a user has to download: where they are, and what is known of their files and images.

Nothing here is downloaded by handful. The checksums are those that other libraries publish for the same files, and each
names the library. A fingerprint is that of `ImageSet.fingerprint` at the default options: it does not depend on how
the files were packed.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class KnownFile:
    """A file as it is handed around.

    Attributes:
        name: of the file; other files may have the same.
        md5: its checksum.
        publisher: who publishes the checksum.
        holds: what is in it.
    """

    name: str
    md5: str
    publisher: str
    holds: str


@dataclass(frozen=True)
class Known:
    """A data set that a user has to download.

    Attributes:
        title: its name in the literature, and its paper.
        terms: who owns the images.
        places: address -> what is there.
        files: with a known checksum.
        packed: names of files that a loader reads, but not inside a tar archive: they are unpacked.
        images: split -> classes and images at the default options; rotated classes count.
        fingerprints: split -> that of the images our results were measured on; empty if nothing was.
    """

    title: str
    terms: str
    places: dict[str, str]
    files: tuple[KnownFile, ...]
    images: dict[str, tuple[int, int]]
    packed: tuple[str, ...] = ()
    fingerprints: dict[str, str] = field(default_factory=dict)


_IMAGENET = "The photographs are from ImageNet, whose terms apply (image-net.org)."
_SSL = "https://github.com/renmengye/few-shot-ssl-public"

KNOWN: dict[str, Known] = {
    "omniglot": Known(
        title="Omniglot (Lake, Salakhutdinov and Tenenbaum 2015)",
        terms="The authors' repository has the MIT licence.",
        places={"https://github.com/brendenlake/omniglot": "the folder python/: both archives"},
        files=(
            KnownFile("images_background.zip", "68d2efa1b9178cc56df9314c21c6e718", "torchvision", "964 characters"),
            KnownFile("images_evaluation.zip", "6b91aef0f799c5bb55b94e3f2daec811", "torchvision", "659 characters"),
        ),
        images={"train": (4112, 82240), "val": (688, 13760), "test": (1692, 33840)},
        fingerprints={"train": "034c603ade25804a", "val": "bc2a7e7c13b27301", "test": "4687651db30b5f51"},
    ),
    "mini-imagenet": Known(
        title="miniImageNet (Vinyals et al. 2016; split of Ravi and Larochelle 2017)",
        terms=_IMAGENET,
        places={
            _SSL: "a link to mini-imagenet.tar.gz: pickles, 1.1 GB",
            "https://github.com/twitter-research/meta-learning-lstm": "train.csv, val.csv and test.csv of the split, "
            "for images that you extract from ImageNet",
            "https://github.com/istarjun/TapNet": ".npz files",
        },
        files=(
            KnownFile("mini-imagenet.tar.gz", "b38f1eb4251fb9459ecc8e7febf9b2eb", "Torchmeta", "the three pickles"),
            KnownFile(
                "mini-imagenet-cache-train.pkl", "069993a77e65a83bbf8f8de4c9dcca68", "PaddleFSL", "38,400 images"
            ),
            KnownFile("mini-imagenet-cache-val.pkl", "f87ddf9b5211920dd73520274371eb6a", "PaddleFSL", "9,600 images"),
            KnownFile("mini-imagenet-cache-test.pkl", "12158d649fd08945294de4ad38cda81d", "PaddleFSL", "12,000 images"),
        ),
        images={"train": (64, 38400), "val": (16, 9600), "test": (20, 12000)},
        packed=tuple(f"mini-imagenet-cache-{split}.pkl" for split in ("train", "val", "validation", "test")),
        # of the copy with images/*.jpg of 84 x 84 and the tables of the split
        fingerprints={"train": "92df7b0df4a94a46", "val": "c86f0f91f99e20d8", "test": "b3ffc0b8e798ced2"},
    ),
    "tiered-imagenet": Known(
        title="tieredImageNet (Ren et al. 2018)",
        terms=_IMAGENET,
        places={
            _SSL: "a link to tiered-imagenet.tar: PNG images in pickles, 12.9 GB",
            "https://github.com/yaoyao-liu/tiered-imagenet-tools": "tools that make class folders from ImageNet",
        },
        files=(KnownFile("tiered-imagenet.tar", "e07e811b9f29362d159a9edd0d838c62", "Torchmeta", "the six pickles"),),
        images={"train": (351, 448695), "val": (97, 124261), "test": (160, 206209)},
        packed=tuple(f"{split}_{part}.pkl" for split in ("train", "val", "test") for part in ("images_png", "labels")),
    ),
}
