"""``exact``, ``banded`` and ``mean_field`` against enumeration: moments, log Z and gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import diabat
from diabat.ising import Ising
from diabat.samplers import Moments, Sampler
from diabat.samplers.base import UnsupportedError
from fuzz.api.enumeration import Law, enumerate_law, gradients
from fuzz.api.problems import EXTREME, Shape, largest, parts, random_problem
from fuzz.dice import Dice
from fuzz.outcome import demand

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-9}
GRADIENT = {torch.float32: 1e-4, torch.float64: 1e-7}
ROUNDING = {torch.float32: 1e-6, torch.float64: 1e-14}
"""Of an exponent of 1, where it is formed in the dtype of the fields."""


def exact(dice: Dice) -> None:
    """Moments and gradient of ``exact``."""
    options = {"memory_budget_mb": dice.pick([256.0, 0.001])} if dice.chance(0.1) else {}
    ising = random_problem(dice)
    _compare(dice, diabat.sampler("exact", **options), ising, refusable=largest(ising) > EXTREME)


def banded(dice: Dice) -> None:
    """Moments and gradient of ``banded``."""
    ising = random_problem(dice, Shape(three_body=0.02))
    options: dict[str, Any] = {"engine": dice.pick(["auto", "native", "torch"])}
    if dice.chance(0.2):
        options["bandwidth"] = dice.integer(0, 4)
    outside = ising.three_body is not None or "bandwidth" in options
    _compare(dice, diabat.sampler("banded", **options), ising, refusable=outside or largest(ising) > EXTREME)


def _compare(dice: Dice, sampler: Sampler, ising: Ising, *, refusable: bool) -> None:
    pairs = dice.chance(0.5)
    try:
        moments = sampler.moments(ising, correlations=pairs)
    except UnsupportedError as error:
        demand(refusable, f"refused a problem of this range: {error}")
        raise
    law = enumerate_law(ising)
    tolerance = TOLERANCE[ising.fields.dtype] + ROUNDING[torch.float64] * law.span
    if sampler.name == "banded":
        tolerance += ROUNDING[ising.fields.dtype] * law.span
    check_range(moments, ising)
    _check_moments(moments, law, tolerance)
    wanted = [(order, tensor) for order, tensor in parts(ising) if tensor.requires_grad]
    if wanted and not bool(law.near_tie.any()):
        cotangent = dice.normal(*ising.fields.shape)
        allowed = GRADIENT[ising.fields.dtype] + tolerance
        check_gradient(
            moments.probability, law, wanted, cotangent, allowed, getattr(sampler, "bandwidth", None)
        )


def check_range(moments: Moments, ising: Ising) -> None:
    """Shapes and dtypes as promised; 0 <= P <= 1, and 0 where invisible; no NaN anywhere."""
    p = moments.probability
    demand(p.shape == ising.fields.shape, f"shape: expected {list(ising.fields.shape)}, got {list(p.shape)}")
    demand(p.dtype == ising.fields.dtype, f"dtype: expected {ising.fields.dtype}, got {p.dtype}")
    demand(bool(((p >= 0) & (p <= 1)).all()), f"range of P: expected 0 .. 1, got {_extremes(p)}")
    demand(not bool((p[~ising.visible_mask] != 0).any()), "invisible spins: expected P = 0")
    for name in ("correlation", "standard_error"):
        value = getattr(moments, name)
        demand(value is None or bool(value.isfinite().all()), f"{name}: expected finite numbers, got {value}")
    # log Z of the largest fields is beyond their dtype.
    log_z = moments.log_partition
    sound = log_z is None or not bool(log_z.isnan().any() or (log_z == -torch.inf).any())
    demand(sound, f"log_partition: expected numbers, got {log_z}")


def _extremes(p: Tensor) -> str:
    return f"{float(p.detach().min())!r} .. {float(p.detach().max())!r}"


def _check_moments(moments: Moments, law: Law, tolerance: float) -> None:
    for name, scale in (("probability", 1.0), ("correlation", 2.0), ("log_partition", 0.0)):
        got, want = getattr(moments, name), getattr(law, name)
        if got is None:
            continue
        want = want.detach().to(got.dtype).double()  # log Z may be beyond it
        size = scale or max(1.0, float(want.abs().nan_to_num(posinf=0.0).max()))
        error = torch.where(got == want, 0.0, (got.detach().double() - want).abs())
        if scale:
            error = error.flatten(law.near_tie.ndim)[~law.near_tie]
        worst = float(error.max()) if error.numel() else 0.0
        bound = tolerance * size
        demand(worst <= bound, f"{name}: expected the law within {bound:.1e}, got an error of {worst:.1e}")


def check_gradient(
    p: Tensor,
    law: Law,
    wanted: list[tuple[int, Tensor]],
    v: Tensor,
    tolerance: float,
    bandwidth: int | None = None,
) -> None:
    """The gradient of Σ v P is finite and that of the law; couplings outside a given band are not parameters."""
    # Without a visible spin the probabilities may depend on nothing.
    got = (
        torch.autograd.grad((p * v).sum(), [t for _, t in wanted], allow_unused=True)
        if p.requires_grad
        else [None] * len(wanted)
    )
    for (order, _), g, want in zip(wanted, got, gradients(law, wanted, v), strict=True):
        g = torch.zeros_like(want) if g is None else g
        if bandwidth is not None and order == 2:
            want = want.tril(bandwidth).triu(-bandwidth)
        demand(bool(g.isfinite().all()), f"gradient: expected finite numbers, got {g}")
        error = float((g.double() - want.double()).abs().max()) if g.numel() else 0.0
        bound = tolerance * max(1.0, float(want.abs().max()) if want.numel() else 0.0)
        demand(error <= bound, f"gradient: expected that of the law within {bound:.1e}, got {error:.1e} off")
