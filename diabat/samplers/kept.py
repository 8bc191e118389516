"""Tables that calls share, kept for recent arguments within a limit in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import wraps
from threading import Lock
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")

LIMIT = 1 << 26
"""Bytes of all tables of a process: a few batches of 200,000 small problems."""


class Store:
    """Results by function and arguments, up to ``limit`` bytes; those that were not used for longest leave first.

    A result of more than half of the limit is not kept.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.held = limit, 0
        self._entries: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = Lock()

    def find(self, key: Hashable) -> tuple[Any, int] | None:
        """The result and its bytes, if it is kept."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
            return entry

    def keep(self, key: Hashable, result: Any, size: int) -> None:
        """Keep a result of so many bytes, and let others go."""
        if 2 * size > self.limit:
            return
        with self._lock:
            _, replaced = self._entries.pop(key, (None, 0))
            self._entries[key] = result, size
            self.held += size - replaced
            while self.held > self.limit:
                _, (_, freed) = self._entries.popitem(last=False)
                self.held -= freed


_STORE = Store(LIMIT)


def _is_hidden() -> bool:
    """Whether tensors made now belong to a graph, a transform or a mode of torch, and mean nothing outside of it."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return True
    return torch._C._len_torch_dispatch_stack() > 0


def kept(size: Callable[P, int]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Keep the results of a function of hashable arguments for all later calls, in any mode of torch.

    Tensors are made outside of inference mode, so that autograd may save them.  A function whose tensors depend on a
    device takes it as an argument: the default device is none.

    Args:
        size: Bytes of the result for the same arguments, with all that it computes later.
    """

    def decorated(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def shared(*args: P.args, **kwargs: P.kwargs) -> T:
            if _is_hidden():
                return function(*args, **kwargs)
            key = (function, args, *kwargs.items())
            entry = _STORE.find(key)
            if entry is not None:
                result: T = entry[0]
                return result
            with torch.inference_mode(False):
                result = function(*args, **kwargs)
            _STORE.keep(key, result, size(*args, **kwargs))
            return result

        return shared

    return decorated
