"""Made-up episodes, and methods to run on them, for all tests of methods."""

from __future__ import annotations

import torch

from handful import Episode, build_method
from handful.methods import method_options

DIM, WAYS = 20, 5


def make_episode(batch=(3,), ways=WAYS, shots=2, unlabelled=8, queries=10, spread=1.0, seed=0, dtype=torch.float64):
    """Clusters around random centres; the last quarter of the unlabelled points are distractors."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=dtype)

    centres = 1.5 * normal(*batch, ways, DIM)
    query_labels = torch.randint(ways, (*batch, queries), generator=generator)
    labels = torch.randint(ways, (*batch, unlabelled), generator=generator)
    labels[..., unlabelled - unlabelled // 4 :] = -1

    def around(index):
        picked = torch.gather(centres, -2, index.clamp_min(0)[..., None].expand(*index.shape, DIM))
        return torch.where(index[..., None] >= 0, picked, 2.0) + spread * normal(*index.shape, DIM)

    support = centres[..., None, :] + spread * normal(*batch, ways, shots, DIM)
    return Episode(support, around(query_labels), around(labels), query_labels, labels)


def refined(name, iterations):
    """Options for so many refinements; none for a method that has none."""
    return {"iterations": iterations} if "iterations" in method_options(name) else {}


def method(name, ways=WAYS, **options):
    torch.manual_seed(0)
    return build_method(name, DIM, ways, **options).double()
