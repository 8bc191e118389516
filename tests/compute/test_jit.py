"""Functions that only compiled functions call have no machine code of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numba
import pytest
from numba.core.registry import cpu_target

from diabat.compute.jit import by_type, inner


class Pair(NamedTuple):
    first: float
    second: float


def has_machine_code(compiled: Any) -> bool:
    [found] = compiled.overloads.values()
    engine = cpu_target.target_context.codegen()._engine
    return bool(engine.is_symbol_defined(found.fndesc.llvm_func_name))


def test_an_inner_function_is_a_part_of_its_callers() -> None:
    @inner
    def square(x: float) -> float:
        return x * x

    @inner
    def fourth(x: float) -> float:
        return square(square(x))

    @numba.njit  # type: ignore[untyped-decorator]  # no stubs
    def called(x: float) -> float:
        return fourth(x) + square(x)

    assert called(3.0) == 90.0
    assert has_machine_code(called)
    assert not has_machine_code(square)
    assert not has_machine_code(fourth)


def test_an_implementation_for_a_type_calls_and_is_called() -> None:
    @inner
    def half(x: float) -> float:
        return x / 2

    @by_type
    def total(state: Any) -> float:
        raise NotImplementedError

    @total.register
    def of_pair(state: Pair) -> float:
        return half(state.first + state.second)

    @numba.njit  # type: ignore[untyped-decorator]  # no stubs
    def called(state: Pair) -> float:
        return total(state)

    assert called(Pair(1.0, 2.0)) == 1.5
    assert not has_machine_code(half)


def test_an_inner_function_is_compiled_once_for_all_integers() -> None:
    @inner
    def plus(x: float, count: int) -> float:
        return x + count

    @numba.njit  # type: ignore[untyped-decorator]  # no stubs
    def called(x: float, count: int) -> float:
        return plus(x, 1) + plus(x, 2) + plus(x, count=count)

    assert called(0.5, 3) == 7.5
    assert len(plus.overloads) == 1  # type: ignore[attr-defined]  # a dispatcher


SMALL = (
    "import warnings\n"
    "with warnings.catch_warnings(record=True) as told:\n"
    "    warnings.simplefilter('always')\n"
    "    import torch, diabat\n"
    "    p = diabat.sampler('exact').moments(diabat.Ising(torch.zeros(64, 9))).probability\n"
    "assert (p == 0.5).all()\n"
    "assert sum(str(w.message).startswith('NUMBA_CACHE_DIR: ') for w in told) == 1\n"
)


@pytest.mark.slow
def test_without_a_folder_for_the_cache_kernels_compile_in_memory(tmp_path: Path) -> None:
    """Numba finds none, as in a container; one warning names the variable."""
    blind = "from numba.core import caching\ncaching.CacheImpl._locator_classes = []\n"
    subprocess.run([sys.executable, "-c", blind + SMALL], check=True, cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="another user is needed")
def test_a_user_without_a_home_computes_with_a_package_of_root(tmp_path: Path) -> None:
    """Nobody, who writes neither to the package nor to a home: as in a read-only container."""
    nobody: Any = {"user": 65534, "group": 65534, "extra_groups": [], "cwd": "/"}
    try:
        subprocess.run([sys.executable, "-c", "import diabat"], check=True, capture_output=True, **nobody)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("that user cannot read this installation")
    env = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"} | {"HOME": "/nonexistent"}
    subprocess.run([sys.executable, "-c", SMALL], check=True, env=env, **nobody)
