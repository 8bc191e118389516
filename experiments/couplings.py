"""Figure 2 of Boltzmann attention: learned couplings J against distance, over seeds of finished runs.

    python -m experiments.reproduce table2-shakespeare --row t12-h+J
    python -m experiments.reproduce table3-brackets --row t12-h+J
    python -m experiments.couplings couplings.png

A dot is one pair as the mean over seeds, a line the mean over pairs with σ over seeds.  J starts at 0.  Tables have the
mean over pairs of each seed, and by Student's t the interval of 95 % over seeds, with Holm's p over the distances.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import torch

from diabat.checks import ArgumentError
from diabat.lab.models.learned_couplings import PANEL, LearnedCouplings, coupling_panels
from diabat.lab.runs import learned_couplings
from diabat.lab.training import is_finished
from diabat.plots import lines
from experiments.common import Row, parser, report, run_script
from experiments.reproduce import load, plan
from experiments.verdicts import gap, holm, interval, verdict

TASKS = {"Tiny Shakespeare": "table2-shakespeare", "bracket matching": "table3-brackets"}
ROW = "t12-h+J"
RANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "2 to 4": lambda d: (d >= 2) & (d <= 4),  # "positive" (section 4.2)
    "6 to 11": lambda d: d >= 6,  # "negative"
}


def finished(table: str, output: Path) -> list[Path]:
    """Folders of the runs of the row that are there."""
    experiment = load()[table]
    runs = [config for _, _, config in plan(experiment, output, [ROW], (), ())]
    folders = [config.output for config in runs if is_finished(config.output, config.training)]
    if not folders:
        raise ArgumentError("output", f"finished runs of {table}, row {ROW}", f"none in '{output}'")
    return folders


def over_seeds(J: torch.Tensor) -> Row:
    """Mean of J [R, N] over pairs of each seed, with an interval over seeds, shares of negative J."""
    means = J.double().mean(1).tolist()
    from_zero = gap(means, [0.0] * len(means), paired=True) if len(means) > 1 else None
    return {
        "pairs": J.shape[1], "seeds": means, "mean": fmean(means),
        **interval(from_zero), "mean is": verdict(from_zero, None),
        "negative": float((J < 0).double().mean()), "largest |J|": float(J.abs().max()),
    }  # fmt: skip


def ranges(learned: LearnedCouplings) -> list[Row]:
    """The two ranges that the paper speaks of."""
    J = learned.couplings[:, 0, 0]
    return [{"|j - k|": name, **over_seeds(J[:, of(learned.distance)])} for name, of in RANGES.items()]


def distances(learned: LearnedCouplings) -> list[Row]:
    """Every distance, with Holm's p."""
    J = learned.couplings[:, 0, 0]
    rows = [
        {"|j - k|": d, **over_seeds(J[:, learned.distance == d])} for d in learned.distance.unique().tolist()
    ]
    if all(row["p"] is not None for row in rows):
        for row, adjusted in zip(rows, holm([row["p"] for row in rows]), strict=True):
            row["Holm"] = adjusted
    return rows


def main() -> None:
    """Print the tables, and draw the figure."""
    command = parser(__doc__)
    command.add_argument("figure", type=Path, help=".png, .pdf or .svg")
    command.add_argument("--output", type=Path, default=Path("runs"), help="of experiments.reproduce")
    options, panels = command.parse_args(), []
    formats = dict.fromkeys(("seeds", "mean", "95 % interval"), "+.4f") | dict.fromkeys(("p", "Holm"), ".2g")
    formats |= {"negative": ".0%", "largest |J|": ".3f"}
    for task, table in TASKS.items():
        learned = learned_couplings(*finished(table, options.output))
        for rows in (ranges(learned), distances(learned)):
            report(f"{task}, T = 12", rows, as_json=options.json, formats=formats)
        (panel,) = coupling_panels(learned)
        title = f"{task}, T = 12, {len(learned.couplings)} seeds"
        panels.append(replace(panel, settings={**panel.settings, "title": title}))
    drawn = lines([panels], options.figure, size=PANEL, shared=False)
    if not options.json:
        print(f"Figure: {drawn}")


if __name__ == "__main__":
    run_script(main)
