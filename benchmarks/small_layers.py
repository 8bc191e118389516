"""One layer of Boltzmann attention, forward and backward, against a short layer in torch and against softmax.

python -m benchmarks.small_layers [--batch 64] [--width 64] [--rounds 30] [--json]

The short layer enumerates all states with one matrix product per pass, as a user would write it.  CPU milliseconds of
one thread, fastest of all rounds, in which the layers take turns.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import diabat
from benchmarks.measure import report

WINDOWS = (4, 6, 8, 10, 12, 14, 16)


class Projected(nn.Module):
    """Queries, keys, values, and an output projection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))


class Softmax(Projected):
    """Causal attention with torch's fused softmax."""

    def forward(self, x: Tensor) -> Tensor:
        """Attend, [B, T, width]."""
        mixed = F.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x), is_causal=True)
        out: Tensor = self.output(mixed)
        return out


class Short(Projected):
    """Softmax over all 2^T states; pairs of a query are those of the positions that it sees."""

    def __init__(self, width: int, window: int) -> None:
        super().__init__(width)
        states = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=window)))
        j, k = torch.triu_indices(window, window, 1)
        seen = torch.ones(window, window).tril()
        self.couplings = nn.Parameter(torch.zeros(len(j)))
        self.states, self.pairs, self.up = states, states[:, j] * states[:, k], (states > 0).float()
        self.seen, self.seen_pairs = seen, seen[:, j] * seen[:, k]

    def forward(self, x: Tensor) -> Tensor:
        """Attend, [B, T, width]."""
        h = self.query(x) @ self.key(x).mT / math.sqrt(x.shape[-1]) * self.seen
        exponent = h @ self.states.T + (self.seen_pairs * self.couplings) @ self.pairs.T
        alpha = (exponent.softmax(-1) @ self.up) * self.seen
        out: Tensor = self.output(alpha / alpha.sum(-1, keepdim=True) @ self.value(x))
        return out


def fastest(layers: dict[str, nn.Module], x: Tensor, rounds: int) -> dict[str, float]:
    """CPU milliseconds of a forward and a backward pass of each layer."""
    best = dict.fromkeys(layers, math.inf)
    for _ in range(rounds + 3):
        for name, layer in layers.items():
            start = time.thread_time()
            layer(x).sum().backward()
            best[name] = min(best[name], 1e3 * (time.thread_time() - start))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows: list[dict[str, Any]] = []
    for window in WINDOWS:
        x = torch.randn(options.batch, window, options.width, requires_grad=True)
        short, softmax = Short(options.width, window), Softmax(options.width)
        ours = diabat.BoltzmannAttention(options.width, 1, window)
        found = fastest(
            {"short": short, "diabat": ours, "softmax": softmax},
            x,
            options.rounds if window < 13 else options.rounds // 6,
        )
        rows.append(
            {
                "T": window,
                **{f"{name} [ms]": value for name, value in found.items()},
                "short / diabat": found["short"] / found["diabat"],
                "diabat / softmax": found["diabat"] / found["softmax"],
            }
        )
    report(f"{options.batch} sequences, one head, width {options.width}, forward and backward", rows)


if __name__ == "__main__":
    main()
