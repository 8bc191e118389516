"""Vectors: parts of a row; and kernels compiled for a lesser processor, here in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from llvmlite.binding import get_host_cpu_features

from diabat.compute.jit import jit
from diabat.compute.simd import address, load, load_part, store, store_part, where_set, with_item
from diabat.compute.simd_functions import store_sums

# (1 + 2^-12)² = 1 + 2^-11 + 2^-24; float32 loses the last term where the product is rounded before the sum.
FUSED = """
import numba
import numpy as np
from diabat.compute.simd import fused, load, store

@numba.njit
def multiply_add(rows):
    store(rows, 3, fused(load(rows, 0), load(rows, 1), load(rows, 2)))

rows = np.empty((4, 16), np.float32)
rows[:] = np.float32([[1 + 2**-12], [1 + 2**-12], [-1 - 2**-11], [0]])
multiply_add(rows)
print(rows[3, 0])
"""

BACKENDS = """
import torch
import diabat
from diabat.ising import pack_couplings

torch.manual_seed(0)
problem = diabat.Ising(torch.randn(20, 6), pack_couplings(0.3 * torch.randn(15), n=6))
for sampler in (diabat.sampler("tempering", num_replicas=2), diabat.sampler("dqa", schedule="boltzmann-8")):
    print(sampler.moments(problem, seed=1).probability.numpy().tobytes().hex())
"""

needs_fma = pytest.mark.skipif(
    not get_host_cpu_features().get("fma", False), reason="needs an x86 processor with fused multiply-adds"
)


def printed(program: str, **target: str) -> str:
    host = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_CPU_")}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=host | target, capture_output=True, text=True, check=True).stdout


@needs_fma
def test_products_are_fused_only_where_the_target_of_numba_can() -> None:
    assert float(printed(FUSED)) > 0
    assert float(printed(FUSED, NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="")) == 0


@pytest.mark.slow
@needs_fma
def test_the_width_of_vectors_does_not_change_bits() -> None:
    """Of AVX2 and what this processor has, which is wider where it has AVX-512; both fuse."""
    narrow = printed(BACKENDS, NUMBA_CPU_NAME="haswell", NUMBA_CPU_FEATURES="+avx2,+fma")
    assert narrow == printed(BACKENDS)


@jit
def _use_parts(rows: Any, flags: Any, count: int, lane: int) -> None:
    store_part(rows, 2, count, load(rows, 0))
    store(rows, 3, load_part(rows, 0, count))
    store(rows, 4, where_set(flags, 1, load(rows, 0), load(rows, 1)))
    store(rows, 5, with_item(load(rows, 0), lane, rows[1, 0]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_parts_of_a_row(dtype: Any) -> None:
    """The other numbers of a row are neither read nor written, where it is not all in memory."""
    lanes = 64 // np.dtype(dtype).itemsize
    for count in (0, 1, lanes - 1, lanes, 3 * lanes):
        rows = np.arange(1, 6 * lanes + 1, dtype=dtype).reshape(6, lanes)
        given, flags = rows.copy(), np.arange(2 * lanes, dtype=np.uint8) % 3
        _use_parts(rows, flags, count, lanes - 2)
        first, here = np.arange(lanes) < count, np.arange(lanes) == lanes - 2
        assert (rows[:2] == given[:2]).all()
        assert (rows[2] == np.where(first, given[0], given[2])).all()
        assert (rows[3] == np.where(first, given[0], 0)).all()
        assert (rows[4] == np.where(flags[lanes:] != 0, given[0], given[1])).all()
        assert (rows[5] == np.where(here, given[1, 0], given[0])).all()


@jit
def _sums(rows: Any, out: Any, index: int) -> None:
    store_sums(address(out), index, load(rows, 0), load(rows, 1), load(rows, 2), load(rows, 3))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_of_four_vectors_go_to_four_numbers_in_order(dtype: Any) -> None:
    """At any place, and nothing beside it is written."""
    lanes = 64 // np.dtype(dtype).itemsize
    rows = 1 + np.arange(4 * lanes, dtype=dtype).reshape(4, lanes) ** 2
    for index in (0, 4, 9):
        out = np.full((2, lanes), -1, dtype)
        _sums(rows, out, index)
        want = np.full(2 * lanes, -1, dtype)
        want[index : index + 4] = rows.sum(1)
        assert np.array_equal(out.reshape(-1), want)
