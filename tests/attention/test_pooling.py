"""Boltzmann pooling: its weights are marginals of its fields and couplings."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

import diabat
from diabat.attention.pooling import BoltzmannPooling
from diabat.samplers.capabilities import UnsupportedError


def test_weights_are_the_marginals_of_fields_and_couplings() -> None:
    torch.manual_seed(0)
    pooling = BoltzmannPooling(6, 2, 5, sampler="exact").double()
    torch.nn.init.normal_(pooling.coupling_pairs)
    x, hidden = torch.randn(3, 4, 6, dtype=torch.float64), torch.zeros(3, 4, dtype=torch.bool)
    hidden[0, 2:] = True
    with pooling.recording():
        alpha = pooling.probabilities(x, hidden)
        h, J = pooling.last_fields_and_couplings()
    assert (h.shape, J.shape) == ((3, 2, 4), (2, 4, 4))
    for b in range(3):
        for head in range(2):
            n = int((~hidden[b]).sum())
            one = diabat.Ising(h[b, head, :n], J[head, :n, :n])
            assert_close(alpha[b, head, :n], diabat.sampler("exact").moments(one).probability)
    weights = pooling.weights(x, hidden)
    assert_close(weights.sum(-1), torch.ones(3, 2, dtype=torch.float64))
    assert_close(weights[1, 0], alpha[1, 0] / alpha[1, 0].sum())
    assert not weights[0, :, 2:].any()


def test_a_window_too_wide_for_a_band_is_refused_when_the_pooling_is_built() -> None:
    """All pairs are coupled, so that the band is the window, also while J is zero."""
    with pytest.raises(UnsupportedError, match="got a bandwidth of 63 with 64 spins"):
        BoltzmannPooling(4, 1, 64, sampler="banded")
    pooling = BoltzmannPooling(4, 1, 6, sampler="banded")
    assert pooling.sampler.options["bandwidth"] == 5
