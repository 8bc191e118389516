"""How good an answer of ``diabat sample`` is: law, expected error, diagnostics, and another backend beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

if TYPE_CHECKING:
    from torch import Tensor

    from diabat.ising import Ising
    from diabat.samplers.answers import Moments
    from diabat.samplers.base import Sampler


class Comparison(NamedTuple):
    """Marginals of another backend, and how far the answer is from them.

    Attributes:
        backend: Name of the other one.
        law: Its law.
        exact: Whether it is exact, so that differences are errors.
        probability: Its P(s = +1), [n].
        difference: The answer's minus its own, [n].
        largest: Largest |difference| over visible spins.
        mean: Mean of the same.
        standard_error: Of its probabilities where it samples, [n].
    """

    backend: str
    law: str
    exact: bool
    probability: Tensor
    difference: Tensor
    largest: float
    mean: float
    standard_error: Tensor | None


def other_moments(name: str, ising: Ising, seed: int | None) -> tuple[Sampler, Moments]:
    """Ask the backend of ``--compare``, built with its defaults.

    Raises:
        ConfigError: If there is none of this name, it cannot be built, or it refuses the problem.
    """
    from diabat.checks import ArgumentError
    from diabat.config.errors import ConfigError
    from diabat.samplers.base import UnsupportedError
    from diabat.samplers.registry import sampler

    try:
        other = sampler(name)
        return other, other.moments(ising, seed=seed)
    except UnsupportedError as error:
        raise ConfigError(f"--compare {name}", str(error)) from error
    except ArgumentError as error:
        raise ConfigError("--compare", error.reason if error.argument == "sampler" else str(error)) from error
    except (ValueError, TypeError, ImportError) as error:
        raise ConfigError("--compare", str(error)) from error


def compared(moments: Moments, other: Sampler, found: Moments) -> Comparison:
    """Put the marginals of another backend beside an answer."""
    difference = moments.probability.detach() - found.probability.detach().to(moments.probability)
    seen = difference[moments.visible].abs()
    return Comparison(
        other.name,
        other.capabilities.law,
        other.capabilities.exact and found.num_reads is None,
        found.probability.detach(),
        difference,
        float(seen.max()) if len(seen) else 0.0,
        float(seen.mean()) if len(seen) else 0.0,
        found.standard_error,
    )


def quality(
    backend: Sampler, info: Mapping[str, Any], num_reads: int | None, error: float | None = None
) -> dict[str, Any]:
    """What is known of the quality of an answer, as JSON shows it.

    Args:
        backend: Who answered.
        info: That of the answer.
        num_reads: Reads behind it, None for analytic answers.
        error: Largest standard error of P(+1), of averages over reads.
    """
    from diabat.samplers.diagnostics import diagnostics

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


def print_quality(found: dict[str, Any]) -> None:
    """Print law, expected error and diagnostics, the bad ones marked."""
    from diabat.samplers.diagnostics import LAWS

    exact = ", exact to rounding" if found["exact"] else ""
    typer.echo(f"Law: {LAWS[found['law']]}{exact}.")
    if not found["exact"] and found["expected_error"]:
        typer.echo(f"Expected error: {found['expected_error']}.")
    if found["largest_standard_error"] is not None:
        typer.echo(f"Largest standard error of P(+1): {found['largest_standard_error']:.2g}.")
    for fact in found["diagnostics"]:
        value = (
            ("yes" if fact["value"] else "no") if isinstance(fact["value"], bool) else f"{fact['value']:.3g}"
        )
        limit = "" if fact["ok"] is None else f" (good: {fact['expected']})"
        mark = f"  BAD: {fact['advice']}" if fact["ok"] is False else ""
        typer.echo(f"  {fact['label']}: {value}{limit}{mark}")


def print_comparison(found: Comparison) -> None:
    """Print the differences in one line."""
    from diabat.samplers.diagnostics import LAWS

    kind = "error" if found.exact else "difference"
    law = "" if found.exact else f", whose law is {LAWS[found.law]}"
    noise = "" if found.standard_error is None else ", and whose P(+1) are averages over reads"
    typer.echo(
        f"Against {found.backend}: mean |{kind}| of P(+1) {found.mean:.2g}, largest {found.largest:.2g}{law}{noise}."
    )
