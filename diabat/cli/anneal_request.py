"""What ``diabat anneal learn`` was asked for."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diabat.cli.anneal_files import integers, numbers
from diabat.cli.failures import naming
from diabat.config.errors import ConfigError


@dataclass(frozen=True)
class Request:
    """Options of the command; names and meaning as there."""

    layers: int
    shared: bool
    pair_weight: float
    strengths: tuple[float, ...]
    weights: tuple[float, ...]
    spins: tuple[int, ...]
    instances: int
    run: Path | None
    start: str | None
    restarts: int
    iterations: int
    polish: int
    held_out: int
    seed: int

    @classmethod
    def parse(cls, *, strengths: str, weights: str | None, spins: str, **others: Any) -> Request:
        """Read the lists.

        Raises:
            ConfigError: A list that is none, or weights that do not match the strengths.
        """
        g = tuple(numbers(strengths, "--strengths"))
        w = (1.0,) * len(g) if weights is None else tuple(numbers(weights, "--weights"))
        if len(w) != len(g):
            raise ConfigError(f"--weights: expected {len(g)} numbers, one for each strength, got {len(w)}.")
        return cls(strengths=g, weights=w, spins=tuple(integers(spins, "--spins")), **others)

    def command(self, output: Path) -> str:
        """The command line that makes this plan, every option written out."""
        words = ["diabat", "anneal", "learn", str(output), "--layers", str(self.layers)]
        words += ["--shared"] if self.shared else []
        words += ["--pair-weight", f"{self.pair_weight:g}"]
        if self.run is None:
            for option, values in (
                ("--strengths", self.strengths),
                ("--weights", self.weights),
                ("--spins", self.spins),
            ):
                words += [option, " ".join(f"{value:g}" for value in values)]
            words += ["--instances", str(self.instances)]
        else:
            words += ["--run", str(self.run)]
        words += [] if self.start is None else ["--from", self.start]
        for option in ("restarts", "iterations", "polish", "held_out", "seed"):
            words += [f"--{option.replace('_', '-')}", str(getattr(self, option))]
        return shlex.join(words)

    def ensemble(self) -> dict[str, Any]:
        """What the plan was trained on, for the file."""
        if self.run is not None:
            return {"name": "recorded", "run": str(self.run)}
        return {
            "name": "SK: h ~ N(0, g), J ~ N(0, g/sqrt(n))",
            "strengths": list(self.strengths),
            "weights": list(self.weights),
            "num_spins": list(self.spins),
            "instances": self.instances,
        }


# The library's names of arguments that the command calls something else.
_OPTIONS = {
    "num_spins": "--spins",
    "start": "--from",
    "ensemble": "--run",
    "fidelity.checkpoint": "--run",
    "instances": "--run",
}


@contextmanager
def naming_options() -> Iterator[None]:
    """Refusals of the library, in the words of the command line."""
    names = {name: f"--{name.replace('_', '-')}" for name in Request.__dataclass_fields__}
    with naming({**names, **_OPTIONS}, ConfigError):
        yield
