"""Which positions of a layer are coupled, in which mode: sizes of its parameters, and refusals."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass

from diabat.attention.layer import LayerProblems
from diabat.checks import ArgumentError, check_count, is_integer
from diabat.compute.memory import require_memory

MODES = ("softmax", "h+J", "h", "J", "h+K", "J+K", "h+J+K", "K")
SELF_MODES = (*MODES, "J-self")
"""Modes of self-attention, where a query has a spin of its own."""
WEIGHTS = ("probability", "odds")


@dataclass(frozen=True)
class CouplingLayout:
    """Which positions of a layer are coupled, and what its weights are.

    Attributes:
        window: Number of positions.
        mode: Terms of the exponent.
        bandwidth: Largest distance of two coupled positions; None for any.
        relative: The positions are those of the last keys that a query sees.
        weights: ``probability`` or ``odds``.
    """

    window: int
    mode: str = "h+J"
    bandwidth: int | None = None
    relative: bool = False
    weights: str = "probability"

    @property
    def terms(self) -> list[str]:
        """The letters of the mode."""
        return self.mode.removesuffix("-self").split("+")

    @property
    def reach(self) -> int:
        """Largest distance of two coupled positions."""
        return self.window - 1 if self.bandwidth is None else min(self.bandwidth, self.window - 1)

    @property
    def sizes(self) -> tuple[int, int]:
        """Numbers of pairs and of triples that are parameters."""
        terms, reach = self.terms, self.reach
        pairs = reach * self.window - reach * (reach + 1) // 2
        return pairs * ("J" in terms), math.comb(self.window, 3) * ("K" in terms)

    def problems(self, *, with_bias: bool) -> LayerProblems:
        """What the sampler must support; nothing in modes that do not call it."""
        if self.mode in ("softmax", "h") or (self.mode == "J" and not with_bias):
            return LayerProblems()
        return LayerProblems(self.window, self.reach if "J" in self.terms else None, "K" in self.terms)

    def part(self, length: int | None) -> slice:
        """The positions of ``length`` keys."""
        T = self.window if length is None else length
        return slice(self.window - T, self.window) if self.relative else slice(T)

    def check(self, embed_dim: int, num_heads: int, modes: tuple[str, ...] = MODES) -> None:
        """Refuse invalid sizes, weights that do not fit into memory, and unknown modes (suggesting the nearest one).

        Raises:
            ValueError: Names the argument.
        """
        for name, value in (("embed_dim", embed_dim), ("num_heads", num_heads), ("window", self.window)):
            check_count(name, value)
        if embed_dim % num_heads:
            raise ArgumentError(
                "embed_dim", f"expected a multiple of num_heads = {num_heads}, got {embed_dim}."
            )
        if not isinstance(self.mode, str) or self.mode not in modes:
            lower = {m.lower(): m for m in modes}
            near = [lower[m] for m in difflib.get_close_matches(str(self.mode).lower(), lower, n=1)]
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise ArgumentError("mode", f"expected one of {', '.join(modes)}, got {self.mode!r}.{hint}")
        if self.bandwidth is not None and (not is_integer(self.bandwidth) or self.bandwidth < 1):
            raise ArgumentError("bandwidth", f"expected None or an integer >= 1, got {self.bandwidth!r}.")
        # float32: weights, gradients and both moments of an optimiser; and J as a matrix, with its gradient.
        numbers = num_heads * sum(self.sizes) + 4 * embed_dim**2
        require_memory(
            16 * numbers + (1 + 12 * num_heads * ("J" in self.terms)) * self.window**2,
            f"weights of window = {self.window} and embed_dim = {embed_dim}",
            "window",
        )
