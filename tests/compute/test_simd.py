"""Kernels compiled for a lesser processor: numba takes any target, here in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from llvmlite.binding import get_host_cpu_features

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

pytestmark = pytest.mark.skipif(
    not get_host_cpu_features().get("fma", False), reason="needs an x86 processor with fused multiply-adds"
)


def printed(program: str, **target: str) -> str:
    host = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_CPU_")}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=host | target, capture_output=True, text=True, check=True).stdout


def test_products_are_fused_only_where_the_target_of_numba_can() -> None:
    assert float(printed(FUSED)) > 0
    assert float(printed(FUSED, NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="")) == 0


@pytest.mark.slow
def test_the_width_of_vectors_does_not_change_bits() -> None:
    """Of AVX2 and what this processor has, which is wider where it has AVX-512; both fuse."""
    narrow = printed(BACKENDS, NUMBA_CPU_NAME="haswell", NUMBA_CPU_FEATURES="+avx2,+fma")
    assert narrow == printed(BACKENDS)
