"""Options of a learned anneal, its training and held-out problems with exact answers, and what is measured on them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import torch

from diabat.checks import ArgumentError, check_count, is_finite, keep_count
from diabat.circuits.engines.engine import Batch
from diabat.circuits.grids import MAX_STEPS
from diabat.circuits.plan import TrotterPlan
from diabat.circuits.response import Betas, predicted_beta
from diabat.circuits.schedules import FloatArray
from diabat.circuits.trotter import trotter_plan
from diabat.ising import Ising, pack_couplings
from diabat.lab.studies.ensembles import Ensemble, sk
from diabat.lab.studies.fidelity import fidelity_report
from diabat.plots import REFERENCE, Line, Panel, lines
from diabat.report import Column, Report, Row
from diabat.samplers.dqa import DQASampler
from diabat.samplers.exact import ExactSampler
from diabat.samplers.mean_field import MeanFieldSampler
from diabat.samplers.programming import ControlNoise, to_hardware_units

_MAX_SPINS = 16
_HELD_OUT_STRENGTHS, _HELD_OUT_SPINS = (0.3, 0.6, 1.0), (6, 8, 10)
_RANDOM = ("strengths", "weights", "spins", "instances", "wide_fields", "wide_weight")
_SCHEDULE, _TIME_NS, _STEPS = "Advantage2_system1", 5.0, 200


@dataclass(frozen=True)
class AnnealOptions:
    """A plan with free angles (a learned anneal), its training problems, and the search: the section ``anneal``.

    Attributes:
        steps: Steps of the plan.
        pair_weight: Weight of pair correlations in the loss; 0 counts only marginals.
        strengths: Strengths g of random problems, h ~ N(0, g), J ~ N(0, g/√n).
        weights: Weight of each strength in the loss; None for equal ones.
        spins: Numbers of spins n of random problems.
        instances: Random problems for each n and g.
        wide_fields: Also train on fields uniform up to this size, J ~ N(0, 0.5/√n).
        wide_weight: Weight of these problems; None for 1.
        run: Folder of a training run, whose fields and couplings take the place of random problems.
        start: Begin with this plan, a shipped name or a file.
        restarts: Starts at every number of steps.
        iterations: L-BFGS iterations of each start.
        polish: Further iterations for the best one.
        held_out: Held-out problems for each row of the error table.
    """

    steps: int = 8
    pair_weight: float = 0.2
    strengths: tuple[float, ...] = (0.3, 0.6, 1.0, 1.5)
    weights: tuple[float, ...] | None = None
    spins: tuple[int, ...] = (4, 5)
    instances: int = 64
    wide_fields: float | None = None
    wide_weight: float | None = None
    run: Path | None = None
    start: str | None = None
    restarts: int = 8
    iterations: int = 200
    polish: int = 1000
    held_out: int = 100

    def __post_init__(self) -> None:
        keep_count(self, "steps", most=MAX_STEPS)
        for name in ("restarts", "iterations", "held_out", "instances"):
            keep_count(self, name)
        keep_count(self, "polish", least=0)
        for option in fields(self) if self.run is not None else ():
            if option.name in _RANDOM and (got := getattr(self, option.name)) != option.default:
                wrong = f"cannot be combined with run, which provides the problems, got {got}."
                raise ArgumentError(option.name, wrong)
        for n in self.spins:
            check_count("spins", n, least=2, most=_MAX_SPINS)
        for name in ("spins", "strengths", "weights", "pair_weight", "wide_fields", "wide_weight"):
            value, zero = getattr(self, name), name in ("weights", "pair_weight")
            numbers = () if value is None else value if isinstance(value, Sequence) else (value,)
            if value is not None and not numbers:
                raise ArgumentError(name, "at least one", "none")
            for x in numbers:
                if not is_finite(x) or x < 0 or (x == 0 and not zero):
                    raise ArgumentError(name, f"a finite number >{'=' * zero} 0", f"{x!r}")
        if self.weights is not None and (len(self.weights) != len(self.strengths) or not sum(self.weights)):
            expected = f"{len(self.strengths)} numbers, one for each strength, not all 0"
            raise ArgumentError("weights", expected, list(self.weights))
        if self.wide_weight is not None and self.wide_fields is None:
            wrong = f"must be combined with wide_fields, got {self.wide_weight:g} without it."
            raise ArgumentError("wide_weight", wrong)

    def training(self, seed: int) -> list[Instances]:
        """Random problems for training."""
        drawn = random_problems(self.strengths, self.spins, self.instances, seed=seed)
        each = self.weights or (1.0,) * len(self.strengths)
        weights = [*each] * len(self.spins)  # by size, then by strength
        if self.wide_fields is not None:
            drawn += wide_problems(self.wide_fields, self.spins, self.instances, seed=seed)
            weights += [self.wide_weight or 1.0] * len(self.spins)
        return [e for one, w in zip(drawn, weights, strict=True) for e in with_moments(one, weight=w)]

    def judging(self, seed: int) -> list[Ensemble]:
        """Random problems that are never used for training."""
        sizes, count = _HELD_OUT_SPINS, self.held_out
        problems = random_problems(_HELD_OUT_STRENGTHS, sizes, count, seed=seed, held_out=True)
        if self.wide_fields is not None:
            problems += wide_problems(self.wide_fields, sizes, count, seed=seed, held_out=True)
        return problems


@dataclass(frozen=True, eq=False)
class Instances:
    """Problems of one size with their exact moments, as numpy arrays.

    Attributes:
        name, strength, weight: Family and its g, to which the loss is relative, and their weight in it.
        batch: Programmed fields and couplings: those of the law, as they are.
        probability: Exact P(s_j = +1), float64 [Q, n].
        correlation: Exact <s_j s_k>, float64 [Q, n, n] with 1 on the diagonal.
    """

    name: str
    strength: float
    batch: Batch
    probability: FloatArray
    correlation: FloatArray
    weight: float = 1.0

    @property
    def independent_probability(self) -> FloatArray:
        """The J = 0 answer σ(2h), float64 [Q, n]."""
        return np.exp(-np.logaddexp(0.0, -2.0 * self.batch.fields))


def random_problems(
    strengths: Sequence[float], num_spins: Sequence[int], instances: int, *, seed: int, held_out: bool = False
) -> list[Ensemble]:
    """Problems of :func:`diabat.lab.studies.ensembles.sk`, each with its own J; one ensemble for each n and g.

    Held-out problems are never used for training, whatever the seeds.
    """
    ensembles = []
    for n in num_spins:
        words = np.random.SeedSequence([seed, int(held_out), n]).generate_state(1, np.uint64)
        ensembles += sk(strengths, num_spins=n, instances=instances, queries=1, seed=int(words[0] >> 1))
    return ensembles


def wide_problems(
    max_field: float, num_spins: Sequence[int], instances: int, *, seed: int, held_out: bool = False
) -> list[Ensemble]:
    """Problems with h uniform in [-max_field, max_field] and J ~ N(0, 0.5/√n), one ensemble for each n.

    A plan is a trigonometric polynomial in the fields: beyond the fields it was trained on, P(s) does not stay
    saturated.  Held-out problems are never used for training, whatever the seeds.
    """
    ensembles, g = [], 0.5
    for n in num_spins:
        # A fourth word of the seed; seeds of `random_problems` have three words.
        random = np.random.default_rng([seed, int(held_out), n, 1])
        h = torch.from_numpy(random.uniform(-max_field, max_field, (instances, 1, n)))
        J = torch.from_numpy(random.standard_normal((instances, 1, n * (n - 1) // 2)))
        ising = Ising(h, pack_couplings(J, n) * (g / math.sqrt(n)))
        ensembles.append(Ensemble(f"|h| < {max_field:g}", g, ising))
    return ensembles


def with_moments(ensemble: Ensemble, *, weight: float = 1.0) -> list[Instances]:
    """Solve problems exactly: one entry for each batch of an engine, which leaves out what is invisible.

    ValueError for three-body terms, for which a plan has no angles, and more than 16 visible spins.
    """
    ising, name = ensemble.ising.detach().to(torch.float64), ensemble.name
    if ising.three_body is not None:
        raise ArgumentError("ensemble", "only fields and couplings", f"three-body terms in '{name}'")
    if (most := int(ising.visible_mask.sum(-1).max())) > _MAX_SPINS:
        got = f"{most} in '{name}'; every step of the training costs 2^n"
        raise ArgumentError("ensemble", f"at most {_MAX_SPINS} visible spins", got)
    moments = ExactSampler().moments(ising, correlations=True)
    assert moments.correlation is not None
    P, C = moments.probability.flatten(0, -2).numpy(), moments.correlation.flatten(0, -3).numpy()
    programmed, entries = to_hardware_units(ising, Betas(1.0, 1.0), ControlNoise(), seed=0), []
    for bucket, batch in zip(programmed.flat.unpadded, programmed.batches, strict=True):
        row, spins = bucket.rows[:, None], bucket.members
        pairs = C[row[..., None], spins[:, :, None], spins[:, None, :]]
        entries.append(Instances(name, ensemble.strength, batch, P[row, spins], pairs, weight))
    return entries


def split_windows(ensemble: Ensemble) -> tuple[Ensemble, Ensemble]:
    """Split the queries of trained attention by windows, the first axis, at least two, into training and held-out."""
    ising, batch = ensemble.ising, ensemble.ising.batch_shape
    if not batch or batch[0] < 2:
        raise ArgumentError("ensemble", "at least two windows to divide", batch[:1].numel())

    def part(which: int) -> Ensemble:
        h, J, K = (
            None if term is None else term.expand(*batch, *term.shape[term.ndim - order :])[which::2]
            for order, term in enumerate((ising.fields, ising.couplings, ising.three_body), start=1)
        )
        assert h is not None
        return replace(ensemble, ising=Ising(h, J, ising.visible_mask[which::2], K, check=False))

    return part(0), part(1)


class ErrorTable(Report):
    """The rows of `error_table`, as they stand in a plan's file."""

    title = "Mean |P(s = +1) - exact| on held-out instances (pairs: of <s s'>)"
    labels = (
        Column("name", title="instances", show=lambda row: f"{row['instances']} {row['name']}"),
        Column("num_spins", title="n"),
        Column("strength", title="g"),
    )
    columns = (
        Column("learned", "learned plan", "learned"),
        Column("anneal", f"{_STEPS}-step {_TIME_NS:g} ns anneal of {_SCHEDULE}, h/beta_h and J/beta_J programmed",
               "5 ns\nanneal"),
        Column("mean_field", "naive mean field", "mean\nfield"),
        Column("independent", "J = 0", "J = 0"),
        Column("learned_pairs", title="pairs:\nlearned"),
        Column("anneal_pairs", title="5 ns\nanneal"),
    )  # fmt: skip


def error_table(plan: TrotterPlan, ensembles: Sequence[Ensemble]) -> list[Row]:
    """Mean |P(s_j = +1) - exact| of a plan, programmed as the problems are, and of three methods without training.

    A row for each ensemble, the keys of :class:`ErrorTable`; pairs are the mean |<s_j s_k> - exact|, j < k.
    """
    betas = predicted_beta(_SCHEDULE, _TIME_NS)
    anneal = DQASampler(schedule=trotter_plan(_SCHEDULE, _TIME_NS, _STEPS), betas=betas)
    backends = {"learned": DQASampler(schedule=plan), "anneal": anneal, "mean_field": MeanFieldSampler()}
    of_backends = fidelity_report(backends, ensembles).rows
    names = {"ensemble": "name", "num_spins": "num_spins", "strength": "strength", "queries": "instances",
             "independent_error": "independent"}  # fmt: skip
    rows: list[Row] = []
    for scores in zip(*(of_backends[k :: len(backends)] for k in range(len(backends))), strict=True):
        row = {name: scores[0][key] for key, name in names.items()}
        row |= {score["backend"]: score["marginal_mean"] for score in scores}
        rows.append(row | {f"{score['backend']}_pairs": score["pair_mean"] for score in scores[:2]})
    return rows


def plot_plan(plan: TrotterPlan, path: str | Path, title: str = "") -> Path:
    """Draw the three kinds of angles in radians against the step; the suffix of the path chooses the format."""
    steps, style = range(1, plan.steps + 1), {"marker": ""} if plan.steps > 50 else {}
    angles = {"mixer a": plan.mixer_angles, "field b": plan.field_angles, "coupling c": plan.coupling_angles}
    drawn = [Line(steps, y, name, look, style=style) for look, (name, y) in enumerate(angles.items())]
    zero = Line((1, plan.steps), (0, 0), style=REFERENCE)
    labels = {"title": title, "xlabel": "step", "ylabel": "angle (rad)"}
    panel = Panel([*drawn, zero], settings={**labels, "xticks": steps[:: -(-plan.steps // 16)]})
    return lines([[panel]], path, size=(4.6, 3.0), shared=False)
