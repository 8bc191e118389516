"""How many tensors a training step leaves behind: none, without help of the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch


def left_behind(step: Callable[[], object]) -> int:
    """Tensors that three steps leave behind; two steps before may keep some."""
    for _ in range(2):
        step()
    gc.collect()
    gc.disable()
    try:
        before = _tensors()
        for _ in range(3):
            step()
        return _tensors() - before
    finally:
        gc.enable()


def _tensors() -> int:
    return sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects())
