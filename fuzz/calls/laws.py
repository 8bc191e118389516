"""Analytic backends against enumeration or a fixed point; energies, clamped problems, models of dimod both ways."""

from __future__ import annotations

from itertools import combinations

import dimod
import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

import diabat
from diabat.ising import Ising, from_bqm, to_bqm
from diabat.samplers import Moments, Sampler
from diabat.samplers.capabilities import UnsupportedError
from diabat.samplers.ocean import OceanSampler
from diabat.testing.oracle import brute_force, brute_force_exponents, brute_force_states, state_table
from fuzz.problems import (
    EXTREME,
    SEEDS,
    first,
    largest,
    mostly,
    normal,
    one_in,
    parts,
    problems,
    reach,
    scales,
)  # fmt: skip
from fuzz.properties import demand, holds

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-9}
GRADIENT = {torch.float32: 1e-4, torch.float64: 1e-7}
ROUNDING = {torch.float32: 1e-6, torch.float64: 1e-14}
"""Of an exponent of 1, where it is formed in the dtype of the fields."""
BANDED = {"engine": st.sampled_from(["auto", "native", "torch"])}


@holds
def exact(draw: st.DrawFn) -> None:
    """P, correlations, log Z and gradients are those of enumeration."""
    ising, options = draw(problems(extreme=True)), {"memory_budget_mb": 0.001} if draw(one_in(10)) else {}
    _agrees(draw, diabat.sampler("exact", **options), ising, refusable=largest(ising) > EXTREME)


@holds
def banded(draw: st.DrawFn) -> None:
    """The same of ``banded``, unless couplings are outside the given band."""
    ising = draw(mostly(problems(extreme=True, three_body=False), problems(), 20))
    options = draw(st.fixed_dictionaries(BANDED, optional={"bandwidth": st.integers(0, 4)}))
    outside = ising.three_body is not None or "bandwidth" in options
    _agrees(draw, diabat.sampler("banded", **options), ising, refusable=outside or largest(ising) > EXTREME)


def _agrees(draw: st.DrawFn, sampler: Sampler, ising: Ising, *, refusable: bool) -> None:
    try:
        moments = sampler.moments(ising, correlations=draw(st.booleans()))
    except UnsupportedError as error:
        demand(refusable, f"refused a problem of this range: {error}")
        raise
    law, sure, span = brute_force(ising), ~near_tie(ising), total(ising)
    tolerance = TOLERANCE[ising.fields.dtype] + ROUNDING[torch.float64] * span
    if sampler.name == "banded":
        tolerance += ROUNDING[ising.fields.dtype] * span
    in_range(moments, ising)
    for name, factor in (("probability", 1.0), ("correlation", 2.0), ("log_partition", 0.0)):
        got, want = getattr(moments, name), getattr(law, name)
        if got is not None:
            scale = factor or max(1.0, float(want.abs().nan_to_num(posinf=0.0).max()))
            rows = sure if factor else torch.ones_like(sure)
            close(got[rows], want.to(got.dtype)[rows], tolerance * scale, name)  # log Z may be beyond it
    if span < 1e3:
        alone, place = sampler.moments(first(ising)).probability, (0,) * len(ising.batch_shape)
        close(moments.probability[place], alone, 2 * tolerance, "the first problem alone")
    if bool(sure.all()):
        v, bound = normal(draw(SEEDS), *ising.fields.shape), GRADIENT[ising.fields.dtype] + tolerance
        gradient_agrees(moments.probability, ising, v, bound, getattr(sampler, "bandwidth", None))


def total(ising: Ising) -> float:
    """Largest sum of |c|, |h|, |J| and |K| of a problem; rounding errors are proportional to it."""
    sums = [t.detach().double().abs().flatten(-order).sum(-1).max() for order, t in parts(ising)]
    return float(sum(sums)) + (0.0 if ising.offset is None else float(ising.offset.detach().abs().max()))


def near_tie(ising: Ising) -> Tensor:
    """Problems in which a state is below the best one by less than the rounding error, but not equal to it."""
    exponent, rounding = brute_force_exponents(ising), 1e-13 * total(ising)
    gap = exponent.max(-1, keepdim=True).values - exponent
    return ((gap > 0) & (gap < 60 + 100 * rounding)).any(-1) & (rounding >= 1e-9)


def in_range(moments: Moments, ising: Ising) -> None:
    """Shapes and dtypes as promised; 0 <= P <= 1, and 0 where invisible; no NaN anywhere."""
    p, like = moments.probability, ising.fields
    demand(p.shape == like.shape, f"shape: expected {list(like.shape)}, got {list(p.shape)}")
    demand(p.dtype == like.dtype, f"dtype: expected {like.dtype}, got {p.dtype}")
    demand(bool(((p >= 0) & (p <= 1)).all()), f"range of P: expected 0 .. 1, got {p}")
    demand(not bool((p[~moments.visible] != 0).any()), "invisible spins: expected P = 0")
    finite(moments.correlation, "correlation")
    finite(moments.standard_error, "standard_error")
    log_z = moments.log_partition  # that of the largest fields is beyond their dtype
    sound = log_z is None or not bool(log_z.isnan().any() or (log_z == -torch.inf).any())
    demand(sound, f"log_partition: expected numbers, got {log_z}")


def close(got: Tensor, want: Tensor, bound: float, what: str) -> None:
    """Demand equal numbers within a bound; infinite ones may be equal."""
    got, want = got.detach().double(), want.detach().double()
    error = torch.where(got == want, 0.0, (got - want).abs())
    worst = float(error.max()) if error.numel() else 0.0
    demand(worst <= bound, f"{what}: expected an error of {bound:.1e} at most, got {worst:.1e}")


def finite(tensor: Tensor | None, what: str) -> None:
    """Demand finite numbers, if there are any."""
    demand(tensor is None or bool(tensor.isfinite().all()), f"{what}: expected finite numbers, got {tensor}")


def gradient_agrees(p: Tensor, ising: Ising, v: Tensor, bound: float, bandwidth: int | None = None) -> None:
    """The gradient of Σ v P is that of the law; couplings outside a given band are not parameters."""
    wanted = [(order, tensor) for order, tensor in parts(ising) if tensor.requires_grad]
    if not wanted or not p.requires_grad:  # without a visible spin P may depend on nothing
        return
    gradients = torch.autograd.grad(
        (p * v).sum(), [t for _, t in wanted], allow_unused=True, retain_graph=True
    )
    for (order, tensor), g in zip(wanted, gradients, strict=True):
        want = _gradient(ising, tensor, order, v)
        if bandwidth is not None and order == 2:
            want = want.tril(bandwidth).triu(-bandwidth)
        finite(g, "gradient")
        most = bound * max(1.0, float(want.abs().max()))
        close(torch.zeros_like(want) if g is None else g, want, most, f"gradient in {'hJK'[order - 1]}")


def _gradient(ising: Ising, tensor: Tensor, order: int, v: Tensor) -> Tensor:
    """Covariances of f = Σ_j v_j [s_j = +1] with products of spins, spread over their equal entries."""
    p, s, visible = brute_force_states(ising), state_table(ising.num_spins), ising.visible_mask
    f = torch.where(visible, v, 0.0) @ (s > 0).double().T
    letters = "jkl"[:order]
    products = f"...x,{','.join('x' + letter for letter in letters)}->...{letters}"
    g = torch.einsum(products, p * (f - (p * f).sum(-1, keepdim=True)), *[s] * order)
    index = torch.meshgrid(*[torch.arange(ising.num_spins)] * order, indexing="ij")
    for axis in index:
        g = g * visible[..., axis]
    for a, b in combinations(index, 2):
        g = g.masked_fill(a == b, 0)
    return (g / (1, 2, 6)[order - 1]).sum_to_size(tensor.shape)


@holds
def mean_field(draw: st.DrawFn) -> None:
    """M = tanh(h + J m + ½ K m m) where it has converged, and a finite gradient."""
    ising, damping = draw(problems()), draw(st.none() | st.sampled_from([0.3, 0.7, 1.0]))
    options = {} if damping is None else {"damping": damping}
    moments = diabat.sampler("mean_field", **options).moments(ising)
    in_range(moments, ising)
    p, visible = moments.probability.detach().double(), ising.visible_mask
    m, local = torch.where(visible, 2 * p - 1, 0), ising.fields.detach().double()
    if ising.couplings is not None:
        local = local + (ising.couplings.detach().double() @ m[..., None])[..., 0]
    if ising.three_body is not None:
        local = local + torch.einsum("...jkl,...k,...l->...j", ising.three_body.detach().double(), m, m) / 2
    # How far the residual of the iteration and the rounding of exponents may carry.
    most = reach(ising)
    bound = 1e-6 * (1 + min(most, 1e6)) ** 2 + ROUNDING[ising.fields.dtype] * float(local.abs().max())
    if bool(moments.info["converged"]) and bound < 0.1:
        close(p, torch.where(visible, torch.sigmoid(2 * local), 0), bound, "fixed point")
    if ising.fields.requires_grad:
        (g,) = torch.autograd.grad(moments.probability.sum(), [ising.fields])
        finite(g, "gradient")


@holds
def energies(draw: st.DrawFn) -> None:
    """The energy of every state, with the offset, is the negative exponent of enumeration."""
    ising = draw(problems(spins=6, most=10.0))
    states = state_table(ising.num_spins).to(torch.int8)
    lead = (1,) * len(ising.batch_shape)
    states = states.reshape(-1, *lead, ising.num_spins).expand(-1, *ising.fields.shape)
    exponent, energy = brute_force_exponents(ising).movedim(-1, 0), ising.energy(states)
    known, bound = exponent.isfinite(), TOLERANCE[ising.fields.dtype] * (1 + total(ising))
    close(-energy[known], exponent[known], bound, "energy")


@holds
def clamped(draw: st.DrawFn) -> None:
    """A clamped problem has the conditional law and the energies of the problem, in enumeration and in ``exact``."""
    ising = draw(problems(spins=6, most=5.0))
    held = torch.from_numpy(np.random.default_rng(draw(SEEDS)).integers(-1, 2, ising.fields.shape))
    conditional, fixed = ising.clamp(held), (held != 0) & ising.visible_mask
    table, bound = state_table(ising.num_spins), TOLERANCE[ising.fields.dtype] * (1 + total(ising))
    agrees = ((table == held[..., None, :]) | ~fixed[..., None, :]).all(-1)
    states = torch.where(agrees, brute_force_states(ising), 0.0)
    condition = states.sum(-1, keepdim=True)
    p = torch.where(ising.visible_mask, (states / condition) @ (table > 0).double(), 0.0)
    likely = condition[..., 0] > 1e-8  # of an unlikely condition no digits are left
    law, moments = brute_force(conditional), diabat.sampler("exact").moments(conditional)
    in_range(moments, conditional)
    close(law.probability[likely], p[likely], max(1e-6, bound), "conditional law")
    close(moments.probability, law.probability, bound, "P of exact")
    for log_z in (law.log_partition, moments.log_partition):
        assert log_z is not None
        want = torch.where(agrees, brute_force_exponents(ising), -torch.inf).logsumexp(-1)
        close(log_z, want, 10 * bound, "log Z")
    samples = diabat.sampler("exact").sample(conditional, 2, seed=0)
    kept = torch.equal(samples.spins[:, fixed], held[fixed].to(torch.int8).expand(2, -1))
    demand(kept, "reads: expected clamped spins at their values")
    close(samples.energy, ising.energy(samples.spins), 10 * bound, "energy of the given problem")


@holds
def dimod_models(draw: st.DrawFn) -> None:
    """Energies are beta·E of a model of dimod, offset included, log Z is log Σ exp(-beta E), and all comes back."""
    n, seed, beta = draw(st.integers(1, 6)), draw(SEEDS), draw(scales(0.01, 10))
    vartype, offset = draw(st.sampled_from(["SPIN", "BINARY"])), draw(st.floats(-1e4, 1e4))
    h, J = normal(seed, n), normal(seed + 1, n, n)
    pairs = {(j, k): float(J[j, k]) for j in range(n) for k in range(j)}
    model = dimod.BinaryQuadraticModel(dict(enumerate(h.tolist())), pairs, offset, vartype)
    ising, labels = from_bqm(model, beta=beta)
    states = state_table(n).long()
    values = states if vartype == "SPIN" else (states + 1) // 2
    want = beta * torch.from_numpy(model.energies((values.numpy(), labels)))
    bound = max(1e-12 * (1 + float(want.abs().max())), 1e-9)
    back = torch.from_numpy(to_bqm(ising).energies((states.numpy(), range(n))))
    for energy, what in ((ising.energy(states), "beta·E"), (back, "E there and back")):
        close(energy, want, bound, what)
    log_z = diabat.sampler(draw(st.sampled_from(["exact", "banded"]))).moments(ising).log_partition
    assert log_z is not None
    close(log_z, (-want).logsumexp(0), bound, "log Z")
    reads = OceanSampler(diabat.sampler("exact")).sample(model, num_reads=3, seed=1)
    for sample, energy in reads.data(["sample", "energy"]):
        close(torch.tensor(energy), torch.tensor(model.energy(sample)), bound, "energy of a read")
