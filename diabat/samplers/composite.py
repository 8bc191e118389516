"""What the composite backends share: building the backend that they stand on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diabat.checks import ArgumentError, ArgumentTypeError
from diabat.samplers import registry
from diabat.samplers.base import Sampler


def build_base(sampler: str | Sampler, options: Mapping[str, Any] | None) -> Sampler:
    """Build the base of a composite.

    Args:
        sampler: A name, or a sampler.
        options: Options of the base, if it is given by name.

    Raises:
        ValueError: If an option has a bad value, or ``options`` come with a sampler that is built already.
        TypeError: If ``sampler`` is neither name nor sampler, or the base has no such option.
    """
    if not isinstance(sampler, str):
        if options is not None:
            raise ArgumentError(
                "options", f"expected None with a sampler that is built already, got {sorted(options)}."
            )
        return registry.as_sampler(sampler)
    if options is not None and not isinstance(options, Mapping):
        raise ArgumentError("options", f"expected a mapping of names to values, got {options!r}.")
    registry.backend_factory(sampler)  # an unknown name is about ``sampler``, what follows about ``options``
    try:
        return registry.sampler(sampler, **(options or {}))
    except (ValueError, TypeError) as error:
        kind = ArgumentTypeError if isinstance(error, TypeError) else ArgumentError
        raise kind("options", str(error)) from error


def refuse_memory(base: Sampler) -> None:
    """Refuse a base that goes on from its last call: which call is the last one depends on the workers.

    Raises:
        ValueError: If the sampler, or one that it stands on, is persistent.
    """
    if base.remembers:
        raise ArgumentError(
            "sampler",
            f"expected a base that begins anew at every call, got '{base.name}' with persistent=True.",
        )
