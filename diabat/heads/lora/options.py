"""Options of GAME-LoRA: which losses on which layers, how they are weighted, and how often Nash weights are solved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from diabat.checks import ArgumentError, check_choice, check_number, is_integer, keep_count
from diabat.heads.lora.losses import Target, Weighting

Loss = Literal["ldb", "abt", "disagreement", "entropy"]
Combination = Literal["nash", "sum"]
Rho = Literal["fresh", "last_step"]


@dataclass(frozen=True)
class GameOptions:
    """Options of GAME-LoRA; the defaults are those of the paper where it gives a value.

    Attributes:
        layers: Layers whose heads are measured and regularised, counted from 0.
        ldb_layers: Layers of the log-det barrier, None for ``layers``; each loss is the mean over its layers.  Likewise
            ``abt_layers`` of Barlow Twins.
        losses: Losses beside the cross-entropy: ``ldb``, ``abt``, and the baselines ``disagreement`` and ``entropy``;
            none to measure Γ only.
        ldb_weight: λ of the log-det barrier; ``abt_weight`` that of Barlow Twins.
        disagreement_weight: λ of the disagreement loss, and ``entropy_weight`` that of the negative entropy of the
            predictions; they follow no schedule.
        epsilon: ε of -log det(G + ε I).
        target: What Barlow Twins moves correlations between heads to: ``identity`` (eq. 29) or ``zero``.
        weighting: Pair weights of Barlow Twins: ``adaptive``, ``inverse`` or ``uniform``.
        floor: a of the pair weights; ``slope`` is β, ``threshold`` τ.
        ema_decay: Decay of the running mean that Barlow Twins is divided by.
        ema_target: Its start, and the value of the normalised loss.
        warmup: Share of the training until which λ rises from 0; from the share ``cooldown`` on it falls to 0.
        combination: ``nash`` for Nash-MTL, ``sum`` for the plain weighted sum of eq. 27.
        nash_every: Optimiser steps between two solutions; the weights are kept meanwhile.
        rho: Gradients behind ρ and G: ``fresh`` those of the batch itself, by a partial backward pass; ``last_step``
            those of the last optimiser step, which cost nothing.

    λ, schedule and running mean multiply the Nash weights: Nash weights would cancel any factor of a loss.
    """

    layers: Sequence[int] = (19,)
    ldb_layers: Sequence[int] | None = None
    abt_layers: Sequence[int] | None = None
    losses: Sequence[Loss] = ("ldb", "abt")
    ldb_weight: float = 0.352
    abt_weight: float = 0.179
    disagreement_weight: float = 0.1
    entropy_weight: float = 0.05
    epsilon: float = 0.01
    target: Target = "identity"
    weighting: Weighting = "adaptive"
    floor: float = 0.929
    slope: float = 15.99
    threshold: float = 0.0
    ema_decay: float = 0.1
    ema_target: float = 20.0
    warmup: float = 0.02
    cooldown: float = 0.879
    combination: Combination = "nash"
    nash_every: int = 1
    rho: Rho = "fresh"

    def __post_init__(self) -> None:
        for name in ("layers", "ldb_layers", "abt_layers"):
            if name == "layers" or getattr(self, name) is not None:
                object.__setattr__(self, name, _layers(name, getattr(self, name)))
        if isinstance(self.losses, str) or not isinstance(self.losses, Sequence):
            raise ArgumentError("losses", "a list of losses", f"{self.losses!r}")
        object.__setattr__(self, "losses", tuple(self.losses))
        for loss in self.losses:
            check_choice("losses", loss, get_args(Loss))
        if len(set(self.losses)) < len(self.losses):
            raise ArgumentError("losses", "different losses", list(self.losses))
        for interval, names in _INTERVALS.items():
            for name in names:
                check_number(name, getattr(self, name), interval)
        if self.warmup > self.cooldown:
            raise ArgumentError("warmup", f"at most cooldown = {self.cooldown}", self.warmup)
        keep_count(self, "nash_every")
        for name, kind in _CHOICES.items():
            check_choice(name, getattr(self, name), get_args(kind))

    def layers_of(self, loss: Loss) -> tuple[int, ...]:
        """Layers of a loss; empty if the loss is not used, or acts on predictions."""
        if loss not in self.losses or loss == "entropy":
            return ()
        chosen = {"ldb": self.ldb_layers, "abt": self.abt_layers}.get(loss)
        return tuple(self.layers if chosen is None else chosen)

    def factors(self, progress: float) -> dict[str, float]:
        """λ_k s(t) by loss (app. A.1) after a share 0 .. 1 of the training, without the running mean."""
        schedule = 1.0
        if progress < self.warmup:
            schedule = progress / self.warmup
        elif progress > self.cooldown:
            schedule = (1 - progress) / (1 - self.cooldown)
        constant = {"disagreement": self.disagreement_weight, "entropy": self.entropy_weight}
        return {"ldb": self.ldb_weight * schedule, "abt": self.abt_weight * schedule, **constant}

    def measured(self) -> tuple[int, ...]:
        """All layers whose heads are measured, in ascending order."""
        chosen = {layer for loss in self.losses for layer in self.layers_of(loss)}
        return tuple(sorted(chosen or self.layers))


_INTERVALS = {
    "[0, inf)": ("ldb_weight", "abt_weight", "disagreement_weight", "entropy_weight"),
    "(0, inf)": ("epsilon", "slope", "ema_target"),
    "[0, 1]": ("floor", "warmup", "cooldown"),
    "(0, 1]": ("ema_decay",),
    "(-inf, inf)": ("threshold",),
}
_CHOICES = {"target": Target, "weighting": Weighting, "combination": Combination, "rho": Rho}


def _layers(name: str, value: object) -> tuple[int, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise ArgumentError(name, "a list of layers", f"{value!r}")
    if not all(is_integer(layer) and layer >= 0 for layer in value) or len(set(value)) < len(value):
        raise ArgumentError(name, "different integers >= 0", list(value))
    return tuple(map(int, value))
