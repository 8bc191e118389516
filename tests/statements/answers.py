"""Statistics, Ocean, processes."""

from __future__ import annotations

import dimod
import pytest
import torch

from diabat import sampler
from diabat.ising import from_bqm
from diabat.samplers.ocean import OceanSampler
from statements.table import F64, drawn, says


@says
def log_odds_of_a_variable() -> None:
    """statistics: coefficients of a logistic regression on ±1 variables are $2h$ and $2J$."""
    problem, rest = drawn(dtype=F64), torch.tensor([0, 1, -1, 1, 1, -1.0], dtype=F64)
    p = sampler("exact").moments(problem.clamp(rest)).probability[0]
    assert float(torch.logit(p)) == pytest.approx(
        float(2 * (problem.fields[0] + problem.couplings[0] @ rest))
    )


@says
def beta_of_ocean() -> None:
    r"""hardware: Reads follow $P(x) \propto \exp(-\beta E(x))$
    hardware: Backends with another law (`dqa`) draw from that law with fields and couplings multiplied by $\beta$.
    """
    model = dimod.BinaryQuadraticModel({"a": 0.5, "b": -0.2}, {("a", "b"): 0.7}, 0.0, "SPIN")
    problem, labels = from_bqm(model, beta=2.0)
    assert labels == ["a", "b"]
    for name in ("exact", "dqa"):
        reads = OceanSampler(name).sample(model, num_reads=20_000, beta=2.0, seed=1)
        want = sampler(name).moments(problem).magnetization
        assert reads.record.sample.mean(0).tolist() == pytest.approx(want.tolist(), abs=0.03)  # 4 errors
