"""TAC's space by NumPy: that of ``handful.functional``, also where classes or references depend on each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from handful import functional as F
from handful.estimator.task_space import assign_references, error_vectors, modified_references, null_basis
from handful.methods.tapnet import assign_references as assign_in_torch


def vectors(rows, dim, seed):
    return np.random.default_rng(seed).normal(size=(rows, dim))


@pytest.mark.parametrize("case", ["plain", "one class", "a class twice", "a mean on its reference", "few dimensions"])
def test_the_projection_is_that_of_functional(case):
    ways, dim = {"one class": (1, 30), "few dimensions": (8, 5)}.get(case, (6, 30))
    means, references = vectors(ways, dim, 0), vectors(ways, dim, 1)
    if case == "a class twice":
        means[1], references[1] = means[0], references[0]
    if case == "a mean on its reference":
        means[2] = 5 * modified_references(references)[2]
    basis = null_basis(error_vectors(means, references))
    theirs = F.null_basis(F.error_vectors(*map(torch.from_numpy, (means, references)))).numpy()
    np.testing.assert_allclose(basis @ basis.T, theirs @ theirs.T, atol=1e-10)
    np.testing.assert_allclose(basis.T @ basis, np.eye(basis.shape[1]), atol=1e-10)


def test_the_references_that_classes_take_are_those_of_tapnet():
    for seed in range(5):
        means, references = vectors(5, 12, seed), vectors(9, 12, seed + 100)
        theirs = assign_in_torch(*map(torch.from_numpy, (means, references))).numpy()
        np.testing.assert_array_equal(assign_references(means, references), theirs)
