"""What runs with several seeds say of a published gap: interval, power, and a word by a fixed rule."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, variance
from typing import Any

from scipy.stats import binomtest, nct, norm, t

ALPHA, POWER = 0.05, 0.8
"""Two-sided error rate of tests, one minus it that of intervals; and the power that is asked for."""
MOST = 100_000
"""Seeds of an arm beyond which none are counted."""


@dataclass(frozen=True)
class Gap:
    """Difference of two means: standard error with its degrees of freedom, 95 % interval, two-sided p."""

    difference: float
    error: float
    degrees: float
    low: float
    high: float
    p: float

    def holds(self, value: float) -> bool:
        """Whether a value lies in the interval."""
        return self.low <= value <= self.high


def interval(measured: Gap | None) -> dict[str, Any]:
    """Cells of a table: interval and p of a gap, None where there is none."""
    ends = None if measured is None else [measured.low, measured.high]
    return {"95 % interval": ends, "p": None if measured is None else measured.p}


def gap(first: Sequence[float], second: Sequence[float], *, paired: bool = False) -> Gap | None:
    """Mean of ``first`` less that of ``second`` by Welch's t test, or by that of the differences of equal seeds.

    With variances s² of n numbers: error² = Σ s²/n, and t has (Σ s²/n)² / Σ (s²/n)²/(n - 1) degrees of freedom (Welch
    1947, Biometrika 34, 28); paired, the one sum is that of the differences.  None with fewer than two numbers on a
    side, or if nothing varies.
    """
    samples = [[a - b for a, b in zip(first, second, strict=True)]] if paired else [first, second]
    if min(map(len, samples)) < 2 or not any(map(variance, samples)):
        return None
    error, degrees = _error([variance(one) for one in samples], [len(one) for one in samples])
    difference = fmean(first) - fmean(second)
    return _gap(difference, error, degrees, 2 * float(t.sf(abs(difference) / error, degrees)))


def power(
    first: Sequence[float], second: Sequence[float], true: float, seeds: int | None = None
) -> float | None:
    """Chance of the word "reproduced", of ``seeds`` runs an arm if given, if the gap is ``true`` and these are the σ.

    1 - F(c) of the noncentral t about |true|/error, with c the critical value of t (Cohen 1988, Statistical power
    analysis, 2); errors and degrees of freedom as in :func:`gap`.  A gap on the wrong side is not counted.
    """
    if min(len(first), len(second)) < 2 or not variance(first) + variance(second):
        return None
    sizes = [seeds or len(one) for one in (first, second)]
    error, degrees = _error([variance(first), variance(second)], sizes)
    return float(nct.sf(t.isf(ALPHA / 2, degrees), degrees, abs(true) / error))


def seeds_needed(first: Sequence[float], second: Sequence[float], true: float) -> int | None:
    """Fewest seeds of each arm with which :func:`power` is 80 %; None beyond 100,000, as for a gap of 0."""
    if power(first, second, true) is None:
        return None
    fewest = bisect_left(range(MOST), POWER, lo=2, key=lambda n: power(first, second, true, n) or 0.0)
    return fewest if fewest < MOST else None


def mcnemar(first: Sequence[int], second: Sequence[int]) -> tuple[int, int, float]:
    """Cases that only, or more often, ``first`` has right, those of ``second``, and the exact two-sided p.

    Of right (1) and wrong (0) of the same cases, or of how often each was right: if neither is better, the side of a
    case that differs is a fair coin (McNemar 1947, Psychometrika 12, 153; with counts the sign test).
    """
    better = sum(a > b for a, b in zip(first, second, strict=True))
    worse = sum(a < b for a, b in zip(first, second, strict=True))
    p = float(binomtest(better, better + worse).pvalue) if better + worse else 1.0
    return better, worse, p


def holm(p: Sequence[float]) -> list[float]:
    """Adjusted p of m tests: of the k-th smallest, max over j <= k of (m - j + 1) p_j, at most 1.

    Those below .05 are rejected with a chance of at most .05 of one false rejection, whatever depends on what (Holm
    1979, Scandinavian Journal of Statistics 6, 65).
    """
    adjusted, largest = [0.0] * len(p), 0.0
    for rank, at in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        largest = adjusted[at] = max(largest, min(1.0, (len(p) - rank) * p[at]))
    return adjusted


def combined(gaps: Sequence[Gap]) -> Gap:
    """One gap from independent ones: mean with weights 1/error², its interval, and p of Stouffer's test.

    One effect is assumed (fixed effect; Hedges and Olkin 1985, Statistical methods for meta-analysis, 6): with
    w_k = 1/error_k² and u_k = w_k / Σ w the difference is Σ u d.  Errors are estimates of f_k degrees of freedom, so
    error² = (1 + 4 Σ u (1 - u)/f) / Σ w, with 1 / Σ (u²/f) degrees (Meier 1953, Biometrics 9, 59): for 6 gaps of 5
    seeds an arm 1/Σ w alone holds the truth in 87 % of cases.  z = Σ z_k / sqrt(K), z_k with the sign of a gap and its
    p (Stouffer et al. 1949, The American soldier 1, 45).
    """
    total = sum(one.error**-2 for one in gaps)
    shares = [(one.error**-2 / total, one.degrees) for one in gaps]
    error = sqrt((1 + 4 * sum(u * (1 - u) / f for u, f in shares)) / total)
    z = sum(float(norm.isf(one.p / 2)) * (1 if one.difference > 0 else -1) for one in gaps) / sqrt(len(gaps))
    difference = weighted([one.difference for one in gaps], gaps)
    return _gap(difference, error, 1 / sum(u**2 / f for u, f in shares), 2 * float(norm.sf(abs(z))))


def weighted(values: Sequence[float], gaps: Sequence[Gap]) -> float:
    """Mean of values with the weights 1/error² of gaps."""
    return fmean(values, [one.error**-2 for one in gaps])


def verdict(measured: Gap | None, published: float | None) -> str:
    """A word by rule, the first that applies; the published gap counts as exact.

    reproduced      the interval excludes 0 on the side of the published gap; "smaller" or "larger" if it excludes that
    contradicted    it excludes the published gap
    compatible      it holds the published gap and 0
    cannot tell     there is no interval, or no published gap and the interval holds 0

    Without a published gap an interval that excludes 0 is "above 0" or "below 0".
    """
    if measured is None or (published is None and measured.holds(0)):
        return "cannot tell"
    if published is None:
        return "above 0" if measured.low > 0 else "below 0"
    inside = measured.holds(published)
    if measured.holds(0) or measured.difference * published <= 0:
        return "compatible" if inside else "contradicted"
    size = "" if inside else ", larger" if abs(measured.difference) > abs(published) else ", smaller"
    return f"reproduced{size}"


def _gap(difference: float, error: float, degrees: float, p: float) -> Gap:
    half = float(t.isf(ALPHA / 2, degrees)) * error
    return Gap(difference, error, degrees, difference - half, difference + half, p)


def _error(variances: Sequence[float], sizes: Sequence[int]) -> tuple[float, float]:
    """Standard error, and Welch's degrees of freedom."""
    shares = [s / n for s, n in zip(variances, sizes, strict=True)]
    spread = sum(share**2 / (n - 1) for share, n in zip(shares, sizes, strict=True))
    return sqrt(sum(shares)), sum(shares) ** 2 / spread
