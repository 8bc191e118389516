"""``diabat sample``: marginals, log Z or reads of one problem from a file, with the quality of the answer."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diabat.checks import ArgumentError, escaped
from diabat.cli import arguments
from diabat.cli.output import print_json, print_table, say

if TYPE_CHECKING:
    from diabat.ising import Ising
    from diabat.ising.problem_files import Problem
    from diabat.samplers.answers import Moments, Samples
    from diabat.samplers.base import Sampler
    from diabat.samplers.diagnostics import Diagnostic, Watched

    Table = tuple[str, Sequence[str], list[list[str]]]
    """Title, headings and rows."""
    Shown = tuple[dict[str, Any], list[Table], list[str]]
    """What --json prints, tables, and lines below them."""

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
        help="Show the state of lowest energy: 'tempering' anneals to it, other backends take that of their reads.",
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

    The section sampler chooses the backend (see 'diabat backends'); without it the backend is exact.  Another seed
    (seed=N) gives other reads.
    Files of dimod (JSON, .bqm, COO), of qbsolv and of the G-set, and dictionaries with a key qubo, h, J, linear or
    quadratic are energies to be minimised, P ~ exp(-beta E).  With the key fields, and in files of Ising.save, positive
    fields favour +1 and positive couplings favour agreement.  Energies are those of the file, whatever beta is; log Z
    is that of the law at beta.  Variables of a QUBO or a BINARY model are 0 and 1.
    """
    alone = {"lowest": lowest, "dry_run": dry_run, "samples": samples}
    chosen = [
        name for name, kind in {**alone, "correlations": correlations, "compare": compare}.items() if kind
    ]
    if len(chosen) > 1 and chosen[0] in alone:
        raise ArgumentError(chosen[0], f"cannot be combined with --{chosen[1].replace('_', '-')}.")
    resolved = arguments.load(config, overrides, trust=trust)
    from diabat.ising.edges import DENSE_SPINS
    from diabat.ising.problem_files import read_problem
    from diabat.lab.runs.build import build_sampler
    from diabat.samplers.base import Sampler
    from diabat.samplers.registry import sampler

    backend, seed = build_sampler(resolved.sampler), resolved.seed
    loaded = read_problem(problem, beta=beta)
    ising, reads = loaded.ising, num_reads or backend.num_reads
    dense = ising.edges is None or ising.num_spins <= DENSE_SPINS
    if dry_run:
        _report_dry_run(backend, ising, reads, seed, as_json)
        return
    if lowest or samples:
        if lowest and "track_lowest" in backend.options:
            backend = sampler(backend.name, **_searching(backend.options))
        drawn = backend.sample(ising, reads, seed=seed)
        if lowest:
            shown = _lowest(loaded, drawn, backend.options.get("track_lowest", False))
        else:
            shown = _with_betas(_reads(loaded, drawn), ising, drawn if dense else None)
        _report(loaded, backend, drawn, shown, as_json)
        return
    other = None if compare is None else _moments_of(compare, ising, seed)  # first: it may refuse
    read, asks = None, num_reads is not None and backend.capabilities.samples
    if dense and (asks or type(backend)._moments is Sampler._moments):
        read = backend.sample(ising, reads, seed=seed)
        moments = read.moments(correlations=correlations, dtype=ising.fields.dtype).with_constants(ising)
    else:
        log_z = num_reads is None and backend.capabilities.log_partition
        options: dict[str, Any] = {"log_partition": log_z, "num_reads": num_reads, "seed": seed}
        moments = backend.moments(ising, correlations=correlations, **options)
    beside = None if other is None else _compared(moments, *other)
    _report(loaded, backend, moments, _with_betas(_marginals(loaded, moments, beside), ising, read), as_json)


def _report_dry_run(backend: Sampler, ising: Ising, num_reads: int, seed: int, as_json: bool) -> None:
    from diabat.samplers.dimod import DimodSampler

    if not isinstance(backend, DimodSampler):
        raise ArgumentError("dry_run", "backend 'dimod', which submits", f"'{backend.name}'")
    report = backend.dry_run(ising, num_reads, seed=seed)
    if as_json:
        print_json(dataclasses.asdict(report))
    else:
        say(str(report))


def _moments_of(name: str, ising: Ising, seed: int) -> tuple[Sampler, Moments]:
    """A backend with its defaults, to compare with, and its moments; whatever it refuses is about ``compare``."""
    from diabat.samplers.registry import sampler

    try:
        other = sampler(name)
        return other, other.moments(ising, seed=seed)
    except (ValueError, TypeError, ImportError) as error:
        named = isinstance(error, ArgumentError) and error.argument == "sampler"
        raise ArgumentError("compare", str(error.args[-1] if named else error)) from error


def _compared(moments: Moments, other: Sampler, theirs: Moments) -> dict[str, Any]:
    """Marginals of another backend, and the differences of the answer from them, which are errors if it is exact."""
    difference = moments.probability.detach() - theirs.probability.detach().to(moments.probability)
    sizes = difference[moments.visible].abs()
    return {
        "backend": other.name,
        "law": other.capabilities.law,
        "exact": other.capabilities.exact and theirs.num_reads is None,
        "probability": theirs.probability.detach(),
        "difference": difference,
        "largest": float(sizes.max()) if len(sizes) else 0.0,
        "mean": float(sizes.mean()) if len(sizes) else 0.0,
        "standard_error": theirs.standard_error,
    }


def _marginals(problem: Problem, moments: Moments, beside: dict[str, Any] | None) -> Shown:
    """P(+1) and <s> of every spin with standard errors if sampled, pair correlations, log Z."""
    errors, correlation = moments.standard_error, moments.correlation
    mean = moments.magnetization
    if correlation is not None and problem.binary:  # <x x'> of the variables x = (1 + s)/2
        correlation = (1 + mean[:, None] + mean + correlation) / 4
    up, kind, corner = ("P(1)", "variable", "<x x'>") if problem.binary else ("P(+1)", "spin", "<s s'>")
    columns = {up: (moments.probability, ".6g"), "std. error": (errors, ".2g")}
    if not problem.binary:  # the mean of 0 and 1 is P(1)
        columns["<s>"] = mean, "+.6f"
    if beside is not None:
        columns[f"{up}, {beside['backend']}"] = beside["probability"], ".6g"
        columns["error" if beside["exact"] else "difference"] = beside["difference"], "+.2g"
    labels = _labels(problem)
    rows = [
        [label, *("-" if x is None or not there else f"{float(x[j]):{form}}" for x, form in columns.values())]
        for j, (label, there) in enumerate(zip(labels, moments.visible.tolist(), strict=True))
    ]
    tables: list[Table] = [("Marginals", (kind, *columns), rows)]
    if correlation is not None:
        pairs = zip(labels, correlation.tolist(), strict=True)
        grid = [[label, *(f"{c:+.4f}" for c in row)] for label, row in pairs]
        tables.append(("Pair correlations", (corner, *labels), grid))
    log_z = moments.log_partition
    document = {"probability": moments.probability, "standard_error": errors, "log_partition": log_z}
    lines = [] if log_z is None else [f"log Z = {float(log_z):.9g}"]
    return document | {"correlation": correlation, "comparison": beside}, tables, lines


def _labels(problem: Problem) -> list[str]:
    """The names that the file gives, without ends of lines and the like."""
    return [escaped(str(label)) for label in problem.labels]


def _reads(problem: Problem, samples: Samples) -> Shown:
    """Every read, and a table of the distinct states, most frequent first."""
    states, counts = samples.spins.unique(dim=0, return_counts=True)
    columns = (column.tolist() for column in (states, problem.energy(states), counts))
    ranked = sorted(zip(*columns, strict=True), key=lambda row: (-row[2], row[1], row[0]))
    first, more = ranked[:_SHOWN_STATES], len(ranked) - _SHOWN_STATES
    rows = [(state, f"{energy:.6g}", str(n), f"{n / samples.num_reads:.4f}") for state, energy, n in first]
    lines = [f"{more} more states; --json prints every read."] if more > 0 else []
    document = {"states": problem.states(samples.spins), "energy": problem.energy(samples.spins)}
    return document, [_states(problem, "Reads", ("energy", "reads", "share"), rows)], lines


def _with_betas(shown: Shown, ising: Ising, samples: Samples | None) -> Shown:
    """Add the inverse temperatures of reads, relative to the law, with standard errors; None without reads or a fit."""
    from diabat.samplers.pseudolikelihood import fit_betas

    document, tables, lines = shown
    fit = None if samples is None else fit_betas(ising, samples.spins)
    if fit is None or not fit.exists:
        return document | {"betas": None}, tables, lines
    terms = {"beta_h": "field", "beta_J": "coupling", "beta_K": "three_body"}
    values = {name: (getattr(fit, term), getattr(fit, f"{term}_error")) for name, term in terms.items()}
    betas = {name: {"value": beta, "standard_error": error} for name, (beta, error) in values.items()}
    texts = [_fitted(name, fit) for name, fit in betas.items() if fit["value"] is not None]
    lines = [*lines, f"Betas of the reads, 1 is the law: {', '.join(texts)}."]
    return document | {"betas": betas}, tables, lines


def _searching(options: dict[str, Any]) -> dict[str, Any]:
    """Options that keep the lowest state, and anneal unless they say how the chains run."""
    ways = ("schedule", "num_replicas", "betas", "thin", "persistent")
    chosen = "schedule" not in options or any(options.get(name) for name in ways)
    return options | {"track_lowest": True} | ({} if chosen else {"schedule": "auto"})


def _lowest(problem: Problem, samples: Samples, tracks: bool) -> Shown:
    """The state of lowest energy, and where it was found."""
    spins = samples.lowest().spins
    energy = float(problem.energy(spins))
    place = "sweeps" if tracks or samples.tracked is not None else "reads"
    rows = [(spins.tolist(), f"{energy:.9g}", place)]
    table = _states(problem, "Lowest energy", ("energy", "of all"), rows)
    return {"state": problem.states(spins), "energy": energy, "of": place}, [table], []


def _states(problem: Problem, title: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> Table:
    """A table whose rows begin with a state, + and - or 1 and 0, below the order of the spins in them."""
    down, up = "01" if problem.binary else "-+"
    labels = f"{'Variables' if problem.binary else 'Spins'} in order: {' '.join(_labels(problem))}"
    cells = [["".join(up if s > 0 else down for s in state), *texts] for state, *texts in rows]
    return f"{labels}\n{title}", ("state", *columns), cells


def _report(
    problem: Problem, backend: Sampler, answer: Moments | Samples, shown: Shown, as_json: bool
) -> None:
    """Print an answer with the law of the backend and diagnostics; bad ones are marked."""
    from diabat.samplers.diagnostics import LAWS, diagnostics

    (document, tables, lines), reads, info = shown, answer.num_reads, answer.info
    law, exact = backend.capabilities.law, backend.capabilities.exact and reads is None
    errors, checks = document.get("standard_error"), diagnostics(backend.watched, info)
    largest = None if errors is None else float(errors.max())
    if as_json:
        labels = [v if isinstance(v, int | str) else str(v) for v in problem.labels]
        names = {"labels": labels, "vartype": "BINARY" if problem.binary else "SPIN", "beta": problem.beta}
        known = {"num_reads": reads, "info": info, "law": law, "exact": exact}
        found = {"largest_standard_error": largest, "diagnostics": [check._asdict() for check in checks]}
        print_json(names | document | known | found)
        return
    for table in tables:
        print_table(*table)
    origin = "computed" if reads is None else f"{reads} reads, seed {info.get('seed')}"
    lines.append(f"{info.get('backend')}: {origin}, {info.get('wall_s', 0.0):.3g} s")
    if info.get("beta") == "estimate":
        beta_h, beta_J = info["programmed_with"]
        lines.append(f"Estimated beta_h, beta_J of the device: {beta_h:.4g}, {beta_J:.4g}.")
    lines.append(f"Law: {LAWS[law]} at beta = {problem.beta:g}{', exact to rounding' * exact}.")
    if largest is not None:
        lines.append(f"Largest standard error of P: {largest:.2g}.")
    lines += [_checked(check, backend, document.get("betas") or {}) for check in checks]
    if beside := document.get("comparison"):
        lines.append(_against(beside))
    say("\n".join(lines))


def _checked(check: Diagnostic, backend: Sampler, betas: dict[str, Any]) -> str:
    """A diagnostic in one line; a prediction that a fit to the reads contradicts is not called good."""
    number = "unavailable" if math.isnan(check.value) else f"{check.value:.3g}"
    text = ("yes" if check.value else "no") if isinstance(check.value, bool) else number
    line = f"  {check.label}: {text}"
    if check.ok is None:
        return line
    if check.ok and check.key == "effective_beta":
        (limits,) = (fact for fact in backend.watched if fact.key == check.key)
        if wrong := [_fitted(name, fit) for name, fit in betas.items() if _outside(fit, limits)]:
            return f"{line}, but the reads have {', '.join(wrong)}"
    mark = "" if check.ok else f"  BAD: {check.advice}"
    return f"{line} (good: {check.expected}){mark}"


def _outside(fit: dict[str, float | None], limits: Watched) -> bool:
    """Whether a fit, if there is one, is outside of limits by more than three standard errors."""
    value, error, bounds = fit["value"], fit["standard_error"], ((-1, limits.least), (1, limits.most))
    if value is None or error is None:
        return False
    return any(limit is not None and side * (value - limit) > 3 * error for side, limit in bounds)


def _fitted(name: str, fit: dict[str, float | None]) -> str:
    return f"{name} {fit['value']:.3f} ± {fit['standard_error']:.2g}"


def _against(beside: dict[str, Any]) -> str:
    """The differences from another backend in one line."""
    from diabat.samplers.diagnostics import LAWS

    kind = "error" if beside["exact"] else "difference"
    law = "" if beside["exact"] else f", whose law is {LAWS[beside['law']]}"
    noise = "" if beside["standard_error"] is None else ", and whose P are averages over reads"
    sizes = f"mean |{kind}| of P {beside['mean']:.2g}, largest {beside['largest']:.2g}"
    return f"Against {beside['backend']}: {sizes}{law}{noise}."
