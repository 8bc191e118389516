"""Random instances: problems on which plans are trained and judged."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from diabat.checks import ArgumentError, check_count
from diabat.ising import Ising, pack_couplings
from diabat.studies.fidelity.ensembles import Ensemble, sk
from diabat.studies.learned.recorded import MAX_SPINS, Instances, recorded_instances

_TRAINING, _HELD_OUT = 0, 1


def random_instances(
    strengths: Sequence[float],
    num_spins: Sequence[int],
    instances: int,
    *,
    seed: int,
    weights: Sequence[float] | None = None,
) -> list[Instances]:
    """Sherrington-Kirkpatrick problems h ~ N(0, g), J ~ N(0, g/√n), each with couplings of its own.

    g and g/√n are standard deviations.

    Args:
        strengths: Values of g > 0, dimensionless.
        num_spins: Values of n, 2 to 16.
        instances: Problems for each n and g.
        seed: Seed; no other seed and no `held_out_instances` draw the same problems.
        weights: Weight of each strength in the loss, not negative; None for 1.

    Returns:
        One entry for each n and g.

    Raises:
        ValueError: A value out of range; weights that do not match the strengths.
    """
    return _draw(strengths, num_spins, instances, (seed, _TRAINING), weights)


def held_out_instances(
    strengths: Sequence[float], num_spins: Sequence[int], instances: int, *, seed: int
) -> list[Instances]:
    """Problems as `random_instances` draws them, but never the same ones, whatever the seeds."""
    return _draw(strengths, num_spins, instances, (seed, _HELD_OUT), None)


def wide_instances(
    max_field: float,
    num_spins: Sequence[int],
    instances: int,
    *,
    seed: int,
    strength: float = 0.5,
    weight: float = 1.0,
    held_out: bool = False,
) -> list[Instances]:
    """Problems with fields of every size up to a bound: h uniform in [-max_field, max_field], J ~ N(0, g/√n).

    A plan is a trigonometric polynomial in the fields; where it has not been held to saturate, it turns back.

    Args:
        max_field: Largest |h|, above 0.
        num_spins: Values of n, 2 to 16.
        instances: Problems for each n.
        seed: Seed, as in `random_instances`.
        strength: g > 0 of the couplings.
        weight: Weight of the family in the loss, above 0.
        held_out: Draw problems that no training draws.

    Returns:
        One entry for each n.

    Raises:
        ValueError: A value out of range.
    """
    _check([strength], num_spins, instances, None)
    for name, value in (("max_field", max_field), ("weight", weight)):
        if not (math.isfinite(value) and value > 0):
            raise ArgumentError(name, f"expected a finite number > 0, got {value!r}.")
    drawn = []
    for n in num_spins:
        # A fourth word, which no seed of `random_instances` has.
        random = np.random.default_rng([seed, _HELD_OUT if held_out else _TRAINING, n, 1])
        h = torch.from_numpy(random.uniform(-max_field, max_field, (instances, 1, n)))
        J = torch.from_numpy(random.standard_normal((instances, 1, n * (n - 1) // 2)))
        ising = Ising(h, pack_couplings(J, n) * (strength / math.sqrt(n)))
        drawn += recorded_instances(Ensemble(f"|h| < {max_field:g}", strength, ising), weight=weight)
    return drawn


def _draw(
    strengths: Sequence[float],
    num_spins: Sequence[int],
    instances: int,
    key: tuple[int, int],
    weights: Sequence[float] | None,
) -> list[Instances]:
    _check(strengths, num_spins, instances, weights)
    weights = [1.0] * len(strengths) if weights is None else weights
    drawn = []
    for n in num_spins:
        seed = int(np.random.SeedSequence([*key, n]).generate_state(1, np.uint64)[0] >> 1)
        ensembles = sk(strengths, num_spins=n, instances=instances, queries=1, seed=seed)
        for ensemble, weight in zip(ensembles, weights, strict=True):
            drawn += recorded_instances(ensemble, weight=weight)
    return drawn


def _check(
    strengths: Sequence[float], num_spins: Sequence[int], instances: int, weights: Sequence[float] | None
) -> None:
    for name, values in (("strengths", strengths), ("num_spins", num_spins)):
        if not len(values):
            raise ArgumentError(name, "expected at least one, got none.")
    for g in strengths:
        if not (math.isfinite(g) and g > 0):
            raise ArgumentError("strengths", f"expected finite numbers > 0, got {g!r}.")
    for n in num_spins:
        if isinstance(n, bool) or not isinstance(n, int) or not 2 <= n <= MAX_SPINS:
            raise ArgumentError("num_spins", f"expected integers from 2 to {MAX_SPINS}, got {n!r}.")
    check_count("instances", instances)
    if weights is None:
        return
    if len(weights) != len(strengths):
        raise ArgumentError(
            "weights", f"expected {len(strengths)}, one for each strength, got {len(weights)}."
        )
    for weight in weights:
        if not (math.isfinite(weight) and weight >= 0):
            raise ArgumentError("weights", f"expected finite numbers >= 0, got {weight!r}.")
    if not sum(weights) > 0:
        raise ArgumentError("weights", "expected one above 0, got only zeros.")
