"""Problems without a visible spin: nothing depends on the couplings, and their gradient is 0."""

from __future__ import annotations

import pytest
import torch

import diabat
from diabat.ising import Ising, pack_couplings


@pytest.mark.parametrize("backend", ["exact", "banded", "mean_field"])
def test_couplings_that_nothing_depends_on_have_no_gradient(backend: str) -> None:
    pairs = torch.randn(6, dtype=torch.float64, requires_grad=True)
    hidden = torch.zeros(4, dtype=torch.bool)
    ising = Ising(torch.randn(3, 4, dtype=torch.float64), pack_couplings(pairs, 4), hidden)
    moments = diabat.sampler(backend).moments(ising)
    (moments.probability.sum() + (pairs**2).sum()).backward()
    assert torch.equal(pairs.grad, 2 * pairs)
