"""Functions that only compiled functions call have no machine code of their own."""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
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
