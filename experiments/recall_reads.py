"""How many reads, and which inverse temperature, a binding of contrast exp(4J) needs: a table and a figure.

    python -m experiments.recall_reads FOLDER     # writes FOLDER/recall-reads.png

The weights are those of examples/recall_by_hand.py: the field c at the key that is asked for and -c elsewhere, J
between the two positions of a pair; a sampler at inverse temperature beta sees beta c and beta J.  A value is +1 with
log odds -2c ± log(cosh(c + J) / cosh(c - J)), + beside the key that is asked for and - beside the others.  With N
reads it is +1 in X ~ Binomial(N, p) of them, every other value in Y ~ Binomial(N, p'), and the answer is right if X is
the largest, with ties as often as chance has it:

    accuracy = Σ_k P(X = k) (P(Y ≤ k)^P - P(Y < k)^P) / (P · P(Y = k)).
"""

from __future__ import annotations

import math
import runpy
from pathlib import Path

import numpy as np
import torch
from scipy.special import expit
from scipy.stats import binom

from diabat.plots import Line, Panel, lines
from diabat.tasks import RecallOptions
from diabat.training.evaluate import evaluate
from experiments.common import Row, parser, report

PAIRS, SYMBOLS, J, FIELD = 16, 64, 1.0, 1.5
READS = (1, 3, 10, 30, 100, 300, 1000)
BETAS, COUNTS = (0.5, 1.0, 2.0), (4, 16, 64)
BY_HAND = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "recall_by_hand.py"))["recall_by_hand"]


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


def accuracy_at(beta: float, reads: int) -> float:
    """That of the weights by hand."""
    return expected_accuracy(reads, PAIRS, beta * J, beta * FIELD)


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


def measured(reads: int, beta: float) -> float:
    """Accuracy of the weights by hand on 500 test sequences, with reads of exact draws at beta."""
    task = RecallOptions(pairs=PAIRS, symbols=SYMBOLS, num_train=1, num_validation=1, num_test=500)
    model = BY_HAND(task, beta * J, beta * FIELD)
    model.attention_layers()[0].use_sampler("banded", gradient="straight_through", num_reads=reads)
    test = task.build().test
    assert test is not None
    return evaluate(model, test, batch_size=50)[1]


def main() -> None:
    """Print both tables, and draw the figure."""
    made = parser(__doc__)
    made.add_argument("folder", type=Path)
    options = made.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    for beta in BETAS:
        for n in READS:
            row = {"beta": beta, "contrast": math.exp(4 * beta * J), "reads": n}
            rows.append(row | {"formula": accuracy_at(beta, n), "measured": measured(n, beta)})
    report(f"{PAIRS} pairs, J = {J}, c = {FIELD}", rows, as_json=options.json)
    needed: list[Row] = []
    for pairs in COUNTS:
        for strength in (0.35, 0.5, 0.7, 0.85, 1.0, 1.25, 1.5, 2.0):
            reads, c = reads_needed(pairs, strength)
            row = {"pairs": pairs, "beta J": strength, "contrast": math.exp(4 * strength)}
            needed.append(row | {"reads": reads, "beta c": c})
    report("reads for 99 % at the best field", needed, as_json=options.json)
    print(f"Figure: {_draw(rows, needed, options.folder / 'recall-reads.png')}")


def _draw(rows: list[Row], needed: list[Row], path: Path) -> Path:
    curves, counts = [], []
    dense = np.unique(np.geomspace(1, READS[-1], 60).astype(int))
    for look, beta in enumerate(BETAS):
        formula = [accuracy_at(beta, int(n)) for n in dense]
        curves.append(Line(dense, formula, look=look, style={"marker": "", "linestyle": "-"}))
        label = f"β = {beta:g}, contrast {math.exp(4 * beta * J):.0f}"
        points = [row["measured"] for row in rows if row["beta"] == beta]
        curves.append(Line(READS, points, label, look, style={"linestyle": ""}))
    for look, pairs in enumerate(COUNTS):
        own = [row for row in needed if row["pairs"] == pairs]
        x, y = ([row[key] for row in own] for key in ("contrast", "reads"))
        counts.append(Line(x, y, f"{pairs} pairs", look))
    left: Row = {"xlabel": "reads", "ylabel": f"accuracy, {PAIRS} pairs", "xscale": "log"}
    right: Row = {"xlabel": "contrast exp(4βJ)", "ylabel": "reads for 99 %", "xscale": "log", "yscale": "log"}
    panels = [Panel(curves, settings=left), Panel(counts, settings=right)]
    return lines([panels], path, size=(4.6, 3.6), shared=False)


if __name__ == "__main__":
    main()
