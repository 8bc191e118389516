"""Quality of a backend's answer: law, expected error, diagnostics, and comparison with another backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from diabat.checks import ArgumentError
from diabat.samplers.diagnostics import diagnostics
from diabat.samplers.registry import sampler

if TYPE_CHECKING:
    from torch import Tensor

    from diabat.ising import Ising
    from diabat.samplers.answers import Moments
    from diabat.samplers.base import Sampler


class Comparison(NamedTuple):
    """Marginals of another backend, and the differences of the answer from them.

    Attributes:
        backend: Name of the other backend.
        law: Its law.
        exact: Whether it is exact, so that differences are errors.
        probability: Its P(s = +1), [n].
        difference: P(s = +1) of the answer minus that of the other backend, [n].
        largest: Largest |difference| over visible spins.
        mean: Mean |difference| over visible spins.
        standard_error: Standard errors of its probabilities if it samples, [n].
    """

    backend: str
    law: str
    exact: bool
    probability: Tensor
    difference: Tensor
    largest: float
    mean: float
    standard_error: Tensor | None


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


def compared(moments: Moments, other: Sampler, found: Moments) -> Comparison:
    """Compare an answer with the marginals of another backend."""
    difference = moments.probability.detach() - found.probability.detach().to(moments.probability)
    seen = difference[moments.visible].abs()
    exact = other.capabilities.exact and found.num_reads is None
    largest, mean = (float(seen.max()), float(seen.mean())) if len(seen) else (0.0, 0.0)
    of = other.name, other.capabilities.law, exact, found.probability.detach()
    return Comparison(*of, difference, largest, mean, found.standard_error)


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
