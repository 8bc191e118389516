"""The settings of Boltzmann attention that a configuration keeps as ``config.boltzmann``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from diabat.attention.boltzmann import FAR
from diabat.attention.coupled import WEIGHTS
from diabat.checks import ArgumentError, check_choice, check_count
from diabat.samplers.base import Sampler
from diabat.samplers.registry import as_sampler, sampler


@dataclass(frozen=True)
class BoltzmannOptions:
    """Window, backend and weights; the same for all layers of a model.

    Attributes:
        window: T, the number of last visible keys of every query that are coupled.
        sampler: Name of the backend.
        sampler_options: Its options, as ``diabat.sampler`` takes them.
        weights: ``odds`` or ``probability``, as in :class:`diabat.BoltzmannAttention`.
        far: Keys before the window: ``independent``, spins without couplings, or ``none``, not visible.
        gradient: Estimator, see :func:`diabat.spin_probabilities`.
        num_reads: Reads per query for sampling backends.
        bandwidth: w; J_jk is a parameter for |j - k| <= w and 0 beyond.  None makes every pair a parameter.

    Raises:
        ArgumentError: If an option is invalid.
    """

    window: int = 16
    sampler: str = "exact"
    sampler_options: Mapping[str, Any] = field(default_factory=dict)
    weights: str = "odds"
    far: str = "independent"
    gradient: str = "auto"
    num_reads: int | None = None
    bandwidth: int | None = None

    def __post_init__(self) -> None:
        check_count("window", self.window)
        check_choice("weights", self.weights, WEIGHTS)
        check_choice("far", self.far, FAR)
        check_count("num_reads", self.num_reads, optional=True)
        check_count("bandwidth", self.bandwidth, optional=True)

    @classmethod
    def of(cls, backend: Sampler | str, **others: Any) -> BoltzmannOptions:
        """Options with a backend that is given by its name or as an object.

        Raises:
            ArgumentError: If an option is invalid, or those of the backend cannot be written as JSON.
        """
        if isinstance(backend, str):
            return cls(sampler=as_sampler(backend).name, **others)
        options = as_sampler(backend).options
        try:
            options = json.loads(json.dumps(options, allow_nan=False))
        except (TypeError, ValueError):
            raise ArgumentError(
                "sampler",
                "expected a backend whose options can be saved as JSON (names and numbers), "
                f"got {backend!r:.100}.",
            ) from None
        return cls(sampler=backend.name, sampler_options=options, **others)

    @classmethod
    def from_config(cls, config: Any) -> BoltzmannOptions:
        """Read ``config.boltzmann``.

        Raises:
            ArgumentError: If there are no settings, or they are invalid.
        """
        settings = config.boltzmann
        if settings is None:
            raise ArgumentError(
                "config.boltzmann",
                "expected the settings of a converted model, got None; load the plain model and convert it with "
                "diabat.huggingface.convert.",
            )
        known = [f.name for f in dataclasses.fields(cls)]
        if not isinstance(settings, Mapping) or not set(settings) <= set(known):
            unknown = sorted(set(settings) - set(known)) if isinstance(settings, Mapping) else settings
            raise ArgumentError(
                "config.boltzmann", f"expected settings among {', '.join(known)}, got {unknown!r:.100}."
            )
        return cls(**settings)

    def as_dict(self) -> dict[str, Any]:
        """The settings as plain data."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)} | {
            "sampler_options": dict(self.sampler_options)
        }

    def build_sampler(self) -> Sampler:
        """The backend; each call builds another object."""
        return sampler(self.sampler, **self.sampler_options)
