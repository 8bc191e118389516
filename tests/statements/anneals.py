"""Diabatic quantum annealing."""

from __future__ import annotations

import pytest
import torch

import diabat
from diabat import Ising, sampler
from diabat.circuits import OutOfRangeWarning, schedule
from diabat.ising import pack_couplings
from statements.table import F64, drawn, magnetization, refused, says


@says(
    "dqa",
    "- A strong field turns a spin with P(s = +1) above .97, <s> above .94, up to |h| = 41 (5 ns, the 150 "
    "adaptive "
    "steps of the default) or 58 (200 equal steps).",
)
def saturation() -> None:
    for grid, most in (("adaptive", 41), ("uniform", 58)):
        assert (magnetization([float(h) for h in range(3, most + 1)], grid=grid) > 0.94).all()
        backend = sampler("dqa", grid=grid)
        backend.moments(Ising(torch.tensor([most - 0.1])))
        with pytest.warns(OutOfRangeWarning):
            backend.moments(Ising(torch.tensor([most + 2.0])))


@says(
    "dqa",
    "- The default is 150 adaptive Strang steps at 5 ns, whose error is below a hundredth of the anneal's "
    'own distance to Boltzmann. `grid="uniform"` takes 200 equal steps',
)
@says(
    "dqa",
    "the fast schedule at 5 ns in 150 steps",
    "with 4 to 16 layers in place of 150.",
    "8 layers instead of 150.",
)
@says("backends", "have eight layers in place of 150 steps")
def default_steps() -> None:
    assert sampler("dqa", grid="uniform").plan.steps == 200
    assert sampler("dqa", schedule="boltzmann-8").plan.steps == 8
    default, problem = sampler("dqa"), drawn(16, dtype=F64)
    assert default.plan.steps == 150
    info = default.moments(problem).info
    assert (info["annealing_time_ns"], info["calibration"]) == (5.0, "predicted")
    law, many, boltzmann = (
        one.state_probabilities(problem) for one in (default, sampler("dqa", steps=1000), sampler("exact"))
    )
    assert (law - many).abs().sum() < 0.01 * (law - boltzmann).abs().sum()


@says(
    "dqa",
    "with equal steps up to 2·A(0)·t_a (at least 114 at 5 ns), with adaptive ones where one turns the "
    "mixer by π (at least 57).",
)
def fewest_steps() -> None:
    assert 113 < 2 * float(schedule("Advantage2_system1", "fast").A_GHz[0]) * 5 < 114
    for grid, least in (("uniform", 114), ("adaptive", 57)):
        assert sampler("dqa", grid=grid, steps=least).plan.steps == least
        with refused(f"steps: expected at least {least} "):
            sampler("dqa", grid=grid, steps=least - 1)


@says("dqa", "single for float32, with errors of P below 1e-6 at 8 spins and up to 1e-4 at 16.")
@says("backends", "probabilities to 1e-6 at 8 spins and 1e-4 at 16)")
def single_precision() -> None:
    for n, error in ((8, 1e-6), (16, 1e-4)):
        problem = drawn(4, n=n, J=1 / n**0.5)
        assert sampler("dqa").moments(problem).info["precision"] == "single"
        double = sampler("dqa").moments(problem.to(dtype=F64)).probability
        assert (sampler("dqa").moments(problem).probability - double).abs().max() < error


@says(
    "dqa",
    "without fields the total variation between a plain anneal and the Boltzmann distribution is below 2 % "
    "on average "
    "if Σ_k |J_jk|, averaged over the spins j, is below 0.35. With fields h ~ N(0, g) beside J ~ N(0, "
    "g/√n) it is if "
    "that sum is below 0.23.",
)
def rule_of_thumb() -> None:
    for n in (6, 8):
        J = pack_couplings(torch.randn(64, n * (n - 1) // 2), n)
        J = J / J.abs().sum(-1).mean(-1)[:, None, None]
        g = (J.square().sum((-1, -2)) / (n - 1)).sqrt()
        h = g[:, None] * torch.randn(64, n)
        for fields, total, within in (
            (0 * h, 0.35, True),
            (0 * h, 0.7, False),
            (h, 0.23, True),
            (h, 0.46, False),
        ):
            problem = Ising(total * fields, total * J)
            anneal, law = (sampler(name).state_probabilities(problem) for name in ("dqa", "exact"))
            assert (float((anneal - law).abs().sum(-1).mean()) / 2 < 0.02) is within


@says("dqa", "If several layers are given the same sampler, each learns separate angles.")
def separate_angles() -> None:
    shared = sampler("dqa", schedule="boltzmann-4", learn_schedule=True)
    one, other = (diabat.BoltzmannAttention(8, 1, 4, sampler=shared, gradient="adjoint") for _ in range(2))
    assert one.sampler.schedule_angles is not other.sampler.schedule_angles


@says(
    "dqa",
    "- `per_batch`: 64 extra reads of each problem.",
    "the programmed values of a problem depend on its batch.",
)
@says(
    "limitations",
    '**`calibration="per_batch"`** makes the answer to one problem depend on the others of its batch.',
)
def calibration_of_a_batch() -> None:
    problems = drawn(4)
    backend = sampler("dqa", calibration="per_batch")
    assert not torch.equal(
        backend.moments(problems, seed=0).probability[:2],
        backend.moments(Ising(problems.fields[:2], problems.couplings), seed=0).probability,
    )
    plain = sampler("dqa")
    assert torch.equal(
        plain.moments(problems).probability[:2],
        plain.moments(Ising(problems.fields[:2], problems.couplings)).probability,
    )
