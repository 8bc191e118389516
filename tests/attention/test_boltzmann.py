"""Boltzmann attention over a window: weights of every mode, odds, bands of couplings, and what a module promises."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from fakes import RecorderSampler
from largest_tensor import LargestTensor
from layers import F64, attention, tokens
from torch import Tensor

from diabat.attention import BoltzmannAttention, BoltzmannMultiheadAttention
from diabat.attention.bridge import GradientBridge
from diabat.samplers import sampler
from diabat.samplers.dqa import DQASampler
from diabat.testing import ReferenceSampler


def layer(mode: str = "h+J", **options: Any) -> BoltzmannAttention:
    """A layer of 2 heads over windows of 5, with couplings that are not zero."""
    return attention(5, 6, std=0.4, mode=mode, **options)


def inputs(batch: int = 3, length: int = 5, dtype: torch.dtype = F64) -> Tensor:
    return tokens(batch, length, 6, dtype=dtype)


SAMPLERS: dict[str, Any] = {
    "exact": lambda: "exact",
    "mean_field": lambda: "mean_field",
    "dqa": lambda: DQASampler(annealing_time_ns=2.0, steps=60),
    "dqa_reads": lambda: DQASampler(annealing_time_ns=2.0, steps=60, num_reads=50),
}


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("mode", ["softmax", "h+J", "J"])
def test_one_visible_position_has_weight_exactly_one(mode: str, sampler: str) -> None:
    built = layer(mode, sampler=SAMPLERS[sampler](), dtype=torch.float32)
    # Fields of either sign in the hundreds: P underflows, the weight must not.
    x = 40 * inputs(dtype=torch.float32)
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


def test_problems_do_not_grow_with_the_batch() -> None:
    recorder = RecorderSampler(ReferenceSampler())
    built = layer("J-self", sampler=recorder, num_reads=50)
    for batch in (1, 7):
        built(inputs(batch))
    assert [c.shape for c in recorder.calls] == [(2, 5, 5)] * 2


@pytest.mark.parametrize("backend", ["exact", "tempering"])
@pytest.mark.parametrize("relative", [True, False])
def test_reads_without_fields_and_their_covariances(backend: str, relative: bool) -> None:
    """5,000 reads: P within 0.04 (5 standard errors), the gradient of J within 20 % (alpha < 1e-6)."""
    exact, x = layer("J-self", relative=relative), inputs(1, 5)
    drawn = layer("J-self", relative=relative, sampler=backend, num_reads=5_000, gradient="covariance")
    torch.manual_seed(5)
    assert (drawn(x, None, True)[1] - exact(x, None, True)[1]).abs().max() < 0.04
    slopes = []
    for built in (drawn, exact):
        cotangent = torch.randn(1, 5, 6, generator=torch.Generator().manual_seed(6), dtype=F64)
        slopes.append(torch.autograd.grad(built(x), built.couplings.pairs, cotangent)[0])
    assert (slopes[0] - slopes[1]).norm() < 0.2 * slopes[1].norm()


def test_the_own_spin_is_certain_in_every_read() -> None:
    """Weights of the own position: 1 of Σ alpha, whatever the reads."""
    built = layer("J-self", sampler="tempering", num_reads=3)
    found = built(inputs(1, 5), None, True)[1][0, 0].detach()
    smoothed = {(n + 0.5) / 4 for n in range(4)}
    for i in range(1, 5):
        ratios = found[i, :i] / found[i, i]
        assert all(min(abs(float(r) - s) for s in smoothed) < 1e-6 for r in ratios)


@pytest.mark.parametrize(
    ("window", "options"),
    [
        (64, {"mode": "softmax"}),
        (64, {"mode": "h"}),
        (64, {"mode": "h", "sampler": "banded", "bandwidth": 4}),
        (1, {"mode": "h+J+K"}),
    ],
    ids=str,
)
def test_windows_of_any_size(window: int, options: dict[str, Any]) -> None:
    """Without couplings no backend limits them."""
    x = torch.randn(1, window, 8)
    assert BoltzmannAttention(8, 2, window, **options)(x).isfinite().all()


@pytest.mark.parametrize("causal", [True, False])
def test_mode_j_is_uniform_and_modes_j_and_h_call_no_sampler(causal: bool) -> None:
    recorder, x = RecorderSampler(ReferenceSampler()), inputs(2, 5)
    built = layer("J", causal=causal, sampler=recorder)
    seen = torch.ones(5, 5, dtype=F64).tril() if causal else torch.ones(5, 5, dtype=F64)
    assert torch.equal(built(x, None, True)[1], (seen / seen.sum(-1, keepdim=True)).expand(2, 2, 5, 5))
    built(x).sum().backward()
    assert not built.couplings.pairs.grad.any()
    BoltzmannAttention(6, 2, 5, mode="h", causal=causal, sampler=recorder).to(F64)(x)
    assert not recorder.calls


def test_the_last_problem() -> None:
    built, x = layer(), inputs()
    with built.recording():
        built(x)
        problem = built.last_problem()
    q, k = (f(x).view(3, 5, 2, 3).transpose(1, 2) for f in (built.query, built.key))
    assert torch.allclose(problem.fields, q @ k.mT / math.sqrt(3))
    assert torch.equal(problem.couplings, built.couplings.matrix())
    assert torch.equal(problem.visible_mask, torch.ones(3, 2, 5, 5).tril().bool())
    for mode in ("softmax", "J"):
        other = layer(mode)
        with other.recording():
            other(x)
            with pytest.raises(RuntimeError, match="no Ising problem: attention was softmax or uniform"):
                other.last_problem()


def random_couplings(spins: int, scale: float, dtype: torch.dtype = F64, heads: int = 2) -> Tensor:
    J = scale * torch.randn(
        heads, 1, spins, spins, generator=torch.Generator().manual_seed(4), dtype=dtype
    ).triu(1)
    return J + J.mT


def bridge(name: str, **options: Any) -> GradientBridge:
    return GradientBridge(sampler(name, **options))


@pytest.mark.parametrize("spins", [4, 11])
def test_probabilities_that_round_to_one(spins: int) -> None:
    """Where 1 - P is 0 in float32, the log-odds are right to seven digits and have their derivatives."""
    h = torch.linspace(-12, 25, spins)[None, None, None].repeat(1, 2, 3, 1).requires_grad_()
    J = random_couplings(spins, 0.3, torch.float32).requires_grad_()
    visible = torch.ones(spins, dtype=torch.bool)
    assert (bridge("exact")(h, J, visible) == 1).any()
    found = bridge("exact").log_odds(h, J, visible)
    wide = [t.detach().double().requires_grad_() for t in (h, J)]
    want = bridge("exact").log_odds(wide[0], wide[1], visible)
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
    found = drawing.log_odds(h, None, torch.ones(3, dtype=torch.bool))
    ups = (torch.arange(11) + 0.5) / (10.5 - torch.arange(11))
    assert bool(((found[..., None] - ups.log()).abs().min(-1).values < 1e-5).all())
    if name != "dqa":
        assert torch.allclose(found[0, :2], torch.tensor([21.0, 1 / 21]).log())
    (slope,) = torch.autograd.grad(found.sum(), h)
    assert torch.isfinite(slope).all()


def test_one_call_per_pass_of_a_backend_that_draws() -> None:
    """The two probabilities of a spin come from the same reads."""
    recorder = RecorderSampler(ReferenceSampler())
    layer = BoltzmannAttention(4, 1, 3, relative=True, readout="odds", sampler=recorder, num_reads=9)
    layer(torch.randn(2, 5, 4))
    assert [(c.num_reads, c.shape) for c in recorder.calls] == [(9, (2, 1, 5, 3))]


@pytest.mark.parametrize("bandwidth", [1, 3, 7, 20])
def test_only_couplings_in_the_band_are_parameters(bandwidth: int) -> None:
    layer = attention(8, bandwidth=bandwidth)
    J = layer.couplings.matrix()
    reach = min(bandwidth, 7)
    assert layer.couplings.pairs.shape == (2, sum(8 - d for d in range(1, reach + 1)))
    apart = (torch.arange(8)[:, None] - torch.arange(8)).abs()
    inside = (apart > 0) & (apart <= bandwidth)
    assert torch.equal((J != 0)[:, 0], inside.expand(2, -1, -1))
    assert torch.equal(J, J.mT)
    assert torch.equal(J[:, 0][:, inside.triu()], layer.couplings.pairs)


def test_without_a_bandwidth_checkpoints_keep_their_layout() -> None:
    """The full triangle in row-major order, which a bandwidth of window - 1 is too."""
    whole, wide = attention(5), attention(5, bandwidth=4)
    wide.load_state_dict(whole.state_dict())
    J = whole.couplings.matrix()
    assert torch.equal(J[:, 0, *torch.triu_indices(5, 5, 1)], whole.couplings.pairs)
    assert torch.equal(whole(tokens(3, 5)), wide(tokens(3, 5)))


def test_couplings_train_from_zero() -> None:
    """At J = 0 the band cannot be read off J; the layer tells its sampler."""
    layer = BoltzmannAttention(8, 1, 12, sampler="banded", bandwidth=3)
    layer(tokens(3, 12).float()).square().sum().backward()
    assert (layer.couplings.pairs.grad != 0).all()


def test_shorter_sequences_and_long_windows() -> None:
    layer = attention(256, sampler="banded", bandwidth=3)
    short = attention(20, sampler="exact", bandwidth=3)
    state = layer.state_dict()
    J = layer.couplings.matrix(20)
    upper = torch.triu_indices(20, 20, 1)
    state["couplings.pairs"] = J[:, 0, upper[0], upper[1]][:, upper[1] - upper[0] <= 3]
    short.load_state_dict(state)
    assert (layer(tokens(3, 8)) - short(tokens(3, 8))).abs().max() < 1e-12
    assert torch.isfinite(layer(tokens(1, 256))).all()


def test_a_band_is_not_expanded() -> None:
    """Two queries of 1,000 keys: no tensor of 1,000 x 1,000 numbers, forward or backward."""
    layer = BoltzmannMultiheadAttention(8, 2, window=1000, sampler="banded", bandwidth=2)
    x = tokens(1, 1000).float().transpose(0, 1)
    with layer.recording():
        with LargestTensor() as largest:
            out, _ = layer(x[:2], x, x)
            out.square().sum().backward()
        recorded, built = layer.last_problem().couplings, layer.couplings.matrix()
    assert largest.numel <= 2 * 1000 * 8
    assert layer.couplings.pairs.grad.abs().sum() > 0
    assert torch.equal(recorded, built)
