"""Annealing schedules, Trotter plans, Qiskit circuits, and the engines that run a plan.

The package uses numpy arrays. Qiskit is imported when a circuit is built.
"""

from typing import TYPE_CHECKING, Any

from diabat.circuits.engines.engine import (
    Batch,
    BatchGradient,
    BatchMoments,
    Engine,
    EngineError,
    PlanGradient,
    draw_spins,
)
from diabat.circuits.engines.native.engine import NativeEngine
from diabat.circuits.engines.qiskit.aer import AerEngine
from diabat.circuits.engines.qiskit.circuit import (
    IsingCircuit,
    ParameterisedCircuit,
    anneal_circuit,
    coupled_pairs,
    ising_circuit,
    parameterised_circuit,
    to_qasm3,
)
from diabat.circuits.engines.qiskit.primitive import PrimitiveEngine
from diabat.circuits.grids import default_steps, minimum_steps
from diabat.circuits.plan import TrotterPlan
from diabat.circuits.plan_file import available_plans, builtin_plan, load_plan, save_plan
from diabat.circuits.plan_range import OutOfRangeWarning, PlanRange
from diabat.circuits.problem import reference_probabilities, spin_table
from diabat.circuits.response import Betas, Response, plan_betas, predicted_beta, second_order_response
from diabat.circuits.schedule_csv import from_csv
from diabat.circuits.schedules import AnnealingSchedule, available_schedules, linear_ramp, schedule
from diabat.circuits.trotter import trotter_plan

if TYPE_CHECKING:
    from diabat.circuits.engines.torch.engine import TorchEngine

__all__ = [
    "AerEngine",
    "AnnealingSchedule",
    "Batch",
    "BatchGradient",
    "BatchMoments",
    "Betas",
    "Engine",
    "EngineError",
    "IsingCircuit",
    "NativeEngine",
    "OutOfRangeWarning",
    "ParameterisedCircuit",
    "PlanGradient",
    "PlanRange",
    "PrimitiveEngine",
    "Response",
    "TorchEngine",
    "TrotterPlan",
    "anneal_circuit",
    "available_plans",
    "available_schedules",
    "builtin_plan",
    "coupled_pairs",
    "default_steps",
    "draw_spins",
    "from_csv",
    "ising_circuit",
    "linear_ramp",
    "load_plan",
    "minimum_steps",
    "parameterised_circuit",
    "plan_betas",
    "predicted_beta",
    "reference_probabilities",
    "save_plan",
    "schedule",
    "second_order_response",
    "spin_table",
    "to_qasm3",
    "trotter_plan",
]


def __getattr__(name: str) -> Any:
    """Import `TorchEngine`, and with it torch, on first use."""
    if name == "TorchEngine":
        from diabat.circuits.engines.torch.engine import TorchEngine

        return TorchEngine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
