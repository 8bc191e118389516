"""Weights from odds: softmax at J = 0 in any precision, finite at any size of the scores."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from diabat import BoltzmannAttention
from diabat.attention.bridge import GradientBridge
from diabat.attention.weights import log_odds
from diabat.ising import Ising
from diabat.samplers import sampler
from diabat.testing import brute_force

F64 = torch.float64


def couplings(spins: int, scale: float, dtype: torch.dtype = F64, heads: int = 2) -> Tensor:
    J = scale * torch.randn(
        heads, 1, spins, spins, generator=torch.Generator().manual_seed(4), dtype=dtype
    ).triu(1)
    return J + J.mT


def bridge(name: str, **options: Any) -> GradientBridge:
    return GradientBridge(sampler(name, **options))


@pytest.mark.parametrize("spins", [5, 11, 14])
@pytest.mark.parametrize(("dtype", "tolerance"), [(F64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize("far", ["none", "independent"])
@pytest.mark.parametrize("size", [1.0, 100.0])
def test_without_couplings_it_is_softmax(
    size: float, far: str, dtype: torch.dtype, tolerance: float, spins: int
) -> None:
    """At scores up to ±100 too, with finite gradients."""
    layer = BoltzmannAttention(4, 1, spins, relative=True, weights="odds", far=far).to(dtype)
    twin = BoltzmannAttention(4, 1, spins, relative=True, mode="softmax", far=far).to(dtype)
    with torch.no_grad():
        for linear in (layer.query, layer.key):
            linear.weight.copy_(torch.eye(4))
            linear.bias.zero_()
    twin.load_state_dict({k: v for k, v in layer.state_dict().items() if k != "coupling_pairs"})
    x = torch.randn(3, 20, 4, generator=torch.Generator().manual_seed(1), dtype=dtype)
    with torch.no_grad():
        q, k, _ = map(layer._split, layer._projected(x))
        x *= (size / (q @ k.mT / 2).abs().max()).sqrt()
    x.requires_grad_()
    (out, weights), (want_out, want) = layer(x, None, True), twin(x, None, True)
    assert (weights - want).abs().max() < tolerance
    (slope,), (want_slope,) = (
        torch.autograd.grad(y.sin().sum(), x, retain_graph=True) for y in (out, want_out)
    )
    assert torch.isfinite(slope).all()
    assert (slope - want_slope).abs().max() < 300 * tolerance * (1 + want_slope.abs().max())
    out.sum().backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in layer.parameters())


@pytest.mark.parametrize("name", ["exact", "banded"])
@pytest.mark.parametrize("spins", [4, 9, 12])
def test_log_odds_against_enumeration(name: str, spins: int) -> None:
    h = torch.randn(3, 2, 6, spins, generator=torch.Generator().manual_seed(2), dtype=F64)
    J, visible = couplings(spins, 0.5), torch.rand(6, spins, generator=torch.Generator().manual_seed(3)) > 0.2
    found = log_odds(bridge(name), h, J, visible, None)
    p = brute_force(Ising(h, J, visible)).probability
    assert (found - p.logit())[visible.expand(found.shape)].abs().max() < 1e-10


@pytest.mark.parametrize("spins", [4, 11])
def test_probabilities_that_round_to_one(spins: int) -> None:
    """Where 1 - P is 0 in float32, the log-odds are right to seven digits and have their derivatives."""
    h = torch.linspace(-12, 25, spins)[None, None, None].repeat(1, 2, 3, 1).requires_grad_()
    J = couplings(spins, 0.3, torch.float32).requires_grad_()
    visible = torch.ones(spins, dtype=torch.bool)
    assert (bridge("exact")(h, J, visible) == 1).any()
    found = log_odds(bridge("exact"), h, J, visible, None)
    wide = [t.detach().double().requires_grad_() for t in (h, J)]
    want = log_odds(bridge("exact"), wide[0], wide[1], visible, None)
    assert ((found - want) / want.abs().clamp(min=1)).abs().max() < 3e-6
    slopes = torch.autograd.grad(found.sum(), (h, J)), torch.autograd.grad(want.sum(), wide)
    for a, b in zip(*slopes, strict=True):
        assert (a - b).abs().max() < 1e-4 * b.abs().max()


@pytest.mark.parametrize("name", ["tempering", "dqa", "exact"])
def test_reads_give_smoothed_odds(name: str) -> None:
    """From N reads the odds are (n + 1/2)/(N - n + 1/2), finite where all reads agree."""
    h = torch.tensor([[40.0, -40.0, 0.3]], requires_grad=True)
    gradient = "covariance" if name == "exact" else "auto"
    drawing = GradientBridge(sampler(name), gradient, num_reads=10)
    torch.manual_seed(0)
    found = log_odds(drawing, h, None, torch.ones(3, dtype=torch.bool), None)
    ups = (torch.arange(11) + 0.5) / (10.5 - torch.arange(11))
    assert bool(((found[..., None] - ups.log()).abs().min(-1).values < 1e-5).all())
    if name != "dqa":
        assert torch.allclose(found[0, :2], torch.tensor([21.0, 1 / 21]).log())
    (slope,) = torch.autograd.grad(found.sum(), h)
    assert torch.isfinite(slope).all()


def test_one_call_per_pass_of_a_backend_that_draws() -> None:
    """The two probabilities of a spin come from the same reads."""
    from fakes import RecorderSampler

    from diabat.testing import ReferenceSampler

    recorder = RecorderSampler(ReferenceSampler())
    layer = BoltzmannAttention(4, 1, 3, relative=True, weights="odds", sampler=recorder, num_reads=9)
    layer(torch.randn(2, 5, 4))
    assert [(c.num_reads, c.shape) for c in recorder.calls] == [(9, (2, 1, 5, 3))]
