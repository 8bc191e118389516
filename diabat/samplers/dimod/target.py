"""The dimod sampler behind the backend: import by name, accepted keywords, and identity for the cache."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from diabat.checks import ArgumentError, ArgumentTypeError, did_you_mean
from diabat.samplers.dimod.packing import Biases
from diabat.scrubbing import refuse_secrets, safe_message


@runtime_checkable
class DimodLike(Protocol):
    """The used part of the interface of ``dimod.Sampler`` and composites."""

    parameters: Any
    properties: Any

    def sample(self, bqm: Any, **parameters: Any) -> Any:
        """Sample a binary quadratic model; returns a sample set."""


@runtime_checkable
class Placing(Protocol):
    """The used part of ``TiledComposite``: a composite that tells what it programs."""

    spins: int

    def batches(self, bqm: Any) -> list[list[int]]:
        """Variables of the submissions that a model needs."""

    def programmed(self, bqm: Any) -> Biases:
        """What is programmed on the chip for a model of one submission."""


def resolve(sampler: str | DimodLike, options: Mapping[str, Any] | None, name: str = "sampler") -> DimodLike:
    """Build a sampler from ``module:name`` and options, or return a sampler object.

    Importing a module executes it.  The named object is called only if it is a class of dimod samplers.  ``name`` is
    that of the argument, for messages.

    Raises:
        ValueError: If the name does not exist, the package is not installed, or importing or building it fails.
        TypeError: If it is not a dimod sampler, or the name is not that of a class of dimod samplers.
    """
    of_options = "options" if name == "sampler" else f"{name}_options"
    if isinstance(sampler, str):
        refuse_secrets(of_options, options or {})
        sampler = _build(sampler, dict(options or {}), name)
    elif options is not None:
        raise ArgumentError(of_options, f"cannot be combined with a sampler object, got {sorted(options)}.")
    if isinstance(sampler, type) or not isinstance(sampler, DimodLike):
        raise ArgumentTypeError(
            name, f"expected a dimod sampler or its name 'module:name', got {_kind(sampler)}."
        )
    return sampler


def _kind(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"


def _build(text: str, options: dict[str, Any], name: str) -> Any:
    module, _, attribute = text.partition(":")
    if not attribute.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise ArgumentError(
            name,
            "expected a dimod sampler or its name 'module:name', such as "
            f"'dwave.samplers:SimulatedAnnealingSampler', got {text!r}.",
        )
    try:
        found = getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise ValueError(missing_package(error, f"{name}: '{text}'")) from None
    except AttributeError:
        raise ArgumentError(name, f"expected a name in the module {module}, got '{attribute}'.") from None
    except Exception as error:  # importing a module can raise any type
        raise ArgumentError(name, f"'{text}' cannot be imported: {safe_message(error)}") from None
    import dimod

    # Functions, and classes that are not dimod samplers, must not be called.
    if not (isinstance(found, type) and issubclass(found, dimod.Sampler)):
        raise ArgumentTypeError(
            name, f"expected the name of a class of dimod samplers, got '{text}', {_kind(found)}."
        )
    try:
        return found(**options)
    except Exception as error:  # constructors can raise any type, and the message may contain a token
        raise ArgumentError(name, f"'{text}' cannot be built: {safe_message(error)}") from None


def missing_package(error: ImportError, what: str) -> str:
    """One sentence that names the package to install."""
    package = (error.name or "").partition(".")[0]
    if package in ("dwave", "minorminer", "networkx"):
        return f"{what} needs the extra dwave: pip install -e '.[dwave]'."
    return f"{what} needs a package that is not installed: {error}."


def family(sampler: Any) -> Iterator[Any]:
    """The sampler and its children, outermost first."""
    yield sampler
    for child in getattr(sampler, "children", None) or ():
        yield from family(child)


def device_properties(sampler: DimodLike) -> Mapping[str, Any]:
    """Merged properties of the family; the innermost sampler, which is the device, has precedence."""
    found: dict[str, Any] = {}
    for member in family(sampler):
        found |= dict(getattr(member, "properties", None) or {})
    return found


def accepted_parameters(sampler: DimodLike) -> set[str]:
    """Keywords of ``sample``: the declared ones and those of its signature."""
    named = inspect.signature(sampler.sample).parameters.values()
    own = {p.name for p in named if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)} - {"bqm", "self"}
    return own | set(sampler.parameters)


def check_parameters(sampler: DimodLike, parameters: Mapping[str, Any]) -> None:
    """Refuse unknown keywords, which many dimod samplers silently ignore.

    Raises:
        TypeError: If a keyword is unknown; the message gives the nearest one.
        ValueError: If the backend sets the keyword itself, or it is named like a token.
    """
    refuse_secrets("parameters", parameters)
    known = accepted_parameters(sampler)
    for name in parameters:
        if name in ("num_reads", "seed"):
            raise ArgumentError("parameters", f"expected no '{name}', which is given to sample().")
        if name == "max_answers":
            raise ArgumentError("parameters", "expected no 'max_answers', which would cut the reads.")
        if name not in known:
            hint = did_you_mean(name, known) or f" It accepts {', '.join(sorted(known))}."
            raise ArgumentTypeError(
                "parameters", f"{type(sampler).__name__} has no parameter '{name}'.{hint}"
            )
    if "num_reads" not in known:
        raise ArgumentError(
            "sampler", f"expected one that accepts num_reads, got {type(sampler).__name__}, which does not."
        )


def identity(sampler: DimodLike) -> dict[str, Any]:
    """Identity of the sampler for the cache key: classes, solver, graph and properties."""

    def one(member: Any) -> dict[str, str]:
        solver = getattr(member, "solver", None)
        return {
            "class": f"{type(member).__module__}.{type(member).__qualname__}",
            "solver": str(getattr(solver, "name", "")),
            "graph": str(getattr(solver, "graph_id", "")),
            "properties": _digest(getattr(member, "properties", None) or {}),
        }

    return {"sampler": [one(member) for member in family(sampler)]}


# Load and statistics change daily and are excluded; a new calibration changes the graph or a range.
_VOLATILE = ("avg_load", "problem_timing_data", "child_properties")


def _digest(properties: Mapping[str, Any]) -> str:
    kept = {str(key): value for key, value in properties.items() if key not in _VOLATILE}
    text = json.dumps(kept, sort_keys=True, default=lambda value: type(value).__name__)
    return hashlib.sha256(text.encode()).hexdigest()
