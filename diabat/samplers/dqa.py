"""Backend ``dqa``: diabatic quantum annealing, simulated as a Trotterized circuit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diabat.circuits import (
    AerEngine,
    AnnealingSchedule,
    Betas,
    anneal_circuit,
    available_schedules,
    draw_spins,
    from_csv,
    predicted_beta,
    spin_table,
    trotter_plan,
)
from diabat.circuits import schedule as built_in_schedule
from diabat.circuits.aer import MAX_SPINS
from diabat.ising import Ising, IsingError
from diabat.samplers.base import Capabilities, Moments, Sampler, Samples, UnsupportedError, check_num_reads
from diabat.samplers.grouping import grouped, unpadded_cost

if TYPE_CHECKING:
    from qiskit import QuantumCircuit

FloatArray = NDArray[np.float64]


class DQASampler(Sampler):
    r"""Fast quantum anneal from |+>^n, read in the Z basis.

    To first order in the couplings the reads follow exp(beta_h Σ h s + beta_J Σ J s s) of the programmed h and
    J (physics: beta_k = 2π ∫ B(t) sin(2πk ∫_t^{t_a} A dt') dt, k = 1 for fields, 2 for couplings), so that
    h/beta_h and J/beta_J are programmed to sample at beta = 1.  **The law is not Boltzmann**: at second order
    the response of a spin to a field through a coupling is about 0.42, and <s_1 s_3> through two couplings
    about 0.61, of the Boltzmann value, at any strength.

    Args:
        engine: ``aer`` (Qiskit Aer state vector).
        schedule: Name of a built-in schedule, path of a CSV file (s, A_GHz, B_GHz), or an AnnealingSchedule.
        protocol: ``fast`` or ``standard``, for built-in schedules.
        annealing_time_ns: t_a in ns.
        steps: Trotter steps; None chooses them from A and t_a.
        order: ``strang`` or ``first``.
        calibration: ``predicted`` (program h/beta_h, J/beta_J) or ``none`` (program h and J as they are).
        num_reads: Reads behind ``moments``; None uses the exact probabilities of the circuit.
        precision: ``double`` or ``single`` state vectors.

    Raises:
        ValueError: If an option is invalid; the message names it.
    """

    name = "dqa"

    def __init__(
        self,
        *,
        engine: str = "aer",
        schedule: str | AnnealingSchedule = "Advantage2_system1",
        protocol: Literal["fast", "standard"] = "fast",
        annealing_time_ns: float = 5.0,
        steps: int | None = None,
        order: Literal["strang", "first"] = "strang",
        calibration: Literal["predicted", "none"] = "predicted",
        num_reads: int | None = None,
        precision: Literal["double", "single"] = "double",
    ) -> None:
        if engine != "aer":
            raise ValueError(f"engine: expected 'aer', got {engine!r}.")
        if calibration not in ("predicted", "none"):
            raise ValueError(f"calibration: expected 'predicted' or 'none', got {calibration!r}.")
        if num_reads is not None:
            check_num_reads(num_reads)
            self.num_reads = num_reads
        self.sampled = num_reads is not None
        self.schedule = _resolve_schedule(schedule, protocol)
        self.annealing_time_ns, self.calibration = float(annealing_time_ns), calibration
        self.plan = trotter_plan(self.schedule, annealing_time_ns, steps, order)
        self.engine = AerEngine(precision=precision)
        self.betas: Betas = predicted_beta(self.schedule, annealing_time_ns)

    @property
    def capabilities(self) -> Capabilities:
        """State-vector simulation; its own (diabatic) law."""
        return Capabilities(
            exact=False,
            law="diabatic",
            max_spins=MAX_SPINS,
            three_body=False,
            per_problem_couplings=True,
            samples=True,
            correlations=True,
            log_partition=False,
            gradients=("straight_through", "covariance"),
        )

    def circuit(self, ising: Ising) -> QuantumCircuit:
        """The anneal of one problem [n] as a circuit of rz, rzz and rx gates, to draw or export.

        Raises:
            IsingError: If the problem is a batch.
            UnsupportedError: If it has three-body terms.
        """
        self._require(ising)
        if ising.fields.ndim != 1:
            raise IsingError(f"fields: expected one problem [n], got a batch {list(ising.fields.shape)}.")
        J = torch.zeros(ising.num_spins, ising.num_spins) if ising.couplings is None else ising.couplings
        return anneal_circuit(self.plan, *self._programmed(ising.fields, J.reshape(J.shape[-2:])))

    def state_probabilities(self, ising: Ising) -> Tensor:
        """P(s) of the circuit, float64 [*batch, 2^n]; bit j of the index is spin j, bit 1 means +1.

        Raises:
            UnsupportedError: If some spin is invisible or the problem is too large.
        """
        self._require(ising)
        if ising.visible is not None and not bool(ising.visible.all()):
            raise UnsupportedError(
                "visible: state probabilities need every spin visible, got invisible spins."
            )
        out = torch.empty(ising.num_problems, 2**ising.num_spins, dtype=torch.float64)
        for rows, _, table in self._tables(ising.detach()):
            out[rows] = torch.from_numpy(table)
        return out.reshape(*ising.batch_shape, -1)

    def _moments(self, ising: Ising, correlations: bool, seed: int) -> Moments:
        if self.sampled:
            return super()._moments(ising, correlations, seed)
        n, total = ising.num_spins, ising.num_problems
        probability = torch.zeros(total, n, dtype=torch.float64)
        pairs = torch.zeros(total, n, n, dtype=torch.float64) if correlations else None
        for rows, spins, table in self._tables(ising.detach()):
            states = spin_table(len(spins)).astype(np.float64)
            probability[rows[:, None], spins] = torch.from_numpy(table @ (states > 0))
            if pairs is not None:
                products = (states[:, :, None] * states[:, None, :]).reshape(len(states), -1)
                block = torch.from_numpy(table @ products).reshape(-1, len(spins), len(spins))
                pairs[rows[:, None, None], spins[:, None], spins] = block
        like = ising.fields
        return Moments(
            probability=probability.reshape(like.shape).to(like),
            visible=ising.visible_mask,
            correlation=None if pairs is None else pairs.reshape(*like.shape, n).to(like),
            info=self._info(),
        )

    def _sample(self, ising: Ising, num_reads: int, seed: int) -> Samples:
        n, total = ising.num_spins, ising.num_problems
        uniforms = np.random.default_rng(seed).random((total, num_reads))
        out = torch.full((num_reads, total, n), -1, dtype=torch.int8)
        for rows, spins, table in self._tables(ising):
            drawn = torch.from_numpy(draw_spins(table, uniforms[rows.numpy()]))
            out[:, rows[:, None], spins] = drawn
        shape = (num_reads, *ising.fields.shape)
        return Samples(out.reshape(shape).to(ising.fields.device), ising.visible_mask, info=self._info())

    def _tables(self, ising: Ising) -> Iterator[tuple[Tensor, Tensor, FloatArray]]:
        """Problem rows, visible spins and state probabilities of every group with the same J and visibility."""
        for group in grouped(ising, unpadded_cost):
            tier = group.tier
            for g in range(len(tier.coupling)):
                valid = tier.problems[g] < ising.num_problems
                m = tier.spins.shape[1]
                J = torch.zeros(m, m) if group.couplings is None else group.couplings[g]
                h, J_programmed = self._programmed(group.fields[g][valid], J)
                table = self.engine.probabilities(self.plan, h, J_programmed)
                yield tier.problems[g][valid].cpu(), tier.spins[g].cpu(), table

    def _programmed(self, fields: Tensor, couplings: Tensor) -> tuple[FloatArray, FloatArray]:
        """Fields and couplings that make the reads come out at beta = 1 to first order."""
        beta_h, beta_J = self.betas if self.calibration == "predicted" else (1.0, 1.0)
        return (
            fields.detach().double().cpu().numpy() / beta_h,
            couplings.detach().double().cpu().numpy() / beta_J,
        )

    def _info(self) -> dict[str, Any]:
        programmed = self.calibration == "predicted"
        return {
            "law": "diabatic",
            "engine": "aer",
            "schedule": self.schedule.name,
            "annealing_time_ns": self.annealing_time_ns,
            "steps": self.plan.steps,
            "calibration": self.calibration,
            "beta_h": self.betas.beta_h,
            "beta_J": self.betas.beta_J,
            # First-order inverse temperatures of what comes out, relative to the h and J asked for.
            "effective_beta": (1.0, 1.0) if programmed else (self.betas.beta_h, self.betas.beta_J),
        }


def _resolve_schedule(
    value: str | AnnealingSchedule, protocol: Literal["fast", "standard"]
) -> AnnealingSchedule:
    if isinstance(value, AnnealingSchedule):
        return value
    if not isinstance(value, str):
        raise ValueError(f"schedule: expected a name, a CSV path or an AnnealingSchedule, got {value!r}.")
    # A name with a separator or a suffix is meant as a file; then a missing file is the error to report.
    if value not in available_schedules() and (value.endswith(".csv") or os.sep in value):
        return from_csv(value)
    return built_in_schedule(value, protocol)
