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


def bqm(dice: Dice) -> None:
    """Conversion to dimod's model and back gives the same numbers; energies agree; a backend can sample it."""
    ising = random_problem(dice, Shape(spins=6, three_body=0, extreme=0.03, gradients=0))
    one = ising.fields.reshape(-1, ising.num_spins)[0].double()
    J = (
        None
        if ising.couplings is None
        else ising.couplings.reshape(-1, *ising.couplings.shape[-2:])[0].double()
    )
    single = Ising(one, J)
    model = to_bqm(single)
    back, labels = from_bqm(model)
    demand(labels == list(range(ising.num_spins)), f"labels: expected 0 .. n - 1, got {labels}")
    demand(torch.equal(back.fields, one + 0.0), "fields: expected the same after to_bqm and from_bqm")
    assert back.couplings is not None
    expected = torch.zeros_like(back.couplings) if J is None else J
    demand(
        torch.equal(back.couplings, expected + 0.0), "couplings: expected the same after to_bqm and from_bqm"
    )
    reads = OceanSampler(diabat.sampler("exact")).sample(model, num_reads=3, seed=1)
    for sample, found in reads.data(["sample", "energy"]):
        want = float(model.energy(sample))
        demand(abs(found - want) <= 1e-9 * max(1.0, abs(want)), f"energy: expected {want}, got {found}")
