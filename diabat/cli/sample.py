"""``diabat sample``: marginals, log Z or reads of one problem from a file."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diabat.checks import ArgumentError
from diabat.cli.arguments import JsonOption, TrustOption
from diabat.cli.failures import importing, naming
from diabat.cli.output import print_json
from diabat.cli.sample_quality import compared, other_moments
from diabat.cli.sample_report import report_moments, report_samples

if TYPE_CHECKING:
    from diabat.ising import Ising
    from diabat.samplers.base import Sampler

ProblemArgument = Annotated[
    Path,
    typer.Argument(
        metavar="PROBLEM", help="dimod JSON, dimod's binary file, COO text, or YAML; - reads standard input."
    ),
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
BetaOption = Annotated[float | None, typer.Option(help="Inverse temperature folded into the problem.")]
KindOption = Annotated[bool, typer.Option("--moments/--samples", help="Marginals, or the reads themselves.")]
PairsOption = Annotated[bool, typer.Option("--correlations", help="Also report pair correlations.")]
CompareOption = Annotated[
    str | None,
    typer.Option(
        metavar="BACKEND",
        help="Put the marginals of this backend beside the answer, e.g. exact.",
        show_default=False,
    ),
]
DryOption = Annotated[bool, typer.Option("--dry-run", help="Say what 'dimod' would submit; submit nothing.")]


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
    dry_run: DryOption = False,
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Sample one Ising problem, and say what law the answer follows and how good it is.

    dimod problems are energies to be minimised, P ~ exp(-beta E).  In the YAML format positive fields favour
    +1 and positive couplings favour agreement.
    """
    with importing():
        from diabat.config.errors import ConfigError
        from diabat.problem_files import read_problem

    changes = [*(f"sampler.{text}" for text in options or ()), *(overrides or ())]
    backend = _build(sampler, config, changes, trust)
    with naming({"beta": "--beta"}):
        loaded = read_problem(problem, beta=beta)
    if compare is not None and (dry_run or not moments):
        raise ConfigError(
            "--compare", f"expected marginals to compare, got {'--dry-run' if dry_run else '--samples'}."
        )
    ising = loaded.ising
    if dry_run:
        _report_dry_run(backend, ising, num_reads or backend.num_reads, seed, as_json)
    elif not moments:
        samples = backend.sample(ising, num_reads or type(backend).num_reads, seed=seed)
        report_samples(loaded, backend, samples, as_json)
    else:
        other = None if compare is None else other_moments(compare, ising, seed)  # first: it may refuse
        found = backend.moments(ising, correlations=correlations, num_reads=num_reads, seed=seed)
        beside = None if other is None else compared(found, *other)
        report_moments(loaded, backend, found, beside, as_json)


def _report_dry_run(backend: Sampler, ising: Ising, num_reads: int, seed: int | None, as_json: bool) -> None:
    from diabat.samplers.dimod import DimodSampler

    if not isinstance(backend, DimodSampler):
        raise ArgumentError("--dry-run", f"expected backend 'dimod', which submits, got '{backend.name}'.")
    report = backend.dry_run(ising, num_reads, seed=seed or 0)
    if as_json:
        print_json(dataclasses.asdict(report))
    else:
        typer.echo(str(report))


def _build(name: str | None, config: str | None, changes: list[str], trust: bool) -> Sampler:
    """Build the backend of the section ``sampler`` of a configuration, of which the rest is not looked at."""
    from diabat.config import ConfigError, make_config
    from diabat.config.loading import read_document
    from diabat.config.overrides import apply_overrides, parse_override
    from diabat.runs import build_sampler

    # Refused first: as keys of a whole configuration they would be valid, and do nothing here.
    for path, value in map(parse_override, changes):
        if path[0] != "sampler":
            raise ConfigError(
                ".".join(path), "expected a key of the section sampler, as in sampler.backend=exact."
            )
        if path == ("sampler", "backend") and name not in (None, value):
            raise ConfigError("--sampler", f"expected '{value}' as sampler.backend says, got '{name}'.")
    # A JSON string is a YAML string, also if the name is 1e3.
    chosen = [] if name is None else [f"sampler.backend={json.dumps(name)}"]
    every = [*chosen, *changes]
    document = apply_overrides({}, every) if config is None else read_document(config, every, trust=trust)
    return build_sampler(make_config(document).sampler)
