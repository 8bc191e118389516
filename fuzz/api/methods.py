"""Methods of a problem: energies, clamping, and conversion to dimod's models and back."""

from __future__ import annotations

import torch

import diabat
from diabat.ising import Ising, from_bqm, to_bqm
from diabat.samplers.ocean import OceanSampler
from fuzz.api.analytic import TOLERANCE
from fuzz.api.enumeration import enumerate_law
from fuzz.api.problems import Shape, random_problem
from fuzz.dice import Dice
from fuzz.outcome import demand


def energy(dice: Dice) -> None:
    """P(s) of enumeration is exp(-energy)/Z."""
    ising = random_problem(dice, Shape(spins=6, strength=10, extreme=0))
    law, n = enumerate_law(ising), ising.num_spins
    index = dice.integer(0, 2**n - 1)
    spins = ((torch.tensor(index) >> torch.arange(n)) & 1) * 2 - 1
    spins = torch.where(ising.visible_mask, spins.expand(ising.fields.shape), -1)
    where = ((spins > 0).long() << torch.arange(n)).sum(-1, keepdim=True)
    want = law.log_partition + law.states.gather(-1, where)[..., 0].log()
    got = -ising.energy(spins).detach().double()
    sure = law.states.gather(-1, where)[..., 0] > 1e-200
    error = (got - want.detach())[sure].abs()
    bound = TOLERANCE[ising.fields.dtype] * (1 + law.span)
    demand(not bool((error > bound).any()), f"energy: expected -log(Z P) within {bound:.1e}, got {error}")


def clamp(dice: Dice) -> None:
    """The clamped problem has the conditional law."""
    ising = random_problem(dice, Shape(spins=6, strength=5, extreme=0))
    held = torch.from_numpy(dice.random.integers(-1, 2, ising.fields.shape))
    clamped = ising.clamp(held)
    law, given = enumerate_law(ising), enumerate_law(clamped)
    n = ising.num_spins
    table = ((torch.arange(2**n)[:, None] >> torch.arange(n)) & 1) * 2 - 1
    fixed = (held != 0) & ising.visible_mask
    agrees = ((table == held[..., None, :]) | ~fixed[..., None, :]).all(-1)
    states = torch.where(agrees, law.states, 0.0)
    states = states / states.sum(-1, keepdim=True)
    p = torch.where(clamped.visible_mask, states @ (table > 0).double(), 0.0)
    error = float((p - given.probability).detach().abs().nan_to_num().max())
    # The condition itself may be so unlikely that its probability has no digits.
    bound = TOLERANCE[ising.fields.dtype] * (1 + law.span) if law.span < 20 else 2.0
    demand(
        error <= bound, f"clamp: expected the conditional law within {bound:.1e}, got an error of {error:.1e}"
    )
    drawn = diabat.sampler("exact").sample(clamped, 2, seed=0)
    shown = torch.equal(drawn.spins[:, fixed].long(), held[fixed].long().expand(2, -1))
    demand(shown, "reads: expected clamped spins at their values")
    gap = float((drawn.energy - ising.energy(drawn.spins)).detach().abs().max())
    most = 10 * TOLERANCE[ising.fields.dtype] * (1 + law.span)
    demand(gap <= most, f"energy: expected that of the given problem within {most:.1e}, got {gap:.1e} off")


def bqm(dice: Dice) -> None:
    """Conversion to dimod's model and back gives the same numbers; energies agree; a backend can sample it."""
    ising = random_problem(dice, Shape(spins=6, three_body=0, extreme=0.03, gradients=0))
    one = ising.fields.reshape(-1, ising.num_spins)[0].double()
    J = (
        None
        if ising.couplings is None
        else ising.couplings.reshape(-1, *ising.couplings.shape[-2:])[0].double()
    )
    offset = dice.log_uniform(1e-6, 1e6) if dice.chance(0.7) else None
    single = Ising(one, J, offset=offset)
    model = to_bqm(single)
    back, labels = from_bqm(model)
    demand(labels == list(range(ising.num_spins)), f"labels: expected 0 .. n - 1, got {labels}")
    demand(torch.equal(back.fields, one + 0.0), "fields: expected the same after to_bqm and from_bqm")
    demand(back.offset == single.offset, "offset: expected the same after to_bqm and from_bqm")
    assert back.couplings is not None
    expected = torch.zeros_like(back.couplings) if J is None else J
    demand(
        torch.equal(back.couplings, expected + 0.0), "couplings: expected the same after to_bqm and from_bqm"
    )
    reads = OceanSampler(diabat.sampler("exact")).sample(model, num_reads=3, seed=1)
    for sample, found in reads.data(["sample", "energy"]):
        want = float(model.energy(sample))
        demand(abs(found - want) <= 1e-9 * max(1.0, abs(want)), f"energy: expected {want}, got {found}")


def log_partition_of_bqm(dice: Dice) -> None:
    """Of a model with an offset, SPIN or BINARY: energies are beta·E, and log Z is log Σ exp(-beta E)."""
    import dimod

    n, beta = dice.integer(1, 6), dice.log_uniform(0.01, 10)
    vartype = dice.pick(["SPIN", "BINARY"])
    h, J = dice.normal(n).double().tolist(), dice.normal(n, n).double().tolist()
    pairs = {(j, k): J[j][k] for j in range(n) for k in range(j)}
    model = dimod.BinaryQuadraticModel(dict(enumerate(h)), pairs, dice.log_uniform(1e-3, 1e4), vartype)
    ising, labels = from_bqm(model, beta=beta)
    states = ((torch.arange(2**n)[:, None] >> torch.arange(n)) & 1) * 2 - 1
    values = states if vartype == "SPIN" else (states + 1) // 2
    want = beta * torch.from_numpy(model.energies((values.numpy(), labels)))
    demand(torch.allclose(ising.energy(states), want, rtol=1e-12, atol=1e-9), "energy: expected beta·E")
    found = diabat.sampler(dice.pick(["exact", "banded"])).moments(ising).log_partition
    assert found is not None
    log_z = (-want).logsumexp(0)
    demand(torch.allclose(found, log_z, rtol=1e-12, atol=1e-9), f"log Z: expected {log_z}, got {found}")
