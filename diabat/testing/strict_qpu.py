"""An offline mock of a D-Wave processor that refuses what the processor refuses (extra ``dwave``).

``dwave.system.testing.MockDWaveSampler`` checks the graph and the names of keywords only, and returns ground states.

    from diabat.testing.strict_qpu import StrictMockQPU

    chip = StrictMockQPU(topology_type="zephyr", topology_shape=[4, 4])
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import connected_components

from diabat.checks import ArgumentError, check_positive
from diabat.circuits import schedule as built_in
from diabat.ising import Ising, to_minimised
from diabat.samplers.dimod.budget import estimated_access_us
from diabat.samplers.dimod.problems import FloatArray, IntArray
from diabat.samplers.dimod.reads import expand
from diabat.samplers.dimod.submission import missing_package
from diabat.samplers.seeds import child_seed
from diabat.testing import qpu_rules

try:
    import dimod
    from dwave.samplers import SimulatedAnnealingSampler
    from dwave.system.temperatures import fluxbias_to_h
    from dwave.system.testing import MockDWaveSampler
except ImportError as error:
    raise ImportError(missing_package(error, "StrictMockQPU"), name=error.name) from None

# Typical values of an Advantage processor, in the form of its property problem_timing_data; microseconds.
TIMING = {
    "version": "1.0.0", "typical_programming_time": 14072.88, "default_programming_thermalization": 1000.0,
    "default_annealing_time": 20.0, "readout_time_model": "pwl_log_log",
    "readout_time_model_parameters": [0.0, 0.77, 1.72, 2.71, 3.16, 3.75, 1.54, 1.87, 2.13, 2.33, 2.37, 2.37],
    "qpu_delay_time_per_sample": 20.54, "default_readout_thermalization": 0.0,
    "reverse_annealing_with_reinit_prog_time_delta": 0.0, "reverse_annealing_with_reinit_delay_time_delta": -4.5,
    "reverse_annealing_without_reinit_prog_time_delta": 4.55,
    "reverse_annealing_without_reinit_delay_time_delta": -2.5,
    "decorrelation_max_nominal_anneal_time": 2000.0, "decorrelation_time_range": [500.0, 10000.0],
}  # fmt: skip


class StrictMockQPU(MockDWaveSampler):  # type: ignore[misc]  # dwave-system has no stubs
    """A ``MockDWaveSampler`` that enforces the rules of a processor and returns Boltzmann reads.

    It refuses with one sentence:

    - values outside h_range, extended_j_range or per_qubit_coupling_range with ``auto_scale=False`` (True, the
      default, scales to full range as the processor does);
    - with ``fast_anneal``: h other than 0, schedules that do not have two points, reverse anneals, h gains, and
      times out of range;
    - invalid anneal schedules; a wrong number of flux biases, or flux biases with auto_scale;
    - too many reads, too long runs, unknown keywords.

    Answers are histograms unless ``answer_mode="raw"``.  Reads follow P(s) ∝ exp(-beta · E(s)) of the programmed
    values, by simulated annealing held at beta, or with a ``schedule`` its fast anneal, simulated by the backend
    ``dqa`` for every connected part (16 qubits at most); qubits with flux biases are fixed.  It is not Boltzmann:
    fields and couplings have different effective temperatures.  As on a processor there is no seed per call: answer
    number k is a function of ``seed`` and k.

    Args:
        schedule: Built-in schedule of an anneal, such as Advantage2_system1, which accepts only submissions with
            ``fast_anneal``; None for Boltzmann reads.
        beta: Inverse temperature of Boltzmann answers, for fields and couplings alike.
        sweeps: Sweeps from a random start.
        seed: Seed of all answers; None draws one.
        tied_below: Qubits joined by couplings J at or below this value flip together, which is the limit of strong
            chains; None is -8/beta.  Flipped alone (-inf), they freeze below about -3/beta.
        fail_at: Numbers, from 1, of the calls that fail with a ConnectionError.
        properties: Properties that replace those of the mock.
        topology_type: ``chimera``, ``pegasus`` or ``zephyr``; of ``MockDWaveSampler``, as what follows.
        topology_shape: Its sizes, such as [12, 4] of a Zephyr graph.
        nodelist: The qubits, and ``edgelist`` the couplers; None for all.
        broken_nodes: Qubits, and ``broken_edges`` couplers, that do not work.

    Attributes:
        calls: Calls of ``sample`` so far; ``answered`` those that were answered, with ``reads`` reads.
    """

    def __init__(
        self, *,
        schedule: str | None = None, beta: float = 1.0, sweeps: int = 100, seed: int | None = 0,
        tied_below: float | None = None, fail_at: Iterable[int] = (), properties: dict[str, Any] | None = None,
        topology_type: str | None = None, topology_shape: Sequence[int] | None = None,
        nodelist: Sequence[int] | None = None, edgelist: Sequence[tuple[int, int]] | None = None,
        broken_nodes: Sequence[int] | None = None, broken_edges: Sequence[tuple[int, int]] | None = None,
    ) -> None:  # fmt: skip
        check_positive("beta", beta)
        if schedule is not None:
            built_in(schedule)
            if tied_below is not None:
                expected = "None with a schedule, whose chains are simulated"
                raise ArgumentError("tied_below", expected, f"{tied_below!r}")
        self.tied_below = -8 / beta if tied_below is None else tied_below
        stated = {"problem_timing_data": TIMING, "beta": beta, "seed": seed, "sweeps": sweeps}
        stated |= {"tied_below": self.tied_below} | ({} if schedule is None else {"schedule": schedule})
        super().__init__(
            properties=stated | (properties or {}),
            substitute_sampler=SimulatedAnnealingSampler(),
            substitute_kwargs={"beta_schedule_type": "custom", "beta_schedule": [beta] * sweeps},
            topology_type=topology_type, topology_shape=topology_shape, nodelist=nodelist, edgelist=edgelist,
            broken_nodes=broken_nodes, broken_edges=broken_edges,
        )  # fmt: skip
        self.parameters["max_answers"] = ["parameters"]
        self.schedule, self.fail_at = schedule, frozenset(fail_at)
        self._seeds = np.random.SeedSequence(seed)
        self.calls = self.answered = self.reads = 0

    @dimod.bqm_structured  # type: ignore[untyped-decorator]  # dimod has no stubs
    def sample(self, bqm: Any, **keywords: Any) -> Any:
        """Answer like the processor; see the class."""
        self.calls += 1
        if self.calls in self.fail_at:
            raise ConnectionError("the connection was lost")
        qpu_rules.check_keywords(keywords, self.properties, set(self.parameters))
        spin, reads = bqm.change_vartype("SPIN", inplace=False), keywords.get("num_reads", 1)
        spins = self._spins(spin, reads, keywords)
        self.answered += 1
        self.reads += reads
        access = estimated_access_us(self.properties["problem_timing_data"], max(len(bqm), 1), keywords)
        info = {"timing": {"qpu_access_time": access}, "problem_id": f"stand-in-{self.calls}"}
        answer = dimod.SampleSet.from_samples_bqm((spins, list(spin.variables)), spin, info=info)
        if keywords.get("answer_mode", "histogram") == "histogram" and len(answer):
            answer = answer.aggregate().slice(sorted_by="energy")
        if (most := keywords.get("max_answers")) is not None:
            answer = answer.slice(most, sorted_by=None)
        return answer.change_vartype(bqm.vartype, inplace=False)

    def _spins(self, spin: Any, reads: int, keywords: dict[str, Any]) -> np.ndarray:
        qubits = list(spin.variables)
        h, (first, second, J), _ = spin.to_numpy_vectors(variable_order=qubits)
        h, J, pairs = h.astype(float), J.astype(float), np.stack((first, second), axis=1).astype(np.int64)
        h, J = qpu_rules.programmed(h, pairs, J, keywords, self.properties)
        # As a field a flux bias has the opposite sign, 0.005 Φ0 is about h = -12: the persistent current is that of
        # Advantage_system4.1 at single-qubit freeze-out.  (In an anneal it grows like sqrt(B), a field like B.)
        biases = keywords.get("flux_biases")
        flux = np.zeros(len(h)) if biases is None else fluxbias_to_h(np.asarray(biases, float)[qubits])
        (child,) = self._seeds.spawn(1)
        seed = int(child.generate_state(1)[0] >> 1)
        if self.schedule is not None:
            time = qpu_rules.fast_annealing_time(keywords)
            return _anneal(_Model(h, pairs, J), flux, self.schedule, time, reads, seed)
        model, group = _tie(_Model(h + flux, pairs, J), self.tied_below)
        labels, terms = list(range(len(model.h))), (model.h, (*model.pairs.T, model.J), 0.0)
        bqm = dimod.BinaryQuadraticModel.from_numpy_vectors(*terms, "SPIN", variable_order=labels)
        answer = self.substitute_sampler.sample(bqm, num_reads=reads, **self.substitute_kwargs, seed=seed)
        return expand(answer, labels, np.random.default_rng(seed)).spins[:, group]


class _Model(NamedTuple):
    """Biases of an energy to be minimised: h float64 [V], pairs int64 [E, 2], J float64 [E]."""

    h: FloatArray
    pairs: IntArray
    J: FloatArray


def _tie(model: _Model, below: float) -> tuple[_Model, NDArray[np.int64]]:
    """Join variables that couplings J <= ``below`` tie: the joined model, and which of its variables each became.

    This is the limit of strong chains, which never break.  Single spin flips almost never flip one; the device does.
    """
    count = len(model.h)
    first, second = model.pairs[np.less_equal(model.J, below)].T
    links = coo_array((np.ones(len(first)), (first, second)), shape=(count, count))
    size, group = connected_components(links, directed=False)
    pairs = group[model.pairs]
    apart = pairs[:, 0] != pairs[:, 1]
    h = np.bincount(group, model.h, minlength=size).astype(np.float64)
    return _Model(h, pairs[apart].astype(np.int64), model.J[apart]), group.astype(np.int64)


# A flux bias that acts like at least this field holds its qubit; weaker ones, growing like sqrt(B), are refused.
_HOLDING_FIELD = 4.0
_MOST_QUBITS = 16


def _anneal(
    model: _Model, flux: FloatArray, schedule: str, annealing_time_us: float, reads: int, seed: int
) -> NDArray[np.int8]:
    """Reads of a fast anneal of every connected part, by the simulation of the backend ``dqa``, int8 [reads, V].

    A qubit with a flux bias, given as the field that it acts like [V], is fixed at the sign of the bias and acts as a
    field on its neighbours.  Chains are simulated qubit by qubit and may break.
    """
    from diabat.samplers.dqa import DQASampler

    if ((flux != 0) & (np.abs(flux) < _HOLDING_FIELD)).any():
        raise ArgumentError("flux_biases", "0 or enough to hold a qubit with a schedule", "a weak one")
    held = -np.sign(flux)  # 0 where the qubit is free
    out = np.empty((reads, len(model.h)), dtype=np.int8)
    out[:, held != 0] = held[held != 0].astype(np.int8)
    dqa = DQASampler(schedule=schedule, annealing_time_ns=1000 * annealing_time_us, calibration="none")
    for number, (qubits, h, J) in enumerate(_parts(model, held)):
        problem = Ising(to_minimised(torch.from_numpy(h)), to_minimised(torch.from_numpy(J)))
        out[:, qubits] = dqa.sample(problem, reads, seed=child_seed(seed, number)).spins.numpy()
    return out


def _parts(model: _Model, held: FloatArray) -> Iterator[tuple[NDArray[np.int64], FloatArray, FloatArray]]:
    """Free qubits [Q, n], fields [Q, n] and couplings [Q, n, n] of the connected parts of each size n."""
    count = len(model.h)
    upper = coo_array((model.J, tuple(model.pairs.T)), shape=(count, count)).toarray()
    J = upper + upper.T
    h = model.h + J @ held
    free = np.flatnonzero(held == 0)
    size, group = connected_components(csr_array(J[np.ix_(free, free)] != 0), directed=False)
    members = [free[group == part] for part in range(size)]
    for n in sorted({len(part) for part in members}):
        if n > _MOST_QUBITS:
            raise ArgumentError("schedule", f"parts of at most {_MOST_QUBITS} coupled qubits", f"one of {n}")
        qubits = np.stack([part for part in members if len(part) == n])
        yield qubits, h[qubits], J[qubits[:, :, None], qubits[:, None, :]]
