"""Backends and gradients."""

from __future__ import annotations

import inspect
from importlib.metadata import entry_points
from typing import Any, get_args

import pytest
import torch

import diabat
from diabat import Ising, sampler
from diabat.attention.susceptibility import consistent_correlations
from diabat.lab.studies.ensembles import sk
from diabat.samplers.capabilities import Estimator
from statements.table import ANALYTIC, DOCS, all_to_all, drawn, on, says


@says
def capabilities() -> None:
    """backends: | three-body terms | yes | no | yes |
    backends: | three-body terms | yes | no | no |
    backends: | gradients | exact, straight-through, linear response, covariance | exact, straight-through,
    linear response, covariance | exact (implicit), straight-through, linear response |
    backends: | gradients | straight-through, linear response, covariance | straight-through, linear response,
    covariance, adjoint | straight-through, linear response, covariance |
    backends: 26 (`native`), 24 (`torch`), 20 (`aer`)
    backends: `refine` supports reads only: no log Z and no `adjoint`."""
    able = {entry.name: sampler(entry.name).capabilities for entry in entry_points(group="diabat.samplers")}
    three_body = {name for name in able if able[name].three_body} - {"distributed"}
    assert three_body == {"exact", "mean_field", "tempering"}
    drawn_ones = ("straight_through", "linear_response", "covariance")
    assert able["exact"].gradients == able["banded"].gradients == ("exact", *drawn_ones)
    assert able["mean_field"].gradients == ("exact", *drawn_ones[:2])
    assert able["tempering"].gradients == able["dimod"].gradients == able["refine"].gradients == drawn_ones
    assert able["dqa"].gradients == ("adjoint", "linear_response", "straight_through", "covariance")
    assert {"refine", "mean_field", "dqa", "dimod"}.isdisjoint(n for n in able if able[n].log_partition)
    for engine, most in (("native", 26), ("torch", 24), ("aer", 20)):
        assert sampler("dqa", engine=engine).capabilities.max_spins == most


@says
def odds_of_one_enumeration() -> None:
    r"""long-sequences: `exact` sums $P(\sigma_j = -1)$ and $P(\sigma_j = +1)$ in one enumeration, up to 22 spins on the
    CPU.
    long-sequences: `banded` has the log-odds from one solution. So has `mean_field` in layers on the CPU."""
    for n, one in ((22, True), (23, False)):
        plan = sampler("exact")._plan(Ising(torch.zeros(1, n), torch.zeros(n, n)))
        assert (plan is not None) == one
    for name in ANALYTIC:
        assert sampler(name).solution(drawn(2, n=4), odds=True) is not None


def table_of_bias() -> dict[tuple[str, str], list[tuple[float, float]]]:
    """∂L/∂h and ∂L/∂J by strength, for every backend and estimator."""
    text = (DOCS / "gradients.md").read_text(encoding="utf-8").split("Relative bias, ")[1]
    found = {}
    for row in text.split("\n\n")[1].splitlines()[2:]:
        backend, estimator, *cells = (cell.strip() for cell in row.strip("|").split("|"))
        pairs = [tuple(map(float, cell.split(" / "))) for cell in cells]
        found[backend.strip("`"), estimator.strip("`")] = [(h, J) for h, J in pairs]
    return found


@says
def gain_of_linear_response() -> None:
    """gradients: With exact marginals its bias is less than a quarter of `straight_through`'s up to g = 0.6, and
    less than a third at g = 1.
    gradients: it gains less (0.080 for 0.114)."""
    bias = table_of_bias()
    better, worse = bias["exact", "linear_response"], bias["exact", "straight_through"]
    for g, most in enumerate((1 / 4, 1 / 4, 1 / 4, 1 / 3)):
        assert all(b < most * w for b, w in zip(better[g], worse[g], strict=True))
    drawn_ones = (bias["tempering", name][0][1] for name in ("linear_response", "straight_through"))
    assert tuple(drawn_ones) == (0.080, 0.114)


@says
def five_estimators() -> None:
    """gradients: This page says which of the five estimators to choose"""
    names = get_args(Estimator)
    assert len(names) == 5
    assert all(f"| `{name}` |" in on("gradients") for name in names)


@says
def watched() -> None:
    """backends: large where couplings are strong | converged; residual at most `tolerance`; iterations |
    backends: R-hat at most 1.3, swap rates at least 0.2, autocorrelation time at most `burn_in`/10
    backends: no spin outside the range; predicted beta of the reads from 0.7 to 1.4 |
    backends: at most 5 % of qubit chains broken and of ancillas flipped; fitted betas (with `beta="estimate"`) from
    0.7 to 1.4 |"""

    def limits(name: str, **options: Any) -> dict[str, tuple[float | None, float | None]]:
        return {fact.key: (fact.least, fact.most) for fact in sampler(name, **options).watched}

    assert limits("exact") == limits("banded") == {}
    assert limits("mean_field", tolerance=1e-4) == {
        "converged": (1, None),
        "iterations": (None, None),
        "residual": (None, 1e-4),
    }
    assert limits("tempering", burn_in=50) == {
        "rhat_max": (None, 1.3), "effective_sample_size": (None, None),
        "autocorrelation_time": (None, 5), "swap_rates": (0.2, None),
    }  # fmt: skip
    assert limits("dqa")["outside_range"] == (None, 0)
    assert limits("dqa")["effective_beta"] == (0.7, 1.4)
    dimod = limits("dimod")
    assert dimod["chain_break_fraction.mean"] == dimod["ancilla_flips"] == (None, 0.05)
    assert dimod["beta_fit.beta_h"] == dimod["beta_fit.beta_J"] == (0.7, 1.4)
    for name in ("refine", "distributed"):
        assert limits(name) == {f"base.{key}": both for key, both in limits("dqa").items()}


@says
def defaults() -> None:
    """backends: | `exact` | `max_seconds` (600): problems of more than about 38 spins, which would take longer,
    are refused; `memory_budget_mb` (256)
    backends: | `mean_field` | `damping` (0.7): weight of the new value in the first iterations;
    `max_iterations` (500); `tolerance` (1e-6)
    backends: | `refine` | `sampler`, `options`: the base (`dqa`); `sweeps` (4) of heat bath; `num_reads`
    (1000) behind `moments` |
    backends: a misspelt one raises an error that names the nearest.
    backends: | `chunk` | problems per job (64)."""

    def of(name: str) -> dict[str, Any]:
        parameters = inspect.signature(type(sampler(name)).__init__).parameters
        return {key: parameter.default for key, parameter in parameters.items() if key != "self"}

    assert of("exact") == {"max_seconds": 600, "memory_budget_mb": 256}
    assert of("mean_field") == {"damping": 0.7, "max_iterations": 500, "tolerance": 1e-6}
    assert of("refine") == {"sampler": "dqa", "options": None, "sweeps": 4, "num_reads": 1000}
    assert of("distributed")["chunk"] == 64
    with pytest.raises(TypeError, match=r"no option 'max_second'\. Did you mean 'max_seconds'[?]"):
        sampler("exact", max_second=3)


@says
def susceptibilities() -> None:
    r"""gradients: | V consistent with the variances (`linear_response`) | 0.000 | 0.009 | 0.051 | 0.121 | 0.244 |
    gradients: | D alone (`straight_through`) | 0.091 | 0.253 | 0.420 | 0.554 | 0.678 |
    gradients: It makes $\chi$ a covariance matrix: $|\chi_{jk}| \le \sqrt{D_j D_k}$."""
    consistent: list[float] = []
    alone: list[float] = []
    for case in sk([0.1, 0.3, 0.6, 1.0, 3.0], num_spins=8, instances=48, queries=1):
        moments = sampler("exact").moments(case.ising, correlations=True)
        m, D = moments.magnetization, 1 - moments.magnetization**2
        exact = moments.correlation - m[..., :, None] * m[..., None, :]
        scale = (D[..., :, None] * D[..., None, :]).sqrt()
        C = consistent_correlations(scale * case.ising.couplings)
        assert (C.abs() <= 1 + 1e-9).all()
        consistent.append(float((scale * C - exact).norm() / exact.norm()))
        alone.append(float((torch.diag_embed(D) - exact).norm() / exact.norm()))
    assert consistent == pytest.approx([0.0, 0.009, 0.051, 0.121, 0.244], abs=1e-3)
    assert alone == pytest.approx([0.091, 0.253, 0.42, 0.554, 0.678], abs=1e-3)


@says
def saturated_spins() -> None:
    """gradients: No threshold is needed, and a saturated spin causes no division by zero."""
    for field, J in ((50.0, 0.0), (1e8, 1.0), (0.0, 50.0), (0.0, 1e4)):
        h, couplings = torch.full((1, 6), field, requires_grad=True), all_to_all(6, J).requires_grad_()
        p = diabat.spin_probabilities(h, couplings, "exact", gradient="linear_response")
        assert all(g.isfinite().all() for g in torch.autograd.grad(p.sum(), (h, couplings)))
