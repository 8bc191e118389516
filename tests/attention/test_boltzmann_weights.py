"""Weights of attention over a window, with fields and without: the query's own spin at +1, and mode J."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fakes import RecorderSampler
from torch import Tensor

from diabat import BoltzmannAttention, BoltzmannMultiheadAttention
from diabat.attention.coupling_layout import MODES
from diabat.ising import Ising
from diabat.samplers import sampler
from diabat.samplers.dqa import DQASampler
from diabat.testing import ReferenceSampler, brute_force

F64 = torch.float64
SAMPLERS: dict[str, Any] = {
    "exact": lambda: "exact",
    "mean_field": lambda: "mean_field",
    "dqa": lambda: DQASampler(annealing_time_ns=2.0, steps=60),
    "dqa_reads": lambda: DQASampler(annealing_time_ns=2.0, steps=60, num_reads=50),
}


def layer(
    mode: str = "h+J", *, dtype: torch.dtype = F64, scale: float = 0.4, **options: Any
) -> BoltzmannAttention:
    """A layer of 2 heads over windows of 5, with couplings that are not zero."""
    torch.manual_seed(1)
    built = BoltzmannAttention(6, 2, 5, **({"mode": mode} | options)).to(dtype)
    with torch.no_grad():
        for parameter in (built.coupling_pairs, built.coupling_triples):
            if parameter is not None:
                parameter.normal_(std=scale)
    return built


def inputs(batch: int = 3, length: int = 5, dtype: torch.dtype = F64) -> Tensor:
    return torch.randn(batch, length, 6, generator=torch.Generator().manual_seed(2), dtype=dtype)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["probability", "odds"])
def test_weights_are_the_normalised_marginals(kind: str, mode: str, causal: bool) -> None:
    """Against plain enumeration with fields q·k/sqrt(d) or those of odds, term by term of the mode."""
    built, x = layer(mode, causal=causal, weights=kind), inputs()
    out, weights = built(x, None, True)
    q, k, v = (f(x).view(3, 5, 2, 3).transpose(1, 2) for f in (built.query, built.key, built.value))
    h = q @ k.mT / 3**0.5
    seen = torch.ones(5, 5, dtype=torch.bool)
    seen = seen.tril() if causal else seen
    terms = mode.split("+")
    if mode == "softmax":
        want = torch.softmax(h.masked_fill(~seen, -torch.inf), -1)
    else:
        fields = h.masked_fill(~seen, -1e300).log_softmax(-1) / 2 if kind == "odds" else h
        fields = fields.masked_fill(~seen, 0) if "h" in terms else torch.zeros_like(h)
        alpha = brute_force(Ising(fields.detach(), built.couplings(), seen, built.three_body())).probability
        alpha = alpha / (1 - alpha) if kind == "odds" else alpha
        want = alpha / alpha.sum(-1, keepdim=True)
    assert (built.couplings() is not None, built.three_body() is not None) == ("J" in terms, "K" in terms)
    assert (weights - want).abs().max() < 1e-12
    mixed = (want @ v).transpose(1, 2).reshape(3, 5, 6)
    assert (out - built.output(mixed)).abs().max() < 1e-12


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("mode", "sampler", "tolerance"),
    [*((mode, "exact", 1e-12) for mode in MODES), ("h+J", "mean_field", 1e-5)],
)
def test_padding_is_the_shorter_sequence(mode: str, sampler: str, tolerance: float, causal: bool) -> None:
    built, x = layer(mode, causal=causal, sampler=sampler), inputs()
    lengths = torch.tensor([5, 2, 4])
    mask = torch.arange(5) >= lengths[:, None]
    out, weights = built(torch.where(mask[..., None], 30.0, x), mask, True)
    for row, length in enumerate(lengths.tolist()):
        alone, alone_weights = built(x[row : row + 1, :length], None, True)
        assert (out[row, :length] - alone[0]).abs().max() < tolerance
        assert (weights[row, :, :length, :length] - alone_weights[0]).abs().max() < tolerance
        assert not weights[row, :, :, length:].any()


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("mode", ["softmax", "h+J", "J"])
def test_one_visible_position_has_weight_exactly_one(mode: str, sampler: str) -> None:
    built = layer(mode, sampler=SAMPLERS[sampler](), dtype=torch.float32)
    x = 40 * inputs(
        dtype=torch.float32
    )  # fields of either sign in the hundreds: P underflows, the weight must not
    x = x if sampler in ("exact", "mean_field") else x / 40
    _, weights = built(x[:, :1], None, True)
    assert (weights == 1).all()
    only_last = torch.tensor([[True, True, True, True, False]]).expand(3, 5)
    _, weights = layer(mode, causal=False, sampler=SAMPLERS[sampler](), dtype=torch.float32)(
        x / 40, only_last, True
    )
    assert (weights[..., 4] == 1).all()


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("mode", ["softmax", "h+J"])
def test_nothing_visible_gives_zeros_and_finite_gradients(mode: str, sampler: str) -> None:
    built, x = layer(mode, sampler=SAMPLERS[sampler]()), inputs().requires_grad_()
    mask = torch.zeros(3, 5, dtype=torch.bool)
    mask[0] = True  # a whole sequence of padding
    mask[1, 0] = True  # the first query of a causal window sees only itself, and that is padding
    out, weights = built(x, mask, True)
    assert not weights[0].any()
    assert not weights[1, :, 0].any()
    assert torch.equal(out[0], built.output.bias.expand(5, 6))
    assert torch.isfinite(out).all()
    (1e3 * out).pow(2).sum().backward()
    assert torch.isfinite(x.grad).all()
    for parameter in built.parameters():
        assert parameter.grad is None or torch.isfinite(parameter.grad).all()


@pytest.mark.parametrize("value", [5.5, 20.0])
def test_underflowing_probabilities_give_uniform_weights_and_no_nan(value: float) -> None:
    """Fields of -60 (and -800): every alpha is 0 in float32; neither weights nor gradients may become NaN."""
    built = BoltzmannAttention(4, 1, 3, causal=False)
    with torch.no_grad():
        built.query.weight.copy_(torch.eye(4))
        built.key.weight.copy_(-torch.eye(4))
        built.query.bias.zero_()
        built.key.bias.zero_()
    x = torch.full((1, 3, 4), value, requires_grad=True)
    out, weights = built(x, None, True)
    assert torch.allclose(weights, torch.full((1, 1, 3, 3), 1 / 3))
    (100 * out).pow(2).sum().backward()
    assert torch.isfinite(x.grad).all()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in built.parameters())


def correlated(J: Tensor, visible: Tensor, own: int) -> Tensor:
    """(1 + <s_own s_j>)/2 of visible spins without fields, normalised."""
    found = brute_force(Ising(torch.zeros(len(visible), dtype=F64), J, visible)).correlation
    alpha = torch.where(visible, (1 + found[own]) / 2, 0)
    return alpha / alpha.sum()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("backend", ["exact", "banded"])
def test_weights_are_correlations_without_fields(backend: str, causal: bool) -> None:
    built, x = layer("J-self", causal=causal, sampler=backend), inputs(2, 5)
    found, J = built(x, None, True)[1], built.couplings()
    for head in range(2):
        for i in range(5):
            visible = torch.arange(5) <= i if causal else torch.ones(5, dtype=torch.bool)
            want = correlated(J[head, 0].detach(), visible, i)
            assert (found[:, head, i] - want).abs().max() < 1e-12
    assert torch.equal(found[0], found[1])


def test_padding_without_fields() -> None:
    built, x = layer("J-self", causal=False), inputs(2, 5)
    mask = torch.tensor([[False, False, True, False, True], [True] * 5])
    found, J = built(x, mask, True)[1], built.couplings()
    for i in (0, 1, 3):
        assert (found[0, 0, i] - correlated(J[0, 0].detach(), ~mask[0], i)).abs().max() < 1e-12
    assert torch.allclose(found[0, :, 2], (~mask[0]).to(F64) / 3)  # its own spin is hidden
    assert not found[1].any()


@pytest.mark.parametrize("relative", [True, False])
def test_problems_do_not_grow_with_the_batch(relative: bool) -> None:
    recorder = RecorderSampler(ReferenceSampler())
    built = layer("J-self", sampler=recorder, num_reads=50, relative=relative)
    for batch, length in ((1, 5), (7, 5), (2, 40 if relative else 5)):
        built(inputs(batch, length))
    assert [c.shape for c in recorder.calls] == [(2, 5, 5)] * 3


@pytest.mark.parametrize("backend", ["exact", "tempering"])
@pytest.mark.parametrize("relative", [True, False])
def test_reads_without_fields_and_their_covariances(backend: str, relative: bool) -> None:
    """5,000 reads: P within 0.04 (5 standard errors), the gradient of J within 20 % (alpha < 1e-6)."""
    exact, x = layer("J-self", relative=relative), inputs(1, 5)
    options = {"gradient": "covariance"} if backend == "exact" else {}
    drawn = layer("J-self", relative=relative, sampler=backend, num_reads=5_000, **options)
    torch.manual_seed(5)
    assert (drawn(x, None, True)[1] - exact(x, None, True)[1]).abs().max() < 0.04
    slopes = []
    for built in (drawn, exact):
        cotangent = torch.randn(1, 5, 6, generator=torch.Generator().manual_seed(6), dtype=F64)
        slopes.append(torch.autograd.grad(built(x), built.coupling_pairs, cotangent)[0])
    assert (slopes[0] - slopes[1]).norm() < 0.2 * slopes[1].norm()


def test_the_own_spin_is_certain_in_every_read() -> None:
    """Weights of the own position: 1 of Σ alpha, whatever the reads."""
    built = layer("J-self", sampler="tempering", num_reads=3)
    found = built(inputs(1, 5), None, True)[1][0, 0].detach()
    smoothed = {(n + 0.5) / 4 for n in range(4)}
    for i in range(1, 5):
        ratios = found[i, :i] / found[i, i]
        assert all(min(abs(float(r) - s) for s in smoothed) < 1e-6 for r in ratios)


@pytest.mark.parametrize("causal", [True, False])
def test_mode_j_is_uniform_and_modes_j_and_h_call_no_sampler(causal: bool) -> None:
    recorder, x = RecorderSampler(sampler("exact")), inputs(2, 5)
    built = layer("J", causal=causal, sampler=recorder)
    seen = torch.ones(5, 5, dtype=F64).tril() if causal else torch.ones(5, 5, dtype=F64)
    assert torch.equal(built(x, None, True)[1], (seen / seen.sum(-1, keepdim=True)).expand(2, 2, 5, 5))
    built(x).sum().backward()
    assert not built.coupling_pairs.grad.any()
    BoltzmannAttention(6, 2, 5, mode="h", causal=causal, sampler=recorder).to(F64)(x)
    assert not recorder.calls


def test_modes_without_sampler_have_no_largest_window() -> None:
    for mode in ("J", "h"):
        assert BoltzmannAttention(8, 2, 64, mode=mode)(torch.randn(1, 64, 8)).shape == (1, 64, 8)


def test_other_layers_have_no_own_spin() -> None:
    with pytest.raises(ValueError, match=r"mode: expected one of softmax, .*K, got 'J-self'"):
        BoltzmannMultiheadAttention(8, 2, window=5, mode="J-self")
