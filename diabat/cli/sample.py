"""``diabat sample``: marginals, log Z or reads of one problem from a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diabat.checks import ArgumentError
from diabat.cli.arguments import JsonOption, TrustOption, as_overrides
from diabat.cli.failures import importing, naming
from diabat.cli.output import print_json, print_table

if TYPE_CHECKING:
    from torch import Tensor

    from diabat.ising import Ising
    from diabat.problem_files import Problem
    from diabat.runs.quality import Comparison
    from diabat.samplers.answers import Moments, Samples
    from diabat.samplers.base import Sampler

_SHOWN_STATES = 20

ProblemArgument = Annotated[
    Path,
    typer.Argument(metavar="PROBLEM", help="dimod JSON, COO text, or YAML; - reads standard input."),
]
OverridesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Dotted overrides, e.g. sampler.backend=tempering sampler.sweeps=256.",
    ),
]
SamplerOption = Annotated[
    str | None, typer.Option(help="Backend; see 'diabat backends'. exact if left out.", show_default=False)
]
ConfigOption = Annotated[
    str | None,
    typer.Option(
        metavar="CONFIG", help="Take the section sampler of this file, run or shipped configuration."
    ),
]
BackendOptions = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="KEY=VALUE", help="Short for sampler.KEY=VALUE; may be repeated."),
]
ReadsOption = Annotated[
    int | None, typer.Option(min=1, help="Estimate from this many reads, not from the backend's own moments.")
]
SeedOption = Annotated[
    int | None,
    typer.Option(
        min=0, max=2**63 - 1, help="Same seed, same reads; drawn and reported if left out.", metavar="INTEGER"
    ),
]
BetaOption = Annotated[float | None, typer.Option(help="Inverse temperature beta of the law exp(-beta E).")]
KindOption = Annotated[bool, typer.Option("--moments/--samples", help="Marginals, or the reads themselves.")]
PairsOption = Annotated[bool, typer.Option("--correlations", help="Also report pair correlations.")]
CompareOption = Annotated[
    str | None,
    typer.Option(
        metavar="BACKEND",
        help="Also show the marginals of this backend for comparison, e.g. exact.",
        show_default=False,
    ),
]
LowestOption = Annotated[
    bool,
    typer.Option(
        "--lowest",
        help="Show the state of lowest energy: of all sweeps of 'tempering', of the reads of other backends.",
    ),
]
DryOption = Annotated[bool, typer.Option("--dry-run", help="Show what 'dimod' would submit; submit nothing.")]


def sample_problem(
    problem: ProblemArgument,
    overrides: OverridesArgument = None,
    sampler: SamplerOption = None,
    config: ConfigOption = None,
    options: BackendOptions = None,
    num_reads: ReadsOption = None,
    seed: SeedOption = None,
    beta: BetaOption = None,
    moments: KindOption = True,
    correlations: PairsOption = False,
    compare: CompareOption = None,
    lowest: LowestOption = False,
    dry_run: DryOption = False,
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Sample one Ising problem, and report the law and the quality of the answer.

    dimod problems are energies to be minimised, P ~ exp(-beta E).  In the YAML format positive fields favour
    +1 and positive couplings favour agreement.  Energies are those of the file, whatever beta is; log Z is that of
    the law at beta.  Variables of a BINARY model are 0 and 1.
    """
    with importing():
        from diabat.config.errors import ConfigError
        from diabat.problem_files import read_problem
        from diabat.runs.quality import compared

    changes = [*(f"sampler.{text}" for text in options or ()), *(overrides or ())]
    backend = _build(sampler, config, changes, trust)
    with naming({"beta": "--beta"}):
        loaded = read_problem(problem, beta=beta)
    if compare is not None and (dry_run or not moments):
        raise ConfigError(
            "--compare", f"expected marginals to compare, got {'--dry-run' if dry_run else '--samples'}."
        )
    if lowest and (dry_run or correlations or compare is not None):
        concerned = "--dry-run" if dry_run else "--correlations" if correlations else "--compare"
        raise ConfigError("--lowest", f"cannot be combined with {concerned}.")
    ising, reads = loaded.ising, num_reads or backend.num_reads
    if dry_run:
        _report_dry_run(backend, ising, reads, seed, as_json)
    elif lowest:
        backend = _tracking(backend)
        _report_lowest(loaded, backend, backend.sample(ising, reads, seed=seed), as_json)
    elif not moments:
        _report_samples(loaded, backend, backend.sample(ising, reads, seed=seed), as_json)
    else:
        other = None if compare is None else _other_moments(compare, ising, seed)  # first: it may refuse
        found = backend.moments(ising, correlations=correlations, num_reads=num_reads, seed=seed)
        beside = None if other is None else compared(found, *other)
        _report_moments(loaded, backend, found, beside, as_json)


def _build(name: str | None, config: str | None, changes: list[str], trust: bool) -> Sampler:
    """Build the backend of the section ``sampler`` of a configuration; other sections are ignored."""
    from diabat.config import ConfigError, make_config
    from diabat.config.loading import apply_overrides, parse_override, read_document
    from diabat.runs import build_sampler

    # Refused first: other keys of a configuration are valid, but have no effect here.
    for path, value in map(parse_override, changes):
        if path[0] != "sampler":
            raise ConfigError(
                ".".join(path), "expected a key of the section sampler, as in sampler.backend=exact."
            )
        if path == ("sampler", "backend") and name not in (None, value):
            raise ConfigError("--sampler", f"expected '{value}' as in sampler.backend, got '{name}'.")
    every = [*as_overrides({"sampler.backend": name}), *changes]
    document = apply_overrides({}, every) if config is None else read_document(config, every, trust=trust)
    return build_sampler(make_config(document).sampler)


def _tracking(backend: Sampler) -> Sampler:
    """The backend, with ``track_lowest`` if it is ``tempering``."""
    from diabat.samplers.tempering import TemperingSampler

    if not isinstance(backend, TemperingSampler):
        return backend
    return TemperingSampler(**{**backend.options, "track_lowest": True})


def _other_moments(name: str, ising: Ising, seed: int | None) -> tuple[Sampler, Moments]:
    """Compute the moments with the backend of ``--compare``, built with its defaults.

    Raises:
        ConfigError: If no backend has this name, it cannot be built, or it refuses the problem.
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


def _report_dry_run(backend: Sampler, ising: Ising, num_reads: int, seed: int | None, as_json: bool) -> None:
    from diabat.samplers.dimod import DimodSampler

    if not isinstance(backend, DimodSampler):
        raise ArgumentError("--dry-run", f"expected backend 'dimod', which submits, got '{backend.name}'.")
    report = backend.dry_run(ising, num_reads, seed=seed or 0)
    if as_json:
        print_json(dataclasses.asdict(report))
    else:
        typer.echo(str(report))


def _report_moments(
    problem: Problem, backend: Sampler, moments: Moments, comparison: Comparison | None, as_json: bool
) -> None:
    """Print P(+1) and <s> of every spin with standard errors if sampled, pair correlations, log Z, quality."""
    from diabat.runs.quality import quality

    errors = moments.standard_error
    largest = None if errors is None else float(errors.max())
    known = quality(backend, moments.info, moments.num_reads, largest)
    correlation = _correlation(problem, moments)
    if as_json:
        names = ("probability", "standard_error", "log_partition", "num_reads", "info")
        document = _named(problem) | {name: getattr(moments, name) for name in names} | known
        beside = None if comparison is None else comparison._asdict()
        print_json(document | {"correlation": correlation, "comparison": beside})
        return
    up = "P(1)" if problem.binary else "P(+1)"
    columns: tuple[str, ...] = ("spin", up, "std. error", "<s>")
    if problem.binary:  # the mean of 0 and 1 is P(1)
        columns = ("variable", up, "std. error")
    rows = [row[: len(columns)] for row in _marginal_rows(problem, moments)]
    if comparison is not None:
        columns += (f"{up}, {comparison.backend}", "error" if comparison.exact else "difference")
        rows = [row + cells for row, cells in zip(rows, _compared_cells(moments, comparison), strict=True)]
    print_table("Marginals", columns, rows, right=columns[1:])
    if correlation is not None:
        labels = _named(problem)["labels"]
        headings = ("<x x'>" if problem.binary else "<s s'>", *map(str, labels))
        grid = zip(labels, correlation.tolist(), strict=True)
        pairs = [(str(label), *(f"{c:+.4f}" for c in row)) for label, row in grid]
        print_table("Pair correlations", headings, pairs, right=headings[1:])
    if moments.log_partition is not None:
        typer.echo(f"log Z = {float(moments.log_partition):.9g}")
    typer.echo(_origin(moments.info, moments.num_reads))
    _print_quality(known, problem.beta)
    if comparison is not None:
        _print_comparison(comparison)


def _report_samples(problem: Problem, backend: Sampler, samples: Samples, as_json: bool) -> None:
    """Print the distinct states, most frequent first; as JSON every read."""
    from diabat.runs.quality import quality

    known = quality(backend, samples.info, samples.num_reads)
    if as_json:
        weights = None if samples.log_weights is None else samples.weights
        states, energy = problem.states(samples.spins), problem.energy(samples.spins)
        found = {"states": states, "energy": energy, "weights": weights}
        print_json(_named(problem) | found | {"num_reads": samples.num_reads, "info": samples.info} | known)
        return
    rows = _state_rows(problem, samples)
    typer.echo(_order(problem))
    columns = ("state", "energy", "reads", "share")
    print_table("Reads", columns, rows[:_SHOWN_STATES], right=columns[1:])
    if len(rows) > _SHOWN_STATES:
        typer.echo(f"{len(rows) - _SHOWN_STATES} more states; --json prints every read.")
    typer.echo(_origin(samples.info, samples.num_reads))
    _print_quality(known, problem.beta)


def _report_lowest(problem: Problem, backend: Sampler, samples: Samples, as_json: bool) -> None:
    """Print the state of lowest energy; as JSON also where it was found."""
    from diabat.runs.quality import quality

    spins = samples.lowest().spins
    energy = float(problem.energy(spins))
    place = "reads" if samples.tracked is None else "sweeps"
    known = quality(backend, samples.info, samples.num_reads)
    if as_json:
        found = {"state": problem.states(spins), "energy": energy, "of": place}
        print_json(_named(problem) | found | {"num_reads": samples.num_reads, "info": samples.info} | known)
        return
    typer.echo(_order(problem))
    row = (_drawn(problem, spins.tolist()), f"{energy:.9g}", place)
    print_table("Lowest energy", ("state", "energy", "of all"), [row], right=("energy",))
    typer.echo(_origin(samples.info, samples.num_reads))
    _print_quality(known, problem.beta)


def _named(problem: Problem) -> dict[str, Any]:
    """Names and values of the variables and the inverse temperature, for JSON."""
    labels = [v if isinstance(v, int | str) else str(v) for v in problem.labels]
    return {"labels": labels, "vartype": "BINARY" if problem.binary else "SPIN", "beta": problem.beta}


def _order(problem: Problem) -> str:
    what = "Variables" if problem.binary else "Spins"
    return f"{what} in order: {' '.join(map(str, problem.labels))}"


def _correlation(problem: Problem, moments: Moments) -> Tensor | None:
    """<s s'>, or <x x'> = (1 + <s> + <s'> + <s s'>)/4 of the variables x = (1 + s)/2 of a binary model."""
    C, m = moments.correlation, moments.magnetization
    return C if C is None or not problem.binary else (1 + m[:, None] + m + C) / 4


def _compared_cells(moments: Moments, comparison: Comparison) -> list[tuple[str, str]]:
    found = zip(
        comparison.probability.tolist(), comparison.difference.tolist(), moments.visible.tolist(), strict=True
    )
    return [(f"{p:.6g}", f"{d:+.2g}") if visible else ("-", "-") for p, d, visible in found]


def _marginal_rows(problem: Problem, moments: Moments) -> list[tuple[str, ...]]:
    given = moments.standard_error
    errors = ["-"] * len(problem.labels) if given is None else [f"{error:.2g}" for error in given.tolist()]
    cells = (moments.probability.tolist(), errors, moments.magnetization.tolist(), moments.visible.tolist())
    return [
        (str(label), f"{p:.6g}", error, f"{m:+.6f}") if visible else (str(label), "-", "-", "-")
        for label, p, error, m, visible in zip(problem.labels, *cells, strict=True)
    ]


def _state_rows(problem: Problem, samples: Samples) -> list[tuple[str, ...]]:
    """Distinct states with energy, reads and share, the most frequent ones first."""
    found, place, counts = samples.spins.unique(dim=0, return_inverse=True, return_counts=True)
    shares = samples.weights.new_zeros(len(found)).index_add(0, place, samples.weights)
    columns = (found, problem.energy(found), counts, shares)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [
        (_drawn(problem, state), f"{energy:.6g}", str(count), f"{share:.4f}")
        for state, energy, count, share in sorted(rows, key=lambda row: (-row[3], row[1], row[0]))
    ]


def _drawn(problem: Problem, spins: Sequence[int]) -> str:
    """A state as characters: + and -, or 1 and 0."""
    down, up = "01" if problem.binary else "-+"
    return "".join(up if s > 0 else down for s in spins)


def _origin(info: Mapping[str, Any], num_reads: int | None) -> str:
    reads = "computed" if num_reads is None else f"{num_reads} reads, seed {info.get('seed')}"
    return f"{info.get('backend')}: {reads}, {info.get('wall_s', 0.0):.3g} s"


def _print_quality(found: dict[str, Any], beta: float) -> None:
    """Print law, expected error and diagnostics; bad diagnostics are marked."""
    from diabat.samplers.diagnostics import LAWS

    exact = ", exact to rounding" if found["exact"] else ""
    typer.echo(f"Law: {LAWS[found['law']]} at beta = {beta:g}{exact}.")
    if not found["exact"] and found["expected_error"]:
        typer.echo(f"Expected error: {found['expected_error']}.")
    if found["largest_standard_error"] is not None:
        typer.echo(f"Largest standard error of P: {found['largest_standard_error']:.2g}.")
    for fact in found["diagnostics"]:
        value = (
            ("yes" if fact["value"] else "no") if isinstance(fact["value"], bool) else f"{fact['value']:.3g}"
        )
        limit = "" if fact["ok"] is None else f" (good: {fact['expected']})"
        mark = f"  BAD: {fact['advice']}" if fact["ok"] is False else ""
        typer.echo(f"  {fact['label']}: {value}{limit}{mark}")


def _print_comparison(found: Comparison) -> None:
    """Print the differences in one line."""
    from diabat.samplers.diagnostics import LAWS

    kind = "error" if found.exact else "difference"
    law = "" if found.exact else f", whose law is {LAWS[found.law]}"
    noise = "" if found.standard_error is None else ", and whose P are averages over reads"
    typer.echo(
        f"Against {found.backend}: mean |{kind}| of P {found.mean:.2g}, largest {found.largest:.2g}{law}{noise}."
    )
