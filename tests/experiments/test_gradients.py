"""``experiments.gradients``: right for estimators whose errors are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import RecorderSampler
from script_tables import tables

from diabat.ising import Ising, pack_couplings
from diabat.lab.studies.ensembles import Ensemble, from_attention, sk
from diabat.samplers import Sampler, sampler
from diabat.testing import ReferenceSampler
from experiments import gradients
from experiments.gradients import draw, gradient_rows

SMALL: dict[str, Any] = {"num_spins": 4, "instances": 3, "queries": 2}
EXACT = sampler("exact")


def by_estimator(backend: Sampler, ensemble: Ensemble, **options: Any) -> dict[str, dict[str, Any]]:
    rows = gradient_rows({"b": backend}, [ensemble], **options)
    assert [row["refused"] for row in rows] == [None] * len(rows)
    return {row["estimator"]: row for row in rows}


def test_the_exact_gradient_has_no_error_and_the_others_have_theirs() -> None:
    (ensemble,) = sk([0.6], num_spins=6, instances=4, queries=4)
    rows = by_estimator(EXACT, ensemble, num_reads=200)
    for name in ("h", "J"):
        assert rows["exact"][f"{name}_cosine"] == pytest.approx(1, abs=1e-12)
        assert rows["exact"][f"{name}_bias"] == pytest.approx(0, abs=1e-12)
        assert rows["exact"][f"{name}_variance"] is None
        errors = [rows[e][f"{name}_bias"] for e in ("linear_response", "straight_through")]
        assert 0.01 < errors[0] < 0.4 * errors[1] < 0.2
        assert rows["linear_response"][f"{name}_cosine"] > rows["straight_through"][f"{name}_cosine"]
    assert all(row["h_own_cosine"] is None for row in rows.values())
    assert [row["num_reads"] for row in rows.values()] == [None, None, None, 200]
    assert [row["repeats"] for row in rows.values()] == [1, 1, 1, 16]


def test_covariance_is_unbiased_and_its_variance_is_that_of_one_read() -> None:
    """With h = J = 0, Cov(v·s/2, s_j) has the variance Σ_{k≠j} v_k²/4 per read, and |exact|² = Σ_j v_j²/4: n - 1."""
    n = 4
    free = Ensemble("free", 0.0, Ising(torch.zeros(400, n, dtype=torch.float64)))
    row = by_estimator(ReferenceSampler(), free, num_reads=50, repeats=40)["covariance"]
    # 16,000 problem estimates: the relative error of the variance is below 2 %; fixed seed.
    assert row["h_variance"] == pytest.approx(n - 1, rel=0.1)
    assert row["h_bias_floor"] == pytest.approx((row["h_variance"] / 50 / 40) ** 0.5, rel=1e-9)
    assert row["h_bias"] == pytest.approx(row["h_bias_floor"], rel=0.1)
    assert row["J_cosine"] is row["J_bias"] is row["J_variance"] is None
    single = by_estimator(ReferenceSampler(), free, num_reads=50, repeats=2)["covariance"]
    assert single["h_cosine"] == pytest.approx((1 + row["h_variance"] / 50) ** -0.5, rel=0.01)


def test_own_law_is_compared_with_its_own_derivative_too() -> None:
    (ensemble,) = sk([0.8], **SMALL)
    rows = by_estimator(sampler("mean_field"), ensemble)
    for name in ("h", "J"):
        assert rows["exact"][f"{name}_own_cosine"] == pytest.approx(1, abs=1e-9)
        assert rows["exact"][f"{name}_cosine"] < 0.999
    (weak,) = sk([0.4], **SMALL)
    anneal = by_estimator(sampler("dqa", schedule="boltzmann-8"), weak, num_reads=50, repeats=2)
    assert anneal["adjoint"]["J_own_cosine"] == pytest.approx(1, abs=1e-9)
    assert anneal["straight_through"]["J_own_cosine"] < 0.999
    assert anneal["straight_through"]["repeats"] == 1
    assert anneal["covariance"]["repeats"] == 2


def test_masks_and_couplings_shared_by_the_queries_of_a_head() -> None:
    generator = torch.Generator().manual_seed(0)
    h = 0.4 * torch.randn(6, 2, 5, 5, generator=generator)[[0, 2, 3, 5]]
    J = pack_couplings(0.3 * torch.randn(2, 1, 10, generator=generator), 5)
    ensemble = from_attention(Ising(h, J, torch.ones(5, 5, dtype=torch.bool).tril()))
    rows = by_estimator(EXACT, ensemble, num_reads=20, repeats=2)
    assert rows["exact"]["J_bias"] < 1e-5  # float32 against float64
    assert rows["linear_response"]["J_cosine"] > 0.95 > rows["straight_through"]["J_cosine"] > 0.5
    assert rows["exact"]["queries"] == 4 * 2 * 4


def test_seeds_reach_the_backend_and_repeat_the_report() -> None:
    recorder = RecorderSampler(ReferenceSampler())
    ensembles = sk([0.2, 0.4], **SMALL)
    first = gradient_rows({"r": recorder}, ensembles, num_reads=64, repeats=3, seed=11)
    drawn = [(call.num_reads, call.seed) for call in recorder.calls if call.method == "sample"]
    assert {reads for reads, _ in drawn} == {64}
    assert len({seed for _, seed in drawn}) == 3
    again = gradient_rows({"r": recorder}, ensembles, num_reads=64, repeats=3, seed=11)
    other = gradient_rows({"r": recorder}, ensembles, num_reads=64, repeats=3, seed=12)
    for a, b, c in zip(first, again, other, strict=True):
        assert a == b
        assert a["h_cosine"] != c["h_cosine"]


def test_the_figure_has_every_estimator(tmp_path: Path) -> None:
    backends: dict[str, Sampler] = {"exact": EXACT, "mean_field": sampler("mean_field")}
    rows = gradient_rows(backends, sk([0.2, 0.6], **SMALL), num_reads=50, repeats=2)
    assert len(rows) == 2 * (4 + 3)
    svg = draw(rows, tmp_path / "drawn.svg").read_text()
    for estimator in ("exact", "straight_through", "linear_response", "covariance"):
        assert f"<!-- {estimator} -->" in svg


def test_the_command_compares_the_backends_that_are_left() -> None:
    left_out = [
        f"fidelity.backends.{name}=null" for name in gradients.SECTION["backends"] if name != "mean_field"
    ]
    small = ["fidelity.strengths=[0.5]", "fidelity.sizes=[3]", "fidelity.instances=2", "seed=4"]
    (rows,) = tables(gradients, *left_out, *small)
    assert [row["estimator"] for row in rows] == ["exact", "straight_through", "linear_response"]
    assert {(row["ensemble"], row["num_spins"], row["queries"]) for row in rows} == {("SK", 3, 8)}
