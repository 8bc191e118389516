"""``diabat sample``: marginals, log Z or reads of one problem from a file."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diabat.cli.arguments import JsonOption
from diabat.cli.failures import importing
from diabat.cli.output import print_json
from diabat.cli.sample_report import report_moments, report_samples

if TYPE_CHECKING:
    from diabat.ising import Ising
    from diabat.samplers.base import Sampler

ProblemArgument = Annotated[
    Path, typer.Argument(metavar="PROBLEM", help="dimod JSON, dimod's binary file, COO text, or YAML.")
]
SamplerOption = Annotated[str, typer.Option(help="Backend; see 'diabat backends'.")]
BackendOptions = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="KEY=VALUE", help="Option of the backend; may be repeated."),
]
ReadsOption = Annotated[
    int | None, typer.Option(min=1, help="Estimate from this many reads, not from the backend's own moments.")
]
SeedOption = Annotated[
    int | None, typer.Option(min=0, help="Same seed, same reads; drawn and reported if left out.")
]
BetaOption = Annotated[float | None, typer.Option(help="Inverse temperature folded into the problem.")]
KindOption = Annotated[bool, typer.Option("--moments/--samples", help="Marginals, or the reads themselves.")]
PairsOption = Annotated[bool, typer.Option("--correlations", help="Also report pair correlations.")]

DryOption = Annotated[bool, typer.Option("--dry-run", help="Say what 'dimod' would submit; submit nothing.")]


def sample_problem(
    problem: ProblemArgument,
    sampler: SamplerOption = "exact",
    options: BackendOptions = None,
    num_reads: ReadsOption = None,
    seed: SeedOption = None,
    beta: BetaOption = None,
    moments: KindOption = True,
    correlations: PairsOption = False,
    dry_run: DryOption = False,
    as_json: JsonOption = False,
) -> None:
    """Sample one Ising problem.

    dimod problems are energies to be minimised, P ~ exp(-beta E).  In the YAML format positive fields favour
    +1 and positive couplings favour agreement.
    """
    with importing():
        from diabat.problem_files import read_problem

    backend = _build(sampler, options or [])
    loaded = read_problem(problem, beta=beta)
    if dry_run:
        _report_dry_run(backend, loaded.ising, num_reads or backend.num_reads, seed, as_json)
    elif not moments:
        samples = backend.sample(loaded.ising, num_reads or type(backend).num_reads, seed=seed)
        report_samples(loaded, samples, as_json)
    elif num_reads is None:
        report_moments(loaded, backend.moments(loaded.ising, correlations=correlations, seed=seed), as_json)
    else:
        samples = backend.sample(loaded.ising, num_reads, seed=seed)
        dtype = loaded.ising.fields.dtype
        report_moments(loaded, samples.moments(correlations=correlations, dtype=dtype), as_json)


def _report_dry_run(backend: Sampler, ising: Ising, num_reads: int, seed: int | None, as_json: bool) -> None:
    from diabat.samplers.dimod import DimodSampler

    if not isinstance(backend, DimodSampler):
        raise ValueError(f"--dry-run: expected backend 'dimod', which submits, got '{backend.name}'.")
    report = backend.dry_run(ising, num_reads, seed=seed or 0)
    if as_json:
        print_json(dataclasses.asdict(report))
    else:
        typer.echo(str(report))


def _build(name: str, options: list[str]) -> Sampler:
    """Build a backend through the same checks as the section ``sampler`` of a configuration."""
    from diabat.config import build_sampler, make_config
    from diabat.config.overrides import apply_overrides

    document = apply_overrides({"sampler": {"backend": name}}, [f"sampler.{text}" for text in options])
    return build_sampler(make_config(document).sampler)
