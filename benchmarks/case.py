"""A case: what is timed, at which sizes, beside which peers, and the numbers it has to show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Literal

Call = Callable[[], Any]
Target = float | Mapping[Any, float] | None
"""At most this number, at every size or at those that are named."""


@dataclass(frozen=True)
class Work:
    """A call, and how much it does: its time is divided by the units (problems, tokens, spin updates).

    The time of ``less``, which is timed beside it, does not count: the conversion of a model, say.
    """

    call: Call
    units: float = 1.0
    less: Call | None = None


Build = Callable[[Any], Call | Work]
"""From a size to what is timed; all of this is done before the clock starts."""


@dataclass(frozen=True)
class Peer:
    """What a case is compared with: another program, a first implementation, or ours without an option.

    ``build`` makes the same work at a size, up to the ``last`` one, which its memory or time allows, None for any;
    ``target`` is that of the ratio of our time to its time, and ``module`` has to be installed.
    """

    build: Build
    target: Target = None
    module: str = ""
    last: int | None = None

    @property
    def installed(self) -> bool:
        """Whether its module can be imported."""
        with suppress(ModuleNotFoundError):  # of a package above it
            return not self.module or find_spec(self.module) is not None
        return False


@dataclass(frozen=True)
class Case:
    """One row of the report for each size.

    Attributes:
        name: SUBJECT/WHAT.
        build: What is timed.
        sizes, label: Increasing numbers, or names, and what they are.
        unit, target: What a time belongs to, the unit of :class:`Work`, and the target of its seconds.
        peers: By name; they take turns with the case.
        clock: CPU time of all threads of the process; wall time for work in other processes; or the seconds that the
            call returns.
        fresh: Whether each size is measured in a process of its own, with its first call and its peak memory.
    """

    name: str
    build: Build
    sizes: Sequence[Any] = ("",)
    label: str = "n"
    unit: str = "call"
    peers: Mapping[str, Peer] = field(default_factory=dict)
    target: Target = None
    clock: Literal["cpu", "wall", "returned"] = "cpu"
    fresh: bool = False


def at(target: Target, size: Any) -> float | None:
    """Return the target at a size."""
    return target.get(size) if isinstance(target, Mapping) else target
