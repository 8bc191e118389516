"""The settings of Boltzmann attention, which a model keeps as ``config.boltzmann``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

from diabat.attention.core import FAR
from diabat.attention.readout import READOUTS
from diabat.checks import ArgumentError, check_choice, is_integer, keep_count
from diabat.samplers.base import Sampler
from diabat.samplers.registry import as_sampler, sampler

FOLDER_SAMPLERS = ("exact", "banded", "mean_field")
"""Backends that a model folder may name: they import no module, read no file and connect to nothing."""
_COMPUTING = ("gradient", "num_reads")  # how, not what; with the backend


@dataclass
class BoltzmannOptions:
    """Window, backend and weights; the same for all layers of a model.  Defaults are filled in.

    Attributes:
        window: T, the number of last visible keys of every query that are coupled.
        sampler: The backend; a name becomes an object, and None ``exact``.
        readout: ``odds`` or ``probability``, as in :class:`diabat.BoltzmannAttention`.
        far: Keys before the window: ``independent``, spins without couplings, or ``none``, not visible, which changes
            what a trained model computes on longer sequences.
        gradient: Estimator, see :func:`diabat.spin_probabilities`.
        num_reads: Reads per query for sampling backends.
        bandwidth: w; J_jk is a parameter for |j - k| <= w and 0 beyond.  None is T - 1, every pair.
        layers: Numbers of the layers with couplings; None for all.  The others stay softmax.

    Raises:
        ArgumentError: If an option is invalid.
    """

    window: int = 16
    sampler: Sampler | str | None = None
    readout: str = "odds"
    far: str = "independent"
    gradient: str = "auto"
    num_reads: int | None = None
    bandwidth: int | None = None
    layers: Sequence[int] | None = None

    def __post_init__(self) -> None:
        for name in ("window", "bandwidth", "num_reads"):
            keep_count(self, name, optional=name != "window")
        check_choice("readout", self.readout, tuple(READOUTS))
        check_choice("far", self.far, FAR)
        widest = self.window - 1
        self.bandwidth = min(self.bandwidth or widest, widest) or None
        if self.layers is not None:
            layers = list(self.layers) if isinstance(self.layers, list | tuple | range) else []
            if not layers or not all(map(is_integer, layers)) or len({*layers}) < len(layers):
                raise ArgumentError("layers", "different numbers of layers", f"{self.layers!r:.60}")
            self.layers = sorted(map(int, layers))
        self.sampler = as_sampler("exact" if self.sampler is None else self.sampler)

    def law(self) -> dict[str, Any]:
        """Options of :class:`diabat.attention.core.LawOptions`."""
        return {name: getattr(self, name) for name in ("sampler", *_COMPUTING, "readout", "far")}

    def meaning(self) -> dict[str, Any]:
        """The settings without which couplings mean something else."""
        return {name: getattr(self, name) for name in OPTIONS if name not in ("sampler", *_COMPUTING)}

    @classmethod
    def from_settings(cls, settings: Any, backend: Sampler | str | None = None) -> BoltzmannOptions:
        """Read what `as_dict` gave, maybe to somebody else; ``backend`` takes the place of the one in it.

        ArgumentError if they are invalid, or name a backend that is not one of `FOLDER_SAMPLERS` and none is given.
        """
        name = "config.boltzmann"
        if settings is None:
            got = "None; load the plain model and convert it with diabat.huggingface.convert"
            raise ArgumentError(name, "the settings of a converted model", got)
        known = [*OPTIONS, "sampler_options"]
        if not isinstance(settings, Mapping) or not set(settings) <= set(known):
            unknown = sorted(set(settings) - set(known)) if isinstance(settings, Mapping) else settings
            raise ArgumentError(name, f"settings among {', '.join(known)}", f"{unknown!r:.100}")
        others = dict(settings)
        kind, options = others.pop("sampler", "exact"), others.pop("sampler_options", {})
        if backend is None and kind not in FOLDER_SAMPLERS:
            fix = "give it in code: from_pretrained(folder, sampler=diabat.sampler(...))"
            fix += "; for an adapter, convert(model, sampler=...) before it is loaded"
            expected = f"sampler {', '.join(FOLDER_SAMPLERS)} in the configuration of a model"
            raise ArgumentError(name, expected, f"{kind!r:.60}; {fix}")
        if backend is None:
            try:
                backend = sampler(kind, **dict(options))
            except (TypeError, ValueError) as error:
                got = f"got {options!r:.60}: {error}"
                raise ArgumentError(name, f"expected sampler_options of '{kind}', {got}") from None
        return cls(sampler=backend, **others)

    def as_dict(self) -> dict[str, Any]:
        """The settings as JSON can hold them; of a backend that a folder may not name, its name only."""
        backend = cast(Sampler, self.sampler)
        settings = {name: getattr(self, name) for name in OPTIONS} | {"sampler": backend.name}
        return settings | ({"sampler_options": backend.options} if backend.name in FOLDER_SAMPLERS else {})


OPTIONS = tuple(field.name for field in fields(BoltzmannOptions))
