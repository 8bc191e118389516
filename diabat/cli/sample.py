"""``diabat sample``: marginals, log Z or reads of one problem from a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diabat.checks import ArgumentError
from diabat.cli import arguments
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
    problem: arguments.ProblemArgument,
    config: arguments.ConfigArgument = None,
    overrides: arguments.OverridesArgument = None,
    num_reads: ReadsOption = None,
    beta: arguments.BetaOption = None,
    samples: SamplesOption = False,
    correlations: PairsOption = False,
    compare: CompareOption = None,
    lowest: LowestOption = False,
    dry_run: DryOption = False,
    trust: arguments.TrustOption = False,
    as_json: arguments.JsonOption = False,
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
    resolved = arguments.load(config, overrides, trust=trust)
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
        _report_moments(loaded, backend, found, None if other is None else compared(found, *other), as_json)


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
    errors, correlation = moments.standard_error, moments.correlation
    if correlation is not None and problem.binary:  # <x x'> of the variables x = (1 + s)/2
        m = moments.magnetization
        correlation = (1 + m[:, None] + m + correlation) / 4

    def show() -> None:
        up = "P(1)" if problem.binary else "P(+1)"
        labels, kind = [str(label) for label in problem.labels], "variable" if problem.binary else "spin"
        columns: dict[str, tuple[Tensor | None, str]] = {
            up: (moments.probability, ".6g"),
            "std. error": (errors, ".2g"),
        }
        if not problem.binary:  # the mean of 0 and 1 is P(1)
            columns["<s>"] = moments.magnetization, "+.6f"
        if comparison is not None:
            columns[f"{up}, {comparison.backend}"] = comparison.probability, ".6g"
            columns["error" if comparison.exact else "difference"] = comparison.difference, "+.2g"
        cells = [
            [
                "-" if values is None or not seen else f"{float(values[j]):{form}}"
                for values, form in columns.values()
            ]
            for j, seen in enumerate(moments.visible.tolist())
        ]
        rows = [[label, *row] for label, row in zip(labels, cells, strict=True)]
        print_table("Marginals", [kind, *columns], rows, right=[*columns])
        if correlation is not None:
            grid = [
                [label, *(f"{c:+.4f}" for c in row)]
                for label, row in zip(labels, correlation.tolist(), strict=True)
            ]
            corner = "<x x'>" if problem.binary else "<s s'>"
            print_table("Pair correlations", [corner, *labels], grid, right=labels)
        if moments.log_partition is not None:
            typer.echo(f"log Z = {float(moments.log_partition):.9g}")

    found = {name: getattr(moments, name) for name in ("probability", "standard_error", "log_partition")}
    found["correlation"] = correlation
    found["comparison"] = None if comparison is None else comparison._asdict()
    _report(problem, backend, moments, found, show, as_json, None if errors is None else float(errors.max()))
    if comparison is not None and not as_json:
        _print_comparison(comparison)


def _report_samples(problem: Problem, backend: Sampler, samples: Samples, as_json: bool) -> None:
    """Print the distinct states, most frequent first; as JSON every read."""

    def show() -> None:
        states, place, counts = samples.spins.unique(dim=0, return_inverse=True, return_counts=True)
        shares = samples.weights.new_zeros(len(states)).index_add(0, place, samples.weights)
        columns = (column.tolist() for column in (states, problem.energy(states), counts, shares))
        found = sorted(zip(*columns, strict=True), key=lambda row: (-row[3], row[1], row[0]))
        rows = [
            (_drawn(problem, state), f"{energy:.6g}", str(count), f"{share:.4f}")
            for state, energy, count, share in found[:_SHOWN_STATES]
        ]
        typer.echo(_order(problem))
        print_table("Reads", ("state", "energy", "reads", "share"), rows, right=("energy", "reads", "share"))
        if len(found) > _SHOWN_STATES:
            typer.echo(f"{len(found) - _SHOWN_STATES} more states; --json prints every read.")

    found = {
        "states": problem.states(samples.spins),
        "energy": problem.energy(samples.spins),
        "weights": None,
    }
    _report(problem, backend, samples, found, show, as_json)


def _report_lowest(problem: Problem, backend: Sampler, samples: Samples, as_json: bool) -> None:
    """Print the state of lowest energy; as JSON also where it was found."""
    spins = samples.lowest().spins
    energy = float(problem.energy(spins))
    place = "reads" if samples.tracked is None else "sweeps"

    def show() -> None:
        typer.echo(_order(problem))
        row = (_drawn(problem, spins.tolist()), f"{energy:.9g}", place)
        print_table("Lowest energy", ("state", "energy", "of all"), [row], right=("energy",))

    found = {"state": problem.states(spins), "energy": energy, "of": place}
    _report(problem, backend, samples, found, show, as_json)


def _report(
    problem: Problem,
    backend: Sampler,
    answer: Moments | Samples,
    found: dict[str, Any],
    show: Callable[[], None],
    as_json: bool,
    error: float | None = None,
) -> None:
    """Print what was found with the law of the backend, the expected error and diagnostics; bad ones are marked."""
    from diabat.runs.quality import quality
    from diabat.samplers.diagnostics import LAWS

    reads, info = answer.num_reads, answer.info
    known = quality(backend, info, reads, error)
    if as_json:
        labels = [v if isinstance(v, int | str) else str(v) for v in problem.labels]
        names = {"labels": labels, "vartype": "BINARY" if problem.binary else "SPIN", "beta": problem.beta}
        print_json(names | found | {"num_reads": reads, "info": info} | known)
        return
    show()
    origin = "computed" if reads is None else f"{reads} reads, seed {info.get('seed')}"
    typer.echo(f"{info.get('backend')}: {origin}, {info.get('wall_s', 0.0):.3g} s")
    exact = ", exact to rounding" if known["exact"] else ""
    typer.echo(f"Law: {LAWS[known['law']]} at beta = {problem.beta:g}{exact}.")
    if not known["exact"] and known["expected_error"]:
        typer.echo(f"Expected error: {known['expected_error']}.")
    if error is not None:
        typer.echo(f"Largest standard error of P: {error:.2g}.")
    for fact in known["diagnostics"]:
        value = fact["value"]
        text = ("yes" if value else "no") if isinstance(value, bool) else f"{value:.3g}"
        limit = "" if fact["ok"] is None else f" (good: {fact['expected']})"
        mark = f"  BAD: {fact['advice']}" if fact["ok"] is False else ""
        typer.echo(f"  {fact['label']}: {text}{limit}{mark}")


def _order(problem: Problem) -> str:
    return f"{'Variables' if problem.binary else 'Spins'} in order: {' '.join(map(str, problem.labels))}"


def _drawn(problem: Problem, spins: Sequence[int]) -> str:
    """A state as characters: + and -, or 1 and 0."""
    down, up = "01" if problem.binary else "-+"
    return "".join(up if s > 0 else down for s in spins)


def _print_comparison(found: Comparison) -> None:
    """Print the differences in one line."""
    from diabat.samplers.diagnostics import LAWS

    kind = "error" if found.exact else "difference"
    law = "" if found.exact else f", whose law is {LAWS[found.law]}"
    noise = "" if found.standard_error is None else ", and whose P are averages over reads"
    typer.echo(
        f"Against {found.backend}: mean |{kind}| of P {found.mean:.2g}, largest {found.largest:.2g}{law}{noise}."
    )
