r"""Fit of excess hallucination against Γ (GAME-LoRA, figure 3), with the interval of c that the data allow.

    ΔH = a - λ/(1 - c Γ)        written as        ΔH = b + k Γ/(1 - c Γ)

with a = b - k/c and λ = -k/c; the second form goes over into a line as c -> 0.  For each c, b and k are those of least
squares, so that the profile likelihood of c is -N/2 log SSE(c).  c < 1/Γ for all Γ in the data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diabat.checks import ArgumentError

_Array = NDArray[np.float64]
_QUANTILE = 3.841458820694124  # 95 % of χ² with one degree of freedom
_POINTS = 4001


@dataclass(frozen=True)
class HallucinationFit:
    """A fit of ΔH = b + k Γ/(1 - c Γ).

    Attributes:
        c: Of the best fit.
        intercept: b.
        slope: k; more hallucination with larger Γ if positive.
        interval: Of c, 95 % by profile likelihood; from -infinity and to 1/max Γ where the data set no end.
        explained: R² of the fit.
        explained_by_line: R² of the line c = 0.
    """

    c: float
    intercept: float
    slope: float
    interval: tuple[float, float]
    explained: float
    explained_by_line: float

    @property
    def line_fits(self) -> bool:
        """Whether a line fits as well: c = 0 is in the interval."""
        return self.interval[0] <= 0 <= self.interval[1]

    def predict(self, gamma: Tensor) -> Tensor:
        """ΔH at values of Γ."""
        return self.intercept + self.slope * gamma / (1 - self.c * gamma)


def fit_hallucination(gamma: Tensor, excess: Tensor) -> HallucinationFit:
    """Fit ΔH = a - λ/(1 - c Γ) by least squares, and the 95 % interval of c by its profile likelihood.

    Args:
        gamma: Γ > 0, floating [N], N >= 4.
        excess: ΔH, floating [N].

    Raises:
        ValueError: If there are fewer than four points, Γ is constant or not positive, or a number is not finite.
    """
    x, y = (value.detach().cpu().double().flatten() for value in (gamma, excess))
    if len(x) != len(y) or len(x) < 4:
        raise ArgumentError("excess", f"expected as many as gamma, four or more, got {len(y)} for {len(x)}.")
    if not bool(torch.isfinite(x).all() & torch.isfinite(y).all() & (x > 0).all()) or float(x.std()) == 0:
        raise ArgumentError(
            "gamma", "expected different positive finite numbers, and finite excess, got others."
        )
    largest = float(x.max())
    # In units of 1/max Γ: u = c max Γ runs from far below 0 to 1, dense near both ends.
    u = np.concatenate((-np.geomspace(1e3, 1e-3, _POINTS), [0.0], 1 - np.geomspace(1, 1e-4, _POINTS)[1:]))
    squares, slopes, intercepts = _least_squares(x.numpy() / largest, y.numpy(), u)
    best, line = int(squares.argmin()), int(np.flatnonzero(u == 0)[0])
    total = float((y - y.mean()).square().sum())
    least = max(float(squares[best]), np.finfo(float).eps * max(total, np.finfo(float).tiny))
    inside = np.flatnonzero(len(x) * np.log(np.maximum(squares, least) / least) <= _QUANTILE)
    first, last = inside[0] - 1, inside[-1] + 1  # the ends are between two points: the outer ones
    low = -math.inf if first < 0 else float(u[first]) / largest
    high = 1 / largest if last == len(u) else float(u[last]) / largest
    scale = total if total > 0 else 1.0
    return HallucinationFit(
        float(u[best]) / largest,
        float(intercepts[best]),
        float(slopes[best]) / largest,
        (low, high),
        1 - float(squares[best]) / scale,
        1 - float(squares[line]) / scale,
    )


def _least_squares(x: _Array, y: _Array, u: _Array) -> tuple[_Array, _Array, _Array]:
    """Least squares of y on x/(1 - u x) for every u: sums of squares, slopes and intercepts, each [len(u)]."""
    z = x / (1 - u[:, None] * x)
    centred = z - z.mean(1, keepdims=True)
    slopes = centred @ y / (centred**2).sum(1)
    rest = y - y.mean() - slopes[:, None] * centred
    return (rest**2).sum(1), slopes, y.mean() - slopes * z.mean(1)
