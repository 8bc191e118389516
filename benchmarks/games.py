"""Token games: all three indices against Algorithm 1 transcribed, peak memory, and the Möbius transform.

python -m benchmarks.games [--json] [--pairs 24] [time | memory | layer | attention | pairs | mobius]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import diabat
from benchmarks.measure import report, seconds
from diabat.attention import games

BATCH, PLAYERS, DIMENSION, COALITIONS, TEMPERATURE = 16, 128, 768, 25, 0.25


def embeddings(batch: int, n: int, d: int) -> tuple[Tensor, Tensor]:
    """Tokens x ~ N(0, 1) [batch, n, d] and W_v [d, d] that keeps their size."""
    g = torch.Generator().manual_seed(0)
    return torch.randn(batch, n, d, generator=g), torch.randn(d, d, generator=g) / d**0.5


def ours(x: Tensor, W: Tensor, count: int, weighting: Any) -> tuple[Tensor, ...]:
    """φ, β [B, n] and J_ij [B, n, n] of all pairs."""
    game = games.NormGame(x @ W.T)
    options: dict[str, Any] = {
        "weighting": weighting,
        "temperature": TEMPERATURE,
        "seed": 0,
        "diagnostics": False,
    }
    return tuple(
        sample(game, count, **options).value
        for sample in (games.sample_shapley, games.sample_banzhaf, games.sample_interaction)
    )


def normalised(weights: list[float]) -> Tensor:
    return torch.softmax(torch.tensor(weights, dtype=torch.float64), 0)


def naive_shapley(V: Tensor, i: int, count: int) -> float:
    """Lines 14 to 24 of Algorithm 1 for one token of one sequence; every norm from scratch."""
    n, weights, terms = len(V), [], []
    others = torch.tensor([j for j in range(n) if j != i])
    for _ in range(count):
        size = int(torch.randint(n, ()))
        before = others[torch.randperm(n - 1)][:size]
        v = V[before].sum(0).norm()
        terms.append(float(V[torch.cat((before, torch.tensor([i])))].sum(0).norm() - v))
        log_p = torch.lgamma(torch.tensor([size + 1.0, n - size, n])).tolist()
        weights.append(float(v) / TEMPERATURE - log_p[0] - log_p[1] + log_p[2])
    return float(normalised(weights) @ torch.tensor(terms, dtype=torch.float64))


def naive_banzhaf(V: Tensor, i: int, count: int) -> float:
    """Lines 26 to 34, likewise."""
    weights, terms = [], []
    for _ in range(count):
        inside = torch.rand(len(V)) < 0.5
        inside[i] = False
        v = V[inside].sum(0).norm()
        inside[i] = True
        terms.append(float(V[inside].sum(0).norm() - v))
        weights.append(float(v) / TEMPERATURE)
    return float(normalised(weights) @ torch.tensor(terms, dtype=torch.float64))


def naive_pair(V: Tensor, i: int, j: int, count: int) -> float:
    """Lines 38 to 47, likewise."""
    weights, terms = [], []
    for _ in range(count):
        inside = torch.rand(len(V)) < 0.5
        norms = []
        for with_i, with_j in ((False, False), (True, False), (False, True), (True, True)):
            inside[i], inside[j] = with_i, with_j
            norms.append(float(V[inside].sum(0).norm()))
        terms.append(norms[3] - norms[1] - norms[2] + norms[0])
        weights.append(norms[0] / TEMPERATURE)
    return float(normalised(weights) @ torch.tensor(terms, dtype=torch.float64))


def naive_seconds(V: Tensor, count: int, sampled: int) -> float:
    """Seconds of Algorithm 1 for a batch [B, n, d], measured on some tokens and pairs and scaled up."""
    batch, n, _ = V.shape
    chosen = torch.randperm(n)[: max(2, sampled // 4)].tolist()
    pairs = torch.randint(n, (sampled, 2)).tolist()
    per_token = best(
        lambda: [naive_shapley(V[0], i, count) + naive_banzhaf(V[0], i, count) for i in chosen], 3
    )
    per_pair = best(lambda: [naive_pair(V[0], i, (j + (i == j)) % n, count) for i, j in pairs], 3)
    return batch * (per_token / len(chosen) * n + per_pair / len(pairs) * n * (n - 1) / 2)


def times(sampled: int) -> list[dict[str, Any]]:
    """All three indices and all pairs on one and on two threads."""
    x, W = embeddings(BATCH, PLAYERS, DIMENSION)
    rows = []
    torch.set_num_threads(1)  # more threads do not help so small steps
    with torch.no_grad():
        slow = naive_seconds(x @ W.T, COALITIONS, sampled)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for weighting in ("gibbs", "uniform"):
            with torch.no_grad():
                forward = best(partial(ours, x, W, COALITIONS, weighting))
            both = best(partial(with_gradient, x, W, weighting), rounds=3)
            rows.append(
                {
                    "threads": threads, "weighting": weighting, "n": PLAYERS, "K": COALITIONS, "d": DIMENSION,
                    "batch": BATCH, "Algorithm 1 on one thread, scaled up [s]": slow, "diabat [s]": forward,
                    "ratio": slow / forward, "forward + backward [s]": both,
                }
            )  # fmt: skip
    return rows


def with_gradient(x: Tensor, W: Tensor, weighting: str) -> None:
    """Backward to x and W_v through all three."""
    leaves = x.clone().requires_grad_(), W.clone().requires_grad_()
    loss = torch.stack([part.square().sum() for part in ours(*leaves, COALITIONS, weighting)]).sum()
    loss.backward()


def layer_times() -> list[dict[str, Any]]:
    """A training step of the layer, mean-field marginals with the paper's settings included."""
    rows = []
    torch.set_num_threads(1)
    for batch, length, dim, heads in ((16, 128, 768, 12), (16, 128, 256, 4), (32, 32, 128, 4)):
        for weighting in ("gibbs", "uniform"):
            layer = diabat.NeuroGameAttention(dim, heads, weighting=weighting)
            x = torch.randn(batch, length, dim)
            with torch.no_grad():
                forward = best(partial(layer, x), rounds=3)
            both = best(partial(step, layer, x), rounds=3)
            rows.append(
                {
                    "batch": batch, "n": length, "D": dim, "heads": heads, "weighting": weighting,
                    "forward [s]": forward, "forward + backward [s]": both,
                }
            )  # fmt: skip
    return rows


def step(layer: diabat.NeuroGameAttention, x: Tensor) -> None:
    z = layer(x)
    assert isinstance(z, Tensor)
    z.square().sum().backward()


def attention_steps() -> list[dict[str, Any]]:
    """Forward and backward of the layer and of torch.nn.MultiheadAttention of the same width and heads, in turn."""
    rows = []
    torch.set_num_threads(1)
    batch, dim, heads = 8, 64, 4
    for length in (32, 64, 128, 256):
        x = torch.randn(batch, length, dim)
        softmax = torch.nn.MultiheadAttention(dim, heads, batch_first=True)
        peer = partial(softmax_step, softmax, x)
        for weighting in ("gibbs", "uniform"):
            layer = diabat.NeuroGameAttention(dim, heads, weighting=weighting)
            ours, theirs, ratio = paired_cpu(partial(step, layer, x), peer)
            rows.append(
                {
                    "batch": batch, "T": length, "D": dim, "heads": heads, "weighting": weighting,
                    "NeuroGame [ms]": ours * 1e3, "MultiheadAttention [ms]": theirs * 1e3, "ratio": ratio,
                }
            )  # fmt: skip
    return rows


def softmax_step(layer: torch.nn.MultiheadAttention, x: Tensor) -> None:
    layer(x, x, x, need_weights=False)[0].square().sum().backward()


def paired_cpu(ours: Callable[[], Any], theirs: Callable[[], Any], rounds: int = 9) -> tuple[float, ...]:
    """Median CPU seconds of two calls in turn, and the median of their ratios; the second runs ten times a round."""
    for _ in range(2):
        ours(), theirs()
    pairs = [(cpu_seconds(ours), cpu_seconds(theirs, 10)) for _ in range(rounds)]
    return *(statistics.median(times) for times in zip(*pairs, strict=True)), statistics.median(
        a / b for a, b in pairs
    )


def cpu_seconds(f: Callable[[], Any], inner: int = 1) -> float:
    """CPU seconds of a call on this thread: other work on the machine does not count."""
    start = time.process_time()
    for _ in range(inner):
        f()
    return (time.process_time() - start) / inner


# Of one pair and coalition: roots, quotients, and other operations on numbers, a fused product and sum as two; an
# exponential is 20 operations, as in float32.
PAIR_OPERATIONS = {
    ("uniform", False): (1, 2, 13),
    ("uniform", True): (1, 1, 13),
    ("gibbs", False): (1, 2, 38),
    ("gibbs", True): (1, 3, 53),
}


def pair_rates() -> list[dict[str, Any]]:
    """The sums over pairs alone, against products of matrices, and against their roots and quotients alone."""
    from diabat.attention.games import draws
    from diabat.attention.games.compiled_pairs import CompiledPairs

    torch.set_num_threads(1)
    batch, n, count = 32, 256, 15
    rows = []
    for dtype in (torch.float32, torch.float64):
        peak = 2 * 1024**3 / least_cpu(partial(torch.mm, *torch.randn(2, 1024, 1024, dtype=dtype))) / 1e9
        root, quotient = divider_seconds(dtype)
        for weighting in ("gibbs", "uniform"):
            game = games.NormGame(torch.randn(batch, n, 16, dtype=dtype) / 32)
            proposal = torch.zeros(batch, count, 3, dtype=dtype) if weighting == "gibbs" else None
            inside = draws.half_coalitions(game.players, count, 0)
            beta = torch.tensor(1 / TEMPERATURE, dtype=dtype)
            problem = CompiledPairs(*game.pair_values(inside, beta, proposal))
            mean, normaliser = problem.means()
            u = torch.randn_like(mean)
            gradient = partial(problem.gradient, u, mean, normaliser)
            calls: dict[bool, Callable[[], Any]] = {False: problem.means, True: gradient}
            for backward, call in calls.items():
                roots, quotients, others = PAIR_OPERATIONS[weighting, backward]
                pairs, cost = batch * count * n * (n - 1) / 2, least_cpu(call)
                rows.append(
                    {
                        "dtype": str(dtype)[6:], "weighting": weighting, "pass": "backward" if backward else "forward",
                        "ns per pair and coalition": cost / pairs * 1e9,
                        "GFLOP": (roots + quotients + others) * pairs / 1e9,
                        "GFLOP/s": (roots + quotients + others) * pairs / cost / 1e9,
                        "of matrix products [GFLOP/s]": peak,
                        "roots and quotients alone [ns]": (roots * root + quotients * quotient) * 1e9,
                    }
                )  # fmt: skip
    return rows


def divider_seconds(dtype: torch.dtype) -> tuple[float, float]:
    """Seconds of a root and of a quotient in vectors, eight independent ones at a time."""
    import numba

    from diabat.compute.simd import constant, divide, load, store
    from diabat.compute.simd_functions import square_root

    def roots(rows: Any, rounds: int) -> None:
        for _ in range(rounds):
            for row in range(8):
                store(rows, row, square_root(load(rows, row)))

    def quotients(rows: Any, rounds: int) -> None:
        for _ in range(rounds):
            for row in range(8):
                value = load(rows, row)
                store(rows, row, divide(constant(value, 1.5), value))

    found, rounds = [], 100_000
    for loop in (roots, quotients):
        rows = (torch.rand(8, 64 // dtype.itemsize, dtype=dtype) + 1).numpy()
        found.append(least_cpu(partial(numba.njit(loop), rows, rounds)) / rounds / rows.size)
    return found[0], found[1]


def least_cpu(f: Callable[[], Any], inner: int = 1) -> float:
    """Least CPU seconds of some rounds."""
    f()
    return min(cpu_seconds(f, inner) for _ in range(7))


def best(f: Callable[[], Any], rounds: int = 7) -> float:
    """Least wall seconds of a few calls, after one to warm up: other work on the machine only adds."""
    f()
    return min(seconds(f) for _ in range(rounds))


def memory() -> list[dict[str, Any]]:
    """Peak memory of the pairs, forward and backward, each in a separate process, above that of its inputs."""
    rows = []
    for n, count in ((256, 32), (512, 32), (1024, 32), (1024, 128), (1024, 512), (2048, 32)):
        out = subprocess.run(
            [sys.executable, "-m", "benchmarks.games", "--one", str(n), str(count)],
            capture_output=True, text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        peak = float(out.stdout)
        table, draws = n * n * 4 / 2**20, count * n * 4 / 2**20
        rows.append(
            {
                "n": n, "K": count, "peak [MB]": peak, "n² floats [MB]": table, "K n floats [MB]": draws,
                "K n² floats [MB]": count * table, "peak / (n² + K n)": peak / (table + draws),
            }
        )  # fmt: skip
    return rows


def peak_megabytes() -> float:
    """Largest resident memory of this process so far."""
    # Not getrusage: a child of a large process starts with its parent's maximum.
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024


def one(n: int, count: int) -> None:
    """Print the peak memory of one estimate of all pairs with Gibbs weights and its gradient."""
    x = torch.randn(1, n, 64).requires_grad_()
    games.sample_interaction(games.NormGame(torch.randn(1, 8, 64).requires_grad_()), 4).value.sum().backward()
    before = peak_megabytes()
    game = games.NormGame(x)
    pairs = games.sample_interaction(game, count, weighting="gibbs", seed=0, diagnostics=False).value
    pairs.square().sum().backward()
    print(peak_megabytes() - before)


def mobius() -> list[dict[str, Any]]:
    """Fast Möbius transform against shapiq, same table; and larger ones alone."""
    import shapiq

    torch.set_num_threads(1)
    rows = []
    for n in (10, 16, 20):
        table = torch.randn(1 << n, dtype=torch.float64)
        fast = best(partial(games.mobius, table), rounds=30)
        row: dict[str, Any] = {
            "n": n,
            "diabat [ms]": fast * 1e3,
            "shapiq [ms]": float("nan"),
            "difference": float("nan"),
        }
        if n == 10:
            powers = 1 << torch.arange(n).numpy()
            values = table.numpy()

            def theirs(n: int = n, values: Any = values, powers: Any = powers) -> Any:
                return shapiq.ExactComputer(lambda masks: values[masks.astype(int) @ powers], n)(
                    "Moebius", order=n
                )

            row["shapiq [ms]"] = best(theirs) * 1e3
            found, dividends = theirs(), games.mobius(table)
            row["difference"] = max(
                abs(float(found[S]) - float(dividends[sum(1 << i for i in S)]))
                for S in found.interaction_lookup
            )
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "sections", nargs="*", help="time, memory, layer, attention, pairs, mobius; all if none is named"
    )
    parser.add_argument("--json", action="store_true", help="one line of JSON per table")
    parser.add_argument("--pairs", type=int, default=24, help="pairs on which Algorithm 1 is measured")
    parser.add_argument("--one", type=int, nargs=2, metavar=("N", "K"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        one(*arguments.one)
        return
    sections: dict[str, tuple[str, Callable[[], list[dict[str, Any]]]]] = {
        "time": (
            "φ, β and all J_ij, Algorithm 1 measured on a few tokens and pairs",
            lambda: times(arguments.pairs),
        ),
        "memory": ("Peak memory of all pairs, Gibbs weights, forward and backward, float32", memory),
        "layer": ("NeuroGame attention layer, K = 15, mean field", layer_times),
        "attention": (
            "NeuroGame and softmax attention, forward + backward, CPU time of one thread",
            attention_steps,
        ),
        "pairs": ("Sums over all pairs alone, K = 15, n = 256, CPU time of one thread", pair_rates),
        "mobius": ("Möbius transform", mobius),
    }
    unknown = set(arguments.sections) - sections.keys()
    if unknown:
        parser.error(f"sections: expected some of {', '.join(sections)}, got {', '.join(sorted(unknown))}")
    for name in arguments.sections or sections:
        title, rows = sections[name]
        report(title, rows())


if __name__ == "__main__":
    main()
