"""``diabat sample``: marginals, log Z or reads of one problem from a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diabat.checks import ArgumentError
from diabat.cli.arguments import (
    BetaOption,
    ConfigArgument,
    JsonOption,
    OverridesArgument,
    ProblemArgument,
    TrustOption,
    load,
)
from diabat.cli.failures import importing
from diabat.cli.output import print_json, print_table

if TYPE_CHECKING:
    from torch import Tensor

    from diabat.ising import Ising
    from diabat.problem_files import Problem
    from diabat.runs.quality import Comparison
    from diabat.samplers.answers import Moments, Samples
    from diabat.samplers.base import Sampler

_SHOWN_STATES = 20

ReadsOption = Annotated[
    int | None, typer.Option(min=1, help="Estimate from this many reads, not from the backend's own moments.")
]
SamplesOption = Annotated[bool, typer.Option("--samples", help="The reads themselves, not marginals.")]
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
    config: ConfigArgument = None,
    overrides: OverridesArgument = None,
    num_reads: ReadsOption = None,
    beta: BetaOption = None,
    samples: SamplesOption = False,
    correlations: PairsOption = False,
    compare: CompareOption = None,
    lowest: LowestOption = False,
    dry_run: DryOption = False,
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Sample one Ising problem, and report the law and the quality of the answer.

    The section sampler chooses the backend (see 'diabat backends'), exact if it is left out; seed=N other reads.
    dimod problems are energies to be minimised, P ~ exp(-beta E).  In the YAML format positive fields favour
    +1 and positive couplings favour agreement.  Energies are those of the file, whatever beta is; log Z is that of
    the law at beta.  Variables of a BINARY model are 0 and 1.
    """
    with importing():
        from diabat.problem_files import read_problem
        from diabat.runs import build_sampler
        from diabat.runs.quality import compared, moments_of, tracking

    kinds = [
        name for name, given in (("lowest", lowest), ("dry_run", dry_run), ("samples", samples)) if given
    ]
    marginal = {"correlations": correlations, "compare": compare is not None}
    if kinds and (others := [*kinds[1:], *(name for name, given in marginal.items() if given)]):
        raise ArgumentError(kinds[0], f"cannot be combined with --{others[0].replace('_', '-')}.")
    resolved = load(config, overrides, trust=trust)
    backend, seed = build_sampler(resolved.sampler), resolved.seed
    loaded = read_problem(problem, beta=beta)
    ising, reads = loaded.ising, num_reads or backend.num_reads
    if dry_run:
        _report_dry_run(backend, ising, reads, seed, as_json)
    elif lowest:
        backend = tracking(backend)
        _report_lowest(loaded, backend, backend.sample(ising, reads, seed=seed), as_json)
    elif samples:
        _report_samples(loaded, backend, backend.sample(ising, reads, seed=seed), as_json)
    else:
        other = None if compare is None else moments_of(compare, ising, seed)  # first: it may refuse
        found = backend.moments(ising, correlations=correlations, num_reads=num_reads, seed=seed)
        beside = None if other is None else compared(found, *other)
        _report_moments(loaded, backend, found, beside, as_json)


def _report_dry_run(backend: Sampler, ising: Ising, num_reads: int, seed: int, as_json: bool) -> None:
    from diabat.samplers.dimod import DimodSampler

    if not isinstance(backend, DimodSampler):
        raise ArgumentError("dry_run", f"expected backend 'dimod', which submits, got '{backend.name}'.")
    report = backend.dry_run(ising, num_reads, seed=seed)
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
    # The mean of 0 and 1 is P(1).
    columns: tuple[str, ...] = (
        ("variable", up, "std. error") if problem.binary else ("spin", up, "std. error", "<s>")
    )
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
