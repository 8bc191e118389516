"""Annealing schedules, Trotter plans, Qiskit circuits, and the engines that run a plan.

This package takes numpy arrays and imports nothing else from diabat. Qiskit is loaded when a circuit is
built.
"""

from diabat.circuits.aer import AerEngine
from diabat.circuits.builtin import available_schedules, schedule
from diabat.circuits.calibration import Betas, predicted_beta
from diabat.circuits.circuit import anneal_circuit, to_qasm3
from diabat.circuits.parameterised import ParameterisedCircuit, parameterised_circuit
from diabat.circuits.problem import spin_table
from diabat.circuits.reference import reference_probabilities
from diabat.circuits.sampling import draw_spins
from diabat.circuits.schedule_csv import from_csv
from diabat.circuits.schedules import AnnealingSchedule, linear_ramp
from diabat.circuits.trotter import TrotterPlan, default_steps, minimum_steps, trotter_plan

__all__ = [
    "AerEngine",
    "AnnealingSchedule",
    "Betas",
    "ParameterisedCircuit",
    "TrotterPlan",
    "anneal_circuit",
    "available_schedules",
    "default_steps",
    "draw_spins",
    "from_csv",
    "linear_ramp",
    "minimum_steps",
    "parameterised_circuit",
    "predicted_beta",
    "reference_probabilities",
    "schedule",
    "spin_table",
    "to_qasm3",
    "trotter_plan",
]
