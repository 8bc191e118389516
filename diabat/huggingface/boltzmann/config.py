"""The settings of Boltzmann attention, which a model keeps as ``config.boltzmann``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from diabat.attention.boltzmann import FAR
from diabat.attention.coupling_layout import WEIGHTS
from diabat.attention.key_couplings import chain_options
from diabat.checks import ArgumentError, check_choice, check_count
from diabat.samplers.base import Sampler
from diabat.samplers.registry import as_sampler, sampler

FOLDER_SAMPLERS = ("exact", "banded", "mean_field")
"""Backends that a model folder may name: they import no module, read no file and connect to nothing."""


@dataclass(frozen=True)
class BoltzmannOptions:
    """Window, backend and weights; the same for all layers of a model.

    Attributes:
        window: T, the number of last visible keys of every query that are coupled; None couples neighbours over the
            whole context.
        sampler: The backend; a name becomes an object, and None ``exact``, or ``banded`` without a window.
        weights: ``odds`` or ``probability``, as in :class:`diabat.BoltzmannAttention`.
        far: Keys before the window: ``independent``, spins without couplings, or ``none``, not visible, which changes
            what a trained model computes on longer sequences.
        gradient: Estimator, see :func:`diabat.spin_probabilities`.
        num_reads: Reads per query for sampling backends.
        bandwidth: w; J_jk is a parameter for |j - k| <= w and 0 beyond.  None makes every pair a parameter, and is 1
            without a window.
        couplings: Without a window, ``distance``, ``tokens`` or ``gates``, as in :class:`diabat.BoltzmannAttention`;
            the features of a token are its values in all heads.  None takes ``tokens``.
        rank: Number of features of ``tokens``; None takes 8.

    Raises:
        ArgumentError: If an option is invalid.
    """

    window: int | None = 16
    sampler: Sampler | str | None = None
    weights: str = "odds"
    far: str = "independent"
    gradient: str = "auto"
    num_reads: int | None = None
    bandwidth: int | None = None
    couplings: str | None = None
    rank: int | None = None

    def __post_init__(self) -> None:
        usual = "exact" if self.window is not None else "banded"
        object.__setattr__(self, "sampler", as_sampler(usual if self.sampler is None else self.sampler))
        if self.window is not None:
            check_count("window", self.window)
        chain_options(self.window, self.couplings, self.rank, self.bandwidth)
        check_choice("weights", self.weights, WEIGHTS)
        check_choice("far", self.far, FAR)
        if self.window is None and self.far == "none":
            raise ArgumentError(
                "far", "expected 'independent' with window=None, where all keys are coupled, got 'none'."
            )
        check_count("num_reads", self.num_reads, optional=True)
        check_count("bandwidth", self.bandwidth, optional=True)

    @classmethod
    def from_config(cls, config: Any, backend: Sampler | str | None = None) -> BoltzmannOptions:
        """Read ``config.boltzmann``, which may come from somebody else; ``backend`` takes the place of the one in it.

        Raises:
            ArgumentError: If there are no settings, they are invalid, or they name a backend that is not one of
                `FOLDER_SAMPLERS` and none is given.
        """
        settings = config.boltzmann
        if settings is None:
            raise ArgumentError(
                "config.boltzmann",
                "expected the settings of a converted model, got None; load the plain model and convert it with "
                "diabat.huggingface.convert.",
            )
        known = [*(field.name for field in fields(cls)), "sampler_options"]
        if not isinstance(settings, Mapping) or not set(settings) <= set(known):
            unknown = sorted(set(settings) - set(known)) if isinstance(settings, Mapping) else settings
            raise ArgumentError(
                "config.boltzmann", f"expected settings among {', '.join(known)}, got {unknown!r:.100}."
            )
        others = {key: value for key, value in settings.items() if key not in ("sampler", "sampler_options")}
        return cls(sampler=_stored_sampler(settings) if backend is None else backend, **others)

    def as_dict(self) -> dict[str, Any]:
        """The settings as JSON can hold them; of a backend that a folder may not name, its name only."""
        assert self.sampler is not None
        backend = as_sampler(self.sampler)
        named: dict[str, Any] = {"sampler": backend.name}
        if backend.name in FOLDER_SAMPLERS:
            named["sampler_options"] = backend.options
        return {field.name: getattr(self, field.name) for field in fields(self)} | named


def _stored_sampler(settings: Mapping[str, Any]) -> Sampler:
    """The backend that settings name, if it is one of those that any folder may name."""
    name, options = settings.get("sampler", "exact"), settings.get("sampler_options", {})
    if name not in FOLDER_SAMPLERS:
        raise ArgumentError(
            "config.boltzmann",
            f"expected sampler {', '.join(FOLDER_SAMPLERS)} in the configuration of a model, got {name!r:.60}; give "
            "it in code: from_pretrained(folder, sampler=diabat.sampler(...)); for an adapter, convert(model, "
            "sampler=...) before it is loaded.",
        )
    try:
        return sampler(name, **dict(options))
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            "config.boltzmann", f"expected sampler_options of '{name}', got {options!r:.60}: {error}"
        ) from None
