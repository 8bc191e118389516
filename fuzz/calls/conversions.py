"""What is made of a problem: energies, clamped problems, and models of dimod with offsets, both ways."""

from __future__ import annotations

import dimod
import numpy as np
import torch
from hypothesis import strategies as st

import diabat
from diabat.ising import from_bqm, to_bqm
from diabat.samplers.ocean import OceanSampler
from diabat.testing.oracle import brute_force, brute_force_exponents, brute_force_states, state_table
from fuzz.calls.laws import TOLERANCE, close, in_range, total
from fuzz.problems import SEEDS, normal, problems, scales
from fuzz.properties import demand, holds


@holds
def energies(draw: st.DrawFn) -> None:
    """The energy of every state, with the offset, is the negative exponent of enumeration."""
    ising = draw(problems(spins=6, most=10.0))
    states = state_table(ising.num_spins).to(torch.int8)
    lead = (1,) * len(ising.batch_shape)
    states = states.reshape(-1, *lead, ising.num_spins).expand(-1, *ising.fields.shape)
    exponent, found = brute_force_exponents(ising).movedim(-1, 0), ising.energy(states)
    seen = exponent.isfinite()
    close(-found[seen], exponent[seen], TOLERANCE[ising.fields.dtype] * (1 + total(ising)), "energy")


@holds
def clamped(draw: st.DrawFn) -> None:
    """A clamped problem has the conditional law and the energies of the problem, in enumeration and in ``exact``."""
    ising = draw(problems(spins=6, most=5.0))
    held = torch.from_numpy(np.random.default_rng(draw(SEEDS)).integers(-1, 2, ising.fields.shape))
    given, fixed = ising.clamp(held), (held != 0) & ising.visible_mask
    table, bound = state_table(ising.num_spins), TOLERANCE[ising.fields.dtype] * (1 + total(ising))
    agrees = ((table == held[..., None, :]) | ~fixed[..., None, :]).all(-1)
    states = torch.where(agrees, brute_force_states(ising), 0.0)
    condition = states.sum(-1, keepdim=True)
    p = torch.where(ising.visible_mask, (states / condition) @ (table > 0).double(), 0.0)
    likely = condition[..., 0] > 1e-8  # of an unlikely condition no digits are left
    law, moments = brute_force(given), diabat.sampler("exact").moments(given)
    in_range(moments, given)
    close(law.probability[likely], p[likely], max(1e-6, bound), "conditional law")
    close(moments.probability, law.probability, bound, "P of exact")
    for log_z in (law.log_partition, moments.log_partition):
        assert log_z is not None
        want = torch.where(agrees, brute_force_exponents(ising), -torch.inf).logsumexp(-1)
        close(log_z, want, 10 * bound, "log Z")
    samples = diabat.sampler("exact").sample(given, 2, seed=0)
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
