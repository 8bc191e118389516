"""Checks of the options of the backend ``dimod``, and the keywords that follow from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from diabat.checks import ArgumentError, check_count
from diabat.samplers.dimod.dwave_options import QPU
from diabat.samplers.dimod.target import DimodLike, accepted_parameters

Scale = float | Literal["fit"]


def count_or_none(name: str, value: int | None, least: int = 1) -> int | None:
    """Raise ValueError unless the value is None or an integer of at least ``least``."""
    check_count(name, value, least=least, optional=True)
    return value


def seconds_or_none(name: str, value: float | None) -> float | None:
    """Raise ValueError unless the value is None or a finite number >= 0."""
    if value is not None and not (_number(value) and 0 <= value < math.inf):
        raise ArgumentError(name, f"expected a number of seconds >= 0, got {value!r}.")
    return value


def check_scale(scale: Scale | None) -> Scale:
    """The factor of the programmed values: 1 for None.

    Raises:
        ValueError: If it is neither a positive number nor 'fit'.
    """
    if scale is None:
        return 1.0
    if isinstance(scale, str) and scale == "fit":
        return "fit"
    if not _number(scale) or not 0 < float(scale) < math.inf:
        raise ArgumentError("scale", f"expected a positive number or 'fit', got {scale!r}.")
    return float(scale)


def check_law(law: str | None, scale: Scale, estimated: bool) -> None:
    """Raise ValueError unless the law is None, or ``boltzmann`` with nothing that contradicts it."""
    if law is None:
        return
    if law != "boltzmann":
        raise ArgumentError("law", f"expected 'boltzmann' or None (the sampler's own), got {law!r}.")
    if scale != 1.0:
        raise ArgumentError(
            "law", f"'boltzmann' promises beta = 1, expected no scale beside it, got {scale!r}."
        )
    if estimated:
        raise ArgumentError(
            "law", "expected None with beta='estimate', which fits a temperature to any law, got 'boltzmann'."
        )


def call_keywords(target: DimodLike, parameters: Mapping[str, Any], qpu: QPU | None) -> dict[str, Any]:
    """Keywords of every call: the user's, those of the anneal, and what hardware must not do by default.

    Raises:
        ValueError: If the user sets what ``qpu`` sets, or the sampler does not take what ``qpu`` sets.
    """
    own = {} if qpu is None else qpu.parameters
    for name in (*own, *(("flux_biases", "anneal_schedule") if qpu else ())):
        if name in parameters:
            raise ArgumentError("parameters", f"expected no '{name}' beside qpu, which sets it.")
    known = accepted_parameters(target)
    if qpu is not None:
        for name in own:
            if name not in known:
                raise ArgumentError(
                    "qpu", f"expected a sampler that accepts {name}, got {type(target).__name__}."
                )
    # auto_scale is True by default on hardware; raw answers keep the order of the reads.
    defaults = {"auto_scale": False, "answer_mode": "raw"}
    return {k: v for k, v in defaults.items() if k in known} | own | dict(parameters)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
