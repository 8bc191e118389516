"""What ``diabat sample`` prints."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

import typer

from diabat.cli.output import print_json, print_table
from diabat.cli.sample_quality import Comparison, print_comparison, print_quality, quality

if TYPE_CHECKING:
    from diabat.problem_files import Problem
    from diabat.samplers.answers import Moments, Samples
    from diabat.samplers.base import Sampler

_SHOWN_STATES = 20


def report_moments(
    problem: Problem, backend: Sampler, moments: Moments, comparison: Comparison | None, as_json: bool
) -> None:
    """Print P(+1) and <s> of every spin with standard errors where sampled, pair correlations, log Z, quality."""
    labels = [_label(v) for v in problem.labels]
    errors = moments.standard_error
    largest = None if errors is None else float(errors.max())
    known = quality(backend, moments.info, moments.num_reads, largest)
    if as_json:
        names = ("probability", "standard_error", "correlation", "log_partition", "num_reads", "info")
        document = {"labels": labels} | {name: getattr(moments, name) for name in names} | known
        print_json(document | {"comparison": None if comparison is None else comparison._asdict()})
        return
    columns: tuple[str, ...] = ("spin", "P(+1)", "std. error", "<s>")
    rows = _marginal_rows(labels, moments)
    if comparison is not None:
        columns += (f"P(+1), {comparison.backend}", "error" if comparison.exact else "difference")
        rows = [row + cells for row, cells in zip(rows, _compared_cells(moments, comparison), strict=True)]
    print_table("Marginals", columns, rows, right=columns[1:])
    if moments.correlation is not None:
        headings = ("<s s'>", *map(str, labels))
        grid = zip(labels, moments.correlation.tolist(), strict=True)
        pairs = [(str(label), *(f"{c:+.4f}" for c in row)) for label, row in grid]
        print_table("Pair correlations", headings, pairs, right=headings[1:])
    if moments.log_partition is not None:
        typer.echo(f"log Z = {float(moments.log_partition):.9g}")
    typer.echo(_origin(moments.info, moments.num_reads))
    print_quality(known)
    if comparison is not None:
        print_comparison(comparison)


def report_samples(problem: Problem, backend: Sampler, samples: Samples, as_json: bool) -> None:
    """Print the distinct states, most frequent first; as JSON every read."""
    labels = [_label(v) for v in problem.labels]
    energies = samples.energy
    known = quality(backend, samples.info, samples.num_reads)
    if as_json:
        weights = None if samples.log_weights is None else samples.weights
        print_json(
            {
                "labels": labels,
                "spins": samples.spins,
                "energy": energies,
                "weights": weights,
                "num_reads": samples.num_reads,
                "info": samples.info,
            }
            | known
        )
        return
    rows = _state_rows(samples, energies.tolist())
    typer.echo(f"Spins in order: {' '.join(map(str, labels))}")
    columns = ("state", "energy", "reads", "share")
    print_table("Reads", columns, rows[:_SHOWN_STATES], right=columns[1:])
    if len(rows) > _SHOWN_STATES:
        typer.echo(f"{len(rows) - _SHOWN_STATES} more states; --json prints every read.")
    typer.echo(_origin(samples.info, samples.num_reads))
    print_quality(known)


def _compared_cells(moments: Moments, comparison: Comparison) -> list[tuple[str, str]]:
    found = zip(
        comparison.probability.tolist(), comparison.difference.tolist(), moments.visible.tolist(), strict=True
    )
    return [(f"{p:.6g}", f"{d:+.2g}") if visible else ("-", "-") for p, d, visible in found]


def _marginal_rows(labels: list[int | str], moments: Moments) -> list[tuple[str, ...]]:
    errors = moments.standard_error
    rows: list[tuple[str, ...]] = []
    for j, label in enumerate(labels):
        error = "-" if errors is None else f"{float(errors[j]):.2g}"
        p, m = float(moments.probability[j]), float(moments.magnetization[j])
        invisible = not bool(moments.visible[j])
        rows.append(
            (str(label), "-", "-", "-") if invisible else (str(label), f"{p:.6g}", error, f"{m:+.6f}")
        )
    return rows


def _state_rows(samples: Samples, energies: list[float]) -> list[tuple[str, ...]]:
    states: dict[tuple[int, ...], tuple[float, int, float]] = {}
    reads = zip(samples.spins.tolist(), energies, samples.weights.tolist(), strict=True)
    for spins, energy, weight in reads:
        _, count, share = states.get(tuple(spins), (energy, 0, 0.0))
        states[tuple(spins)] = (energy, count + 1, share + weight)
    ranked = sorted(states.items(), key=lambda item: (-item[1][2], item[1][0], item[0]))
    return [
        ("".join("+" if s > 0 else "-" for s in state), f"{energy:.6g}", str(count), f"{share:.4f}")
        for state, (energy, count, share) in ranked
    ]


def _label(label: Hashable) -> int | str:
    return label if isinstance(label, int | str) else str(label)


def _origin(info: Mapping[str, Any], num_reads: int | None) -> str:
    reads = "computed" if num_reads is None else f"{num_reads} reads, seed {info.get('seed')}"
    return f"{info.get('backend')}: {reads}, {info.get('wall_s', 0.0):.3g} s"
