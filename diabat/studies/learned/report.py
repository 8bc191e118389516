"""Errors of a plan on held-out problems, its trained range, and a figure of its angles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from diabat.circuits.engines.engine import Batch, Engine
from diabat.circuits.plan import TrotterPlan
from diabat.circuits.plan_range import PlanRange
from diabat.circuits.schedules import FloatArray
from diabat.plots import REFERENCE, Line, Panel, lines
from diabat.samplers.dqa import DQASampler
from diabat.samplers.mean_field import MeanFieldSampler
from diabat.studies.ensembles import Ensemble
from diabat.studies.fidelity import fidelity_report
from diabat.studies.learned.problems import Instances
from diabat.studies.report import Column, Report, Row

_SCHEDULE, _TIME_NS, _STEPS = "Advantage2_system1", 5.0, 200
_FIELD_ERROR = 0.02  # of P(s = +1) of one spin alone
_COUPLING_ERROR = 0.05  # of P(s = +1), mean over neighbouring row norms
_NEIGHBOURS = 100
_STEP = 0.01


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
    """Mean |P(s_j = +1) - exact| of a plan, and of three methods without training.

    Args:
        plan: The plan; fields and couplings are programmed as they are.
        ensembles: Held-out problems.

    Returns:
        One row for each ensemble: name, num_spins, strength, instances (number of problems), the keys of
        :class:`ErrorTable`, with learned_pairs and anneal_pairs the mean |<s_j s_k> - exact|, j < k.
    """
    anneal = DQASampler(schedule=_SCHEDULE, annealing_time_ns=_TIME_NS, steps=_STEPS, grid="uniform")
    backends = {"learned": DQASampler(schedule=plan), "anneal": anneal, "mean_field": MeanFieldSampler()}
    found = fidelity_report(backends, ensembles).rows
    rows: list[Row] = []
    for scores in zip(*(found[k :: len(backends)] for k in range(len(backends))), strict=True):
        first = scores[0]
        row = {"name": first["ensemble"], "num_spins": first["num_spins"], "strength": first["strength"]}
        row |= {"instances": first["queries"], "independent": first["independent_error"]}
        row |= {score["backend"]: score["marginal_mean"] for score in scores}
        rows.append(row | {f"{score['backend']}_pairs": score["pair_mean"] for score in scores[:2]})
    return rows


def trained_range(plan: TrotterPlan, instances: Sequence[Instances], engine: Engine) -> PlanRange:
    """The strongest fields and couplings that a plan was trained on and for which its error is small.

    max_field is the largest |h| of the instances, or the smallest one at which the error of P(s = +1) of a single spin
    reaches 0.02.  max_row_norm is the largest √Σ_k J_jk² of the instances, or the smallest one at which the error of
    P(s = +1), averaged over 100 spins of neighbouring row norm, reaches 0.05.
    """
    most = max(float(np.abs(entry.batch.fields).max()) for entry in instances)
    fields = np.arange(1, max(2, int(np.ceil(most / _STEP)) + 1), dtype=np.float64) * _STEP
    (alone,) = engine.moments(plan, [Batch(fields[:, None], np.zeros((1, 1)))])
    error = np.abs(alone.probability[:, 0] - 1 / (1 + np.exp(-2 * fields)))
    norms, missed = _rows(plan, instances, engine)
    return PlanRange(
        round(min(most, _first(fields, error, _FIELD_ERROR)), 2) or _STEP,
        round(_first(norms, missed, _COUPLING_ERROR), 2) or _STEP,
    )


def _rows(plan: TrotterPlan, instances: Sequence[Instances], engine: Engine) -> tuple[FloatArray, FloatArray]:
    """Row norms of all spins, ascending, and the error of the marginals around each."""
    norms, errors = [], []
    for entry, moments in zip(instances, engine.moments(plan, [e.batch for e in instances]), strict=True):
        error = np.abs(moments.probability - entry.probability)
        norms.append(np.broadcast_to(np.linalg.norm(entry.batch.couplings, axis=-1), error.shape).ravel())
        errors.append(error.ravel())
    norm, missed = np.concatenate(norms), np.concatenate(errors)
    order = np.argsort(norm, kind="stable")
    width = min(_NEIGHBOURS, len(order))
    mean = np.convolve(missed[order], np.full(width, 1 / width), "valid")
    # At both ends the mean of the outermost spins is used.
    return norm[order], np.pad(mean, (width // 2, (width - 1) // 2), mode="edge")


def _first(at: FloatArray, error: FloatArray, most: float) -> float:
    """The last value before the error first exceeds the bound."""
    bad = np.flatnonzero(error > most)
    return float(at[max(0, bad[0] - 1)] if len(bad) else at[-1])


def plot_plan(plan: TrotterPlan, path: str | Path, title: str = "") -> Path:
    """Draw the three kinds of angles in radians against the layer; the suffix of the path chooses the format."""
    layers, style = range(1, plan.steps + 1), {"marker": ""} if plan.steps > 50 else {}
    angles = {"mixer a": plan.mixer_angles, "field b": plan.field_angles, "coupling c": plan.coupling_angles}
    drawn = [Line(layers, y, name, look, style=style) for look, (name, y) in enumerate(angles.items())]
    zero = Line((1, plan.steps), (0, 0), style=REFERENCE)
    axis = {
        "title": title,
        "xticks": layers[:: -(-plan.steps // 16)],
        "xlabel": "layer",
        "ylabel": "angle (rad)",
    }
    return lines([[Panel([*drawn, zero], settings=axis)]], path, size=(4.6, 3.0), legend="inside")
