"""The banded backend: time at long windows, linearity in n and 2^w, and error and time against enumeration.

python -m benchmarks.banded [--json] [--figure PATH]

Times are CPU seconds of one thread, the best of several calls; every section finishes in a few seconds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import diabat
from benchmarks.measure import report
from diabat.ising import Ising, pack_couplings, pair_indices
from diabat.samplers.banded import BandedSampler

QUERIES = 64


def problem(queries: int, n: int, width: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Fields [queries, n] ~ N(0, 1) and one J with entries N(0, 1/(2w)) in the band."""
    g = torch.Generator().manual_seed(0)
    pairs = torch.randn(len(pair_indices(n, width)[0]), generator=g, dtype=torch.float64) / (2 * width) ** 0.5
    h = torch.randn(queries, n, generator=g, dtype=torch.float64)
    return h.to(dtype), pack_couplings(pairs, n, width).to(dtype)


def best_cpu_seconds(call: Callable[[], Any], rounds: int = 7) -> float:
    """CPU seconds of the fastest of some calls, after one to warm up."""
    call()
    times = []
    for _ in range(rounds):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def forward(sampler: diabat.Sampler, h: Tensor, J: Tensor) -> Callable[[], Any]:
    """Marginals and log Z."""

    def call() -> None:
        with torch.no_grad():
            sampler.moments(Ising(h, J, check=False))

    return call


def both(sampler: diabat.Sampler, h: Tensor, J: Tensor) -> Callable[[], Any]:
    """Marginals, log Z, and the gradient of a linear form with respect to h and J."""
    h, J = h.clone().requires_grad_(), J.clone().requires_grad_()
    v = torch.randn(h.shape, generator=torch.Generator().manual_seed(1)).to(h)
    return lambda: torch.autograd.grad(
        (v * sampler.moments(Ising(h, J, check=False)).probability).sum(), (h, J)
    )


def long_windows() -> list[dict[str, Any]]:
    """512 spins; and a causal window of 128 positions, every position is a problem of another length."""
    rows = []
    for n, width in ((512, 4), (512, 8), (512, 10)):
        sampler, (h, J) = BandedSampler(bandwidth=width), problem(QUERIES, n, width)
        rows.append(
            {
                "problems": f"{QUERIES} of {n} spins", "w": width,
                "marginals, log Z [ms]": best_cpu_seconds(forward(sampler, h, J)) * 1e3,
                "with gradient [ms]": best_cpu_seconds(both(sampler, h, J)) * 1e3,
            }
        )  # fmt: skip
    return [*rows, _causal(128, 8, 16)]


def _causal(n: int, width: int, sequences: int) -> dict[str, Any]:
    sampler = BandedSampler(bandwidth=width)
    h, J = problem(sequences * n, n, width)
    h, J = h.reshape(sequences, n, n).requires_grad_(), J.requires_grad_()
    visible = torch.ones(n, n, dtype=torch.bool).tril()
    v = torch.randn(h.shape, generator=torch.Generator().manual_seed(1))

    def marginals() -> Tensor:
        return sampler.moments(Ising(h, J, visible, check=False)).probability

    def plain() -> None:
        with torch.no_grad():
            marginals()

    return {
        "problems": f"{sequences} causal windows of {n}",
        "w": width,
        "marginals, log Z [ms]": best_cpu_seconds(plain) * 1e3,
        "with gradient [ms]": best_cpu_seconds(lambda: torch.autograd.grad((v * marginals()).sum(), (h, J)))
        * 1e3,
    }


def growth() -> list[dict[str, Any]]:
    """Microseconds per spin and query as n doubles: level if the cost is linear; and as w grows."""
    rows = []
    for width in (2, 4, 6, 8, 10):
        for n in (64, 128, 256, 512, 1024, 2048):
            sampler, (h, J) = BandedSampler(bandwidth=width), problem(QUERIES, n, width)
            ahead = best_cpu_seconds(forward(sampler, h, J), 15)
            back = best_cpu_seconds(both(sampler, h, J), 9)
            rows.append(
                {
                    "w": width, "n": n, "marginals [us per spin]": ahead / (QUERIES * n) * 1e6,
                    "with gradient [us per spin]": back / (QUERIES * n) * 1e6,
                }
            )  # fmt: skip
    return rows


def against_enumeration() -> list[dict[str, Any]]:
    """16 spins: largest error against float64 enumeration, and time beside ``exact`` and the recursion in torch."""
    n, rows = 16, []
    exact = diabat.sampler("exact")
    for width in (2, 4, 8):
        h, J = problem(QUERIES, n, width)
        want = exact.moments(Ising(h.double(), J.double())).probability
        sampler = BandedSampler(bandwidth=width)
        by_torch = BandedSampler(bandwidth=width, engine="torch")
        error = float((sampler.moments(Ising(h, J)).probability - want).abs().max())
        error_64 = float((sampler.moments(Ising(h.double(), J.double())).probability - want).abs().max())
        rows.append(
            {
                "n": n, "w": width, "error float32": error, "error float64": error_64,
                "banded [ms]": best_cpu_seconds(forward(sampler, h, J)) * 1e3,
                "in torch [ms]": best_cpu_seconds(forward(by_torch, h, J)) * 1e3,
                "exact [ms]": best_cpu_seconds(forward(exact, h, J)) * 1e3,
            }
        )  # fmt: skip
    return rows


def against_autograd() -> list[dict[str, Any]]:
    """512 spins: the compiled recursion and its gradient, against autograd through a logarithmic one in torch."""
    n, rows = 512, []
    for width in (4, 8):
        h, J = problem(QUERIES, n, width)
        sampler = BandedSampler(bandwidth=width)
        v = torch.randn(h.shape, generator=torch.Generator().manual_seed(1))
        h64, J64 = h.double().requires_grad_(), J.double().requires_grad_()

        def naive(width: int = width, h: Tensor = h64, J: Tensor = J64, v: Tensor = v) -> tuple[Tensor, ...]:
            (p,) = torch.autograd.grad(naive_log_z(h, J, width).sum(), h, create_graph=True)
            return torch.autograd.grad((v * (1 + p) / 2).sum(), (h, J))

        slow, fast = best_cpu_seconds(naive, 1), best_cpu_seconds(both(sampler, h, J))
        rows.append(
            {
                "n": n, "w": width, "autograd twice through log Z [ms]": slow * 1e3,
                "banded with gradient [ms]": fast * 1e3, "ratio": slow / fast,
            }
        )  # fmt: skip
    return rows


def naive_log_z(h: Tensor, J: Tensor, width: int) -> Tensor:
    """Logarithm of Z by the transfer matrix, as a first implementation writes it; m = ∂ log Z/∂h by autograd."""
    n = h.shape[1]
    index = torch.arange(1 << width)
    signs = (2 * ((index[:, None] >> torch.arange(width)) & 1) - 1).to(h)
    message = h.new_zeros(len(h), 1 << width)
    for t in range(n - 1, -1, -1):
        reach = min(t, width)
        row = torch.nn.functional.pad(J[t, t - reach : t].flip(0), (0, width - reach))
        local = h[:, t, None] + signs @ row
        down, up = message[:, 0::2].repeat(1, 2), message[:, 1::2].repeat(1, 2)
        message = torch.logaddexp(up + local, down - local)
    return message[:, 0]


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Cost per spin against n, one line per bandwidth."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    colors = ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00")
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for ax, key in zip(axes, ("marginals", "with gradient"), strict=True):
        for color, width in zip(colors, sorted({row["w"] for row in rows}), strict=True):
            of_width = [row for row in rows if row["w"] == width]
            sizes = [row["n"] for row in of_width]
            costs = [row[f"{key} [us per spin]"] for row in of_width]
            ax.plot(sizes, costs, marker="o", color=color, label=f"w = {width}")
        ax.set(xscale="log", yscale="log", xlabel="spins n", title=key)
        ax.set_xticks(sizes, [str(n) for n in sizes])
        ax.minorticks_off()
        ax.grid(alpha=0.3)
    axes[0].set_ylabel("µs per spin and query")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside right center", frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--figure", type=Path, help="draw the cost per spin into this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    report("Long windows", long_windows())
    report("Against enumeration, 64 queries", against_enumeration())
    report("Against autograd, 64 queries", against_autograd())
    rows = growth()
    report(f"Growth, {QUERIES} queries", rows)
    if options.figure is not None:
        draw(rows, options.figure)


if __name__ == "__main__":
    main()
