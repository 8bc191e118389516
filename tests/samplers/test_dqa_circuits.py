"""Circuits of the backend ``dqa``: measured, described, and for a batch, as tools of Qiskit take them."""

from __future__ import annotations

import json
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from qiskit.primitives import StatevectorSampler
from qiskit.quantum_info import Statevector

from diabat.circuits import PrimitiveEngine, to_qasm3
from diabat.ising import Ising
from diabat.ising.edges import Edges
from diabat.samplers import UnsupportedError
from diabat.samplers.dqa import DQASampler
from diabat.testing.problems import causal_problem, make_problem, with_visible

from .fakes import quick


def test_metadata_say_what_was_programmed() -> None:
    sampler = quick(betas=(1.5, 2.5))
    ising = with_visible(make_problem((), 3, seed=1), torch.tensor([True, False, True]))
    found = sampler.circuit(ising, measure=True, labels=["a", ("b", 1), 7]).metadata
    expected: dict[str, Any] = {
        "law": "diabatic",
        "engine": "native",
        "schedule": "Advantage2_system1",
        "steps": 60,
    }
    expected |= {"annealing_time_ns": 2.0, "calibration": "given", "programmed_with": [1.5, 2.5]}
    expected |= {"labels": ["a", ("b", 1), 7], "visible": [True, False, True], "problem": []}
    assert {key: found[key] for key in expected} == expected
    assert found["beta_h"] == sampler.predicted_betas.beta_h
    assert json.loads(json.dumps(found))["labels"] == ["a", ["b", 1], 7]
    assert sampler.circuit(ising).metadata["labels"] == [0, 1, 2]
    learned = DQASampler(schedule="boltzmann-8").circuit(make_problem((), 2)).metadata
    assert [learned[key] for key in ("schedule", "steps", "annealing_time_ns")] == ["boltzmann-8", 8, None]


def test_invisible_spins_have_no_gate_and_read_as_down() -> None:
    ising = with_visible(make_problem((), 4, seed=2), torch.tensor([True, False, True, True]))
    sampler = quick()
    circuit = sampler.circuit(ising, measure=True)
    acting = {
        circuit.find_bit(q).index
        for gate in circuit
        if len(gate.qubits) < 3
        for q in gate.qubits
        if gate.operation.name not in ("measure", "barrier")
    }
    assert acting == {0, 2, 3}
    seen = torch.tensor([0, 2, 3])
    visible = Ising(ising.fields[seen], ising.couplings[seen][:, seen])
    table = sampler.state_probabilities(visible).numpy()
    p = Statevector(sampler.circuit(ising)).probabilities().reshape(2, 2, 2, 2)  # spin 3 first
    assert np.abs(p[:, :, 0, :].reshape(-1) - table).max() < 1e-10
    counts = StatevectorSampler(seed=1).run([circuit], shots=50).result()[0].data.meas.get_counts()
    assert {bits[-2] for bits in counts} == {"0"}


@pytest.mark.parametrize("lead", ["shared", "heads", "per_problem", "none"])
def test_a_batch_is_a_list_of_circuits(lead: Any) -> None:
    sampler, ising = quick(), make_problem((2, 3), 3, lead=lead, seed=3)
    circuits = sampler.circuits(ising)
    assert [c.metadata["problem"] for c in circuits] == [[i, j] for i in range(2) for j in range(3)]
    tables = sampler.state_probabilities(ising).reshape(6, -1).numpy()
    for circuit, table in zip(circuits, tables, strict=True):
        assert np.abs(Statevector(circuit).probabilities() - table).max() < 1e-10


@pytest.mark.parametrize(
    ("shape", "lead"),
    [((), "shared"), ((), "none"), *(((2, 3), lead) for lead in ("shared", "per_problem", "none"))],
)
def test_a_batch_is_one_circuit_with_values(shape: tuple[int, ...], lead: Any) -> None:
    sampler, ising = quick(), make_problem(shape, 3, lead=lead, seed=4)
    circuit, values = sampler.pub(ising)[:2]
    assert values.shape == (*shape, circuit.num_parameters)
    tables = sampler.state_probabilities(ising).reshape(-1, 8).numpy()
    bare = circuit.remove_final_measurements(inplace=False)
    for row, table in zip(values.reshape(-1, circuit.num_parameters), tables, strict=True):
        assert np.abs(Statevector(bare.assign_parameters(row)).probabilities() - table).max() < 1e-10


def test_a_primitive_takes_it() -> None:
    """4000 shots of 2 problems, 16 numbers: beyond 5 standard deviations with probability 1e-5 at most."""
    sampler, ising = quick(), make_problem((2,), 3, seed=5)
    pub = sampler.pub(ising, 4000, labels="abc")
    result = StatevectorSampler(seed=np.random.default_rng(6)).run([pub]).result()[0]
    assert result.metadata["circuit_metadata"]["labels"] == ["a", "b", "c"]
    assert result.data.meas.shape == (2,)
    for q, table in enumerate(sampler.state_probabilities(ising).numpy()):
        counts = np.zeros(8)
        for state, count in result.data.meas.get_int_counts(q).items():
            counts[state] = count
        assert (np.abs(counts / 4000 - table) < 5 * np.sqrt(table * (1 - table) / 4000) + 1e-3).all()


def test_a_primitive_is_an_engine() -> None:
    """The object itself, as PrimitiveEngine takes it."""
    ising = make_problem((2,), 3, seed=5)
    reads = [
        quick(engine=kind(StatevectorSampler(seed=np.random.default_rng(6)))).sample(ising, 50, seed=0)
        for kind in (lambda primitive: primitive, PrimitiveEngine)
    ]
    assert torch.equal(reads[0].spins, reads[1].spins)
    assert reads[0].info["engine"] == "primitive"
    with pytest.raises(ValueError, match=r"primitive: expected a .*BaseSamplerV2, got Thread"):
        quick(engine=Thread())  # has a method run


def test_circuits_have_any_number_of_qubits() -> None:
    """No engine simulates forty spins, but a circuit of them can be drawn, exported and sent."""
    pairs = [(j, (j + 1) % 40) for j in range(40)]
    ring = Ising(torch.full((2, 40), 0.1), Edges(pairs, torch.full((40,), 0.2)))
    sampler = DQASampler(schedule="boltzmann-4")
    (circuit, _), parameterised = sampler.circuits(ring), sampler.pub(ring, 10)[0]
    assert circuit.num_qubits == parameterised.num_qubits == 40
    assert circuit.count_ops()["rzz"] == 4 * 40
    assert to_qasm3(circuit).count("\nrzz(") == 4 * 40
    with pytest.raises(UnsupportedError, match="at most 26 visible spins, got 40"):
        sampler.sample(ring, 1)
    cubic = make_problem((), 3, three_body=0.1)
    with pytest.raises(UnsupportedError, match="three_body: sampler 'dqa' accepts fields and couplings only"):
        sampler.circuit(cubic)


def test_a_batch_that_shares_its_visible_spins() -> None:
    mask = torch.tensor([True, True, False])
    sampler, ising = quick(), with_visible(make_problem((2,), 3, seed=7), mask)
    circuit, values = sampler.pub(ising)[:2]
    assert {parameter.name for parameter in circuit.parameters} == {"h_0", "h_1", "J_0_1"}
    assert values.shape == (2, 3)
    assert circuit.metadata["visible"] == mask.tolist()
    windows = sampler.circuits(causal_problem(3, seed=7))
    assert [c.metadata["visible"].count(True) for c in windows] == [1, 2, 3]
