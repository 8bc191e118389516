"""Exact sums over banded Ising models by compiled forward-backward (kernel; numpy in, numpy out)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from diabat.samplers.banded.lanes import Run
from diabat.samplers.banded.problems import Array, BandProblems


def marginals(problems: BandProblems, dtype: Any, threads: int) -> tuple[Array, Array]:
    """P(s = +1) in ``dtype`` [N, n], 0 beyond the length, and log Z in float64 [N]."""
    from diabat.samplers.banded.kernel import run_marginals

    run = Run(problems, dtype, threads)
    p, log_z = np.zeros(problems.fields.shape, dtype), np.zeros(len(problems.fields))
    run.each(lambda part, work: run_marginals(run.blocks[part], run.problems, work, p, log_z))
    return p, log_z + run.log_scale


def gradient(
    problems: BandProblems, dtype: Any, threads: int, p: Array, v: Array, u: Array
) -> tuple[Array, Array]:
    """dL/dh [N, n] and dL/dJ [K, n, w] of L = Σ v P + Σ u log Z, given P."""
    from diabat.samplers.banded.kernel import run_gradient

    run = Run(problems, dtype, threads, tangent=True)
    N, n = problems.fields.shape
    w, K = problems.bands.shape[2], len(problems.bands)
    of_fields = np.zeros((N, n), dtype)
    of_couplings = np.zeros((N if run.own else len(run.blocks), n, w))
    v, u, p = (np.ascontiguousarray(a, dtype) for a in (v, u, p))
    run.each(
        lambda part, work: run_gradient(
            run.blocks[part], part.start, run.problems, work, p, v, u, of_fields, of_couplings
        )
    )
    if K == 1:
        return of_fields, of_couplings.sum(0, keepdims=True)
    total = np.zeros((K, n, w))
    np.add.at(total, problems.tables if run.own else problems.tables[run.blocks[:, 0]], of_couplings)
    return of_fields, total


def pairs(problems: BandProblems, dtype: Any, threads: int) -> Array:
    """<s_j s_k> in ``dtype``, [N, n, n], 0 beyond the length."""
    from diabat.samplers.banded.walks import run_pairs

    run = Run(problems, dtype, threads, tangent=True, keep=True)
    N, n = problems.fields.shape
    out = np.zeros((N, n, n), dtype)
    run.each(lambda part, work: run_pairs(run.blocks[part], run.problems, work, out))
    return out


def reads(problems: BandProblems, threads: int, num_reads: int, keys: Array) -> NDArray[np.int8]:
    """Independent draws, int8 [R, N, n], -1 beyond the length; ``keys`` are the streams, uint64 [N]."""
    from diabat.samplers.banded.walks import run_reads

    run = Run(problems, np.float64, threads, keep=True)
    spins = np.full((num_reads, *problems.fields.shape), -1, np.int8)
    run.each(lambda part, work: run_reads(run.blocks[part], run.problems, work, keys, spins))
    return spins
