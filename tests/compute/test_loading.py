"""Python's garbage collector rests while numba loads and compiles, and is left as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from numba.core.compiler_lock import global_compiler_lock

from diabat.compute.jit import jit
from diabat.compute.loading import collection_paused, loaded


@pytest.fixture(params=[True, False])
def collecting(request: pytest.FixtureRequest) -> Iterator[bool]:
    before = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if before else gc.disable)()


def test_the_collector_rests_in_the_block(collecting: bool) -> None:
    with collection_paused():
        assert not gc.isenabled()
    assert gc.isenabled() == collecting


def test_the_collector_rests_while_numba_compiles_or_loads(collecting: bool) -> None:
    with global_compiler_lock:
        with global_compiler_lock:  # nested, as in a compilation
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled() == collecting


def test_the_collector_is_as_before_after_a_refused_compilation(collecting: bool) -> None:
    def refused(x: int) -> int:
        return x + unknown  # type: ignore[name-defined]  # noqa: F821 - numba must fail here

    with pytest.raises(Exception, match="unknown"):
        jit(refused)(1)
    assert gc.isenabled() == collecting


def test_a_module_is_imported_once() -> None:
    name = "diabat.samplers.tempering.kernel"
    assert loaded(name) is loaded(name)
    assert loaded(name).__name__ == name
