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

# In place of options that are left out; those are None so that one beside --run can be refused.
_STRENGTHS, _SPINS, _INSTANCES = "0.3 0.6 1 1.5", "4 5", 64


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
    wide_fields: float | None
    wide_weight: float
    run: Path | None
    start: str | None
    restarts: int
    iterations: int
    polish: int
    held_out: int
    seed: int

    @classmethod
    def parse(
        cls,
        *,
        strengths: str | None,
        weights: str | None,
        spins: str | None,
        instances: int | None,
        wide_fields: float | None,
        wide_weight: float | None,
        run: Path | None,
        **others: Any,
    ) -> Request:
        """Read the lists; None stands for an option that was left out.

        Raises:
            ConfigError: A list that is none, weights that do not match the strengths, or an option that another
                one leaves without a meaning.
        """
        random = {
            "--strengths": strengths,
            "--weights": weights,
            "--spins": spins,
            "--instances": instances,
            "--wide-fields": wide_fields,
            "--wide-weight": wide_weight,
        }
        for option, value in random.items():
            if run is not None and value is not None:
                raise ConfigError(
                    option, f"expected none beside --run, which has its problems, got {value!r}."
                )
        if wide_weight is not None and wide_fields is None:
            raise ConfigError(
                "--wide-weight", f"expected --wide-fields to weigh, got {wide_weight:g} without."
            )
        g = tuple(numbers(_STRENGTHS if strengths is None else strengths, "--strengths"))
        w = (1.0,) * len(g) if weights is None else tuple(numbers(weights, "--weights"))
        if len(w) != len(g):
            raise ConfigError("--weights", f"expected {len(g)} numbers, one for each strength, got {len(w)}.")
        return cls(
            strengths=g,
            weights=w,
            spins=tuple(integers(_SPINS if spins is None else spins, "--spins")),
            instances=_INSTANCES if instances is None else instances,
            wide_fields=wide_fields,
            wide_weight=1.0 if wide_weight is None else wide_weight,
            run=run,
            **others,
        )

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
            if self.wide_fields is not None:
                words += ["--wide-fields", f"{self.wide_fields:g}", "--wide-weight", f"{self.wide_weight:g}"]
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
        wide = {} if self.wide_fields is None else {"fields": self.wide_fields, "weight": self.wide_weight}
        return {
            "name": "SK: h ~ N(0, g), J ~ N(0, g/sqrt(n))",
            "strengths": list(self.strengths),
            "weights": list(self.weights),
            "num_spins": list(self.spins),
            "instances": self.instances,
            **({"wide: h uniform in +-fields, J ~ N(0, 0.5/sqrt(n))": wide} if wide else {}),
        }


# The library's names of arguments that the command calls something else.
_OPTIONS = {
    "num_spins": "--spins",
    "start": "--from",
    "max_field": "--wide-fields",
    "weight": "--wide-weight",
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
