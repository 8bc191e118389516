"""How many reads, and which inverse temperature, a binding of contrast exp(4J) needs (docs/recall.md).

    python -m experiments.recall_reads

The weights are those of examples/recall_by_hand.py: the field c at the key that is asked for and -c elsewhere, J
between the two positions of a pair; a sampler at inverse temperature beta sees beta c and beta J.  A value is +1 with
log odds -2c ± log(cosh(c + J) / cosh(c - J)), + beside the key that is asked for and - beside the others.  With N
reads it is +1 in X ~ Binomial(N, p) of them, every other value in Y ~ Binomial(N, p'), and the answer is right if X is
the largest, with ties as often as chance has it:

    accuracy = Σ_k P(X = k) (P(Y ≤ k)^P - P(Y < k)^P) / (P · P(Y = k)).
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import expit
from scipy.stats import binom

from experiments.common import Row, parser, report


def rates(J: float, c: float) -> tuple[float, float]:
    """P(value = +1) beside the key that is asked for, and beside another."""
    lift = math.log(math.cosh(c + J) / math.cosh(c - J))
    return float(expit(-2 * c + lift)), float(expit(-2 * c - lift))


def expected_accuracy(reads: int, pairs: int, J: float, c: float) -> float:
    """Accuracy of the formula above."""
    right, wrong = rates(J, c)
    counts = np.arange(reads + 1)
    # (a^P - b^P) / (a - b), so that P(Y = k) = 0 divides nothing.
    upper, lower = binom.cdf(counts, reads, wrong), binom.cdf(counts - 1, reads, wrong)
    ties = sum(upper**m * lower ** (pairs - 1 - m) for m in range(pairs)) / pairs
    return float((binom.pmf(counts, reads, right) * ties).sum())


def reads_needed(pairs: int, J: float) -> tuple[int | None, float]:
    """Fewest reads for 99 %, up to 10,000, and the field c at which they are enough."""
    best: tuple[int | None, float] = None, math.nan
    for c in np.arange(0.25, 4.0, 0.25):
        low, high = 1, best[0] or 10_000
        if expected_accuracy(high, pairs, J, c) < 0.99:
            continue
        while low < high:
            middle = (low + high) // 2
            enough = expected_accuracy(middle, pairs, J, c) >= 0.99
            low, high = (low, middle) if enough else (middle + 1, high)
        best = low, float(c)
    return best


def main() -> None:
    """Print the table."""
    as_json = parser(__doc__).parse_args().json
    rows: list[Row] = []
    for pairs in (4, 16, 64):
        for strength in (0.35, 0.5, 0.7, 0.85, 1.0, 1.25, 1.5, 2.0):
            reads, c = reads_needed(pairs, strength)
            row = {"pairs": pairs, "beta J": strength, "contrast": math.exp(4 * strength)}
            rows.append(row | {"reads": reads, "beta c": c})
    report("reads for 99 % at the best field", rows, as_json=as_json)


if __name__ == "__main__":
    main()
