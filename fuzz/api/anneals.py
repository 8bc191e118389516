"""``dqa`` against a plain evolution of state vectors in ``diabat.circuits.problem``: its own law."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

import diabat
from diabat.circuits import available_schedules
from diabat.circuits.problem import reference_probabilities
from diabat.ising import Ising
from diabat.samplers.dqa import DQASampler
from fuzz.api.analytic import check_range
from fuzz.api.problems import Shape, largest, random_problem
from fuzz.api.reads import check_form
from fuzz.api.statistics import check_reads
from fuzz.dice import Dice
from fuzz.outcome import demand

_TOLERANCE = {"double": 1e-8, "single": 2e-3}
_RESOLVED = 30.0
"""Fields and couplings up to which phases keep the digits that the tolerance needs."""


def anneal_moments(dice: Dice) -> None:
    """Moments of the native and the torch engine."""
    sampler, precision = _sampler(dice)
    ising = _problem(dice)
    moments = sampler.moments(ising, correlations=dice.chance(0.3), seed=1)
    check_range(moments, ising)
    if largest(ising) > _RESOLVED:
        return
    p, pairs = _reference(sampler, ising)
    error = (moments.probability.double() - p).abs().max()
    tolerance = (
        _TOLERANCE[precision] if ising.fields.dtype == torch.float64 else max(_TOLERANCE[precision], 1e-5)
    )
    demand(
        float(error) <= tolerance, f"probability: expected the evolution within {tolerance}, got {error:.1e}"
    )
    if moments.correlation is not None:
        error = (moments.correlation.double() - pairs).abs().max()
        demand(float(error) <= 2 * tolerance, f"correlation: expected the evolution, got {error:.1e} off")


def anneal_reads(dice: Dice) -> None:
    """Reads of the native engine follow the circuit's own law."""
    sampler, precision = _sampler(dice)
    ising = _problem(dice)
    reads = dice.pick([1, 20, 300])
    samples = sampler.sample(ising, reads, seed=dice.integer(0, 2**40))
    check_form(samples, ising, reads)
    if largest(ising) <= _RESOLVED and precision == "double":
        check_reads(samples, *_reference(sampler, ising))


def anneal_gradient(dice: Dice) -> None:
    """The adjoint gradient is a finite difference of the moments."""
    sampler, precision = _sampler(dice)
    ising = random_problem(dice, Shape(spins=4, strength=2.0, extreme=0, three_body=0, gradients=0))
    v = dice.normal(*ising.fields.shape)
    found = sampler.adjoint(ising, v, seed=1)
    for name, g, like in (
        ("fields", found.fields, ising.fields),
        ("couplings", found.couplings, ising.couplings),
    ):
        if g is not None and like is not None:
            demand(
                g.shape == like.shape, f"{name}: expected the shape {list(like.shape)}, got {list(g.shape)}"
            )
            demand(bool(g.isfinite().all()), f"{name}: expected a finite gradient, got {g}")
    if ising.fields.dtype == torch.float64 and precision == "double":
        direction, step = dice.normal(*ising.fields.shape), 1e-5
        ends = [
            (
                sampler.moments(Ising(ising.fields + sign * step * direction, *_rest(ising))).probability * v
            ).sum()
            for sign in (1, -1)
        ]
        slope = float(ends[0] - ends[1]) / (2 * step)
        error = abs(slope - float((found.fields * direction).sum()))
        demand(
            error <= 1e-4 * max(1.0, abs(slope)),
            f"gradient: expected a slope of {slope}, got {error:.1e} off",
        )


def _rest(ising: Ising) -> tuple[Tensor | None, Tensor | None]:
    return ising.couplings, ising.visible


def _problem(dice: Dice) -> Ising:
    strength = dice.pick([3.0, 3.0, 1e4])
    return random_problem(
        dice, Shape(spins=7, strength=strength, extreme=0.03, three_body=0.02, gradients=0.2)
    )


def _sampler(dice: Dice) -> tuple[DQASampler, str]:
    options: dict[str, Any] = {"engine": dice.weighted({"native": 4, "torch": 1})}
    options["precision"] = precision = dice.pick(["double", "single"])
    if dice.chance(0.5):
        options["schedule"] = dice.pick(["boltzmann-4", "boltzmann-8", "boltzmann-8-wide"])
    else:
        options["schedule"] = dice.pick(available_schedules())
        options |= {"annealing_time_ns": dice.log_uniform(0.5, 8), "steps": dice.integer(1, 40)}
        options |= {"order": dice.pick(["strang", "first"]), "grid": dice.pick(["uniform", "adaptive"])}
    sampler = diabat.sampler("dqa", **options)
    assert isinstance(sampler, DQASampler)
    return sampler, precision


def _reference(sampler: DQASampler, ising: Ising) -> tuple[Tensor, Tensor]:
    """P(s_j = +1) and <s_j s_k> problem by problem, of the visible spins alone."""
    n = ising.num_spins
    fields = ising.fields.detach().double().reshape(-1, n)
    J = torch.zeros(n, n) if ising.couplings is None else ising.couplings.detach()
    J = J.double().expand(*ising.batch_shape, n, n).reshape(-1, n, n)
    visible, betas = ising.visible_mask.reshape(-1, n), sampler.betas
    p, pairs = torch.zeros(fields.shape, dtype=torch.float64), torch.zeros(J.shape, dtype=torch.float64)
    for row, seen in enumerate(visible):
        if not (m := int(seen.sum())):
            continue
        h = (fields[row, seen] / betas.beta_h).numpy()[None]
        states = reference_probabilities(sampler.plan, h, (J[row][seen][:, seen] / betas.beta_J).numpy())[0]
        s = ((np.arange(2**m)[:, None] >> np.arange(m)) & 1) * 2.0 - 1
        p[row, seen] = torch.from_numpy(states @ (s > 0))
        pairs[row][seen[:, None] & seen] = torch.from_numpy((s.T * states) @ s).reshape(-1)
    return p.reshape(ising.fields.shape), pairs.reshape(*ising.fields.shape, n)
