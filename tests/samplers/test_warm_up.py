"""Kernels compiled ahead: all of them, once, and the line that says when one is compiled."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from problems import adjoint

import diabat
from diabat.attention import warm_up as attention
from diabat.compute.jit import NOTICE
from diabat.ising import pack_couplings
from diabat.samplers.warm_up import GROUPS, warm_up

KERNELS = [
    "circuits.engines.native.adjoint",
    "circuits.engines.native.kernel",
    "compute.compiled_random",
    "samplers.banded.kernel",
    "samplers.banded.walks",
    "attention.window_gradient_kernel",
    "attention.window_kernel",
    "samplers.exact.kernel",
    "samplers.exact.kernel_gradient",
    "samplers.exact.kernel_strong",
    "samplers.mean_field.kernel",
    "samplers.tempering.kernel",
]


@pytest.fixture(scope="module")
def warm() -> dict[str, Any]:
    """Functions of all kernels that Python calls, after a warm-up."""
    assert [group.group for group in warm_up()] == list(GROUPS)
    assert [group.group for group in warm_up(attention.GROUPS)] == list(attention.GROUPS)
    found = {}
    for name in KERNELS:
        module = importlib.import_module(f"diabat.{name}")
        for key, value in vars(module).items():
            called = hasattr(value, "signatures") and not value.targetoptions.get("no_cpython_wrapper")
            if called and value.py_func.__module__ == module.__name__:
                found[f"{name}.{key}"] = value
    return found


def test_every_kernel_is_compiled(warm: dict[str, Any]) -> None:
    assert {"samplers.banded.walks.run_reads", "circuits.engines.native.kernel.run_plan"} <= warm.keys()
    tests_only = {"compute.compiled_random.uniform", "compute.compiled_random.random_word"}
    assert {name for name, kernel in warm.items() if not kernel.signatures} <= tests_only


def test_nothing_is_left_to_compile(warm: dict[str, Any]) -> None:
    assert all(group.functions == 0 for group in warm_up({**GROUPS, **attention.GROUPS}))


def problem(n: int, problems: int, dtype: torch.dtype, *, own: bool = False) -> diabat.Ising:
    J = pack_couplings(0.2 * torch.randn(n * (n - 1) // 2, dtype=dtype), n)
    J = J * torch.ones(problems, 1, 1, dtype=dtype) if own else J
    return diabat.Ising(torch.randn(problems, n, dtype=dtype, requires_grad=True), J)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_users_ask_for_is_compiled(warm: dict[str, Any], dtype: torch.dtype) -> None:
    """Other sizes and options than those of the warm-up add no version of any kernel."""
    before = {name: list(kernel.signatures) for name, kernel in warm.items()}
    for n, problems, own in ((16, 40, False), (17, 1, False), (10, 100, True), (5, 3, False)):
        ising = problem(n, problems, dtype, own=own)
        for name in ("exact", "banded"):
            backend = diabat.sampler(name)
            backend.moments(ising).probability.sum().backward()
            backend.moments(ising, correlations=True)
            backend.sample(ising, 3, seed=0)
    forms: tuple[dict[str, Any], ...] = (
        {},
        {"relative": True, "readout": "odds"},
        {"causal": False, "mode": "h"},
    )
    for form in forms:
        layer = diabat.BoltzmannAttention(8, 2, 7, **form).to(dtype)
        layer(torch.randn(3, 7, 8, dtype=dtype)).sum().backward()
    for options in ({}, {"method": "metropolis", "thin": 2}, {"num_replicas": 1}):
        backend = diabat.sampler("tempering", burn_in=2, sweeps=4, num_chains=3, **options)
        backend.moments(problem(7, 2, dtype), correlations=True, seed=0)
        backend.sample(problem(7, 2, dtype, own=True), 5, seed=0)
    for precision in ("single", "double"):
        dqa = diabat.sampler("dqa", schedule="boltzmann-4", precision=precision, learn_schedule=True)
        for own in (False, True):
            ising = problem(6, 3, dtype, own=own)
            dqa.moments(ising, correlations=True)
            dqa.sample(ising, 2, seed=0)
            adjoint(dqa, ising, torch.ones_like(ising.fields))
        diabat.sampler("refine", options={"precision": precision}).sample(problem(6, 3, dtype), 4, seed=0)
    assert {name: list(kernel.signatures) for name, kernel in warm.items()} == before


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2])
def test_compiling_is_announced_once_and_reading_from_disk_is_not(tmp_path: Path, times: int) -> None:
    code = (
        "import numpy as np\nfrom diabat.compute.compiled_random import random_word, uniform\n"
        "uniform(np.uint64(1), 2)\nrandom_word(1, 2, 3, 4, (5, 6), 7)\nuniform(np.uint64(1), np.uint64(2))\n"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    for run in range(times):
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        )
        first, *others = done.stderr.splitlines() or [""]
        assert first == (NOTICE.format("diabat.compute.compiled_random.uniform") if run == 0 else "")
        told = [
            re.fullmatch(r"compiled diabat\.compute\.compiled_random\.(\w+) in ([0-9.]+) s", line)
            for line in others
        ]
        assert [found and found[1] for found in told] == (
            ["uniform", "random_word", "uniform"] if run == 0 else []
        )
        assert all(found and float(found[2]) < 600 for found in told)


@pytest.mark.slow
def test_a_warm_up_announces_nothing(tmp_path: Path) -> None:
    code = "from diabat.samplers.warm_up import GROUPS, warm_up\nnext(warm_up())\nGROUPS['exact']()"
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
