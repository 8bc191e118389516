"""Backends by name, and the base samplers of composites.

Third-party packages add theirs under the entry-point group ``diabat.samplers``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from diabat.checks import ArgumentError, ArgumentTypeError, check_choice, did_you_mean
from diabat.samplers import state
from diabat.samplers.base import Sampler

GROUP = "diabat.samplers"

# Built-in backends are listed here, not in the installed metadata, so that a source checkout works.
_BUILT_IN = {
    "exact": "diabat.samplers.exact:ExactSampler",
    "banded": "diabat.samplers.banded:BandedSampler",
    "mean_field": "diabat.samplers.mean_field:MeanFieldSampler",
    "dqa": "diabat.samplers.dqa:DQASampler",
    "refine": "diabat.samplers.refine:RefineSampler",
    "tempering": "diabat.samplers.tempering:TemperingSampler",
    "dimod": "diabat.samplers.dimod:DimodSampler",
    "distributed": "diabat.samplers.distributed:DistributedSampler",
}
_registered: dict[str, Callable[..., Sampler]] = {}


def register(name: str, factory: Callable[..., Sampler]) -> None:
    """Register a backend for this process; packages use an entry point instead.

    Raises:
        ValueError: If another factory has this name.
    """
    if name in _BUILT_IN or _registered.get(name, factory) is not factory:
        raise ArgumentError("name", "an unused name", f"'{name}', which already exists")
    _registered[name] = factory


def available_backends() -> list[str]:
    """Names of all backends: built-in, registered, and from installed packages."""
    return sorted({*_BUILT_IN, *_registered, *_third_party()})


def backend_factory(name: str) -> Callable[..., Sampler]:
    """Return the class or factory behind a name, importing it now; ValueError if no backend has this name."""
    if name not in _registered and name not in _BUILT_IN:
        check_choice("sampler", name, available_backends())
    if name in _BUILT_IN:
        return EntryPoint(name, _BUILT_IN[name], GROUP).load()
    return _registered.get(name) or _third_party()[name].load()


def sampler(name: str, /, **options: Any) -> Sampler:
    """Build a backend by name, e.g. ``sampler("dqa", engine="aer", annealing_time_ns=5.0)``.

    Raises:
        ValueError: If the name is unknown, or an option has a bad value.
        TypeError: If an option is unknown; the message gives the nearest valid one.
    """
    return _built(name, options)


def _built(name: str, options: Mapping[str, Any]) -> Sampler:
    factory = backend_factory(name)
    parameters = inspect.signature(factory).parameters
    known = [name for name, p in parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    takes_anything = any(p.kind == p.VAR_KEYWORD for p in parameters.values())
    for option in options:
        if option not in known and not takes_anything:
            hint = did_you_mean(option, known) or f" It accepts {', '.join(known) or 'no options'}."
            if name == "dimod":
                hint += " Keywords of the sampler's own sample() go into parameters={...}."
            raise TypeError(f"sampler '{name}' has no option '{option}'.{hint}")
    return factory(**options)


def as_sampler(value: Sampler | str) -> Sampler:
    """Accept a sampler or the name of one."""
    if isinstance(value, Sampler):
        return value
    if isinstance(value, str):
        return sampler(value)
    raise ArgumentTypeError("sampler", "a diabat Sampler or its name", type(value).__name__)


def build_base(
    sampler: str | Sampler,
    options: Mapping[str, Any] | None,
    *,
    samples: bool = True,
    remembers: bool = True,
    not_learnable: str = "",
) -> Sampler:
    """Build the base of a composite.

    Args:
        sampler: A name, or a sampler.
        options: Options of the base, if ``sampler`` is a name.
        samples: Whether it has to draw samples.
        remembers: Whether it may continue from its last call: the order of calls would then depend on the workers.
        not_learnable: Why it must not have learnable parameters, such as "because reads cannot train them".

    Raises:
        ValueError: If an option has a bad value, ``options`` are given with a sampler object, or the base does not fit.
        TypeError: If ``sampler`` is neither name nor sampler, or the base has no such option.
    """
    base = _base(sampler, options)
    wrong = ""
    if samples and not base.capabilities.samples:
        wrong = f"a backend that draws samples, got '{base.name}', which computes moments only."
    elif not remembers and state.remembers(base):
        wrong = f"a base without state between calls, got '{base.name}' with persistent=True."
    elif not_learnable and (count := len(list(base.parameters()))):
        wrong = f"a base without learnable parameters, {not_learnable}, got '{base.name}' with {count}."
    if wrong:
        raise ArgumentError("sampler", f"expected {wrong}")
    return base


def _base(sampler: str | Sampler, options: Mapping[str, Any] | None) -> Sampler:
    if not isinstance(sampler, str):
        if options is not None:
            reason = f"cannot be combined with a sampler object, got {sorted(options)}."
            raise ArgumentError("options", reason)
        return as_sampler(sampler)
    if options is not None and not isinstance(options, Mapping):
        raise ArgumentError("options", "a mapping of names to values", f"{options!r}")
    backend_factory(sampler)  # an unknown name is an error of ``sampler``, later errors are of ``options``
    try:
        return _built(sampler, options or {})
    except (ValueError, TypeError) as error:
        kind = ArgumentTypeError if isinstance(error, TypeError) else ArgumentError
        raise kind("options", str(error)) from error


def _third_party() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP) if point.name not in _BUILT_IN}
