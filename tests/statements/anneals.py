"""Diabatic quantum annealing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from qiskit_aer.primitives import SamplerV2

import diabat
from diabat import Ising, sampler
from diabat.circuits import AnnealingSchedule, OutOfRangeWarning, PrimitiveEngine
from diabat.circuits.response import second_order_response
from diabat.ising import pack_couplings
from diabat.samplers.pseudolikelihood import fit_betas
from statements.table import F64, drawn, magnetization, says


@says
def saturation() -> None:
    r"""dqa: - A strong field turns a spin with $P(s = +1)$ above .97, $\langle s \rangle$ above .94. This holds up to
    $|h| = 41$ at 5 ns with the 150 adaptive steps of the default, or 59 with the 200 equal ones of `order="first"`."""
    orders: tuple[tuple[Any, int], ...] = (("strang", 41), ("first", 59))
    for order, most in orders:
        assert (magnetization([float(h) for h in range(25, most + 1)], order=order) > 0.94).all()
        backend = sampler("dqa", order=order)
        backend.moments(Ising(torch.tensor([most - 0.1])))
        with pytest.warns(OutOfRangeWarning):
            backend.moments(Ising(torch.tensor([most + 2.0])))


@says
def default_steps() -> None:
    """dqa: - The default is 150 adaptive Strang steps at 5 ns. Their error is below a hundredth of the distance
    between the exact anneal and the Boltzmann distribution. `order="first"` takes 200 equal steps
    dqa: the fast schedule at 5 ns in 150 steps
    dqa: with 4 to 16 steps in place of 150.
    dqa: 8 steps instead of 150.
    backends: have eight steps in place of 150"""
    assert sampler("dqa", order="first").plan.steps == 200
    assert sampler("dqa", schedule="boltzmann-8").plan.steps == 8
    default, problem = sampler("dqa"), drawn(16, dtype=F64)
    assert default.plan.steps == 150
    info = default.moments(problem).info
    assert (info["annealing_time_ns"], info["calibration"]) == (5.0, "predicted")
    law, many, boltzmann = (
        one.state_probabilities(problem) for one in (default, sampler("dqa", steps=1000), sampler("exact"))
    )
    assert (law - many).abs().sum() < 0.01 * (law - boltzmann).abs().sum()


@says
def single_precision() -> None:
    """dqa: single for float32. Errors of probabilities are below 1e-6 at 8 spins and up to 1e-4 at 16.
    dqa: probabilities to 1e-6 at 8 spins and 1e-4 at 16)"""
    for n, error in ((8, 1e-6), (16, 1e-4)):
        problem = drawn(4, n=n, J=1 / n**0.5)
        assert sampler("dqa").moments(problem).info["precision"] == "single"
        double = sampler("dqa").moments(problem.to(dtype=F64)).probability
        assert (sampler("dqa").moments(problem).probability - double).abs().max() < error


@says
def rule_of_thumb() -> None:
    r"""dqa: Average $\sum_k |J_{jk}|$ over the spins. Without fields the total variation (TV) between a plain anneal
    and the Boltzmann distribution is below 2 % on average if that sum is below 0.35. With fields $h \sim N(0, g)$
    beside $J \sim N(0, g/\sqrt n)$ it is if that sum is below 0.23."""
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


@says
def separate_angles() -> None:
    """dqa: If several layers are given the same sampler, each learns separate angles."""
    shared = sampler("dqa", schedule="boltzmann-4", learn_schedule=True)
    one, other = (diabat.BoltzmannAttention(8, 1, 4, sampler=shared, gradient="adjoint") for _ in range(2))
    assert one.sampler.schedule_angles is not other.sampler.schedule_angles


@says
def second_order() -> None:
    """dqa: hardly depend on schedule holds within the fast protocol. The standard protocol has .51 and .67.
    backends: A field acting through a neighbour has 42 % of its Boltzmann effect, and a correlation through
    two couplings 61 %"""
    names = [f"Advantage2_system{k}" for k in (1, 2, 4)] + ["Advantage_system4", "Advantage_system6"]
    for name in names:
        found = second_order_response(sampler("dqa", schedule=name).plan)
        assert found == pytest.approx((0.42, 0.61), abs=0.02)
    for time in (5.0, 20.0):
        standard = sampler("dqa", protocol="standard", annealing_time_ns=time).plan
        assert second_order_response(standard) == pytest.approx((0.51, 0.67), abs=0.006)


@says
def control_errors() -> None:
    """own-anneals: # mine (own schedule), 3 ns, 90 steps, strang, adaptive grid
    own-anneals: | 0.03 | 0.34 | .114 | .045 | 0.75, 0.82 |"""
    s = np.linspace(0, 1, 101)
    table = AnnealingSchedule("mine", s, 9.5 * (1 - s) ** 3, 0.3 + 8 * s**1.5)
    options: dict[str, Any] = {"schedule": table, "annealing_time_ns": 3.0}
    clean, noisy = sampler("dqa", **options), sampler("dqa", **options, noise=0.03)
    assert clean.plan.label == "mine (own schedule), 3 ns, 90 steps, strang, adaptive grid"
    assert clean.betas.beta_h * 0.03 == pytest.approx(0.34, abs=5e-3)
    torch.manual_seed(0)
    problem = Ising(0.5 * torch.randn(8, dtype=F64), pack_couplings(torch.randn(28, dtype=F64) / 32**0.5, 8))
    copies = Ising(problem.fields.expand(200, 8), problem.couplings)
    ideal, P = clean.moments(problem).probability, noisy.moments(copies, seed=1).probability
    assert float((P - ideal).abs().mean()) == pytest.approx(0.114, abs=0.002)
    assert float((P.mean(0) - ideal).abs().mean()) == pytest.approx(0.045, abs=0.002)
    fit = fit_betas(copies, noisy.sample(copies, 50, seed=1).spins)
    assert (fit.field, fit.coupling) == pytest.approx((0.75, 0.82), abs=0.006)


@says
def matrix_products() -> None:
    """dqa: SamplerV2(options={"backend_options": {"method": "matrix_product_state"}}), max_spins=256)`"""
    chain = 0.5 * torch.diag(torch.randn(29, dtype=F64), 1)
    problem = Ising(torch.randn(30, dtype=F64) / 2, chain + chain.T)
    options = {"backend_options": {"method": "matrix_product_state"}}
    engine = PrimitiveEngine(SamplerV2(seed=1, options=options), max_spins=256)
    reads = sampler("dqa", schedule="boltzmann-16", engine=engine).sample(problem, 1000)
    true = (
        sampler("banded").moments(problem).probability
    )  # the plan differs by less than 0.01; five standard errors are 0.08
    assert ((reads.spins > 0).double().mean(0) - true).abs().max() < 0.1
