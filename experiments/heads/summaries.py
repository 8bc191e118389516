r"""Dividends of analysed layers in sums: by the number of players, and how many are significant.

    python -m experiments.heads.summaries runs/heads [--json]

takes what ``diabat heads analyse`` left in its folder.
"""

from __future__ import annotations

from pathlib import Path

import torch
from scipy import stats
from torch import Tensor

from diabat.heads import Dividends
from diabat.heads.commands.analysis import read_analysis
from diabat.heads.commands.report import shown_layers
from diabat.heads.games.dividends import standard_error
from experiments.common import Row, parser, print_tables

LEVEL = 0.05
"""False discovery rate of the significant dividends."""
# Rounding of float64 is no dividend.
_NEGLIGIBLE = 1e-12


def size_sums(dividends: Dividends) -> tuple[Tensor, Tensor]:
    """Σ_{|S|=k} w(S) for k = 0 .. n (or the largest size), and their standard errors, float64 [k + 1] each.

    Of a full table they sum to v(N) - v(∅).
    """
    sizes = dividends.sizes
    sums = dividends.by_sample @ torch.nn.functional.one_hot(sizes, int(sizes.max()) + 1).double()
    return sums.mean(0), standard_error(sums)


def significant(dividends: Dividends, level: float = LEVEL) -> tuple[int, int]:
    """Numbers of dividends significantly above and below 0: t-tests over samples, Benjamini-Hochberg at ``level``.

    At most a share ``level`` of them is expected to be false.  With one sample there is no test, and both are 0.
    """
    samples = len(dividends.by_sample)
    if samples < 2:
        return 0, 0
    nonempty = dividends.sizes > 0
    w, error = dividends.value[nonempty], dividends.standard_error[nonempty]
    p = torch.from_numpy(2 * stats.t.sf((w.abs() / error).nan_to_num(0).numpy(), samples - 1))
    p = p.masked_fill(w.abs() <= _NEGLIGIBLE * w.abs().max(), 1)
    rejected = torch.from_numpy(stats.false_discovery_control(p.numpy()) <= level)
    return int((rejected & (w > 0)).sum()), int((rejected & (w < 0)).sum())


def summary(dividends: Dividends, v_empty: float, v_full: float) -> Row:
    """Sums of the dividends of one player, of two, and of more, which may not be known; numbers of significant ones."""
    singles, pairs = (*size_sums(dividends)[0].tolist(), 0.0, 0.0)[1:3]
    above, below = significant(dividends)
    larger = v_full - v_empty - singles - pairs
    return {
        "Σw, |S| = 1": singles,
        "Σw, |S| = 2": pairs,
        "Σw, |S| > 2": larger,
        "w > 0": above,
        "w < 0": below,
    }


def main() -> None:
    """Print a row per analysed game."""
    command = parser(__doc__)
    command.add_argument("folder", type=Path, help="that of diabat heads analyse")
    options = command.parse_args()
    found = read_analysis(options.folder)
    rows = [
        {
            "layer": shown_layers(game.layers),
            **summary(game.dividends, game.ends["v_empty"], game.ends["v_full"]),
        }
        for game in found.games
    ]
    print_tables(((found.heading, row) for row in rows), as_json=options.json)


if __name__ == "__main__":
    main()
