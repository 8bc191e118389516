from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from diabat.attention import BoltzmannAttention
from diabat.attention.coupled import MODES
from diabat.ising import Ising
from diabat.samplers.dqa import DQASampler
from diabat.testing import brute_force

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
