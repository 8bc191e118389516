"""Couplings in a band: fewer parameters, the same attention, and windows that only the banded backend can solve."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from largest_tensor import LargestTensor

import diabat
from diabat.attention import BoltzmannAttention, BoltzmannMultiheadAttention, CouplingInit
from diabat.config import make_config
from diabat.ising import pair_indices
from diabat.samplers import UnsupportedError
from diabat.samplers.banded import BandedSampler
from diabat.samplers.exact import ExactSampler

F64 = torch.float64


def built(window: int, **options: Any) -> BoltzmannAttention:
    torch.manual_seed(0)
    layer = BoltzmannAttention(8, 2, window, **options).to(F64)
    if layer.coupling_pairs is not None:
        torch.nn.init.normal_(layer.coupling_pairs, std=0.5)
    return layer


def inputs(window: int, batch: int = 3) -> torch.Tensor:
    return torch.randn(batch, window, 8, generator=torch.Generator().manual_seed(1), dtype=F64)


@pytest.mark.parametrize("bandwidth", [1, 3, 7, 20])
def test_only_couplings_in_the_band_are_parameters(bandwidth: int) -> None:
    layer = built(8, bandwidth=bandwidth)
    J = layer.couplings()
    reach = min(bandwidth, 7)
    assert layer.coupling_pairs.shape == (2, sum(8 - d for d in range(1, reach + 1)))
    apart = (torch.arange(8)[:, None] - torch.arange(8)).abs()
    inside = (apart > 0) & (apart <= bandwidth)
    assert torch.equal((J != 0)[:, 0], inside.expand(2, -1, -1))
    assert torch.equal(J, J.mT)
    assert torch.equal(J[:, 0][:, inside.triu()], layer.coupling_pairs)


def test_without_a_bandwidth_checkpoints_keep_their_layout() -> None:
    """The full triangle in row-major order, which a bandwidth of window - 1 is too."""
    whole, wide = built(5), built(5, bandwidth=4)
    wide.load_state_dict(whole.state_dict())
    J = whole.couplings()
    assert torch.equal(J[:, 0, *torch.triu_indices(5, 5, 1)], whole.coupling_pairs)
    assert torch.equal(whole(inputs(5)), wide(inputs(5)))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("mode", ["h+J", "J", "h"])
def test_banded_and_exact_backends_agree(mode: str, causal: bool) -> None:
    """Outputs and gradients of every parameter, with padding."""
    padding = torch.zeros(3, 9, dtype=torch.bool)
    padding[0, 6:] = True
    padding[1, :2] = True
    found = []
    for sampler in (BandedSampler(), ExactSampler()):
        layer = built(9, bandwidth=3, sampler=sampler, mode=mode, causal=causal)
        out = layer(inputs(9), key_padding_mask=padding)
        out.square().sum().backward()
        found.append((out, [p.grad for p in layer.parameters()]))
    (got, got_grads), (want, want_grads) = found
    assert (got - want).abs().max() < 1e-12
    for g, w in zip(got_grads, want_grads, strict=True):
        assert (g is None) == (w is None)
        if g is not None and w is not None:
            assert (g - w).abs().max() < 1e-10 * max(1.0, float(w.abs().max()))


def test_couplings_train_from_zero() -> None:
    """At J = 0 the band cannot be read off J; the layer tells its sampler."""
    layer = BoltzmannAttention(8, 1, 12, sampler="banded", bandwidth=3)
    layer(inputs(12).float()).square().sum().backward()
    assert (layer.coupling_pairs.grad != 0).all()


def test_shorter_sequences_and_long_windows() -> None:
    layer = built(256, sampler="banded", bandwidth=3)
    short = built(20, sampler="exact", bandwidth=3)
    state = layer.state_dict()
    J = layer.couplings(20)
    upper = torch.triu_indices(20, 20, 1)
    state["coupling_pairs"] = J[:, 0, upper[0], upper[1]][:, upper[1] - upper[0] <= 3]
    short.load_state_dict(state)
    assert (layer(inputs(8)) - short(inputs(8))).abs().max() < 1e-12
    assert torch.isfinite(layer(inputs(256, batch=1))).all()


def test_a_band_is_not_expanded() -> None:
    """Two queries of 1,000 keys: no tensor of 1,000 x 1,000 numbers, forward or backward."""
    layer = BoltzmannMultiheadAttention(8, 2, window=1000, sampler="banded", bandwidth=2)
    x = inputs(1000, batch=1).float().transpose(0, 1)
    with layer.recording():
        with LargestTensor() as largest:
            out, _ = layer(x[:2], x, x)
            out.square().sum().backward()
        recorded, built = layer.last_fields_and_couplings()[1], layer.couplings()
    assert largest.numel <= 2 * 1000 * 8
    assert layer.coupling_pairs.grad.abs().sum() > 0
    assert torch.equal(recorded, built)


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"bandwidth": 0}, ValueError, r"^bandwidth: expected None or an integer >= 1, got 0\.$"),
    ({"bandwidth": True}, ValueError, r"^bandwidth: expected None or an integer >= 1, got True\.$"),
    ({"bandwidth": 4, "sampler": BandedSampler(bandwidth=3)}, UnsupportedError,
     r"^bandwidth: expected at least 4, the range of the couplings, got sampler 'banded' with 3\.$"),
    ({"sampler": "banded"}, UnsupportedError, "bandwidth of 63 with 64 spins .* give a smaller bandwidth"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "error", "message"), BAD)
def test_refusals_at_construction(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        BoltzmannAttention(8, 1, 64, **options)


def test_a_mode_without_couplings_takes_any_bandwidth() -> None:
    layer = BoltzmannAttention(8, 1, 64, mode="h", sampler="banded", bandwidth=4)
    assert layer.coupling_pairs is None
    assert layer(inputs(64).float()).shape == (3, 64, 8)


def pairs_of(**options: Any) -> torch.Tensor:
    torch.manual_seed(3)
    layer = diabat.BoltzmannAttention(8, 2, 12, coupling_init=CouplingInit(**options), bandwidth=4)
    return layer.coupling_pairs.detach()


def test_couplings_begin_where_they_are_told() -> None:
    near = torch.tensor([k - j for j, k in zip(*pair_indices(12, 4), strict=True)]) <= 2
    J = pairs_of(mean=0.5, std=0.1, distance=2)
    assert bool((J[:, ~near] == 0).all())
    # 2 x 21 draws: six standard errors of mean and standard deviation
    assert J[:, near].mean().item() == pytest.approx(0.5, abs=6 * 0.1 / 42**0.5)
    assert J[:, near].std().item() == pytest.approx(0.1, rel=6 / 84**0.5)
    assert torch.equal(J, pairs_of(mean=0.5, std=0.1, distance=2)), "torch's seed decides"
    assert bool((pairs_of(mean=-0.25) == -0.25).all())


def test_multihead_attention_and_models_take_it_and_softmax_leaves_it_unused() -> None:
    start = CouplingInit(mean=0.5, distance=1)
    layer = diabat.BoltzmannMultiheadAttention(8, 2, window=4, coupling_init=start)
    wanted = torch.tensor([0.5, 0.0, 0.0, 0.5, 0.0, 0.5])  # (0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)
    assert torch.equal(layer.coupling_pairs.detach(), wanted.expand(2, -1))
    model = {"name": "transformer", "coupling_init": {"mean": 0.5, "distance": 1}}
    config = make_config({"task": {"name": "brackets"}, "model": model})
    assert config.model.coupling_init == start  # type: ignore[attr-defined]  # a transformer
    assert diabat.BoltzmannAttention(8, 2, 4, mode="softmax", coupling_init=start).coupling_pairs is None


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"mean": float("nan")}, "mean: expected a number in"),
        ({"std": -1.0}, "std: expected a number in"),
        ({"distance": 0}, "distance: expected an integer >= 1 or None, got 0"),
    ],
    ids=str,
)
def test_what_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        CouplingInit(**given)


LAYERS: dict[str, Callable[..., Any]] = {
    "attention": lambda **options: diabat.BoltzmannAttention(8, 2, 4, **options),
    "without couplings": lambda **options: diabat.BoltzmannAttention(8, 2, 4, mode="h", **options),
    "chain": lambda **options: diabat.BoltzmannAttention(8, 2, None, relative=True, **options),
    "multihead": lambda **options: BoltzmannMultiheadAttention(8, 2, window=4, **options),
    "multihead chain": lambda **options: BoltzmannMultiheadAttention(8, 2, window=None, **options),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_number_is_no_start_of_couplings(name: str) -> None:
    hint = r"expected a CouplingInit or None, got float; use CouplingInit\(mean=0\.5\)\.$"
    with pytest.raises(TypeError, match="^coupling_init: " + hint):
        LAYERS[name](coupling_init=0.5)
    with pytest.raises(TypeError, match=r"^coupling_init: expected a CouplingInit or None, got str\.$"):
        LAYERS[name](coupling_init="zeros")
