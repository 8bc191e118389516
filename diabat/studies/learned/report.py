"""Report of a plan: errors on held-out problems, trained range, and a figure of its angles."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch

from diabat.circuits.engines.engine import Batch, Engine
from diabat.circuits.plan_range import PlanRange
from diabat.circuits.response import predicted_beta
from diabat.circuits.schedules import FloatArray, schedule
from diabat.circuits.trotter import TrotterPlan, trotter_plan
from diabat.drawing import draw_line, new_figure, save_figure, tidy
from diabat.ising import Ising
from diabat.samplers.mean_field import MeanFieldSampler
from diabat.studies.learned.instances import Instances
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
        Column("name", title="instances", narrow=True, show=lambda row: f"{row['instances']} {row['name']}"),
        Column("num_spins", title="n", form="d", narrow=True),
        Column("strength", title="g", form=".2g", narrow=True),
    )
    columns = (
        Column("learned", "learned plan", "learned", ".4f", True),
        Column("anneal", f"{_STEPS}-step {_TIME_NS:g} ns anneal of {_SCHEDULE}, h/beta_h and J/beta_J programmed",
               "5 ns anneal", ".4f", "5 ns\nanneal"),
        Column("mean_field", "naive mean field", "mean field", ".4f", "mean\nfield"),
        Column("independent", "J = 0", "J = 0", ".4f", True),
        Column("learned_pairs", None, "pairs: learned", ".4f", "pairs:\nlearned"),
        Column("anneal_pairs", None, "5 ns anneal", ".4f", "5 ns\nanneal"),
    )  # fmt: skip


COLUMNS = ErrorTable.definitions()
"""Definitions of the columns of mean |P(s = +1) - exact| in the rows of `error_table`."""


def error_table(plan: TrotterPlan, instances: Sequence[Instances], engine: Engine) -> list[Row]:
    """Mean absolute error of the marginals P(s_j = +1), compared with three methods without training.

    Args:
        plan: The plan; fields and couplings are programmed as they are.
        instances: Held-out problems.
        engine: Runs the plan and the anneal.

    Returns:
        One row for each family, size and strength: name, num_spins, strength, instances (number of problems),
        the keys of `COLUMNS`, and learned_pairs and anneal_pairs, the mean absolute error of <s_j s_k>, j < k.
    """
    places: dict[tuple[str, int, float], list[Instances]] = defaultdict(list)
    for entry in instances:
        places[entry.name, entry.batch.num_spins, entry.strength].append(entry)
    rows: list[Row] = []
    for (name, n, strength), entries in places.items():
        errors = _errors(plan, entries, engine)
        count = sum(entry.batch.num_problems for entry in entries)
        rows.append({"name": name, "num_spins": n, "strength": strength, "instances": count, **errors})
    return rows


def _errors(plan: TrotterPlan, entries: list[Instances], engine: Engine) -> dict[str, float]:
    learned = engine.moments(plan, [entry.batch for entry in entries], correlations=True)
    anneal = engine.moments(
        _anneal_plan(), [_programmed(entry.batch) for entry in entries], correlations=True
    )
    answers = {
        "learned": [moments.probability for moments in learned],
        "anneal": [moments.probability for moments in anneal],
        "mean_field": [_mean_field(entry.batch) for entry in entries],
        "independent": [entry.independent_probability for entry in entries],
    }
    exact = [entry.probability for entry in entries]
    errors = {name: _mean_difference(answer, exact) for name, answer in answers.items()}
    if entries[0].batch.num_spins > 1:
        pairs = _upper([entry.correlation for entry in entries])
        for name, found in (("learned_pairs", learned), ("anneal_pairs", anneal)):
            correlations = [m.correlation for m in found if m.correlation is not None]
            errors[name] = _mean_difference(_upper(correlations), pairs)
    return errors


def _mean_difference(got: list[FloatArray], exact: list[FloatArray]) -> float:
    return float(np.abs(np.concatenate(got) - np.concatenate(exact)).mean())


def _upper(correlations: list[FloatArray]) -> list[FloatArray]:
    """<s_j s_k> of the pairs j < k, [Q, pairs]."""
    return [c[:, *np.triu_indices(c.shape[-1], 1)] for c in correlations]


def _programmed(batch: Batch) -> Batch:
    """h/beta_h and J/beta_J for the anneal."""
    beta_h, beta_j = predicted_beta(schedule(_SCHEDULE), _TIME_NS)
    return Batch(batch.fields / beta_h, batch.couplings / beta_j)


@cache
def _anneal_plan() -> TrotterPlan:
    return trotter_plan(schedule(_SCHEDULE), _TIME_NS, _STEPS)


def _mean_field(batch: Batch) -> FloatArray:
    ising = Ising(torch.from_numpy(batch.fields), torch.from_numpy(batch.couplings), check=False)
    probability: FloatArray = MeanFieldSampler().moments(ising).probability.numpy()
    return probability


def trained_range(plan: TrotterPlan, instances: Sequence[Instances], engine: Engine) -> PlanRange:
    """The strongest fields and couplings that a plan was trained on and for which its error is small.

    max_field is the largest |h| of the instances, or the smallest one at which the error of P(s = +1) of a single spin
    reaches 0.02.  max_row_norm is the largest √Σ_k J_jk² of the instances, or the smallest one at which the error of
    P(s = +1), averaged over 100 spins of neighbouring row norm, reaches 0.05.

    Args:
        plan: The plan.
        instances: Problems that it was trained on.
        engine: Runs the plan.
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
    found = engine.moments(plan, [entry.batch for entry in instances])
    errors = [np.abs(m.probability - entry.probability) for m, entry in zip(found, instances, strict=True)]
    norms = [
        np.broadcast_to(np.sqrt((entry.batch.couplings**2).sum(axis=-1)), entry.batch.fields.shape)
        for entry in instances
    ]
    norm, error = (np.concatenate([part.ravel() for part in parts]) for parts in (norms, errors))
    order = np.argsort(norm, kind="stable")
    width = min(_NEIGHBOURS, len(order))
    mean = np.convolve(error[order], np.full(width, 1 / width), "valid")
    # At both ends the mean of the outermost spins is used.
    return norm[order], np.pad(mean, (width // 2, (width - 1) // 2), mode="edge")


def _first(at: FloatArray, error: FloatArray, most: float) -> float:
    """The last value before the error first exceeds the bound."""
    bad = np.flatnonzero(error > most)
    return float(at[max(0, bad[0] - 1)] if len(bad) else at[-1])


_KINDS = (("mixer_angles", "mixer a"), ("field_angles", "field b"), ("coupling_angles", "coupling c"))


def plot_plan(plan: TrotterPlan, path: str | Path, title: str = "") -> Path:
    """Draw the three kinds of angles in radians against the layer.

    Args:
        plan: The plan.
        path: Output file; the suffix chooses the format (png, pdf, svg).
        title: Line above the figure.

    Returns:
        The path.
    """
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(5.6, 3.6)
    axis = figure.subplots()
    layers = range(1, plan.steps + 1)
    for look, (key, label) in enumerate(_KINDS):
        marker = {"marker": None} if plan.steps > 50 else {}
        draw_line(axis, layers, getattr(plan, key), look, label=label, **marker)
    axis.axhline(0, color="0.6", linewidth=0.8)
    axis.set_xlabel("layer")
    axis.set_ylabel("angle (rad)")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_title(title)
    tidy(axis, grid=None)
    axis.legend(frameon=False)
    return save_figure(figure, path)
