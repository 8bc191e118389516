"""Problems of any ensemble, such as those of trained attention, with their exact answers as numpy arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from diabat.checks import ArgumentError
from diabat.circuits.engines.engine import Batch
from diabat.circuits.schedules import FloatArray
from diabat.ising import Ising
from diabat.samplers.exact import ExactSampler
from diabat.samplers.grouping import Group, tiers, unpadded_cost
from diabat.studies.fidelity.ensembles import Ensemble

MAX_SPINS = 16


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


def recorded_instances(ensemble: Ensemble, *, weight: float = 1.0) -> list[Instances]:
    """The queries of trained attention; invisible spins are left out.

    Args:
        ensemble: As `diabat.studies.fidelity.from_attention` makes it.
        weight: Weight in the loss.

    Returns:
        One entry for each number of visible spins from 1 up.

    Raises:
        ValueError: Three-body terms, which a plan has no angles for, or more than 16 visible spins.
    """
    ising = ensemble.ising.detach()
    ising = Ising(
        ising.fields.double(), _double(ising.couplings), ising.visible, ising.three_body, check=False
    )
    if ising.three_body is not None:
        raise ArgumentError(
            "ensemble", f"expected fields and couplings alone, got three-body terms in '{ensemble.name}'."
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
    return [_of_group(ensemble, group, probability, correlation, weight) for group in groups]


def split_windows(ensemble: Ensemble) -> tuple[Ensemble, Ensemble]:
    """Divide a recorded ensemble by windows (its first axis): one half to train on, one held out.

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


def _of_group(
    ensemble: Ensemble, group: Group, probability: FloatArray, correlation: FloatArray, weight: float
) -> Instances:
    """All problems of one number of spins; couplings are repeated only where there are several."""
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


def _double(couplings: Tensor | None) -> Tensor | None:
    return None if couplings is None else couplings.double()
