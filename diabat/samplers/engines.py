"""Engines of the ``dqa`` backend by name."""

from __future__ import annotations

from typing import Literal

import torch

from diabat.checks import ArgumentError, did_you_mean
from diabat.circuits import AerEngine, Engine, NativeEngine

ENGINES = ("native", "aer", "torch", "primitive")

Precision = Literal["double", "single"]


def build_engine(engine: str | Engine, precision: Precision | None, device: str | None) -> Engine:
    """An engine by name, or the one that was given.

    Args:
        engine: ``native``, ``aer``, ``torch``, ``primitive``, or an Engine.
        precision: Of the state vectors; None for ``double``.
        device: Of the torch engine; None for ``cpu``.

    Raises:
        ValueError: If there is none of that name, or an option is not valid or not one of this engine.
    """
    named = isinstance(engine, str)
    if engine not in ENGINES if named else not isinstance(engine, Engine):
        hint = did_you_mean(engine, ENGINES)
        raise ArgumentError(
            "engine", f"expected one of {', '.join(ENGINES)} or an Engine, got {engine!r}.{hint}"
        )
    if device is not None and not (named and engine == "torch"):
        raise ArgumentError("device", f"expected none with an engine other than 'torch', got {device!r}.")
    if precision is not None and not isinstance(precision, str):
        raise ArgumentError("precision", f"expected 'double' or 'single', got {precision!r}.")
    if precision is not None and (not named or engine == "primitive"):
        raise ArgumentError("precision", f"expected none with an engine that has its own, got {precision!r}.")
    if isinstance(engine, Engine):
        return engine
    chosen: Precision = "double" if precision is None else precision
    if engine == "native":
        # As many threads as torch uses at the time of the call.
        return NativeEngine(chosen, torch.get_num_threads)
    if engine == "aer":
        return AerEngine(precision=chosen)
    if engine == "torch":
        from diabat.circuits.engines.torch.engine import TorchEngine

        return TorchEngine("cpu" if device is None else device, chosen)
    from diabat.circuits.engines.qiskit.primitive import PrimitiveEngine

    return PrimitiveEngine()
