"""Training and held-out problems with exact answers: random problems and problems of trained attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from diabat.checks import ArgumentError, check_count, is_integer
from diabat.circuits.engines.engine import Batch
from diabat.circuits.schedules import FloatArray
from diabat.ising import Ising, pack_couplings
from diabat.samplers.exact import ExactSampler
from diabat.samplers.grouping import Group, tiers, unpadded_cost
from diabat.studies.ensembles import Ensemble, sk

MAX_SPINS = 16
_TRAINING, _HELD_OUT = 0, 1


@dataclass(frozen=True, eq=False)
class Instances:
    """Problems of one size with their exact moments, as numpy arrays.

    Attributes:
        name: Family; the loss is measured relative to each family and strength.
        strength: g of the family, dimensionless.
        batch: Programmed fields and couplings: those of the law, as they are.
        probability: Exact P(s_j = +1), float64 [Q, n].
        correlation: Exact <s_j s_k>, float64 [Q, n, n] with 1 on the diagonal.
        weight: Weight of the family and strength in the loss.
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


def random_instances(
    strengths: Sequence[float],
    num_spins: Sequence[int],
    instances: int,
    *,
    seed: int,
    weights: Sequence[float] | None = None,
) -> list[Instances]:
    """Sherrington-Kirkpatrick problems h ~ N(0, g), J ~ N(0, g/√n), each with different couplings.

    g and g/√n are standard deviations.

    Args:
        strengths: Values of g > 0, dimensionless.
        num_spins: Values of n, 2 to 16.
        instances: Problems for each n and g.
        seed: Seed; other seeds and `held_out_instances` draw different problems.
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
    """Draw problems of the same law as `random_instances`, but different ones for any seeds."""
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

    A plan is a trigonometric polynomial in the fields: beyond the fields it was trained on, P(s) does not stay
    saturated.

    Args:
        max_field: Largest |h|, above 0.
        num_spins: Values of n, 2 to 16.
        instances: Problems for each n.
        seed: Seed, as in `random_instances`.
        strength: g > 0 of the couplings.
        weight: Weight of the family in the loss, above 0.
        held_out: Draw problems that are never used for training.

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
        # A fourth word of the seed; seeds of `random_instances` have three words.
        random = np.random.default_rng([seed, _HELD_OUT if held_out else _TRAINING, n, 1])
        h = torch.from_numpy(random.uniform(-max_field, max_field, (instances, 1, n)))
        J = torch.from_numpy(random.standard_normal((instances, 1, n * (n - 1) // 2)))
        ising = Ising(h, pack_couplings(J, n) * (strength / math.sqrt(n)))
        drawn += recorded_instances(Ensemble(f"|h| < {max_field:g}", strength, ising), weight=weight)
    return drawn


def recorded_instances(ensemble: Ensemble, *, weight: float = 1.0) -> list[Instances]:
    """The queries of trained attention; invisible spins are left out.

    Args:
        ensemble: As `diabat.studies.fidelity.from_attention` makes it.
        weight: Weight in the loss.

    Returns:
        One entry for each number of visible spins from 1 up.

    Raises:
        ValueError: Three-body terms, for which a plan has no angles, or more than 16 visible spins.
    """
    ising = ensemble.ising.detach().to(torch.float64)
    if ising.three_body is not None:
        raise ArgumentError(
            "ensemble", f"expected only fields and couplings, got three-body terms in '{ensemble.name}'."
        )
    most = int(ising.visible_mask.sum(-1).max())
    if most > MAX_SPINS:
        raise ArgumentError(
            "ensemble",
            f"expected at most {MAX_SPINS} visible spins, got {most} in '{ensemble.name}'; "
            "every step of the training costs 2^n.",
        )
    moments = ExactSampler().moments(ising, correlations=True)
    assert moments.correlation is not None
    n = ising.num_spins
    probability = moments.probability.reshape(-1, n).numpy()
    correlation = moments.correlation.reshape(-1, n, n).numpy()
    found = tiers(ising, unpadded_cost).gather(ising)
    groups = sorted(found, key=lambda group: group.fields.shape[-1])
    return [_instances_of_size(ensemble, group, probability, correlation, weight) for group in groups]


def split_windows(ensemble: Ensemble) -> tuple[Ensemble, Ensemble]:
    """Split a recorded ensemble by windows (its first axis) into a training half and a held-out half.

    Raises:
        ValueError: Fewer than two windows.
    """
    ising = ensemble.ising
    windows = ising.batch_shape[0] if ising.batch_shape else 1
    if windows < 2:
        raise ArgumentError("ensemble", f"expected at least two windows to divide, got {windows}.")
    halves = []
    for part in (slice(0, None, 2), slice(1, None, 2)):
        fields = ising.fields[part]
        J, K = (
            t[part] if t is not None and t.ndim - order == ising.fields.ndim - 1 and t.shape[0] > 1 else t
            for t, order in ((ising.couplings, 2), (ising.three_body, 3))
        )
        visible = None if ising.visible is None else ising.visible_mask[part]
        halves.append(replace(ensemble, ising=Ising(fields, J, visible, K, check=False)))
    return halves[0], halves[1]


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
        if not is_integer(n) or not 2 <= n <= MAX_SPINS:
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


def _instances_of_size(
    ensemble: Ensemble, group: Group, probability: FloatArray, correlation: FloatArray, weight: float
) -> Instances:
    """All problems of one number of spins; couplings are repeated only if there are several."""
    places, (groups, _, m) = group.tier.places, group.fields.shape
    fields = group.fields[places.slots].numpy()
    J = np.zeros((groups, m, m)) if group.couplings is None else group.couplings.numpy()
    rows, spins = places.rows.numpy()[:, None], places.spins.numpy()
    return Instances(
        ensemble.name,
        ensemble.strength,
        Batch(fields, J[0] if len(J) == 1 else J[places.slots[0].numpy()]),
        probability[rows, spins],
        correlation[rows[:, :, None], spins[:, :, None], spins[:, None, :]],
        weight,
    )
