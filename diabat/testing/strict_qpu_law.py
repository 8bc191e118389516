"""What the stand-in of a processor answers: Boltzmann reads of the programmed values at one beta."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diabat.samplers.dimod.programming import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Model:
    """Biases of an energy to be minimised: h float64 [V], pairs int64 [E, 2], J float64 [E]."""

    h: FloatArray
    pairs: IntArray
    J: FloatArray


def flux_as_fields(biases: Any, qubits: list[int]) -> FloatArray:
    """Fields that act like flux biases in Φ0: the sign is opposite, 0.005 is about h = -12.

    By ``dwave.system.temperatures.fluxbias_to_h`` with its defaults, the persistent current of Advantage_system4.1 at
    single-qubit freeze-out.  (In an anneal a flux bias grows like sqrt(B), a field like B.)
    """
    from dwave.system.temperatures import fluxbias_to_h

    return np.asarray(fluxbias_to_h(np.asarray(biases, dtype=np.float64)[qubits]), dtype=np.float64)


def tie(model: Model, below: float | None) -> tuple[Model, NDArray[np.int64]]:
    """Join variables that couplings J <= ``below`` tie together: the limit of strong chains, which never break.

    Single spin flips hardly ever turn a strong chain over; the real device does.

    Returns:
        The joined model, and the joined variable of each of the V variables.
    """
    count = len(model.h)
    if below is None:
        return model, np.arange(count)
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    first, second = model.pairs[np.less_equal(model.J, below)].T
    links = coo_array((np.ones(len(first)), (first, second)), shape=(count, count))
    size, group = connected_components(links, directed=False)
    pairs = group[model.pairs]
    apart = pairs[:, 0] != pairs[:, 1]
    h = np.bincount(group, model.h, minlength=size).astype(np.float64)
    return Model(h, pairs[apart].astype(np.int64), model.J[apart]), group.astype(np.int64)


def draw(model: Model, sampler: Any, reads: int, keywords: dict[str, Any]) -> NDArray[np.int8]:
    """Reads of a model from a dimod sampler, int8 [reads, V], in draw order."""
    import dimod

    first, second = model.pairs.T
    labels = list(range(len(model.h)))
    bqm = dimod.BinaryQuadraticModel.from_numpy_vectors(
        model.h, (first, second, model.J), 0.0, "SPIN", variable_order=labels
    )
    answer = sampler.sample(bqm, num_reads=reads, **keywords)
    place = {label: column for column, label in enumerate(answer.variables)}
    spins = answer.record.sample[:, [place[label] for label in labels]]
    return np.repeat(spins, answer.record.num_occurrences, axis=0).astype(np.int8)
