"""Quality of the answer of ``diabat sample``: law, expected error, diagnostics, and marginals of another backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from diabat.checks import ArgumentError
from diabat.samplers.diagnostics import diagnostics
from diabat.samplers.registry import sampler

if TYPE_CHECKING:
    from diabat.ising import Ising
    from diabat.samplers.answers import Moments
    from diabat.samplers.base import Sampler


def moments_of(name: str, ising: Ising, seed: int) -> tuple[Sampler, Moments]:
    """A backend with its defaults, to compare with, and its moments.

    Raises:
        ArgumentError: ``compare``, if no backend has this name, it cannot be built, or it refuses the problem.
    """
    try:
        other = sampler(name)
        return other, other.moments(ising, seed=seed)
    except (ValueError, TypeError, ImportError) as error:
        named = isinstance(error, ArgumentError) and error.argument == "sampler"
        raise ArgumentError("compare", str(error.args[-1] if named else error)) from error


def tracking(backend: Sampler) -> Sampler:
    """The backend, with ``track_lowest`` if it is ``tempering``."""
    if backend.name != "tempering":
        return backend
    return sampler("tempering", **{**backend.options, "track_lowest": True})


def compared(moments: Moments, other: Sampler, found: Moments) -> dict[str, Any]:
    """Marginals of another backend, and the differences of the answer from them.

    Returns:
        backend, law, exact (then differences are errors), probability P(s = +1) and standard_error of the other
        backend and difference, each [n]; largest and mean |difference| over visible spins.
    """
    difference = moments.probability.detach() - found.probability.detach().to(moments.probability)
    seen = difference[moments.visible].abs()
    return {
        "backend": other.name,
        "law": other.capabilities.law,
        "exact": other.capabilities.exact and found.num_reads is None,
        "probability": found.probability.detach(),
        "difference": difference,
        "largest": float(seen.max()) if len(seen) else 0.0,
        "mean": float(seen.mean()) if len(seen) else 0.0,
        "standard_error": found.standard_error,
    }


def quality(
    backend: Sampler, info: Mapping[str, Any], num_reads: int | None, error: float | None = None
) -> dict[str, Any]:
    """Quality of an answer, as plain values for JSON.

    Args:
        backend: The backend that computed the answer.
        info: ``info`` of the answer.
        num_reads: Number of reads, None for analytic answers.
        error: Largest standard error of P(+1) of averages over reads.
    """
    able = backend.capabilities
    expected = backend.expected_error
    if able.exact:
        expected = "rounding" if num_reads is None else "the noise of independent reads"
    return {
        "law": able.law,
        "exact": able.exact and num_reads is None,
        "expected_error": expected,
        "largest_standard_error": error,
        "diagnostics": [found._asdict() for found in diagnostics(backend.watched, info)],
    }
