"""``spin_probabilities`` under every estimator, and the layers of attention."""

from __future__ import annotations

from typing import Any, get_args

import torch
from hypothesis import strategies as st
from torch import Tensor

import diabat
from diabat.attention.coupled import SELF_MODES
from diabat.samplers.capabilities import Estimator, UnsupportedError
from diabat.testing.oracle import ReferenceSampler
from fuzz.calls.laws import GRADIENT, TOLERANCE, close, finite, gradient_agrees, near_tie, total
from fuzz.problems import DTYPES, SEEDS, mostly, normal, one_in, parts, problems, scales
from fuzz.properties import demand, holds

BACKENDS: dict[str, dict[str, Any]] = {
    "exact": {},
    "banded": {},
    "mean_field": {},
    "dqa": {"schedule": "boltzmann-4"},
    "tempering": {"num_replicas": 2, "sweeps": 8, "burn_in": 8},
    "refine": {"sampler": "exact", "num_reads": 50},
}
ANALYTIC = st.sampled_from(["exact", "banded", "mean_field"])


@holds
def estimators(draw: st.DrawFn) -> None:
    """Every estimator of every backend: P in 0 .. 1, a finite gradient, and the exact one if it claims that."""
    name, any_of = draw(st.sampled_from([*BACKENDS])), st.sampled_from(get_args(Estimator))
    sampler = diabat.sampler(name, **BACKENDS[name])
    able = sampler.capabilities
    gradient = draw(mostly(st.sampled_from(["auto", *able.gradients]), any_of))
    ising = draw(problems(spins=7, most=1.0, three_body=able.three_body) | problems(spins=7))
    p = diabat.spin_probabilities(
        ising.fields, ising.held_couplings, sampler, gradient=gradient,
        visible=ising.visible, three_body=ising.three_body, seed=draw(SEEDS),
        num_reads=draw(st.sampled_from([None, None, None, 2, 64])),
    )  # fmt: skip
    demand(p.shape == ising.fields.shape, f"P: expected {list(ising.fields.shape)}, got {list(p.shape)}")
    demand(bool(((p >= 0) & (p <= 1)).all()), f"P: expected 0 .. 1, got {p}")
    wanted = [tensor for _, tensor in parts(ising) if tensor.requires_grad]
    if not wanted or not p.requires_grad:
        return
    v = normal(draw(SEEDS), *ising.fields.shape)
    for g in torch.autograd.grad((p * v).sum(), wanted, allow_unused=True, retain_graph=True):
        finite(g, "gradient")
    if name == "exact" and gradient in ("exact", "auto") and not bool(near_tie(ising).any()):
        dtype = ising.fields.dtype
        gradient_agrees(p, ising, v, GRADIENT[dtype] + TOLERANCE[dtype] + 1e-14 * total(ising))


def _layer(draw: st.DrawFn) -> tuple[dict[str, Any], Any]:
    """Options of a layer, and the layer."""
    options: dict[str, Any] = {"readout": draw(st.sampled_from(["probability", "odds"]))}
    options |= {"rotary": draw(st.booleans()), "softcap": draw(mostly(st.none(), scales(0.1, 100)))}
    heads = draw(st.sampled_from([1, 2]))
    options |= {"mode": draw(st.sampled_from(SELF_MODES)), "window": draw(st.integers(1, 6))}
    if draw(st.booleans()):
        options |= {"sampler": draw(ANALYTIC | st.just("dqa")), "causal": draw(st.booleans())}
    else:
        options |= {"sampler": draw(st.sampled_from(["exact", "exact", "mean_field"])), "relative": True}
        options["far"] = draw(st.sampled_from(["none", "independent"]))
        options["offset_bias"] = options["mode"] in ("softmax", "h", "h+J") and draw(one_in(4))
    if options["mode"] == "J-self":
        options["readout"] = "probability"
    return options, diabat.BoltzmannAttention(4 * heads, heads, **options)


@holds
def attention(draw: st.DrawFn) -> None:
    """Weights of any mode sum to 1 or are 0; steps, a smaller batch and enumeration give the same output."""
    (options, layer), length = _layer(draw), draw(st.integers(1, 12))
    heads = layer.num_heads
    x, padding = _inputs(draw, layer, length if layer.relative else min(length, layer.window), draw(DTYPES))
    y, weights = layer(x, key_padding_mask=padding, need_weights=True)
    shape, sums = (2, heads, x.shape[1], x.shape[1]), weights.detach().double().sum(-1)
    demand(tuple(weights.shape) == shape, f"weights: expected {shape}, got {tuple(weights.shape)}")
    off = float(torch.minimum((sums - 1).abs(), sums).max())
    demand(off < 1e-5, f"weights: expected sums of 1 or 0, got {sums}")
    finite(y, "output")
    y.sum().backward()
    for tensor in (x, *layer.parameters()):
        finite(tensor.grad, "gradient")
    if padding is not None:
        shown = weights.detach()[padding[:, None, None].expand(shape)]
        demand(not bool((shown != 0).any()), "weights: expected 0 for padding")
    if x.dtype == torch.float32:
        return
    most = 1e-5 * (1 + float(y.detach().abs().max()))
    if options["sampler"] != "dqa":  # its self-couplings take reads
        alone = layer(x[:1], key_padding_mask=None if padding is None else padding[:1])
        close(alone, y[:1], most, "the first sequence alone")
    if layer.relative and padding is None:
        with torch.no_grad():
            last, state = layer.step(x[:, 0])
            for i in range(1, x.shape[1]):
                last, state = layer.step(x[:, i], state)
        close(last, y[:, -1], most, "step")
    if options["sampler"] in ("exact", "banded"):
        enumerated = {"sampler": ReferenceSampler(analytic=True), "gradient": "straight_through"}
        try:
            other = diabat.BoltzmannAttention(layer.embed_dim, heads, **options | enumerated).to(x.dtype)
        except UnsupportedError:  # this mode needs what only backends have
            return
        other.load_state_dict(layer.state_dict())
        close(other(x, key_padding_mask=padding), y, most, "output by enumeration")


def _inputs(draw: st.DrawFn, layer: Any, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Scale the parameters of the layer; inputs of any strength, and perhaps padding."""
    scale, strength, seed = draw(scales(0.1, 10)), draw(scales(1e-3, 1e2)), draw(SEEDS)
    with torch.no_grad():
        for parameter in layer.to(dtype).parameters():
            parameter.mul_(scale).add_(0.1 * torch.randn_like(parameter))
    x = (strength * normal(seed, 2, length, layer.embed_dim)).to(dtype).requires_grad_()
    return x, normal(seed + 1, 2, length) > 0.3 if draw(one_in(3)) else None
