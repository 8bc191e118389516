"""A mock of a D-Wave processor, offline and as strict (extra ``dwave``): for trials, configurations and tests.

from diabat.strict_qpu import StrictMockQPU

chip = StrictMockQPU(topology_type="zephyr", topology_shape=[4, 4])
"""

from typing import Any

from diabat.samplers.dimod.target import missing_package


def __getattr__(name: str) -> Any:
    """Import the class at its first use: its base class is in dwave-system, an extra."""
    if name != "StrictMockQPU":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from diabat.strict_qpu.processor import StrictMockQPU
    except ImportError as error:
        raise ImportError(missing_package(error, name), name=error.name) from None
    return StrictMockQPU
