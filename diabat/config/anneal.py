"""The section ``anneal``: a plan with free angles (a learned anneal) and the problems on which it is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, model_validator

from diabat.checks import ArgumentError
from diabat.config.sections import STRICT

Count = Annotated[int, Field(ge=1)]
# Keys that describe random problems, and their values if a run provides the problems.
_NONE: dict[str, Any] = {
    "strengths": [],
    "weights": None,
    "spins": [],
    "instances": 0,
    "wide_fields": None,
    "wide_weight": None,
}
RANDOM = tuple(_NONE)


class AnnealOptions(BaseModel):
    """Options of ``diabat anneal learn``; values out of range are refused when it is run.

    Attributes:
        layers: Layers of the plan.
        shared: The same angles for fields and couplings.
        pair_weight: Weight of pair correlations in the loss; 0 counts only marginals.
        strengths: Strengths g of random problems, h ~ N(0, g), J ~ N(0, g/√n).
        weights: Weight of each strength in the loss; null for equal ones.
        spins: Numbers of spins n of random problems.
        instances: Random problems for each n and g.
        wide_fields: Also train on fields uniform up to this size, J ~ N(0, 0.5/√n).
        wide_weight: Weight of these problems; null for 1.
        run: Folder of a training run, whose fields and couplings take the place of random problems.
        start: Begin with this plan, a shipped name or a file.
        restarts: Starts at every number of layers.
        iterations: L-BFGS iterations of each start.
        polish: Further iterations for the best one.
        held_out: Held-out problems for each row of the error table.
    """

    model_config = STRICT

    layers: Count = 8
    shared: bool = False
    pair_weight: float = 0.2
    strengths: tuple[float, ...] = (0.3, 0.6, 1.0, 1.5)
    weights: tuple[float, ...] | None = None
    spins: tuple[int, ...] = (4, 5)
    instances: Annotated[int, Field(ge=0)] = 64
    wide_fields: float | None = None
    wide_weight: float | None = None
    run: Path | None = None
    start: str | None = None
    restarts: Count = 8
    iterations: Count = 200
    polish: Annotated[int, Field(ge=0)] = 1000
    held_out: Count = 100

    @model_validator(mode="after")
    def _fits_together(self) -> AnnealOptions:
        if self.run is not None:
            for name in RANDOM:
                got = getattr(self, name)
                if got:
                    got = list(got) if isinstance(got, tuple) else got
                    raise ArgumentError(
                        name, f"cannot be combined with run, which provides the problems, got {got}."
                    )
            return self
        if not self.instances:
            raise ArgumentError("instances", "expected a number >= 1, got 0 (integer).")
        if self.wide_weight is not None and self.wide_fields is None:
            raise ArgumentError(
                "wide_weight", f"must be combined with wide_fields, got {self.wide_weight:g} without it."
            )
        g, w = self.strengths, self.weights
        if w is not None and len(w) != len(g):
            raise ArgumentError("weights", f"expected {len(g)} numbers, one for each strength, got {len(w)}.")
        return self


def with_problems(section: dict[str, Any]) -> dict[str, Any]:
    """Fill in missing keys: no random problems if a run is given, otherwise the default ones."""
    named = {key: value for key, value in section.items() if value is not None or key not in RANDOM}
    return named if section.get("run") is None else _NONE | named
