"""Exact marginals against the usual softmax over all 2^n states, on the same problems in one run.

python -m benchmarks.exact [--json]
"""

from __future__ import annotations

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
from benchmarks.measure import paired, report, seconds
from diabat.ising import Ising, pack_couplings


def naive_probabilities(fields: Tensor, couplings: Tensor) -> Tensor:
    """P(s = +1) by a softmax over the energies of all 2^n states, as a first implementation does it."""
    n = fields.shape[-1]
    states = ((torch.arange(2**n)[:, None] >> torch.arange(n)) & 1).to(fields.dtype) * 2 - 1
    pair_energy = torch.einsum("xj,jk,xk->x", states, couplings, states) / 2
    weights = torch.softmax(fields @ states.T + pair_energy, dim=-1)
    return weights @ ((states + 1) / 2)


def random_problem(queries: int, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Fields [queries, n] ~ N(0, 1) and one SK coupling matrix J ~ N(0, 1/n)."""
    g = torch.Generator().manual_seed(seed)
    J = pack_couplings(torch.randn(n * (n - 1) // 2, generator=g) / n**0.5, n)
    return torch.randn(queries, n, generator=g), J


def _exact_probabilities(exact: diabat.Sampler, fields: Tensor, couplings: Tensor) -> Tensor:
    return exact.moments(Ising(fields, couplings)).probability


def two_products(n: int, queries: int) -> Callable[[], Any]:
    """The two matrix products that bound the method, on random tables of the same size."""
    left, weights = torch.rand(queries, 2 ** (n // 2)), torch.rand(2 ** (n // 2), 2 ** (n - n // 2))
    right = left @ weights
    return lambda: (left @ weights, right @ weights.T)


def shared_coupling_batches() -> list[dict[str, Any]]:
    """Forward marginals of one batch with one J; the tables of J are built anew in every call."""
    exact = diabat.sampler("exact")
    rows = []
    for n, queries in ((12, 512), (16, 512), (20, 64)):
        h, J = random_problem(queries, n)
        naive = partial(naive_probabilities, h, J)
        ours = partial(_exact_probabilities, exact, h, J)
        with torch.no_grad():
            slow, fast, ratio = paired(naive, ours, inner=20)
            best = min(seconds(ours) for _ in range(60))
            products = min(seconds(two_products(n, queries)) for _ in range(60))
            p = exact.moments(Ising(h, J)).probability.double()
            reference = exact.moments(Ising(h.double(), J.double())).probability
        error = float(((p - reference).abs() / reference).max())
        rows.append(
            {
                "n": n, "queries": queries, "softmax over 2^n [ms]": slow * 1e3, "diabat exact [ms]": fast * 1e3,
                "ratio": ratio, "best call [ms]": best * 1e3, "products alone [ms]": products * 1e3,
                "us per query": fast / queries * 1e6, "largest relative error (float32)": error,
            }
        )  # fmt: skip
    return rows


def causal_window() -> list[dict[str, Any]]:
    """Forward and backward through a causal window T = 16 of 64 sequences.

    Against two first implementations: every position enumerates all 2^T states with its couplings masked, and
    position i enumerates its own 2^(i+1).
    """
    T, sequences = 16, 64
    exact = diabat.sampler("exact")
    h, J = random_problem(sequences * T, T)
    h, J = h.reshape(sequences, T, T).requires_grad_(), J.requires_grad_()
    visible = torch.ones(T, T, dtype=torch.bool).tril()
    cotangent = torch.randn(sequences, T, T, generator=torch.Generator().manual_seed(1)) * visible

    def prefixes() -> Tensor:
        rows = []
        for i in range(T):
            p = naive_probabilities(h[:, i, : i + 1], J[: i + 1, : i + 1])
            rows.append((p * cotangent[:, i, : i + 1]).sum())
        torch.stack(rows).sum().backward()
        return _take_gradient()

    def masked() -> Tensor:
        rows = []
        for i in range(T):
            seen = visible[i].to(h)
            p = naive_probabilities(h[:, i] * seen, J * seen[:, None] * seen)
            rows.append((p * cotangent[:, i]).sum())
        torch.stack(rows).sum().backward()
        return _take_gradient()

    def ours() -> Tensor:
        (exact.moments(Ising(h, J, visible)).probability * cotangent).sum().backward()
        return _take_gradient()

    def _take_gradient() -> Tensor:
        gradient = h.grad.clone() if h.grad is not None else torch.zeros(())
        h.grad = J.grad = None
        return gradient

    rows = []
    for name, naive, rounds in (
        ("2^T for every position", masked, 3),
        ("2^(i+1) for position i", prefixes, 7),
    ):
        difference = float((naive() - ours()).abs().max())
        slow, fast, ratio = paired(naive, ours, rounds=rounds, inner=20)
        rows.append(
            {
                "softmax over": name, "T": T, "sequences": sequences, "softmax [ms]": slow * 1e3,
                "diabat exact [ms]": fast * 1e3, "ratio": ratio, "largest difference of dL/dh": difference,
            }
        )  # fmt: skip
    return rows


def large_problems() -> list[dict[str, Any]]:
    """Time and peak memory of large n, each in a separate process (interpreter and torch included)."""
    rows = []
    for n, queries in ((24, 64), (30, 8)):
        out = subprocess.run(
            [sys.executable, "-m", "benchmarks.exact", "--one", str(n), str(queries)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        first, second, peak = (float(v) for v in out.stdout.split())
        rows.append(
            {
                "n": n,
                "queries": queries,
                "first call [s]": first,
                "next call [s]": second,
                "peak memory [MB]": peak,
            }
        )
    return rows


def one_large(n: int, queries: int) -> None:
    """Print seconds of two calls and the peak resident memory in MB."""
    exact = diabat.sampler("exact")
    h, J = random_problem(queries, n)
    times = []
    for _ in range(2):
        start = time.perf_counter()
        with torch.no_grad():
            exact.moments(Ising(h, J))
        times.append(time.perf_counter() - start)
    # Not getrusage: a child of a large process starts with its parent's maximum.
    status = Path("/proc/self/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    print(*times, peak / 1024)


def variants() -> list[dict[str, Any]]:
    """CPU time of whole calls for 512 queries, against a softmax whose tables of states and couplings are kept."""
    exact, rows = diabat.sampler("exact"), []
    for n in (4, 8, 12, 16):
        h, J = random_problem(512, n)
        own = pack_couplings(torch.randn(512, n * (n - 1) // 2) / n**0.5, n)
        one, many = Ising(h[:1], J), Ising(h, J)
        states = ((torch.arange(2**n)[:, None] >> torch.arange(n)) & 1).float() * 2 - 1
        energy, up = torch.einsum("xj,jk,xk->x", states, J, states) / 2, (states + 1) / 2
        naive = partial(_kept_softmax, h, states, energy, up)
        with torch.no_grad():
            fast = _cpu_seconds(partial(exact.moments, many), 60)
            pairs = _cpu_seconds(partial(exact.moments, many, correlations=True), 60)
            different = _cpu_seconds(partial(exact.moments, Ising(h, own)), 12) if n < 16 else float("nan")
            slow, alone = _cpu_seconds(naive, 6), _cpu_seconds(partial(exact.moments, one), 300)
        rows.append(
            {
                "n": n, "one query [us]": alone * 1e6, "512 queries [ms]": fast * 1e3,
                "softmax, tables kept / ours": slow / fast, "correlations / without": pairs / fast,
                "own J / shared J": different / fast, "us per query": fast / 512 * 1e6,
            }
        )  # fmt: skip
    return rows


def _kept_softmax(h: Tensor, states: Tensor, energy: Tensor, up: Tensor) -> Tensor:
    return torch.softmax(h @ states.T + energy, -1) @ up


def _cpu_seconds(call: Callable[[], Any], rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds + 2):
        start = time.thread_time()
        call()
        best = min(best, time.thread_time() - start)
    return best


def main() -> None:
    if "--one" in sys.argv:
        at = sys.argv.index("--one")
        one_large(int(sys.argv[at + 1]), int(sys.argv[at + 2]))
        return
    report("Marginals of shared-J queries, forward", shared_coupling_batches())
    report("Causal window, forward and backward", causal_window())
    report("Whole calls, CPU time of one thread", variants())
    report("Large problems", large_problems())


if __name__ == "__main__":
    main()
