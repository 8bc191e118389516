"""Up to where a plan answers well: fields by one spin alone, couplings by the problems it was trained on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from diabat.circuits.engines.engine import Batch, Engine
from diabat.circuits.plan_range import PlanRange
from diabat.circuits.schedules import FloatArray
from diabat.circuits.trotter import TrotterPlan
from diabat.studies.learned.recorded import Instances

_FIELD_ERROR = 0.02  # of P(s = +1) of one spin alone
_COUPLING_ERROR = 0.05  # of P(s = +1), mean over neighbouring row norms
_NEIGHBOURS = 100
_STEP = 0.01


def trained_range(plan: TrotterPlan, instances: Sequence[Instances], engine: Engine) -> PlanRange:
    """The strongest fields and couplings that a plan was trained on and answers well.

    max_field is the largest |h| of the instances, or the one at which P(s = +1) of a spin on its own first errs by
    0.02. max_row_norm is the largest √Σ_k J_jk² of the instances, or the one around which P(s = +1), averaged over
    100 spins of neighbouring row norm, first errs by 0.05.

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
    # Both ends take the mean of the outermost spins.
    return norm[order], np.pad(mean, (width // 2, (width - 1) // 2), mode="edge")


def _first(at: FloatArray, error: FloatArray, most: float) -> float:
    """The last value before the error first exceeds the bound."""
    bad = np.flatnonzero(error > most)
    return float(at[max(0, bad[0] - 1)] if len(bad) else at[-1])
