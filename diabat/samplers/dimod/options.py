"""Options of the backend ``dimod``: checks, and the resulting keywords."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from diabat.checks import ArgumentError, is_positive
from diabat.samplers.dimod.target import DimodLike, accepted_parameters

Scale = float | Literal["fit"]


def refuse_beside_default(**given: Any) -> None:
    """Raise ValueError for options that need a sampler, if none is given."""
    for name, value in given.items():
        if value is not None:
            raise ArgumentError("sampler", f"expected a dimod sampler or its name with {name}, got None.")


def check_scale(scale: Scale | None) -> Scale:
    """Return the factor of the programmed values; 1 for None.

    Raises:
        ValueError: If it is neither a positive number nor 'fit'.
    """
    if scale is None:
        return 1.0
    if isinstance(scale, str) and scale == "fit":
        return "fit"
    if not is_positive(scale):
        raise ArgumentError("scale", f"expected a positive number or 'fit', got {scale!r}.")
    return float(scale)


def check_law(law: str | None, scale: Scale, estimated: bool) -> None:
    """Raise ValueError unless the law is None, or ``boltzmann`` without options that contradict it."""
    if law is None:
        return
    if law != "boltzmann":
        raise ArgumentError("law", f"expected 'boltzmann', or None for an unspecified law, got {law!r}.")
    if scale != 1.0:
        raise ArgumentError(
            "law", f"'boltzmann' cannot be combined with scale={scale!r}, because its law has beta = 1."
        )
    if estimated:
        raise ArgumentError(
            "law", "'boltzmann' cannot be combined with beta='estimate', which fits a temperature to any law."
        )


def call_keywords(target: DimodLike, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords of every call: those of the user, with some hardware defaults switched off."""
    # auto_scale is True by default on hardware; raw answers preserve the order of the reads.
    defaults, known = {"auto_scale": False, "answer_mode": "raw"}, accepted_parameters(target)
    return {name: value for name, value in defaults.items() if name in known} | dict(parameters)
