"""``spin_probabilities`` under every estimator, and the layers of attention."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import product
from typing import Any, get_args

import torch
from hypothesis import strategies as st
from torch import Tensor, func, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.parametrize import register_parametrization

import diabat
from diabat.attention.bridge import are_small
from diabat.attention.coupled import MODES, SELF_MODES
from diabat.samplers import kept
from diabat.samplers.capabilities import Estimator, UnsupportedError
from diabat.testing.oracle import ReferenceSampler
from fuzz.calls.laws import GRADIENT, TOLERANCE, close, finite, gradient_agrees, near_tie, total
from fuzz.problems import DTYPES, SEEDS, float_masks, mostly, normal, one_in, parts, problems, scales
from fuzz.properties import demand, holds

BACKENDS: dict[str, dict[str, Any]] = {
    "exact": {},
    "banded": {},
    "mean_field": {},
    "dqa": {"schedule": "boltzmann-4"},
    "tempering": {"num_replicas": 2, "sweeps": 8, "burn_in": 8},
    "refine": {"sampler": "exact", "num_reads": 50},
}
ANALYTIC = ("exact", "banded", "mean_field")


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


def _layer(draw: st.DrawFn, *others: str) -> tuple[dict[str, Any], Any]:
    """Options of a layer with an analytic backend or another one, and the layer."""
    options: dict[str, Any] = {"readout": draw(st.sampled_from(["probability", "odds"]))}
    options |= {"rotary": draw(st.booleans()), "softcap": draw(mostly(st.none(), scales(0.1, 100)))}
    heads = draw(st.sampled_from([1, 2]))
    options |= {"mode": draw(st.sampled_from(SELF_MODES)), "window": draw(st.integers(1, 6))}
    if draw(st.booleans()):
        options |= {"sampler": draw(st.sampled_from([*ANALYTIC, *others])), "causal": draw(st.booleans())}
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
    options, layer = _layer(draw, "dqa")
    heads = layer.num_heads
    x, padding = _inputs(draw, layer, 12, draw(DTYPES))
    kept._STORE = kept.Store(kept.LIMIT)
    if inferred := draw(one_in(4)):
        with torch.inference_mode():
            layer(x.detach(), key_padding_mask=padding)
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
    if inferred and options["sampler"] != "dqa" and x.grad is not None:
        kept._STORE = kept.Store(kept.LIMIT)
        (g,) = torch.autograd.grad(layer(x, key_padding_mask=padding).sum(), x)
        close(x.grad, g, 1e-5 * (1 + float(g.abs().max())), "gradient after a pass in inference mode")
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
        if other.readout == "probability" and _underflows(other, x, padding):
            return
        close(other(x, key_padding_mask=padding), y, most, "output by enumeration")


def _inputs(
    draw: st.DrawFn, layer: Any, longest: int, dtype: torch.dtype, most: float = 1e2
) -> tuple[Tensor, Tensor | None]:
    """Scale the parameters of the layer; inputs of any length and strength, and perhaps padding."""
    scale, strength, seed = draw(scales(0.1, 10)), draw(scales(1e-3, most)), draw(SEEDS)
    length = draw(st.integers(1, longest if layer.couplings.relative else min(longest, layer.window)))
    with torch.no_grad():
        for parameter in layer.to(dtype).parameters():
            parameter.mul_(scale).add_(0.1 * torch.randn_like(parameter))
    x = (strength * normal(seed, 2, length, layer.embed_dim)).to(dtype).requires_grad_()
    return x, normal(seed + 1, 2, length) > 0.3 if draw(one_in(3)) else None


@holds
def masks(draw: st.DrawFn) -> None:
    """Of the drop-in layer every form of one mask, bool or float, gives the same, in a batch and alone."""
    heads, readout = draw(st.sampled_from([1, 2])), draw(st.sampled_from(["probability", "odds"]))
    layer = diabat.BoltzmannMultiheadAttention(
        4 * heads, heads, batch_first=True, window=6, mode=draw(st.sampled_from(MODES)), readout=readout
    )
    x, padding = _inputs(draw, layer, 6, torch.float64)
    n, causal = x.shape[1], draw(st.booleans())
    if padding is None:  # on the right
        padding = torch.arange(n) >= torch.tensor([[draw(st.integers(0, n))], [n]])
    hidden = torch.ones(n, n).triu(1) > 0 if causal else torch.rand(n, n) < draw(st.sampled_from([0.0, 0.4]))
    bias = draw(st.just(0.0) | scales(0.01, 10)) * torch.randn(n, n)
    of_keys, of_pairs = draw(float_masks(~padding, torch.zeros(2, n))), draw(float_masks(~hidden, bias))
    forms: list[dict[str, Any]] = [{"attn_mask": of_pairs}]
    if not bool(bias.any()):
        forms.append({"is_causal": True} if causal else {"attn_mask": hidden})
    whole = of_pairs.masked_fill(hidden | padding[:, None], -torch.inf).repeat_interleave(heads, 0)
    y = layer(x, x, x, attn_mask=whole)[0]
    most = 1e-5 * (1 + float(y.detach().abs().max()))
    for form, keys in product(forms, (of_keys, padding)):
        close(layer(x, x, x, keys, **form)[0], y, most, "another form of the mask")
        close(layer(*[x[:1]] * 3, keys[:1], **form)[0], y[:1], most, "the first sequence alone")


@holds
def second_derivatives(draw: st.DrawFn) -> None:
    """Nested ``func.grad`` beside parameters that train is the double backward, without couplings ``hessian`` too."""
    if draw(st.booleans()):
        sampler, ising = diabat.sampler(draw(st.sampled_from(ANALYTIC))), draw(problems(spins=6, most=1.0))
        x, J = ising.fields.detach().clone().requires_grad_(), ising.held_couplings
        others: dict[str, Any] = {"visible": ising.visible, "three_body": ising.three_body}
        plain = J is None and ising.three_body is None

        def value(x: Tensor) -> Tensor:
            return diabat.spin_probabilities(x, J, sampler, **others).square().sum() + x.square().sum()

    else:
        options, layer = _layer(draw)
        x, padding = _inputs(draw, layer, 4, draw(DTYPES), 1.0)
        plain = options["mode"] == "softmax"

        def value(x: Tensor) -> Tensor:
            return layer(x, key_padding_mask=padding).square().sum() + x.square().sum()

    w = normal(draw(SEEDS), *x.shape).to(x.dtype)
    with sdpa_kernel(SDPBackend.MATH):  # fused kernels of torch have one derivative
        (slope,) = torch.autograd.grad(value(x), x, create_graph=True)
        (want,) = torch.autograd.grad((slope * w).sum(), x)
    finite(want, "second derivative")
    most = 10 * GRADIENT[x.dtype] * (1 + float(want.abs().max()))
    nested = func.grad(lambda x: (func.grad(value)(x) * w).sum())(x.detach())
    close(nested, want, most, "nested grad")
    if plain:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torch compiles by what it has deprecated
            matrix = func.hessian(value)(x.detach())
        close(torch.tensordot(matrix, w, w.ndim), want, most, "hessian")


class _Doubled(nn.Module):
    def forward(self, pairs: Tensor) -> Tensor:
        return 2 * pairs


@holds
def held(draw: st.DrawFn) -> None:
    """A layer whose J is held gives the same after it was saved, and so does any that loads it, or a sentence."""
    options, layer = _layer(draw)
    x, padding = _inputs(draw, layer, 6, torch.float64)
    other = diabat.BoltzmannAttention(layer.embed_dim, layer.num_heads, **options).double()
    values, heads = st.none() | st.floats(-3, 3), st.none() | st.just([0])

    def hold(part: Any) -> None:
        part.hold(draw(values), heads=draw(heads))

    changes: dict[str, Callable[[Any], object]] = {
        "hold": hold,
        "hold more": hold,
        "train": lambda part: [p.data.add_(torch.randn_like(p)) for p in part.parameters()],
        "release": lambda part: part.release(),
        "empty": lambda part: part.to_empty(device="cpu"),
        "double": lambda part: register_parametrization(part, "pairs", _Doubled()),
    }
    more = ["hold more", "release", *["double"] * (layer.couplings.pairs is not None)]
    of_layer = draw(st.permutations(["hold", "train", *draw(st.lists(st.sampled_from(more), unique=True))]))
    of_other = draw(st.lists(st.sampled_from([*changes][:5]), max_size=3))
    of_other += [name for name in of_layer if name == "double"]
    for part, names in ((layer, of_layer), (other, of_other)):
        for name in names:
            changes[name](part.couplings)
    y = layer(x, key_padding_mask=padding)
    other.load_state_dict(layer.state_dict())
    for again in (layer, other):
        close(again(x, key_padding_mask=padding), y, 1e-9 * (1 + float(y.detach().abs().max())), "output")


def _underflows(layer: diabat.BoltzmannAttention, x: Tensor, padding: Tensor | None) -> bool:
    """Whether an enumeration has no digits left: every P of a query is small."""
    with torch.no_grad(), layer.recording():
        layer(x, key_padding_mask=padding)
        try:
            problem = layer.last_problem()
        except RuntimeError:  # uniform attention has none
            return False
    return are_small(layer.sampler.moments(problem).probability, problem.visible)
