"""Peers on the problems of the sections: what is built before the clock starts, and the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import sparse, tempering
from diabat.circuits import TrotterPlan
from diabat.ising import Ising, to_bqm

Call = Callable[[], Any]


def enumeration(ising: Ising) -> Call:
    """P(s = +1) by a softmax over all 2^n states in torch; states and energies of the couplings are kept."""
    n, J = ising.num_spins, ising.couplings
    assert J is not None
    states = ((torch.arange(2**n)[:, None] >> torch.arange(n)) & 1).float() * 2 - 1
    energy, up = torch.einsum("xj,jk,xk->x", states, J, states) / 2, (states + 1) / 2
    return lambda: torch.softmax(ising.fields @ states.T + energy, -1) @ up


def dwave_annealing(ising: Ising, reads: int, sweeps: int) -> Call:
    """dwave-samplers' simulated annealing held at beta = 1, from a model that is built."""
    run, bqm = tempering.dwave(), to_bqm(ising)
    return lambda: run(bqm, reads, sweeps)


def openjij_annealing(ising: Ising, reads: int, sweeps: int) -> Call:
    """OpenJij's simulated annealing held at beta = 1, from a model that is built."""
    make = tempering.openjij if ising.edges is None else sparse.openjij
    run, bqm = make(), to_bqm(ising)
    return lambda: run(bqm, reads, sweeps)


def thrml(ising: Ising, reads: int, sweeps: int) -> Call:
    """THRML's block Gibbs sampling: one colour of the graph at a time, compiled by jax before the clock starts."""
    import jax
    import networkx as nx
    from thrml import Block, SamplingSchedule, SpinNode, sample_states
    from thrml.models import IsingEBM, IsingSamplingProgram, hinton_init

    edges = ising.edges
    assert edges is not None
    graph = nx.Graph()
    graph.add_nodes_from(range(ising.num_spins))
    graph.add_edges_from(edges.index.tolist())
    colour = nx.coloring.greedy_color(graph)
    nodes = [SpinNode() for _ in range(ising.num_spins)]
    groups: list[list[Any]] = [[] for _ in range(1 + max(colour.values()))]
    for spin, node in enumerate(nodes):
        groups[colour[spin]].append(node)
    blocks = [Block(group) for group in groups]
    model = IsingEBM(
        nodes,
        [(nodes[j], nodes[k]) for j, k in edges.index.tolist()],
        jax.numpy.asarray(ising.fields.numpy()),
        jax.numpy.asarray(edges.values.numpy()),
        jax.numpy.asarray(1.0),
    )
    program = IsingSamplingProgram(model, blocks, clamped_blocks=[])
    schedule = SamplingSchedule(n_warmup=sweeps - 1, n_samples=1, steps_per_sample=1)

    def run(key: Any) -> Any:
        start = hinton_init(key, model, blocks, (reads,))
        keys = jax.random.split(key, reads)
        return jax.vmap(lambda k, s: sample_states(k, program, schedule, s, [], [Block(nodes)]))(keys, start)

    compiled = jax.jit(run)
    return lambda: jax.block_until_ready(compiled(jax.random.key(1)))


def qulacs_anneal(plan: TrotterPlan, fields: np.ndarray, couplings: np.ndarray) -> Call:
    """Marginals of one anneal by qulacs: a diagonal gate and n rotations per step, built before the clock starts."""
    from qulacs import QuantumCircuit, QuantumState
    from qulacs.gate import DiagonalMatrix

    n = len(fields)
    states = 2.0 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1) - 1
    field, pair = states @ fields, np.einsum("xj,jk,xk->x", states, couplings, states) / 2
    circuit = QuantumCircuit(n)
    for j in range(n):
        circuit.add_H_gate(j)
    for b, c, a in zip(plan.field_angles, plan.coupling_angles, plan.mixer_angles, strict=True):
        circuit.add_gate(DiagonalMatrix(list(range(n)), np.exp(0.5j * (b * field + c * pair))))
        for j in range(n):
            circuit.add_RX_gate(j, a)  # qulacs rotates by exp(i a X / 2)
    state = QuantumState(n)

    def run() -> Tensor:
        state.set_zero_state()
        circuit.update_quantum_state(state)
        return torch.from_numpy(np.abs(state.get_vector()) ** 2 @ ((states + 1) / 2))

    return run
