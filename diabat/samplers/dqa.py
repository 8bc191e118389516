"""Backend ``dqa``: diabatic quantum annealing, simulated as a Trotterized circuit."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import torch
from torch import Tensor, nn

from diabat.checks import ArgumentError, ArgumentTypeError, check_choice, check_count, check_flag
from diabat.circuits import (
    AnnealingSchedule,
    Betas,
    Engine,
    OutOfRangeWarning,
    PlanGradient,
    PlanRange,
    TrotterPlan,
    anneal_circuit,
    coupled_pairs,
    ising_circuit,
)
from diabat.circuits.engines.engine import MOST_PHASE, Precision, phases_within
from diabat.circuits.plan_range import SATURATED
from diabat.circuits.response import plan_betas
from diabat.circuits.trotter import Order
from diabat.compute.memory import require_memory
from diabat.files import jsonable
from diabat.ising import Ising, IsingError
from diabat.samplers.anneals import WATCHED, Primitive, Protocol, beyond, build_engines, resolve_anneal
from diabat.samplers.answers import AdjointGradient, AdjointSolution, Moments, Samples
from diabat.samplers.base import Sampler
from diabat.samplers.call_checks import expanded, require_terms
from diabat.samplers.capabilities import Capabilities, Estimator, UnsupportedError
from diabat.samplers.diagnostics import Watched
from diabat.samplers.programming import Calibration, Programmed, check_betas, check_noise, to_hardware_units

if TYPE_CHECKING:
    from qiskit import QuantumCircuit


class DQASampler(Sampler):
    r"""Fast quantum anneal from |+>^n, read in the Z basis.

    To first order in the couplings the reads follow exp(beta_h Σ h s + beta_J Σ J s s) of the programmed h and
    J (beta_k = 2π ∫ B(t) sin(2πk ∫_t^{t_a} A dt') dt, k = 1 for fields, 2 for couplings), so that h/beta_h and
    J/beta_J are programmed to sample at beta = 1.  **The law is not Boltzmann**: at second order the response of
    a spin to a field through a coupling is about 0.42, and <s_1 s_3> through two couplings about 0.61, of the
    Boltzmann value, at any strength.  Learned plans (``schedule="boltzmann-8"``) repair most of it.

    Args:
        engine: ``native`` (compiled, CPU), ``aer`` (Qiskit Aer), ``torch`` (any torch device), ``primitive``
            (the sampler of Qiskit Aer), any other ``qiskit.primitives.BaseSamplerV2`` object, or an Engine, such as
            :class:`diabat.circuits.PrimitiveEngine` of a primitive and a backend, which compiles for a processor.
        schedule: Name of a built-in schedule (``Advantage2_system1``) or learned plan (``boltzmann-8``), path of a
            CSV file (s, A_GHz, B_GHz) or of a saved plan (.json), an AnnealingSchedule or a TrotterPlan.
        protocol: ``fast`` (the default) or ``standard`` of a built-in schedule, or one of a CSV file with several.
        annealing_time_ns: t_a in ns; None for 5 ns.
        steps: Trotter steps; None chooses them from A and t_a.
        order: ``strang`` (the default), on adaptive steps, or ``first``, on equal ones.
        calibration: ``predicted`` (by the formula above; the default for schedules), or ``none`` (program h and J
            unchanged; the default for learned plans, which sample at beta = 1).
        betas: (beta_h, beta_J) to use instead, for example measured on hardware; excludes ``calibration``.
        noise: Standard deviations of each programmed field and coupling, in hardware units, or one number for both;
            errors are drawn for each problem.
        num_reads: Reads behind ``moments``; None uses the exact probabilities of the circuit.
        precision: ``double`` or ``single`` state vectors, for named engines that support both; None takes that of the
            fields, but ``double`` for float32 fields that rotate a spin by more than 8000 rad in a step.
        device: Device of the torch engine; ``cpu`` by default.
        learn_schedule: Make the angles of the plan a parameter, trained with the model by ``adjoint``.

    Attributes:
        schedule_angles: The learnable angles, [3, steps] (fields, couplings, mixer); None if they are fixed.
        anneal: The anneal, with its plan and first-order inverse temperatures.
        betas: Inverse temperatures by which h and J are divided.

    Raises:
        ValueError: If an option is invalid; the message names it.
    """

    name = "dqa"
    _warned = False
    _kept_facts: dict[str, Any] | None = None

    def __init__(
        self,
        *,
        engine: str | Engine | Primitive = "native",
        schedule: str | AnnealingSchedule | TrotterPlan = "Advantage2_system1",
        protocol: Protocol | None = None,
        annealing_time_ns: float | None = None,
        steps: int | None = None,
        order: Order | None = None,
        calibration: Calibration | None = None,
        betas: tuple[float, float] | None = None,
        noise: float | tuple[float, float] = 0.0,
        num_reads: int | None = None,
        precision: Precision | None = None,
        device: str | None = None,
        learn_schedule: bool = False,
    ) -> None:
        self.engine, self._single = build_engines(engine, precision, device)
        self.anneal = resolve_anneal(
            schedule, protocol=protocol, annealing_time_ns=annealing_time_ns, steps=steps, order=order
        )
        self.noise = check_noise(noise)
        own = check_betas(betas, calibration)
        if calibration is None:
            calibration = "none" if self.anneal.learned else "predicted"
        check_choice("calibration", calibration, get_args(Calibration))
        self.calibration = calibration if own is None else "given"
        self.betas = own or (Betas(1.0, 1.0) if calibration == "none" else self.anneal.betas)
        if num_reads is not None:
            num_reads = check_count("num_reads", num_reads)
            self.num_reads = num_reads
        self.sampled = num_reads is not None or not self.engine.exact
        check_flag("learn_schedule", learn_schedule)
        self.schedule_angles = self._learnable() if learn_schedule else None

    @cached_property
    def capabilities(self) -> Capabilities:
        """State-vector simulation; the law is diabatic, not Boltzmann."""
        adjoint: tuple[Estimator, ...] = ("adjoint",) if self.engine.differentiable else ()
        # Straight-through does not learn to bind two neighbours, see docs/recall.md.
        others: tuple[Estimator, ...] = ("linear_response", "straight_through", "covariance")
        return Capabilities(
            law="diabatic",
            max_spins=self.engine.max_spins,
            gradients=adjoint if self.schedule_angles is not None else (*adjoint, *others),
            note="" if self.engine.differentiable else f" with engine '{self.engine.name}'",
        )

    @property
    def resolved(self) -> dict[str, Any]:
        """The anneal in words: schedule or plan, time, steps and order."""
        return {"anneal": self.anneal.plan.label or self.anneal.name}

    @property
    def watched(self) -> tuple[Watched, ...]:
        """Watched facts: the range of the plan, and the predicted inverse temperatures."""
        return WATCHED

    @property
    def plan(self) -> TrotterPlan:
        """Angles of the steps; if they are learned, the current values of the parameter."""
        if self.schedule_angles is None:
            return self.anneal.plan
        b, c, a = self.schedule_angles.detach().double().cpu().numpy()
        return TrotterPlan(b, c, a, self.anneal.plan.label)

    @property
    def predicted_betas(self) -> Betas:
        """First-order inverse temperatures of the current plan."""
        return self.anneal.betas if self.schedule_angles is None else plan_betas(self.plan)

    def state_probabilities(self, ising: Ising) -> Tensor:
        """P(s) of the circuit, float64 [*batch, 2^n]; bit j of the index is spin j, bit 1 means +1.

        Raises:
            UnsupportedError: If a spin is invisible, the problem is too large, or the engine draws reads only.
            ValueError: If the probabilities do not fit in memory.
        """
        self._require(ising)
        if ising.visible is not None and not bool(ising.visible.all()):
            reason = "state probabilities need every spin visible, got invisible spins."
            raise UnsupportedError("visible", reason)
        if not self.engine.exact:
            reason = f"'{self.engine.name}' draws reads only, not state probabilities."
            raise UnsupportedError("engine", reason)
        states = 1 << min(ising.num_spins, 900)  # more would overflow, and is refused anyway
        require_memory(8 * ising.num_problems * states, "probabilities of all states")
        programmed, plan, engine = self._begun(ising, 0)
        tables = [engine.probabilities(plan, batch.fields, batch.couplings) for batch in programmed.batches]
        return programmed.flat.per_problem(programmed.flat.unpadded, tables)

    def circuit(
        self, ising: Ising, *, measure: bool = False, labels: Sequence[Hashable] | None = None
    ) -> QuantumCircuit:
        """Build the anneal of one problem [n] of any size as a circuit of rz, rzz and rx gates, to draw, export or run.

        Qubit j is spin j, and 1 means s_j = +1.  Invisible spins have no gate and read as 0.  ``circuit.metadata``
        contains the schedule, annealing time, inverse temperatures, and labels and visibility by qubit.  Control noise
        is not included.

        Args:
            ising: The problem.
            measure: Measure all qubits, into the register ``meas``.
            labels: Names of the spins for the metadata; None for 0 .. n-1.

        Raises:
            IsingError: If the problem is a batch, or labels are not one per spin.
            UnsupportedError: If it has three-body terms.
        """
        self._require_problem(ising)
        if ising.fields.ndim != 1:
            got = f"a batch {list(ising.fields.shape)}; use circuits or pub"
            raise IsingError("fields", "one problem [n]", got)
        return self.circuits(ising, measure=measure, labels=labels)[0]

    def circuits(
        self, ising: Ising, *, measure: bool = False, labels: Sequence[Hashable] | None = None
    ) -> list[QuantumCircuit]:
        """Build a :meth:`circuit` for each problem, in row-major order; ``metadata["problem"]`` is its index."""
        self._require_problem(ising)
        fields, couplings = _divided(ising, self.betas)
        visible = _numpy(ising.visible_mask)
        circuits = []
        for index in np.ndindex(*ising.batch_shape):
            own, metadata = visible[index], self._metadata(visible[index], labels) | {"problem": list(index)}
            options: dict[str, Any] = {"measure": measure, "visible": own, "metadata": metadata}
            circuits.append(anneal_circuit(self.plan, fields[index], couplings[index], **options))
        return circuits

    def pub(
        self, ising: Ising, num_reads: int | None = None, *, labels: Sequence[Hashable] | None = None
    ) -> tuple[QuantumCircuit, np.ndarray] | tuple[QuantumCircuit, np.ndarray, int]:
        """Build one measured circuit for a whole batch, and its parameter values, as a PUB of Qiskit's primitives.

            StatevectorSampler().run([sampler.pub(problem, 1000)]).result()[0].data.meas  # shape [*batch]

        Fields and couplings are parameters, so the circuit is compiled once.

        Args:
            ising: The problems, all with the same visible spins.
            num_reads: Shots of each problem; None uses the default of the primitive.
            labels: As in :meth:`circuit`.

        Returns:
            (circuit, values) or (circuit, values, shots); values are float64 [*batch, parameters] in the order of
            ``circuit.parameters``.

        Raises:
            IsingError: If the visible spins differ between problems, or labels are not one per spin.
            UnsupportedError: If the problems have three-body terms.
            ValueError: If ``num_reads`` is not an integer >= 1.
        """
        self._require_problem(ising)
        n = ising.num_spins
        h, J = _divided(ising, self.betas)
        visible = _numpy(ising.visible_mask).reshape(-1, n)
        if (visible != visible[0]).any():
            expected = "the same visible spins in every problem"
            raise IsingError("visible", expected, "different ones; use circuits")
        couplings = J.reshape(-1, n, n) * np.outer(visible[0], visible[0])
        metadata = self._metadata(visible[0], labels)
        built = ising_circuit(self.plan, n, coupled_pairs(couplings), visible=visible[0], metadata=metadata)
        values = built.values(h.reshape(-1, n), couplings)
        values = values.reshape(*ising.batch_shape, values.shape[-1])
        if num_reads is None:
            return built.circuit, values
        check_count("num_reads", num_reads)
        return built.circuit, values, num_reads

    def _require_problem(self, ising: Any) -> None:
        if not isinstance(ising, Ising):
            raise ArgumentTypeError("ising", "a diabat.Ising", type(ising).__name__)
        # A circuit has any number of qubits; only engines have a largest one.
        require_terms(self.name, self.capabilities, ising)

    def _metadata(self, visible: np.ndarray, labels: Sequence[Hashable] | None) -> dict[str, Any]:
        names: list[Hashable] = list(range(len(visible))) if labels is None else list(labels)
        if len(names) != len(visible):
            raise IsingError("labels", f"{len(visible)} labels, one per spin", len(names))
        return {**jsonable(self._facts()), "labels": names, "visible": visible.tolist()}

    def solution(self, ising: Ising, *, odds: bool = False, seed: int = 0) -> AdjointSolution | None:
        """Moments with the exact derivative of the circuit, by engines that have one; no log-odds."""
        if odds or not self.engine.differentiable:
            return None
        self._require(ising)
        return _AnnealSolution(self, expanded(ising, self.capabilities), seed)

    def _moments(self, ising: Ising, correlations: bool, seed: int) -> Moments:
        if self.sampled:
            return super()._moments(ising, correlations, seed)
        programmed, plan, engine = self._begun(ising, seed)
        batch, pairs = programmed.flat, None
        of_groups = engine.moments(plan, programmed.batches, correlations=correlations)
        if correlations:
            pairs = batch.per_pair(batch.unpadded, [m.correlation for m in of_groups]).to(ising.fields)
        probability = batch.from_visible([m.probability for m in of_groups]).to(ising.fields)
        info = self._info(programmed, seed) | {"precision": engine.precision}
        return Moments(probability, ising.visible_mask, pairs, info=info)

    def _sample(self, ising: Ising, num_reads: int, seed: int) -> Samples:
        programmed, plan, engine = self._begun(ising, seed)
        batch = programmed.flat
        reads = engine.sample(plan, programmed.batches, num_reads, np.random.default_rng(seed))
        spins = batch.reads(batch.unpadded, reads, num_reads).to(ising.fields.device)
        info = self._info(programmed, seed) | {"precision": engine.precision}
        return Samples(spins, ising.visible_mask, info=info)

    def _begun(self, ising: Ising, seed: int) -> tuple[Programmed, TrotterPlan, Engine]:
        """The problems in hardware units, the plan, and the engine.

        Its precision is that of the fields, if none is given and it resolves their phases.
        """
        programmed, plan = to_hardware_units(ising, self.betas, self.noise, seed), self.plan
        if self._single is None or ising.fields.dtype != torch.float32:
            return programmed, plan, self.engine
        resolved = phases_within(plan.largest_angles, programmed.batches, MOST_PHASE["single"])
        return programmed, plan, self._single if resolved else self.engine

    def _learnable(self) -> nn.Parameter:
        """The angles of the plan as a parameter."""
        if not self.engine.differentiable:
            expected = "engine native or torch, which have gradients"
            raise ArgumentError("learn_schedule", expected, f"'{self.engine.name}'")
        plan = self.anneal.plan
        angles = np.stack((plan.field_angles, plan.coupling_angles, plan.mixer_angles))
        return nn.Parameter(torch.from_numpy(angles).to(torch.get_default_dtype()))

    def _facts(self) -> dict[str, Any]:
        """Entries of ``info`` that do not depend on the problems."""
        kept, betas = self._kept_facts, self.betas
        if kept is None or self.schedule_angles is not None:
            predicted = self.predicted_betas
            kept = self._kept_facts = {
                "law": "diabatic",
                "engine": self.engine.name,
                "schedule": self.anneal.name,
                "annealing_time_ns": self.anneal.annealing_time_ns,
                "steps": self.anneal.plan.steps,
                "calibration": self.calibration,
                # First-order inverse temperatures of the anneal, and those by which h and J were divided.
                "beta_h": predicted.beta_h,
                "beta_J": predicted.beta_J,
                "programmed_with": tuple(betas),
                # First-order inverse temperatures of the reads, relative to the given h and J.
                "effective_beta": (predicted.beta_h / betas.beta_h, predicted.beta_J / betas.beta_J),
            }
            if any(self.noise):
                kept["noise"] = tuple(self.noise)
        return dict(kept)

    def _info(self, programmed: Programmed, seed: int) -> dict[str, Any]:
        facts, allowed = self._facts(), self._range(programmed)
        if any(self.noise):
            facts["seed"] = seed
        if allowed is not None:
            facts["outside_range"] = self._outside(allowed, programmed)
        return facts

    def _range(self, programmed: Programmed) -> PlanRange | None:
        """The range of the plan; None if it is unknown, or if no field is strong enough for a check."""
        if self.schedule_angles is not None:  # trained angles no longer have the range of the initial plan
            return None
        beta_h = self.anneal.betas.beta_h
        if self.anneal.learned or beta_h <= 0:
            return self.anneal.trained
        return self._saturation if programmed.bounds.field * beta_h > SATURATED else None

    @cached_property
    def _saturation(self) -> PlanRange:
        return PlanRange.of_anneal(self.anneal.plan, self.anneal.betas.beta_h)

    def _outside(self, allowed: PlanRange, programmed: Programmed) -> float:
        """Fraction of the spins outside the range; warns at the first occurrence."""
        if allowed.contains(programmed.bounds.field, 1.01 * programmed.bounds.row_norm):
            return 0.0
        beyond_it = sum([allowed.outside(batch.fields, batch.couplings) for batch in programmed.batches])
        share = beyond_it / max(1, programmed.flat.total_visible)
        if share and not self._warned:
            self._warned = True
            warnings.warn(beyond(self.anneal, allowed, share), OutOfRangeWarning, stacklevel=5)
        return share


class _AnnealSolution(AdjointSolution):
    """Moments of one anneal with their derivative, inverse temperatures and noise held constant.

    Final states of up to 256 MiB are kept from the moments to the first derivative after them; without them the steps
    run again, with the same result.
    """

    def __init__(self, sampler: DQASampler, ising: Ising, seed: int) -> None:
        self._sampler, self._ising, self._seed = sampler, ising, seed
        self._programmed, self._plan, self._engine = sampler._begun(ising, seed)
        self._kept: partial[PlanGradient] | None = None

    @cached_property
    def moments(self) -> Moments:
        if self._sampler.sampled:
            return self._sampler.moments(self._ising, seed=self._seed)
        of_groups, self._kept = self._engine.moments_and_gradient(self._plan, self._programmed.batches)
        p = self._programmed.flat.from_visible([m.probability for m in of_groups]).to(self._ising.fields)
        info = self._sampler._info(self._programmed, self._seed)  # warns outside the range of the plan
        return Moments(p.clamp(0, 1), self._ising.visible_mask, info=info)

    def derivative(self, v: Tensor) -> AdjointGradient:
        batch, betas, ising = self._programmed.flat, self._sampler.betas, self._ising
        angles, kept, self._kept = self._sampler.schedule_angles, self._kept, None
        run = kept or partial(self._engine.gradient, self._plan, self._programmed.batches)
        of_spins = batch.unpadded_values(batch.visible_values(_numpy(v.double())))
        gradient = run(of_spins, angles=angles is not None)
        h = (batch.from_visible([g.fields for g in gradient.batches]) / betas.beta_h).to(ising.fields)
        J = None
        if ising.couplings is not None:
            shares = [
                g.couplings.reshape(-1, *g.couplings.shape[-2:]) / betas.beta_J for g in gradient.batches
            ]
            J = batch.per_coupling(batch.unpadded, shares, ising.couplings).to(ising.couplings)
        turned = (gradient.field_angles, gradient.coupling_angles, gradient.mixer_angles)
        own = () if angles is None else (torch.from_numpy(np.stack(turned)).to(angles),)
        return AdjointGradient(h, J, own)


def _divided(ising: Ising, betas: Betas) -> tuple[np.ndarray, np.ndarray]:
    """Fields [*batch, n] and couplings [*batch, n, n], float64, divided by the inverse temperatures."""
    shape = (*ising.fields.shape, ising.num_spins)
    J = np.zeros(shape) if ising.couplings is None else _numpy(ising.couplings.double())
    return _numpy(ising.fields.double()) / betas.beta_h, np.broadcast_to(J, shape) / betas.beta_J


def _numpy(tensor: Tensor) -> np.ndarray:
    array: np.ndarray = tensor.detach().cpu().numpy()
    return array
