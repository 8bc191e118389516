"""Backends and gradients."""

from __future__ import annotations

from typing import get_args

import torch

import diabat
from diabat import Ising, sampler
from diabat.samplers.capabilities import Estimator
from statements.table import DOCS, drawn, on, says


@says("backends", "| three-body terms | yes | no | yes |", "| three-body terms | yes | no | no |")
@says(
    "backends",
    "| gradients | exact, straight-through, linear response, covariance | exact, straight-through, linear "
    "response, covariance | exact (implicit), straight-through, linear response |",
)
@says(
    "backends",
    "| gradients | straight-through, linear response, covariance | straight-through, linear response, "
    "covariance, adjoint | straight-through, linear response, covariance |",
)
@says(
    "backends",
    "26 (`native`), 24 (`torch`), 20 (`aer`), 1,024 with short couplings (`aer` by matrix product states)",
)
@says("backends", "`refine` supports reads only: no log Z and no `adjoint`.")
def capabilities() -> None:
    able = {name: sampler(name).capabilities for name in diabat.available_backends()}
    three_body = {name for name in able if able[name].three_body} - {"distributed"}
    assert three_body == {"exact", "mean_field", "tempering"}
    drawn_ones = ("straight_through", "linear_response", "covariance")
    assert able["exact"].gradients == able["banded"].gradients == ("exact", *drawn_ones)
    assert able["mean_field"].gradients == ("exact", *drawn_ones[:2])
    assert able["tempering"].gradients == able["dimod"].gradients == able["refine"].gradients == drawn_ones
    assert able["dqa"].gradients == (*drawn_ones, "adjoint")
    assert {"refine", "mean_field", "dqa", "dimod"}.isdisjoint(n for n in able if able[n].log_partition)
    for engine, most in (("native", 26), ("torch", 24), ("aer", 20)):
        assert sampler("dqa", engine=engine).capabilities.max_spins == most
    assert sampler("dqa", engine="aer", method="matrix_product_state").capabilities.max_spins == 1024


@says(
    "long-sequences",
    "`exact` sums P(s_j = -1) and P(s_j = +1) in one enumeration, up to 22 spins on the CPU.",
)
@says("limitations", "`exact` up to 22 spins on the CPU.")
def odds_of_one_enumeration() -> None:
    for n, one in ((22, True), (23, False)):
        small, others = sampler("exact")._divided(Ising(torch.zeros(1, n), torch.zeros(n, n)))
        assert (bool(small.tiers), bool(others.tiers)) == (one, not one)
    assert sampler("exact").solution(drawn(2, n=4), odds=True) is not None


def table_of_bias() -> dict[tuple[str, str], list[tuple[float, float]]]:
    """∂L/∂h and ∂L/∂J by strength, for every backend and estimator."""
    text = (DOCS / "gradients.md").read_text(encoding="utf-8").split("Relative bias, |mean - exact|")[1]
    found = {}
    for row in text.split("\n\n")[1].splitlines()[2:]:
        backend, estimator, *cells = (cell.strip() for cell in row.strip("|").split("|"))
        pairs = [tuple(map(float, cell.split(" / "))) for cell in cells]
        found[backend.strip("`"), estimator.strip("`")] = [(h, J) for h, J in pairs]
    return found


@says(
    "gradients",
    "With exact marginals its bias is less than a quarter of `straight_through`'s up to g = 0.6, and less "
    "than a third at g = 1.",
)
@says("gradients", "it gains less (0.080 for 0.114).")
def gain_of_linear_response() -> None:
    bias = table_of_bias()
    better, worse = bias["exact", "linear_response"], bias["exact", "straight_through"]
    for g, most in enumerate((1 / 4, 1 / 4, 1 / 4, 1 / 3)):
        assert all(b < most * w for b, w in zip(better[g], worse[g], strict=True))
    drawn_ones = (bias["tempering", name][0][1] for name in ("linear_response", "straight_through"))
    assert tuple(drawn_ones) == (0.080, 0.114)


@says("gradients", "This page says which of the five estimators to choose")
def five_estimators() -> None:
    names = get_args(Estimator)
    assert len(names) == 5
    assert all(f"| `{name}` |" in on("gradients") for name in names)
