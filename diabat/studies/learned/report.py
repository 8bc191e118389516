"""The error table of a plan on problems that it was not trained on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from diabat.circuits.engines.engine import Batch, Engine
from diabat.circuits.response import predicted_beta
from diabat.circuits.schedules import FloatArray, schedule
from diabat.circuits.trotter import TrotterPlan, trotter_plan
from diabat.ising import Ising
from diabat.samplers.mean_field import MeanFieldSampler
from diabat.studies.learned.recorded import Instances

_SCHEDULE, _TIME_NS, _STEPS = "Advantage2_system1", 5.0, 200

COLUMNS = {
    "learned": "learned plan",
    "anneal": f"{_STEPS}-step {_TIME_NS:g} ns anneal of {_SCHEDULE}, h/beta_h and J/beta_J programmed",
    "mean_field": "naive mean field",
    "independent": "J = 0",
}
"""Columns of mean |P(s = +1) - exact| in the rows of `error_table`, in words."""

Row = dict[str, Any]
"""One row of an error table: plain values, as JSON holds them."""


def error_table(plan: TrotterPlan, instances: Sequence[Instances], engine: Engine) -> list[Row]:
    """Mean absolute error of the marginals P(s_j = +1), beside three answers that need no training.

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
