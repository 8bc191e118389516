"""What we compare with: first implementations in torch, and other programs; each from what is built to the call."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.case import Call, Peer, Target, Work
from benchmarks.problems import Solve, couplings
from diabat.circuits import TrotterPlan
from diabat.ising import Ising, to_bqm


def all_states(n: int) -> Tensor:
    """The states of n spins, [2^n, n]."""
    return ((torch.arange(2**n)[:, None] >> torch.arange(n)) & 1).float() * 2 - 1


def softmax_marginals(h: Tensor, J: Tensor) -> Tensor:
    """P(s = +1) by a softmax over all 2^n states, [..., n]."""
    states = all_states(h.shape[-1])
    energy = torch.einsum("xj,jk,xk->x", states, J, states) / 2
    return torch.softmax(h @ states.T + energy, -1) @ ((states + 1) / 2)


def enumeration(ising: Ising) -> Work:
    """The same; states and energies of the couplings are kept between calls."""
    states, J = all_states(ising.num_spins), couplings(ising)
    energy, up = torch.einsum("xj,jk,xk->x", states, J, states) / 2, (states + 1) / 2
    return Work(lambda: torch.softmax(ising.fields @ states.T + energy, -1) @ up, ising.num_problems)


def every_state(n: int) -> Solve:
    """P(s = +1) from h [..., n] and one J by a softmax over all states; states and products of pairs are kept."""
    states, (j, k) = all_states(n), torch.triu_indices(n, n, 1)
    signs, pairs = states.T.contiguous(), (states[:, j] * states[:, k]).T.contiguous()
    up = (states + 1) / 2
    return lambda h, J: (h @ signs + J[j, k] @ pairs).softmax(-1) @ up


def multinomial(ising: Ising, num_reads: int) -> Work:
    """Reads int8 [num_reads, queries, n] by ``torch.multinomial`` over all states; a unit is a read of a problem."""
    states, J = all_states(ising.num_spins), couplings(ising)
    energy, spins = torch.einsum("xj,jk,xk->x", states, J, states) / 2, states.to(torch.int8)

    def run() -> Tensor:
        p = torch.softmax(ising.fields @ states.T + energy, -1)
        return spins[p.multinomial(num_reads, replacement=True).T]

    return Work(run, ising.num_problems * num_reads)


def half_split(n: int) -> Solve:
    """P(s = +1) from h [..., n] and J: Z = Σ_xy A_x W_xy C_y over the states of both halves; the states are kept."""
    a = n // 2
    left, right = all_states(a), all_states(n - a)
    left_up, right_up = (left + 1) / 2, (right + 1) / 2

    def probabilities(h: Tensor, J: Tensor) -> Tensor:
        in_left, in_right = ((left @ J[:a, :a]) * left).sum(-1) / 2, ((right @ J[a:, a:]) * right).sum(-1) / 2
        W = (left @ J[:a, a:] @ right.T + in_left[:, None] + in_right).exp_()
        A, C = (h[..., :a] @ left.T).exp(), (h[..., a:] @ right.T).exp()
        from_left, from_right = A * (C @ W.T), (A @ W) * C
        up = torch.cat((from_left @ left_up, from_right @ right_up), -1)
        return up / from_left.sum(-1, keepdim=True)

    return probabilities


def converged(step: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Iterate the batch until no number moves by more than 1e-6, which every fourth step asks; at most 500 times."""
    for k in range(500):
        x, last = step(x), x
        if k % 4 == 3 and float(torch.dist(x, last, torch.inf)) <= 1e-6:
            break
    return x


class DampedFixedPoint(torch.autograd.Function):
    """P(s = +1) of m = tanh(h + J m), with the adjoint of the fixed point by the same iteration.

    Without damping, which is fastest at std J √n = .3; J [n, n] or [N, n, n], h [N, n].
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, J: Tensor) -> Tensor:
        """Iterate from tanh(h)."""
        field, multiply = (h, torch.addmm) if J.ndim == 2 else (h[:, None], torch.baddbmm)
        m = converged(lambda m: multiply(field, m, J).tanh_(), field.tanh())
        ctx.save_for_backward(m, J)
        return ((1 + m) / 2).view_as(h)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        """Solve w = D (v/2 + J w), D = 1 - m²."""
        m, J = ctx.saved_tensors
        slope, v = 1 - m * m, cotangents[0].view_as(m)
        right = slope * v / 2
        w = converged(lambda w: torch.addcmul(right, slope, w @ J), right)
        G = w.mT @ m
        return w.view_as(cotangents[0]), (G + G.mT) / 2


def transfer_matrix_log_z(h: Tensor, J: Tensor, width: int) -> Tensor:
    """Logarithm of Z [batch] by the transfer matrix in a few lines of torch; m = ∂ log Z/∂h by autograd."""
    index = torch.arange(1 << width)
    signs = (2 * ((index[:, None] >> torch.arange(width)) & 1) - 1).to(h)
    message = h.new_zeros(len(h), 1 << width)
    for t in range(h.shape[1] - 1, -1, -1):
        reach = min(t, width)
        row = F.pad(J[t, t - reach : t].flip(0), (0, width - reach))
        local = h[:, t, None] + signs @ row
        down, up = message[:, 0::2].repeat(1, 2), message[:, 1::2].repeat(1, 2)
        message = torch.logaddexp(up + local, down - local)
    return message[:, 0]


def chain_messages(h: Tensor, J: Tensor) -> Tensor:
    """P(s = +1) of chains [batch, n] with the couplings next to the diagonal of J, by messages in both directions."""
    spin = torch.tensor([-1.0, 1.0])
    local, links = h[..., None] * spin, J.diagonal(1)[:, None, None] * (spin[:, None] * spin)
    fields = torch.stack((local, local.flip(1))).unbind(2)
    pairs = torch.stack((links, links.flip(0)), 1)[:, :, None].unbind(0)
    messages = [torch.zeros_like(fields[0])]  # of the spins before, and of those behind, [2, batch, 2]
    for field, pair in zip(fields, pairs, strict=False):
        messages.append(torch.logsumexp((messages[-1] + field)[..., None] + pair, -2))
    before, behind = torch.stack(messages, 2)
    return (before + behind.flip(1) + local).softmax(-1)[..., 1]


class Softmax(nn.Module):
    """Causal attention with torch's fused softmax, and projections."""

    def __init__(self, width: int, heads: int = 1) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Attend, [B, T, width]."""
        return self.output(self.mix(self.query(x), self.key(x), self.value(x)))

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Mixed values, [B, T, width]."""
        if self.heads == 1:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


class ShortLayer(Softmax):
    """Boltzmann attention as a user would write it: softmax over all 2^T states, pairs of the visible positions."""

    def __init__(self, width: int, window: int) -> None:
        super().__init__(width)
        states, (j, k) = all_states(window), torch.triu_indices(window, window, 1)
        visible = self.visible = torch.ones(window, window).tril()
        self.couplings, self.scale = nn.Parameter(torch.zeros(len(j))), visible / math.sqrt(width)
        self.signs, self.pairs = states.T.contiguous(), (states[:, j] * states[:, k]).T.contiguous()
        self.up, self.visible_pairs = (states > 0).float(), visible[:, j] * visible[:, k]

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Mixed values, [B, T, width]."""
        h = q @ k.mT * self.scale
        exponent = h @ self.signs + (self.visible_pairs * self.couplings) @ self.pairs
        alpha = (exponent.softmax(-1) @ self.up) * self.visible
        return alpha / alpha.sum(-1, keepdim=True) @ v


Annealing = Callable[[Any, int, list[float]], Any]
"""Runs a BQM: (model, reads, inverse temperatures of the sweeps) -> dimod SampleSet."""


def dwave(model: Any, reads: int, betas: list[float]) -> Any:
    """Simulated annealing of dwave-samplers."""
    from dwave.samplers import SimulatedAnnealingSampler

    options = {"beta_schedule_type": "custom", "beta_schedule": betas}
    return SimulatedAnnealingSampler().sample(model, num_reads=reads, **options)


def openjij(model: Any, reads: int, betas: list[float]) -> Any:
    """Simulated annealing of OpenJij; without a seed, which would make all reads equal."""
    from openjij import SASampler

    sparse = model.num_interactions < model.num_variables**2 / 4
    schedule = [(beta, len(list(same))) for beta, same in itertools.groupby(betas)]
    return SASampler().sample(model, num_reads=reads, schedule=schedule, sparse=sparse)


def annealers(build: Callable[..., Work], target: Target = None) -> dict[str, Peer]:
    """Simulated annealing of other programs; ``build(size, run=...)`` is timed."""
    others = (("dwave-samplers", dwave, "dwave.samplers"), ("OpenJij", openjij, "openjij"))
    return {name: Peer(partial(build, run=run), target, module) for name, run, module in others}


def annealed(annealing: Annealing, ising: Ising, reads: int, sweeps: int) -> Work:
    """Reads at beta = 1 of one problem after another, from models that are built; a unit is a problem."""
    h = ising.fields.reshape(-1, ising.num_spins)
    models = [to_bqm(Ising(row, ising.held_couplings)) for row in h]
    return Work(lambda: [annealing(model, reads, [1.0] * sweeps) for model in models], len(models))


def plugin_layer(ising: Ising, queries: int) -> Work:
    """The Ising layer of dwave-pytorch-plugin on some queries: 16 reads of 32 sweeps; a unit is a query."""
    from dwave.plugins.torch.nn.modules.ising import Ising as Layer
    from dwave.samplers import SimulatedAnnealingSampler

    first, second = np.triu_indices(ising.num_spins, 1)
    edges = list(zip(first.tolist(), second.tolist(), strict=True))
    layer = Layer(
        nodes=range(ising.num_spins), edges=edges, sampler=SimulatedAnnealingSampler(), beta=1.0,
        sample_params={"num_reads": 16, "beta_schedule_type": "custom", "beta_schedule": [1.0] * 32},
    )  # fmt: skip
    pairs = -couplings(ising)[first, second].expand(queries, -1)  # the plugin minimises
    return Work(lambda: layer(-ising.fields[:queries], pairs), queries)


def qulacs_anneal(plan: TrotterPlan, fields: np.ndarray, J: np.ndarray) -> Call:
    """Marginals of one anneal by qulacs: a diagonal gate and n rotations per step, built before the clock starts."""
    from qulacs import QuantumCircuit, QuantumState
    from qulacs.gate import DiagonalMatrix

    n = len(fields)
    states = all_states(n).double().numpy()
    field, pair = states @ fields, np.einsum("xj,jk,xk->x", states, J, states) / 2
    circuit = QuantumCircuit(n)
    for j in range(n):
        circuit.add_H_gate(j)
    for b, c, a in zip(plan.field_angles, plan.coupling_angles, plan.mixer_angles, strict=True):
        circuit.add_gate(DiagonalMatrix(list(range(n)), np.exp(0.5j * (b * field + c * pair))))
        for j in range(n):
            circuit.add_RX_gate(j, a)  # qulacs rotates by exp(i a X / 2)
    state = QuantumState(n)

    def run() -> np.ndarray:
        state.set_zero_state()
        circuit.update_quantum_state(state)
        return np.abs(state.get_vector()) ** 2 @ ((states + 1) / 2)

    return run


def aer_gates(plan: TrotterPlan, fields: np.ndarray, J: np.ndarray) -> Work:
    """A circuit of rz, rzz and rx gates built and run by Aer for each row of fields; a unit is a row."""
    from qiskit_aer import AerSimulator
    from qiskit_aer.library import SaveProbabilities

    from diabat.circuits import anneal_circuit

    simulator = AerSimulator(method="statevector", max_parallel_threads=1)

    def run() -> None:
        circuits = [anneal_circuit(plan, row, J) for row in fields]
        for circuit in circuits:
            circuit.append(SaveProbabilities(len(J)), circuit.qubits)
        simulator.run(circuits, shots=1).result()

    return Work(run, len(fields))


def shapiq_mobius(table: Tensor) -> Call:
    """The Möbius transform of a table of all coalitions, [2^n], by shapiq."""
    import shapiq

    n, values = len(table).bit_length() - 1, table.numpy()
    powers = 1 << np.arange(n)

    def game(masks: Any) -> Any:
        return values[masks.astype(int) @ powers]

    return lambda: shapiq.ExactComputer(game, n)("Moebius", order=n)


def algorithm_1(V: Tensor, count: int, temperature: float, sampled: int = 24) -> Work:
    """Lines 38 to 47 of Algorithm 1 of NeuroGame on some pairs, every norm from vectors; a unit is V [batch, n, d].

    The lines on single tokens, 2 % of the work at n = 128, are left out.
    """
    batch, n, _ = V.shape
    drawn = torch.randint(n, (sampled, 2), generator=torch.Generator().manual_seed(0)).tolist()

    def pair(i: int, j: int) -> Tensor:
        weights, terms = [], []
        for _ in range(count):
            inside, norms = torch.rand(n) < 0.5, []
            for with_i, with_j in ((False, False), (True, False), (False, True), (True, True)):
                inside[i], inside[j] = with_i, with_j
                norms.append(float(V[0, inside].sum(0).norm()))
            terms.append(norms[3] - norms[1] - norms[2] + norms[0])
            weights.append(norms[0] / temperature)
        return torch.softmax(torch.tensor(weights), 0) @ torch.tensor(terms)

    return Work(lambda: [pair(i, (j + (i == j)) % n) for i, j in drawn], sampled / (batch * n * (n - 1) / 2))
