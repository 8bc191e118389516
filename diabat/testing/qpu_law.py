"""Reads of the mock processor: Boltzmann reads at one beta, or reads of a simulated fast anneal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import connected_components

from diabat.checks import ArgumentError
from diabat.ising import Ising, to_minimised
from diabat.samplers.dimod.packing import FloatArray, IntArray, expand
from diabat.samplers.seeds import child_seed


class Model(NamedTuple):
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

    Single spin flips almost never flip a strong chain; the real device does.

    Returns:
        The joined model, and the joined variable of each of the V variables.
    """
    count = len(model.h)
    if below is None:
        return model, np.arange(count)
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

    labels, edges = list(range(len(model.h))), (*model.pairs.T, model.J)
    bqm = dimod.BinaryQuadraticModel.from_numpy_vectors(model.h, edges, 0.0, "SPIN", variable_order=labels)
    answer = sampler.sample(bqm, num_reads=reads, **keywords)
    return expand(answer, labels, np.random.default_rng(keywords["seed"])).spins


# A flux bias that acts like at least this field holds its qubit; weaker ones, growing like sqrt(B), are refused.
_HOLDING_FIELD = 4.0
_MOST_QUBITS = 16


def anneal(
    model: Model, flux: FloatArray, schedule: str, annealing_time_us: float, reads: int, seed: int
) -> NDArray[np.int8]:
    """Reads of a fast anneal of every connected part, by the simulation of the backend ``dqa``, int8 [reads, V].

    A qubit with a flux bias, given as the field that it acts like [V], is fixed at the sign of the bias and acts as a
    field on its neighbours.  Chains are simulated qubit by qubit and may break.
    """
    from diabat.samplers.dqa import DQASampler

    weak = (flux != 0) & (np.abs(flux) < _HOLDING_FIELD)
    if weak.any():
        raise ArgumentError(
            "flux_biases", "expected 0 or enough to hold a qubit with a schedule, got a weak one."
        )
    held = -np.sign(flux)  # 0 where the qubit is free
    out = np.empty((reads, len(model.h)), dtype=np.int8)
    out[:, held != 0] = held[held != 0].astype(np.int8)
    dqa = DQASampler(schedule=schedule, annealing_time_ns=1000 * annealing_time_us, calibration="none")
    for number, (qubits, h, J) in enumerate(_parts(model, held)):
        problem = Ising(to_minimised(torch.from_numpy(h)), to_minimised(torch.from_numpy(J)))
        found = dqa.sample(problem, reads, seed=child_seed(seed, number)).spins
        out[:, qubits] = found.numpy()
    return out


def _parts(model: Model, held: FloatArray) -> Iterator[tuple[NDArray[np.int64], FloatArray, FloatArray]]:
    """Free qubits [Q, n], fields [Q, n] and couplings [Q, n, n] of the connected parts of each size n."""
    count = len(model.h)
    J = np.zeros((count, count))
    np.add.at(J, tuple(model.pairs.T), model.J)
    J += J.T
    h = model.h + J @ held
    free = np.flatnonzero(held == 0)
    size, group = connected_components(csr_array(J[np.ix_(free, free)] != 0), directed=False)
    members = [free[group == part] for part in range(size)]
    for n in sorted({len(part) for part in members}):
        if n > _MOST_QUBITS:
            limit = f"parts of at most {_MOST_QUBITS} coupled qubits"
            raise ArgumentError("schedule", f"expected {limit}, got one of {n}.")
        qubits = np.stack([part for part in members if len(part) == n])
        yield qubits, h[qubits], J[qubits[:, :, None], qubits[:, None, :]]
