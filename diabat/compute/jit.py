"""Compilation of the kernels with numba, and its notice; imported on first use.

Functions are compiled at the first call and cached on disk, once per machine and version.  Compile time grows with the
number of functions and of their variants; LLVM optimises a function that Python calls together with all that it calls.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, singledispatch
from typing import TYPE_CHECKING, Any, TypeVar, cast

from diabat.compute.loading import preparing

with preparing:
    import numba
    from numba.core import event
    from numba.core.codegen import JITCodeLibrary
    from numba.core.compiler import Compiler
    from numba.core.registry import cpu_target
    from numba.core.types import unliteral  # type: ignore[attr-defined]  # no stubs
    from numba.extending import overload

    # What numba does at its first compilation or loading, a third of a second.
    cpu_target.target_context.refresh()

if TYPE_CHECKING:
    from functools import _SingleDispatchCallable

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

REORDERED = {"reassoc", "contract", "nsz"}
"""``fastmath`` of sums in any order, so that they become vectors; it does not depend on the number of threads."""
NOTICE = (
    "diabat compiles {} at its first use, as it does every kernel, and keeps it on disk; 'diabat warm-up' compiles all "
    "of them in advance."
)


class _Linked(JITCodeLibrary):  # type: ignore[misc]  # numba has no stubs
    """Code without machine code, which is optimised and translated as a part of its callers only.

    By itself numba does both for every function, and again for every caller, which takes longer than all the rest.
    """

    codegen = property(lambda self: self)

    def set_env(self, *values: Any) -> None:
        """There is nothing to set."""

    def get_pointer_to_function(self, name: str) -> int:
        """There is no address."""
        return 0

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalized = True


class _LinkedCompiler(Compiler):  # type: ignore[misc]  # numba has no stubs
    """Compiles to `_Linked` code."""

    def __init__(self, typing_context: Any, target_context: Any, library: Any, *others: Any) -> None:
        super().__init__(typing_context, target_context, _Linked(target_context.codegen(), "linked"), *others)


_OPTIONS = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
_INNER = _OPTIONS | {"no_cpython_wrapper": True, "pipeline_class": _LinkedCompiler}


def jit(function: F, **options: Any) -> F:
    """Compile for calls from Python.

    Args:
        function: The function to compile.
        options: Further options of ``numba.njit``.
    """
    compiled: Any = numba.njit(**_OPTIONS, **options)(function)
    try:
        compiled.enable_caching()
    except RuntimeError:  # numba finds no folder that can be written
        _warn_without_cache()
    return cast("F", compiled)


def inner(function: F, **options: Any) -> F:
    """Compile for calls from compiled functions only, of which it becomes a part; integers are never literals."""
    compiled: Any = numba.njit(**_INNER, **options)(function)
    called = compiled.get_call_template

    def without_literals(kinds: Any, named: Any) -> Any:
        # Numba would compile again for every literal; LLVM knows the number where the function becomes a part.
        return called(tuple(map(unliteral, kinds)), {k: unliteral(v) for k, v in named.items()})

    compiled.get_call_template = without_literals
    return cast("F", compiled)


def by_type(function: Callable[..., T]) -> _SingleDispatchCallable[T]:
    """Declare a compiled function that has an implementation for each type of its first argument, a NamedTuple.

    Implementations are registered as those of `functools.singledispatch`; callers are compiled for each type.
    """
    chosen = singledispatch(function)

    @overload(chosen, jit_options=_INNER, strict=False)  # type: ignore[untyped-decorator]  # no stubs
    def implementation(state: Any, *others: Any) -> Any:
        return chosen.dispatch(state.instance_class)

    return chosen


@cache
def _warn_without_cache() -> None:
    warnings.warn(
        "NUMBA_CACHE_DIR: expected a folder for compiled kernels, since neither the package nor the home directory can "
        "be written; every process compiles them again until the variable names one.",
        stacklevel=2,
    )


class _Compilations(event.Listener):  # type: ignore[misc]  # numba has no stubs
    """Counts compiled functions of diabat (not those loaded from disk), shows that they are compiled, and times them.

    What Python calls is compiled together with all that it calls; only the first of these is told and timed.
    """

    count = 0

    def __init__(self) -> None:
        self._begun: list[float] = []
        self._told = False

    def on_start(self, event: Any) -> None:
        self._begun.append(time.perf_counter())
        if not (name := _name(event)):
            return
        self.count += 1
        if preparing.display is not None:
            preparing.show()
        elif not self._told:
            # Logged to stderr, unless the application has configured a handler.
            logging.getLogger("diabat").warning(NOTICE.format(name))
            self._told = True

    def on_end(self, event: Any) -> None:
        began = self._begun.pop()
        if not self._begun and preparing.display is None and (name := _name(event)):
            logging.getLogger("diabat").warning(f"compiled {name} in {time.perf_counter() - began:.1f} s")


def _name(event: Any) -> str:
    """The function that is compiled, with its module; empty if it is not of diabat."""
    function = event.data["dispatcher"].py_func
    return f"{function.__module__}.{function.__name__}" * function.__module__.startswith("diabat.")


class _Preparing(event.Listener):  # type: ignore[misc]  # numba has no stubs
    """numba holds its lock while it compiles, or loads compiled code."""

    def on_start(self, event: Any) -> None:
        preparing.__enter__()

    def on_end(self, event: Any) -> None:
        preparing.__exit__()


_compilations = _Compilations()
event.register("numba:compile", _compilations)
event.register("numba:compiler_lock", _Preparing())


def compiled_functions() -> int:
    """Number of functions compiled by this process so far."""
    return _compilations.count


@contextmanager
def unannounced() -> Iterator[None]:
    """Show neither notice nor bar in the block."""
    before, preparing.display = preparing.display, nullcontext
    try:
        yield
    finally:
        preparing.display = before
