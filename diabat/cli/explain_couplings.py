"""What ``diabat explain --couplings`` prints of the learned couplings of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diabat.cli.output import print_table, say

if TYPE_CHECKING:
    from diabat.models.learned_couplings import LearnedCouplings


def print_couplings(found: LearnedCouplings, layer: int | None, head: int | None) -> None:
    """Print J at each distance, of one layer and head or, for None, of all."""
    from diabat.studies.report import formatted

    runs = len(found.couplings)
    chosen = {"layer": layer, "head": head}
    which = ", ".join(f"all {name}s" if i is None else f"{name} {i}" for name, i in chosen.items())
    say(f"Attention {found.attention}{f', {runs} runs' if runs > 1 else ''}\n")
    columns = ["|j - k|", "pairs", "mean J", "σ of pairs", "σ of runs", "J < 0", "largest |J|"]
    rows = [
        [str(row.distance), str(row.pairs), formatted(row.mean, "+.4f"), formatted(row.deviation_of_pairs, ".4f"),
         formatted(row.deviation_of_runs, ".4f"), f"{row.negative:.0%}", formatted(row.largest, ".4f")]
        for row in found.by_distance(layer, head)
    ]  # fmt: skip
    print_table(f"Learned J by distance, {which}", columns, rows)
