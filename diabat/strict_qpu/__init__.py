"""A stand-in of a D-Wave processor, offline and as strict (extra ``dwave``): for trials, configurations and tests.

from diabat.strict_qpu import StrictMockQPU

chip = StrictMockQPU(topology_type="zephyr", topology_shape=[4, 4])
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """Build the class at its first use."""
    if name == "StrictMockQPU":
        from diabat.strict_qpu.processor import strict_mock_qpu

        return strict_mock_qpu()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
