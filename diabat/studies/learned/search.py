"""How to search for angles, and who is told how it goes."""

from __future__ import annotations

from dataclasses import dataclass

from diabat.checks import ArgumentError, check_count
from diabat.circuits.grids import MAX_STEPS
from diabat.circuits.trotter import TrotterPlan

_FEWEST = 4  # layers; halving stops here


@dataclass(frozen=True)
class Search:
    """How to search.

    Attributes:
        layers: Number p of layers of the plan.
        restarts: Starts at every number of layers.
        iterations: L-BFGS iterations of each start.
        polish: Further iterations for the best one.
        seed: Seed of the starts.

    Raises:
        ValueError: A number below 1 (layers, restarts, iterations) or below 0 (polish, seed).
    """

    layers: int = 8
    restarts: int = 8
    iterations: int = 200
    polish: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        """Check."""
        least = {"layers": 1, "restarts": 1, "iterations": 1, "polish": 0, "seed": 0}
        for name, smallest in least.items():
            value = getattr(self, name)
            check_count(name, value, least=smallest)
        if self.layers > MAX_STEPS:
            raise ArgumentError("layers", f"expected at most {MAX_STEPS}, got {self.layers}.")

    def stages(self, given: int | None = None) -> list[int]:
        """Numbers of layers on the way to `layers`, from those of a given plan or from the fewest.

        Raises:
            ValueError: The given number is not `layers` over a power of two.
        """
        found = [self.layers]
        while found[0] != given and found[0] % 2 == 0 and (given is not None or found[0] > _FEWEST):
            found.insert(0, found[0] // 2)
        if given is not None and found[0] != given:
            raise ArgumentError("start", f"expected {self.layers} steps over a power of two, got {given}.")
        return found


class Watcher:
    """Is told how a search goes; does nothing by itself."""

    def advanced(self, done: float, loss: float) -> None:
        """The part ``done`` (0 to 1) of the largest possible work is done, ``loss`` is the best so far."""

    def improved(self, plan: TrotterPlan, loss: float) -> None:
        """A better plan than all before; it may still have fewer layers than asked for."""
