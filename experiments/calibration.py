r"""Predicted and fitted inverse temperatures of a diabatic anneal, over annealing times.

    python -m experiments.calibration [--times 2 5 7 10 20] [--strength 0.3] [--schedule NAME] [--json]

SK problems are annealed with h/beta_h and J/beta_J programmed as the schedule predicts, and both are fitted to the
result by maximum pseudo-likelihood.

With ℓ(β) the mean of log P(s_j | rest) over the states of the sampler and visible spins, in nats, the goodness of the
fitted law β̂ is

    explained = (ℓ(β̂) - ℓ(0))/(ℓ_q - ℓ(0)),   ℓ(0) = -log 2,   ℓ_q = Σ_s q(s) log q(s_j | rest),

1 if and only if the sampler's own conditionals q are those of the fitted Boltzmann law.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from diabat.checks import ArgumentError
from diabat.circuits import AnnealingSchedule
from diabat.ising import Ising
from diabat.samplers.anneals import find_schedule
from diabat.samplers.base import Sampler
from diabat.samplers.dqa import DQASampler
from diabat.samplers.pseudolikelihood import Term, fit_betas, fit_state_betas, log_pseudolikelihood
from diabat.studies import states
from diabat.studies.ensembles import sk
from diabat.studies.report import Column, Report, Row, with_error
from experiments.common import parser, show

_LEVEL = 0.95


def _beta(key: str, meaning: str, title: str) -> tuple[Column, Column]:
    margin = f"{key}_margin"
    return (
        Column(key, meaning, title, lambda row: with_error(row[key], row[margin])),
        Column(margin, f"half length of its {100 * _LEVEL:g} % confidence interval over instances"),
    )


@dataclass(frozen=True)
class CalibrationReport(Report):
    """Calibration of one schedule: a row for each annealing time, ascending; ``problems`` describes them."""

    label: str
    problems: str
    seed: int

    labels = (Column("annealing_time_ns", "annealing time in ns", "t_a\nns"),)
    columns = (
        Column("steps", "Trotter steps", "steps"),
        Column("predicted_beta_h", "beta_h = 2 pi int B sin(2 pi int A) of the schedule (A, B in GHz, t in ns), "
               "weak fields", "β_h\npredicted"),
        *_beta("fitted_beta_h", "predicted_beta_h times the scale of the fields by maximum pseudo-likelihood",
               "β_h\nfitted"),
        Column("predicted_beta_J", "beta_J = 2 pi int B sin(4 pi int A), weak couplings", "β_J\npredicted"),
        *_beta("fitted_beta_J", "predicted_beta_J times the scale of the couplings, fitted together with beta_h",
               "β_J\nfitted"),
        Column("tv_before", "total variation to the target (beta = 1), predicted betas programmed; mean over "
               "problems", "TV\nbefore"),
        Column("tv_after", "the same with the fitted betas programmed", "TV\nafter"),
        Column("tv_own", "total variation between the sampler and Boltzmann at the fitted betas; no beta reduces it",
               "TV\nown β"),
        Column("explained", "share of the pseudo-likelihood gain over random spins that the fitted Boltzmann law "
               "explains; 1 is all"),
    )  # fmt: skip

    @property
    def title(self) -> str:
        """Lines above the table: the schedule, and the problems."""
        return f"{self.label}\n{self.problems}"


def calibrate(
    times_ns: Sequence[float] = (2.0, 5.0, 7.0, 10.0, 20.0),
    *,
    schedule: str = "Advantage2_system1",
    engine: str = "native",
    spins: int = 6,
    strength: float = 0.3,
    instances: int = 8,
    queries: int = 4,
    num_reads: int | None = None,
    seed: int = 0,
) -> CalibrationReport:
    """Compare predicted with fitted inverse temperatures of a diabatic anneal, of SK problems.

    They are programmed as h/β_h, J/β_J with the predicted values.  The scale fitted to the result, times the predicted
    value, is the fitted value.  It decreases with g; the prediction holds for weak problems.  Intervals are over
    instances (Student's t, instances - 1 degrees of freedom): they cover the fit to infinitely many of them.

    Args:
        times_ns: Annealing times in ns.
        schedule: Name of a built-in schedule, or path of a CSV file with columns s, A_GHz, B_GHz.
        engine: Engine of the backend ``dqa``.
        spins: Number n of spins of each problem.
        strength: g > 0, dimensionless: h ~ N(0, g), J ~ N(0, g/√n).
        instances: Different J.
        queries: Different h for each J.
        num_reads: Reads per problem behind the fits; None fits exact state probabilities, n <= 16.
        seed: Seed of problems and reads.

    Raises:
        ValueError: If a value is out of range, or the states cannot be had without reads.
    """
    found = find_schedule(schedule, None)
    if not isinstance(found, AnnealingSchedule):
        expected = "expected an annealing schedule, which runs at any annealing time"
        raise ArgumentError("schedule", f"{expected}, got '{schedule}': a plan of angles, which has none.")
    (ensemble,) = sk([strength], num_spins=spins, instances=instances, queries=queries, seed=seed)
    rows = []
    for time in sorted(set(times_ns)):
        backend = DQASampler(engine=engine, schedule=found, annealing_time_ns=time, calibration="predicted")
        rows.append(_row(backend, ensemble.ising, num_reads, seed))
    source = "exact laws" if num_reads is None else f"{num_reads} reads each"
    problems = f"SK n = {spins}, g = {strength:g}, {instances} J x {queries} h, {source}; ± {100 * _LEVEL:g} % over J"
    return CalibrationReport(rows, f"{found.name} ({found.protocol})", problems, seed)


def _row(backend: DQASampler, ising: Ising, num_reads: int | None, seed: int) -> Row:
    anneal, fit = backend.anneal, measure(backend, ising, num_reads=num_reads, seed=seed)
    row: Row = {"annealing_time_ns": anneal.annealing_time_ns, "steps": anneal.plan.steps}
    for key, predicted in zip(("beta_h", "beta_J"), anneal.betas, strict=True):
        row[f"predicted_{key}"] = predicted
        for part in (key, f"{key}_margin"):
            scale = fit.pop(part)
            row[f"fitted_{part}"] = None if scale is None else predicted * scale
    return row | fit


def measure(backend: Sampler, ising: Ising, *, num_reads: int | None = None, seed: int = 0) -> Row:
    """Fit a sampler's inverse temperatures, and measure what programming them gains.

    Distances are those of its law, whose state probabilities they require.  The fields are [instances, ..., n];
    problems of one instance vary together.  ``num_reads`` per problem, by ``seed``, are behind the fit; None fits the
    state probabilities.

    Returns:
        beta_h and beta_J relative to the problems (1 is right), beta_h_margin and beta_J_margin, half their confidence
        intervals, and the distances and goodness of the report; None where there is no fit, no interval or no law.

    Raises:
        ValueError: If ``num_reads`` is None and the sampler has no state probabilities or the problems are too large.
    """
    law, shape = states.law_of(backend, ising), ising.batch_shape
    groups = torch.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    if num_reads is not None:
        samples = backend.sample(ising, num_reads, seed=seed)
        fit = fit_betas(ising, samples.spins, samples.weights, groups=groups)
    elif law is not None:
        fit = fit_state_betas(ising, law, groups=groups)
    else:
        why = f"'{backend.name}' does not provide state probabilities here"
        if not states.countable(ising):
            why = f"the states of {ising.num_problems} problems of {ising.num_spins} spins are too many"
        raise ArgumentError("num_reads", f"expected a number of reads, got none; {why}.")
    row: Row = dict.fromkeys(("tv_before", "tv_after", "tv_own", "explained"))
    terms: tuple[tuple[str, Term], ...] = (("beta_h", "field"), ("beta_J", "coupling"))
    for name, term in terms:
        ends = fit.interval(term, _LEVEL)
        row |= {name: getattr(fit, term), f"{name}_margin": None if ends is None else (ends[1] - ends[0]) / 2}
    if law is None:
        return row
    target = states.boltzmann(ising)
    row["tv_before"] = _distance(law, target)
    if fit.exists:
        row["tv_own"] = _distance(law, states.boltzmann(rescaled(ising, *fit.scales)))
        row["explained"] = _explained(ising, law, fit.scales)
    if fit.exists and all(fit.scales):
        after = states.law_of(backend, rescaled(ising, *(1 / scale for scale in fit.scales)))
        row["tv_after"] = None if after is None else _distance(after, target)
    return row


def rescaled(ising: Ising, h: float, J: float, K: float = 1.0) -> Ising:
    """The problems with their fields, couplings and three-body terms multiplied by these factors, float64."""
    terms = zip((h, J, K), (ising.fields, ising.couplings, ising.three_body), strict=True)
    fields, couplings, cubic = (None if x is None else factor * x.detach().double() for factor, x in terms)
    assert fields is not None
    return Ising(fields, couplings, ising.visible, cubic, check=False)


def _explained(ising: Ising, law: Tensor, scales: tuple[float, float, float]) -> float | None:
    """Share of the gain over random spins that the fitted law explains; None for a law without any."""
    table = states.all_states(ising.num_spins)
    fitted = log_pseudolikelihood(ising, table, law.movedim(-1, 0), scales)
    own, index = 0.0, torch.arange(law.shape[-1])
    for j in range(ising.num_spins):  # an invisible spin is -1 in every state of the law, and adds log 1
        given_rest = torch.where(law > 0, law / (law + law[..., index ^ (1 << j)]), 1.0)
        own += float((law * given_rest.log()).sum()) / max(1, int(ising.visible_mask.sum()))
    gain = own + math.log(2)
    return (fitted + math.log(2)) / gain if gain > 0 else None


def _distance(q: Tensor, p: Tensor) -> float:
    return float(states.total_variation(q, p).mean())


def main() -> None:
    """Print the table of the command line."""
    made = parser(__doc__)
    made.add_argument("--times", type=float, nargs="+", default=(2.0, 5.0, 7.0, 10.0, 20.0), help="in ns")
    made.add_argument("--schedule", default="Advantage2_system1", help="built-in schedule, or a CSV file")
    made.add_argument("--strength", type=float, default=0.3, help="g of the problems")
    made.add_argument("--num-reads", type=int, help="behind the fits; exact laws if left out")
    asked = made.parse_args()
    problems = {"strength": asked.strength, "num_reads": asked.num_reads}
    found = calibrate(asked.times, schedule=asked.schedule, **problems)
    show(found, as_json=asked.json)


if __name__ == "__main__":
    main()
