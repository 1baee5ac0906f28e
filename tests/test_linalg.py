"""Systems of equations in batches, small ones at once and large ones one by one."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck

from handful._linalg import SAFE, inverse, solve


@pytest.mark.parametrize("size", [5, SAFE, SAFE + 1, 255])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_solutions_are_those_of_each_system(size, batch):
    generator = torch.Generator().manual_seed(0)
    systems = torch.eye(size) + torch.randn(*batch, size, size, generator=generator).double() / (3 * size**0.5)
    right = torch.randn(*batch, size, 4, generator=generator).double()
    torch.testing.assert_close(systems @ solve(systems, right), right)
    torch.testing.assert_close(systems @ inverse(systems), torch.eye(size).double().expand_as(systems))


def test_many_large_identities_are_solved():
    """What MKL's batches fail at, with several threads."""
    right = torch.randn(30, 255, 5)
    assert torch.equal(solve(torch.eye(255).expand(30, -1, -1), right), right)


def test_gradients_of_large_systems(monkeypatch):
    monkeypatch.setattr("handful._linalg.SAFE", 2)
    systems = (torch.eye(4).double() + 0.1 * torch.rand(2, 4, 4).double()).requires_grad_()
    assert gradcheck(solve, (systems, torch.rand(2, 4, 3).double().requires_grad_()))
