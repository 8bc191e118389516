"""``spin_probabilities`` and the attention layers: shapes, ranges and gradients of every estimator and mode."""

from __future__ import annotations

from typing import Any, get_args

import torch
from torch import Tensor

import diabat
from diabat.samplers.base import Estimator
from fuzz.api.analytic import GRADIENT, TOLERANCE, check_gradient
from fuzz.api.enumeration import enumerate_law
from fuzz.api.problems import Shape, parts, random_problem
from fuzz.dice import Dice
from fuzz.outcome import demand

_SAMPLERS: dict[str, dict[str, Any]] = {
    "exact": {},
    "banded": {},
    "mean_field": {},
    "tempering": {"num_replicas": 2, "sweeps": 8, "burn_in": 8},
    "dqa": {"schedule": "boltzmann-4"},
    "refine": {"sampler": "exact", "num_reads": 50},
}
MODES = ("h", "J", "h+J", "h+K", "J+K", "h+J+K", "K", "softmax")


def bridge(dice: Dice) -> None:
    """Every sampler with every estimator: finite, in 0 .. 1, and the exact gradient if it claims one."""
    name = dice.pick(list(_SAMPLERS))
    sampler = diabat.sampler(name, **_SAMPLERS[name])
    ising = random_problem(dice, Shape(spins=7, strength=dice.pick([1.0, 1e4]), gradients=0.7))
    gradient = dice.pick([*get_args(Estimator), "auto", "auto"])
    p = diabat.spin_probabilities(
        ising.fields,
        ising.couplings,
        sampler,
        gradient=gradient,
        visible=ising.visible,
        three_body=ising.three_body,
        num_reads=dice.pick([None, None, None, 2, 64]),
        seed=dice.integer(0, 100),
    )
    _check_range("probability", p.detach(), ising.fields)
    wanted = [(order, tensor) for order, tensor in parts(ising) if tensor.requires_grad]
    if not wanted:
        return
    law, v = enumerate_law(ising), dice.normal(*ising.fields.shape)
    exact = name == "exact" and gradient in ("exact", "auto")
    if exact and not bool(law.near_tie.any()):
        dtype = ising.fields.dtype
        check_gradient(p, law, wanted, v, GRADIENT[dtype] + TOLERANCE[dtype] + 1e-14 * law.span)
        return
    for g in torch.autograd.grad((p * v).sum(), [t for _, t in wanted], allow_unused=True):
        demand(g is None or bool(g.isfinite().all()), f"gradient: expected finite numbers, got {g}")


def _check_range(name: str, p: Tensor, like: Tensor) -> None:
    demand(p.shape == like.shape, f"{name}: expected the shape {list(like.shape)}, got {list(p.shape)}")
    demand(
        bool(((p >= 0) & (p <= 1)).all()),
        f"{name}: expected 0 .. 1, got {float(p.min())!r} .. {float(p.max())!r}",
    )


def attention(dice: Dice) -> None:
    """``BoltzmannAttention`` of any mode: weights sum to 1 or are 0, outputs and gradients are finite."""
    heads, window = dice.pick([1, 2]), dice.integer(1, 6)
    dtype, causal = dice.pick([torch.float32, torch.float64]), dice.chance(0.7)
    mode, backend = dice.pick(MODES), dice.pick(["exact", "exact", "mean_field", "banded", "dqa"])
    torch.manual_seed(dice.integer(0, 2**31))
    layer = diabat.BoltzmannAttention(
        embed_dim=4 * heads, num_heads=heads, window=window, mode=mode, sampler=backend, causal=causal
    ).to(dtype)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(dice.log_uniform(0.1, 10)).add_(0.1 * torch.randn_like(parameter))
    length = dice.integer(1, window)
    x = (dice.log_uniform(1e-3, 1e2) * dice.normal(2, length, 4 * heads)).to(dtype).requires_grad_()
    padding = dice.mask(2, length, share=0.4) if dice.chance(0.4) else None
    y, weights = layer(x, key_padding_mask=padding, need_weights=True)
    _check_layer(y, weights, (2, heads, length, length))
    y.sum().backward()
    for tensor in (x, *layer.parameters()):
        g = tensor.grad
        demand(
            g is None or bool(g.isfinite().all()),
            f"gradient of mode {mode}: expected finite numbers, got {g}",
        )


def windows(dice: Dice) -> None:
    """Relative couplings with all options: weights sum to 1 or are 0, gradients are finite, steps equal the pass."""
    heads, window, length = dice.pick([1, 2]), dice.integer(1, 6), dice.integer(1, 12)
    dtype, mode = dice.pick([torch.float32, torch.float64]), dice.pick([*MODES, "J-self"])
    weights = "probability" if mode == "J-self" else dice.pick(["probability", "odds"])
    torch.manual_seed(dice.integer(0, 2**31))
    layer = diabat.BoltzmannAttention(
        embed_dim=4 * heads,
        num_heads=heads,
        window=window,
        mode=mode,
        relative=True,
        far=dice.pick(["none", "independent"]),
        weights=weights,
        rotary=dice.chance(0.5),
    ).to(dtype)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(dice.log_uniform(0.1, 10)).add_(0.1 * torch.randn_like(parameter))
    x = (dice.log_uniform(1e-3, 1e2) * dice.normal(2, length, 4 * heads)).to(dtype).requires_grad_()
    padding = dice.mask(2, length, share=0.4) if dice.chance(0.4) else None
    y, found = layer(x, key_padding_mask=padding, need_weights=True)
    _check_layer(y, found, (2, heads, length, length))
    y.sum().backward()
    for tensor in (x, *layer.parameters()):
        g = tensor.grad
        demand(
            g is None or bool(g.isfinite().all()),
            f"gradient of mode {mode}: expected finite numbers, got {g}",
        )
    if padding is None and dtype == torch.float64:
        _check_steps(layer, x.detach(), y.detach())


def _check_steps(layer: diabat.BoltzmannAttention, x: Tensor, y: Tensor) -> None:
    with torch.no_grad():
        found, state = layer.step(x[:, 0])
        for i in range(1, x.shape[1]):
            found, state = layer.step(x[:, i], state)
    error = float((found - y[:, -1]).abs().max() / (1 + y.abs().max()))
    demand(error < 1e-5, f"step: expected the last row of the full pass, got a difference of {error}")


def _check_layer(y: Tensor, weights: Tensor, shape: tuple[int, ...]) -> None:
    demand(bool(y.isfinite().all()), f"output: expected finite numbers, got {y}")
    demand(tuple(weights.shape) == shape, f"weights: expected the shape {shape}, got {tuple(weights.shape)}")
    total = weights.detach().double().sum(-1)
    error = torch.minimum((total - 1).abs(), total.abs())
    demand(float(error.max()) < 1e-5, f"weights: expected rows that sum to 1 or 0, got {total}")


def pooling(dice: Dice) -> None:
    """``NeuroGameAttention``: outputs, gradients and explanations are finite."""
    heads, length = dice.pick([1, 2]), dice.integer(1, 6)
    backend = dice.pick(["mean_field", "exact"])
    torch.manual_seed(dice.integer(0, 2**31))
    layer = diabat.NeuroGameAttention(embed_dim=4 * heads, num_heads=heads, sampler=backend)
    x = (dice.log_uniform(1e-3, 1e2) * dice.normal(2, length, 4 * heads)).float().requires_grad_()
    padding = dice.mask(2, length, share=0.4) if dice.chance(0.4) else None
    z = layer(x, key_padding_mask=padding)
    demand(
        tuple(z.shape) == (2, 4 * heads), f"output: expected the shape {(2, 4 * heads)}, got {tuple(z.shape)}"
    )
    demand(bool(z.isfinite().all()), f"output: expected finite numbers, got {z}")
    z.sum().backward()
    demand(x.grad is not None and bool(x.grad.isfinite().all()), f"gradient: expected finite, got {x.grad}")
