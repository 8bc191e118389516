"""How far backends are from the exact law, on problems of growing coupling strength."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from diabat.checks import ArgumentError, check_count
from diabat.circuits import spin_table
from diabat.ising import Ising
from diabat.lab.studies import states
from diabat.lab.studies.ensembles import Ensemble, compare, is_analytic, timed
from diabat.plots import REFERENCE, Line, Panel, lines
from diabat.report import Column, Report, Row, formatted
from diabat.samplers.answers import Moments
from diabat.samplers.base import Sampler
from diabat.samplers.pseudolikelihood import BetaFit, fit_betas
from diabat.samplers.registry import sampler
from diabat.samplers.seeds import draw_seed

_ALPHA = 0.01  # of calling a correct sampler biased, over all rows of a backend
_SMALLEST = 1e-6


@dataclass(frozen=True)
class FidelityReport(Report):
    """Fidelity of several backends at ``num_reads`` reads per problem: a row for each problem family and backend."""

    num_reads: int
    seed: int

    labels = (
        Column("ensemble", "family of the problems", "ensemble"),
        Column(
            "strength", "coupling strength g; √(n · mean J²) of tokens, trained models and own problems", "g"
        ),
        Column("backend", "what is compared", "backend"),
    )
    columns = (
        Column("num_reads", "reads per problem; null for backends that compute their moments"),
        Column("effective_reads", "independent reads that would have the standard errors of these"),
        Column("marginal_mean", "mean |P(s=+1) - exact| over visible spins of all problems", "|ΔP|",
               lambda row: formatted(row["marginal_mean"]) + ("" if row["marginal_p"] is None else
               f" ({row['marginal_low']:.2g} to {row['marginal_high']:.2g})")),
        Column("marginal_low", "lower end of the interval that holds marginal_mean of as many effective reads of the "
               "exact law in 95 % of cases"),
        Column("marginal_high", "its upper end"),
        Column("marginal_p", "chance that reads of the exact law have this marginal_mean or a larger one"),
        Column("marginal_max", "largest |P(s=+1) - exact|"),
        Column("marginal_floor", "marginal_mean that independent exact reads would show at this number of reads"),
        Column("pair_mean", "mean |<s_j s_k> - exact| over visible pairs"),
        Column("attention_mean", "mean error of the normalised attention weights"),
        Column("tv", "total variation to the exact distribution over states, mean over problems", "TV",
               lambda row: formatted(row["tv"])
               + ("" if row["tv_floor"] is None else f" ({formatted(row['tv_floor'])})")),
        Column("tv_floor", "tv that independent exact reads would show at this number of reads"),
        Column("beta_h", "scale of the fields by maximum pseudo-likelihood; 1 is right", "β_h"),
        Column("beta_J", "scale of the couplings, fitted together with beta_h; 1 is right", "β_J"),
        Column("beta_K", "scale of the three-body terms"),
        Column("independent_error", "marginal_mean of the J = 0 answer"),
        Column("capture", "share of the couplings' effect, 1 - |ΔP|/(|ΔP| of the J = 0 answer): 1 all, 0 none of it",
               "capture"),
        Column("us_per_query", "microseconds per problem: wall time of a call, without compilation, by its problems",
               "µs"),
    )  # fmt: skip

    @property
    def title(self) -> str:
        """Line above the table."""
        sampled = any(row.get("tv_floor") is not None for row in self.rows)
        return "Fidelity against exact" + " (in brackets: exact reads, |ΔP| in 95 % of cases)" * sampled

    def legend(self) -> str:
        """Say what g, capture and µs are."""
        explained = ("strength", "capture", "us_per_query")
        columns = [column for column in (*self.labels, *self.columns) if column.key in explained]
        return "\n".join(f"{column.title}: {column.meaning}." for column in columns)

    def summary(self) -> str:
        """Rank the backends that answered every problem by mean error; name those whose reads may be exact.

        A row of a sampled backend may be if reads of the exact law have its mean error or a larger one with a chance
        above alpha divided by the rows of the backend (Bonferroni): a correct sampler fails in at most a share of
        alpha = 0.01 of all reports.  Answers with and without read noise are ranked apart.
        """
        answered: dict[str, list[Row]] = {}
        for row in self.rows:
            answered.setdefault(row["backend"], []).append(row)
        refusing = [name for name, own in answered.items() if any(row["refused"] is not None for row in own)]
        ranked = {name: own for name, own in answered.items() if name not in refusing}
        errors = {name: sum(row["marginal_mean"] for row in own) / len(own) for name, own in ranked.items()}
        best: dict[bool, list[str]] = {False: [], True: []}
        agreeing = []
        for name in sorted(errors, key=errors.__getitem__):
            chances = [row["marginal_p"] for row in ranked[name] if row["marginal_p"] is not None]
            best[bool(chances)].append(f"{name} ({errors[name]:.2g})")
            if chances:
                count = sum(p > _ALPHA / len(chances) for p in chances)
                rows = "every row" if count == len(chances) else f"{count} of {len(chances)} rows"
                agreeing.append(f"{name} in {rows}")
        parts = {
            "Mean |ΔP| over all problems, best first": best[False],
            "The same from reads, read noise included": best[True],
            f"Not to be told from exact reads (alpha = {_ALPHA} over the rows of a backend)": agreeing,
            "Not ranked, as they refused some problems": refusing,
        }
        return " ".join(f"{what}: {', '.join(names)}." for what, names in parts.items() if names)

    def plot(self, path: str | Path) -> Path:
        """Draw the mean error against coupling strength: a panel for each ensemble, a line (or bar) for each backend.

        The dashed grey line is the J = 0 answer; the dotted one is the error that exact reads would show.  Bars at
        points of a sampled backend are as long as the interval that holds this error in 95 % of cases.  Errors below
        1e-6 are rounding and are drawn at 1e-6.  Raises ValueError if every backend refused every problem.
        """
        rows = [row for row in self.rows if row["refused"] is None]
        if not rows:
            raise ArgumentError("report", "one with values", "one in which every backend refused")
        looks = {name: look for look, name in enumerate(dict.fromkeys(row["backend"] for row in rows))}
        panels = {row["ensemble"]: [r for r in rows if r["ensemble"] == row["ensemble"]] for row in rows}
        drawn = [_panel(name, own, looks) for name, own in panels.items()]
        least = ", at least $10^{-6}$" * any(row["marginal_mean"] < _SMALLEST for row in rows)
        first = {**drawn[0].settings, "ylabel": f"mean |error| of P{least}"}
        return lines([[replace(drawn[0], settings=first), *drawn[1:]]], path)


def _panel(name: str, rows: list[Row], looks: Mapping[str, int]) -> Panel:
    """Errors of one ensemble, as lines or, for a single strength, as bars; and grey lines to compare with."""
    strengths = sorted({row["strength"] for row in rows})
    alone, ends = len(strengths) == 1, (-0.6, len(looks) - 0.4)
    grey = []
    for key, label, dashes in (("independent_error", "J = 0", "--"), ("marginal_floor", "exact reads", ":")):
        level = {row["strength"]: row[key] for row in rows if row[key] is not None}
        x, at = (ends, strengths * 2) if alone else (strengths, strengths)
        grey.append(Line(x, [level.get(g) for g in at], label, style={**REFERENCE, "linestyle": dashes}))
    errors = {(row["backend"], row["strength"]): row["marginal_mean"] for row in rows}
    if alone:
        bars = {backend: errors.get((backend, strengths[0])) for backend in looks}
        title = f"{name}, g = {strengths[0]:.2g}"
        return Panel(grey, bars, _SMALLEST, {"title": title, "yscale": "log", "xlim": ends})
    own = [
        Line(strengths, [errors.get((b, g)) for g in strengths], b, look, _half_intervals(b, rows, strengths))
        for b, look in looks.items()
    ]
    settings = {"title": name, "yscale": "log", "xlabel": "coupling strength g"}
    return Panel([*own, *grey], least=_SMALLEST, settings=settings)


def _half_intervals(backend: str, rows: list[Row], strengths: list[float]) -> list[float] | None:
    """Half the interval of exact reads at each strength; None if the backend computes its answers."""
    own = {row["strength"]: row for row in rows if row["backend"] == backend}
    if any(row["marginal_low"] is None for row in own.values()):
        return None
    return [(own[g]["marginal_high"] - own[g]["marginal_low"]) / 2 if g in own else 0.0 for g in strengths]


def fidelity_report(
    backends: Mapping[str, Sampler],
    ensembles: Iterable[Ensemble],
    *,
    num_reads: int = 1000,
    seed: int = 0,
    progress: bool = False,
) -> FidelityReport:
    """Compare backends with exact enumeration.

    Args:
        backends: Samplers by the name that the report shows.
        ensembles: Problems, e.g. ``[*sk(), *ferromagnet()]``.
        num_reads: Reads per problem for backends whose moments are sampled.
        seed: Seed of all draws.
        progress: Show a bar on standard error.

    Returns:
        One row for each ensemble and backend, also if the backend refuses the ensemble (key ``refused``).

    Raises:
        ArgumentError: If an ensemble has no exact answer (raised before any backend runs), there is nothing to
            compare, or a number is out of range.
    """
    num_reads = check_count("num_reads", num_reads)
    seed = draw_seed(seed)
    reference = sampler("exact")

    def truth(case: Ensemble) -> _Truth:
        ising = case.ising.detach().to(torch.float64)
        moments = reference.moments(ising, correlations=True)
        alone = _errors(torch.sigmoid(2 * ising.fields), moments.probability, ising.visible_mask)[0]
        return _Truth(moments, states.law_of(reference, ising), alone)

    def score(backend: Sampler, ising: Ising, exact: _Truth) -> list[Row]:
        return [_score(backend, ising, exact, num_reads, seed)]

    return FidelityReport(compare(backends, ensembles, truth, score, progress=progress), num_reads, seed)


class _Truth(NamedTuple):
    """Exact moments with pair correlations, the law over states if there are few, and the error of the J = 0 answer."""

    moments: Moments
    law: Tensor | None
    independent_error: float


def _score(backend: Sampler, ising: Ising, truth: _Truth, num_reads: int, seed: int) -> Row:
    """All metrics of one backend, as in the columns of the report; None if one does not apply.

    Calls ``sample`` if the moments of the backend are sampled, ``moments`` if they are analytic.
    """
    able, mask, reads = backend.capabilities, ising.visible_mask, None
    fit, exact, alone = BetaFit(), truth.moments, truth.independent_error
    if able.samples and not is_analytic(backend):
        reads = num_reads
        seconds, samples = timed(lambda: backend.sample(ising, num_reads, seed=seed))
        got = samples.moments(correlations=True, dtype=torch.float64)
        law = states.states_of_samples(samples) if states.countable(ising) else None
        fit = fit_betas(ising, samples.spins)
    else:
        seconds, got = timed(lambda: backend.moments(ising, seed=seed))
        if able.correlations:
            got = backend.moments(ising, correlations=True, seed=seed)
        law = states.law_of(backend, ising)
        if law is None and able.law == "mean-field" and states.countable(ising):
            law = states.states_of_marginals(got.probability)  # its law is the product of its marginals
        if law is not None:
            table = torch.from_numpy(spin_table(ising.num_spins))
            fit = fit_betas(ising, table, law.movedim(-1, 0), sampled=False)
    row: Row = {
        "num_reads": reads,
        "independent_error": alone,
        "us_per_query": 1e6 * seconds / ising.num_problems,
    }
    row["marginal_mean"], row["marginal_max"] = _errors(got.probability, exact.probability, mask)
    # Couplings without any effect (no J, or no field) have no share that could be captured.
    row["capture"] = None if alone < 1e-12 else 1 - row["marginal_mean"] / alone
    row["attention_mean"] = _errors(_attention(got), _attention(exact), mask)[0]
    noise = ("effective_reads", "marginal_low", "marginal_high", "marginal_p", "marginal_floor")
    row |= dict.fromkeys((*noise, "pair_mean", "tv", "tv_floor"))
    if reads is not None:
        row["effective_reads"] = states.effective_reads(got)
        allowed = states.read_noise(exact, row["effective_reads"])
        row["marginal_low"], row["marginal_high"] = allowed.interval()
        row["marginal_p"] = allowed.tail(row["marginal_mean"])
        row["marginal_floor"] = _mean(states.mean_deviation(exact.probability, reads)[mask])
    if got.correlation is not None and exact.correlation is not None:
        pairs = (mask[..., :, None] & mask[..., None, :]).triu(1)
        row["pair_mean"] = _errors(got.correlation, exact.correlation, pairs)[0]
    if truth.law is not None and law is not None:
        row["tv"] = _mean(states.total_variation(law, truth.law))
    if truth.law is not None and reads is not None:
        row["tv_floor"] = _mean(states.mean_deviation(truth.law, reads).sum(-1) / 2)
    names = ("beta_h", "beta_h_error", "beta_J", "beta_J_error", "beta_K", "beta_K_error")
    return row | dict(zip(names, astuple(fit), strict=False))  # further fields say how the fit was made


def _attention(moments: Moments) -> Tensor:
    """Normalised weights α_j/Σα, float64 [*batch, n], smoothed where sampled; 0 where nothing is visible."""
    alpha = moments.smoothed_probability.detach().double()
    return alpha / alpha.sum(-1, keepdim=True).clamp(min=torch.finfo(alpha.dtype).tiny)


def _errors(got: Tensor, exact: Tensor, mask: Tensor) -> tuple[float, float]:
    """Mean and largest |got - exact| where the mask is set; 0 if it is set nowhere."""
    size = (got.detach().double() - exact.detach().double())[mask].abs()
    return _mean(size), float(size.max()) if size.numel() else 0.0


def _mean(values: Tensor) -> float:
    return float(values.mean()) if values.numel() else 0.0
