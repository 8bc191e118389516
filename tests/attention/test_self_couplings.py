"""Mode J-self: couplings with the query's own spin held at +1; and the uniform attention of mode J."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from diabat import BoltzmannAttention, BoltzmannMultiheadAttention
from diabat.ising import Ising
from diabat.samplers import sampler
from diabat.testing import RecorderSampler, ReferenceSampler, brute_force

from .test_relative import F64, inputs


def layer(**options: Any) -> BoltzmannAttention:
    torch.manual_seed(1)
    built = BoltzmannAttention(8, 2, 5, **({"mode": "J-self"} | options)).to(F64)
    torch.nn.init.normal_(built.coupling_pairs, std=0.5)
    return built


def weights_of(built: BoltzmannAttention, x: Tensor, mask: Tensor | None = None) -> Tensor:
    weights: Tensor = built(x, mask, need_weights=True)[1]
    return weights


def correlated(J: Tensor, visible: Tensor, own: int) -> Tensor:
    """(1 + <s_own s_j>)/2 of visible spins without fields, normalised."""
    found = brute_force(Ising(torch.zeros(len(visible), dtype=F64), J, visible)).correlation
    alpha = torch.where(visible, (1 + found[own]) / 2, 0)
    return alpha / alpha.sum()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("backend", ["exact", "banded"])
def test_weights_are_correlations_without_fields(backend: str, causal: bool) -> None:
    built, x = layer(causal=causal, sampler=backend), inputs(2, 5)
    found, J = weights_of(built, x), built.couplings()
    for head in range(2):
        for i in range(5):
            visible = torch.arange(5) <= i if causal else torch.ones(5, dtype=torch.bool)
            want = correlated(J[head, 0].detach(), visible, i)
            assert (found[:, head, i] - want).abs().max() < 1e-12
    assert torch.equal(found[0], found[1])


def test_padding() -> None:
    built, x = layer(causal=False), inputs(2, 5)
    mask = torch.tensor([[False, False, True, False, True], [True] * 5])
    found, J = weights_of(built, x, mask), built.couplings()
    for i in (0, 1, 3):
        assert (found[0, 0, i] - correlated(J[0, 0].detach(), ~mask[0], i)).abs().max() < 1e-12
    assert torch.allclose(found[0, :, 2], (~mask[0]).to(F64) / 3)  # its own spin is hidden
    assert not found[1].any()


@pytest.mark.parametrize("relative", [True, False])
def test_problems_do_not_grow_with_the_batch(relative: bool) -> None:
    recorder = RecorderSampler(ReferenceSampler())
    built = layer(sampler=recorder, num_reads=50, relative=relative)
    for batch, length in ((1, 5), (7, 5), (2, 40 if relative else 5)):
        built(inputs(batch, length))
    assert [c.shape for c in recorder.calls] == [(2, 5, 5)] * 3


@pytest.mark.parametrize("backend", ["exact", "tempering"])
@pytest.mark.parametrize("relative", [True, False])
def test_reads_without_fields_and_their_covariances(backend: str, relative: bool) -> None:
    """5,000 reads: P within 0.04 (5 standard errors), the gradient of J within 20 % (alpha < 1e-6)."""
    exact, x = layer(relative=relative), inputs(1, 5)
    options = {"gradient": "covariance"} if backend == "exact" else {}
    drawn = layer(relative=relative, sampler=backend, num_reads=5_000, **options)
    torch.manual_seed(5)
    assert (weights_of(drawn, x) - weights_of(exact, x)).abs().max() < 0.04
    slopes = []
    for built in (drawn, exact):
        cotangent = torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(6), dtype=F64)
        slopes.append(torch.autograd.grad(built(x), built.coupling_pairs, cotangent)[0])
    assert (slopes[0] - slopes[1]).norm() < 0.2 * slopes[1].norm()


def test_the_own_spin_is_certain_in_every_read() -> None:
    """Weights of the own position: 1 of Σ alpha, whatever the reads."""
    built = layer(sampler="tempering", num_reads=3)
    found = weights_of(built, inputs(1, 5))[0, 0].detach()
    smoothed = {(n + 0.5) / 4 for n in range(4)}
    for i in range(1, 5):
        ratios = found[i, :i] / found[i, i]
        assert all(min(abs(float(r) - s) for s in smoothed) < 1e-6 for r in ratios)


@pytest.mark.parametrize("causal", [True, False])
def test_mode_j_is_uniform_and_modes_j_and_h_call_no_sampler(causal: bool) -> None:
    recorder, x = RecorderSampler(sampler("exact")), inputs(2, 5)
    built = layer(mode="J", causal=causal, sampler=recorder)
    seen = torch.ones(5, 5, dtype=F64).tril() if causal else torch.ones(5, 5, dtype=F64)
    assert torch.equal(weights_of(built, x), (seen / seen.sum(-1, keepdim=True)).expand(2, 2, 5, 5))
    built(x).sum().backward()
    assert not built.coupling_pairs.grad.any()
    BoltzmannAttention(8, 2, 5, mode="h", causal=causal, sampler=recorder).to(F64)(x)
    assert not recorder.calls


def test_modes_without_sampler_have_no_largest_window() -> None:
    for mode in ("J", "h"):
        assert BoltzmannAttention(8, 2, 64, mode=mode)(torch.randn(1, 64, 8)).shape == (1, 64, 8)


def test_other_layers_have_no_own_spin() -> None:
    with pytest.raises(ValueError, match=r"mode: expected one of softmax, .*K, got 'J-self'"):
        BoltzmannMultiheadAttention(8, 2, window=5, mode="J-self")
