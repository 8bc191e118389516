"""Options of the backend ``dimod`` and of D-Wave processors: checks, and the resulting keywords."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from diabat.checks import (
    ArgumentError,
    ArgumentTypeError,
    check_choice,
    check_count,
    check_positive,
    did_you_mean,
    is_positive,
)
from diabat.circuits import Betas, predicted_beta, schedule
from diabat.samplers.dimod.target import DimodLike, accepted_parameters
from diabat.scrubbing import refuse_secrets

Scale = float | Literal["fit"]
Fields = Literal["ancilla", "gauge", "direct"]

# Largest flux bias that every processor accepts (Ocean, LinearAncillaComposite), in units of Φ0.
_FLUX_BIAS = 0.005


@dataclass(frozen=True)
class QPU:
    """Options ``qpu`` of the backend ``dimod``.

    Attributes:
        annealing_time_ns: t_a in ns; None is 5 with the fast protocol and 20,000 with the standard one, the default of
            processors.  Converted to microseconds for the processor.
        protocol: ``fast`` (fast anneal, h = 0 on the chip) or ``standard``.
        fields: How fields are programmed.  ``ancilla``: as couplings to one spin per tile that a flux bias holds at
            +1; their inverse temperature is beta_h.  ``gauge``: as couplings to one free spin per tile, by which the
            reads are multiplied; their inverse temperature is beta_J.  ``direct``: as h, which a fast anneal refuses.
        schedule: Built-in schedule of the solver, for beta = "predicted".
        chain_strength: Strength of the couplings -strength in qubit chains, in programmed units; ``uniform_torque`` is
            1.414 · rms(J) · sqrt(mean degree) as in Ocean; None uses the strongest in range.  Weak problems need
            strong qubit chains: chain breaks depend on beta · strength, not on its ratio to J.
        spins: Spins of a tile; None uses the number of the largest problem of a call.
        tiles: Largest number of tiles of one submission; None uses the whole chip.
        flux_bias: Flux bias of the ancillas, in Φ0.
        embedding_seed: Seed of the search for tiles.

    Raises:
        ValueError: If an option is out of range.
    """

    annealing_time_ns: float | None = None
    protocol: Literal["fast", "standard"] = "fast"
    fields: Fields = "ancilla"
    schedule: str | None = None
    chain_strength: float | Literal["uniform_torque"] | None = None
    spins: int | None = None
    tiles: int | None = None
    flux_bias: float = _FLUX_BIAS
    embedding_seed: int = 0

    def __post_init__(self) -> None:
        """Check everything that needs no processor."""
        check_choice("qpu.protocol", self.protocol, ("fast", "standard"))
        check_choice("qpu.fields", self.fields, ("ancilla", "gauge", "direct"))
        if self.fields == "direct" and self.protocol == "fast":
            raise ArgumentError(
                "qpu.fields",
                "expected 'ancilla' or 'gauge' with a fast anneal, which needs h = 0, got 'direct'.",
            )
        check_positive("qpu.annealing_time_ns", self.time_ns)
        check_positive("qpu.flux_bias", self.flux_bias)
        if self.chain_strength not in (None, "uniform_torque"):
            check_positive("qpu.chain_strength", self.chain_strength)
        check_count("qpu.spins", self.spins, optional=True)
        check_count("qpu.tiles", self.tiles, optional=True)
        check_count("qpu.embedding_seed", self.embedding_seed, least=0, most=2**32 - 1)
        if self.schedule is not None:
            schedule(self.schedule, self.protocol)

    @property
    def time_ns(self) -> float:
        """``annealing_time_ns``, or the default of the protocol."""
        if self.annealing_time_ns is None:
            return 5.0 if self.protocol == "fast" else 20_000.0
        return self.annealing_time_ns

    @property
    def parameters(self) -> dict[str, Any]:
        """Keywords of every submission; the one place where ns become microseconds."""
        keywords: dict[str, Any] = {"annealing_time": self.time_ns / 1000}
        return {"fast_anneal": True, **keywords} if self.protocol == "fast" else keywords

    def predicted(self) -> Betas:
        """Predicted inverse temperatures of the anneal, for spins of one qubit each.

        Raises:
            ValueError: Without a schedule.
        """
        if self.schedule is None:
            raise ArgumentError(
                "beta",
                "'predicted' needs the schedule of the solver, such as qpu.schedule='Advantage2_system1'.",
            )
        return predicted_beta(schedule(self.schedule, self.protocol), self.time_ns)

    def programmed(self, betas: Betas) -> Betas:
        """Inverse temperatures of fields and couplings; with a gauge spin both have beta_J."""
        return Betas(betas.beta_J, betas.beta_J) if self.fields == "gauge" else betas


def qpu_options(value: QPU | Mapping[str, Any] | None) -> QPU | None:
    """Build the options from a mapping, as in a configuration file.

    Raises:
        ValueError: If an option is out of range, as in :class:`QPU`.
        TypeError: If an option is unknown; the message gives the nearest one.
    """
    if value is None or isinstance(value, QPU):
        return value
    if not isinstance(value, Mapping):
        raise ArgumentTypeError(
            "qpu", f"expected options of diabat.samplers.dimod.QPU, got {type(value).__name__}."
        )
    refuse_secrets("qpu", value)
    known = [field.name for field in dataclasses.fields(QPU)]
    for name in value:
        if name not in known:
            hint = did_you_mean(name, known) or f" It has {', '.join(known)}."
            raise ArgumentTypeError("qpu", f"expected known options, got '{name}'.{hint}")
    return QPU(**value)


def refuse_beside_default(**given: Any) -> None:
    """Raise ValueError for options that need a sampler, if none is given."""
    for name, value in given.items():
        if value is not None:
            raise ArgumentError("sampler", f"expected a dimod sampler or its name with {name}, got None.")


def check_scale(scale: Scale | None) -> Scale:
    """Return the factor of the programmed values; 1 for None.

    Raises:
        ValueError: If it is neither a positive number nor 'fit'.
    """
    if scale is None:
        return 1.0
    if isinstance(scale, str) and scale == "fit":
        return "fit"
    if not is_positive(scale):
        raise ArgumentError("scale", f"expected a positive number or 'fit', got {scale!r}.")
    return float(scale)


def check_law(law: str | None, scale: Scale, estimated: bool) -> None:
    """Raise ValueError unless the law is None, or ``boltzmann`` without options that contradict it."""
    if law is None:
        return
    if law != "boltzmann":
        raise ArgumentError("law", f"expected 'boltzmann', or None for an unspecified law, got {law!r}.")
    if scale != 1.0:
        raise ArgumentError(
            "law", f"'boltzmann' cannot be combined with scale={scale!r}, because its law has beta = 1."
        )
    if estimated:
        raise ArgumentError(
            "law", "'boltzmann' cannot be combined with beta='estimate', which fits a temperature to any law."
        )


def call_keywords(target: DimodLike, parameters: Mapping[str, Any], qpu: QPU | None) -> dict[str, Any]:
    """Keywords of every call: those of the user and of the anneal, with some hardware defaults switched off.

    Raises:
        ValueError: If ``parameters`` and ``qpu`` set the same keyword, or the sampler does not accept a keyword of
            ``qpu``.
    """
    own, known = {} if qpu is None else qpu.parameters, accepted_parameters(target)
    for name in (*own, *(("flux_biases", "anneal_schedule") if qpu else ())):
        if name in parameters:
            sets = "annealing_time" if name == "anneal_schedule" else "it"
            raise ArgumentError("parameters", f"'{name}' cannot be combined with qpu, which sets {sets}.")
        if name in own and name not in known:
            raise ArgumentError(
                "qpu", f"expected a sampler that accepts {name}, got {type(target).__name__}."
            )
    # auto_scale is True by default on hardware; raw answers preserve the order of the reads.
    defaults = {"auto_scale": False, "answer_mode": "raw"}
    return {k: v for k, v in defaults.items() if k in known} | own | dict(parameters)
