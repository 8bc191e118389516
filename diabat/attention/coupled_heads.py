r"""What Boltzmann layers share: free couplings of each head over key positions, and weights from fields.

P(s) ∝ exp( Σ_j h_j s_j + Σ_{j<k} J_jk s_j s_k + Σ_{j<k<l} K_jkl s_j s_k s_l ) over the visible keys of a query, and
weights alpha_j / Σ_k alpha_k, alpha_j = P(s_j = +1).
"""

from __future__ import annotations

import difflib
import math
from functools import partial

import torch
from torch import Tensor, nn

from diabat.attention.layer import Asked, IsingLayer
from diabat.checks import ArgumentError, check_count
from diabat.compute.memory import require_memory
from diabat.ising import pack_couplings, pack_three_body
from diabat.samplers.base import Sampler

MODES = ("softmax", "h+J", "h", "J", "h+K", "J+K", "h+J+K", "K")


class CoupledHeads(IsingLayer):
    """Couplings of H heads over ``window`` key positions, and the weights that follow from fields.

    A layer derives from it and calls ``_build_terms`` when it is built, ``_weights`` in its forward pass.  The
    parameters stand beside the layer's own, under these names in its ``state_dict``.

    Attributes:
        coupling_pairs: J_jk for j < k, [H, window(window-1)/2], in modes with J; with a bandwidth w the pairs with
            k - j <= w, [H, Σ_{d=1..w} (window-d)], in the same row-major order.
        coupling_triples: K_jkl for j < k < l, [H, window(window-1)(window-2)/6], in modes with K.
    """

    def _build_terms(
        self,
        num_heads: int,
        window: int,
        *,
        sampler: Sampler | str,
        mode: str,
        gradient: str,
        num_reads: int | None,
        bandwidth: int | None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Register the parameters of the terms, after those of the projections, and check the backend.

        Raises:
            ValueError: If ``num_reads`` or ``bandwidth`` is invalid.
            UnsupportedError: If the sampler does not support the mode, the window or the estimator.
        """
        self.num_heads, self.window, self.bandwidth, self.mode = num_heads, window, bandwidth, mode
        reach, terms = _reach(window, bandwidth), mode.split("+")
        asked = Asked() if mode == "softmax" else Asked(window, reach if "J" in terms else None, "K" in terms)
        self._bind(asked, sampler, gradient=gradient, num_reads=num_reads)
        self._has_fields = "h" in terms or mode == "softmax"
        pairs, triples = _numbers_of_terms(window, reach)
        zeros = partial(torch.zeros, device=device, dtype=dtype)
        self.coupling_pairs = nn.Parameter(zeros(num_heads, pairs)) if "J" in terms else None
        self.coupling_triples = nn.Parameter(zeros(num_heads, triples)) if "K" in terms else None
        self._recorded: tuple[Tensor, Tensor | None] | None = None

    def couplings(self, length: int | None = None) -> Tensor | None:
        """Symmetric J over the first ``length`` positions, [H, 1, T, T]; None in modes without J."""
        if self.coupling_pairs is None:
            return None
        T = self.window if length is None else length
        return pack_couplings(self.coupling_pairs, self.window, self.bandwidth)[:, None, :T, :T]

    def three_body(self, length: int | None = None) -> Tensor | None:
        """Symmetric K over the first ``length`` positions, [H, 1, T, T, T]; None in modes without K."""
        if self.coupling_triples is None:
            return None
        T = self.window if length is None else length
        return pack_three_body(self.coupling_triples, self.window)[:, None, :T, :T, :T]

    def last_fields_and_couplings(self) -> tuple[Tensor, Tensor | None]:
        """Fields [B, H, T, T] and J [H, 1, T, T] of the last forward pass, detached.

        Raises:
            RuntimeError: Before the first forward pass, or in mode ``softmax``.
        """
        if self._recorded is None:
            raise RuntimeError(
                "no Boltzmann forward pass has been made yet; call the layer on an input first."
            )
        return self._recorded

    def _weights(self, q: Tensor, k: Tensor, visible: Tensor, bias: Tensor | None = None) -> Tensor:
        """Normalised weights [B, H, L, T], in float32 where queries and keys are of half precision.

        Args:
            q: [B, H, L, d].
            k: [B, H, T, d].
            visible: bool, broadcastable to [B, H, L, T].
            bias: Added to the fields, in modes without fields too; broadcastable to [B, H, L, T].
        """
        wide = torch.promote_types(q.dtype, torch.float32)
        # Samplers know float32 and float64, and exponents have no digits to lose.
        with torch.autocast(q.device.type, enabled=False):
            fields = q.to(wide) @ k.to(wide).transpose(-2, -1) / math.sqrt(q.shape[-1])
            if not self._has_fields:
                fields = torch.zeros_like(fields)
            if bias is not None:
                fields = fields + bias.to(wide)
            if self.mode == "softmax":
                return _masked_softmax(fields, visible)
            length = fields.shape[-1]
            J, K = self.couplings(length), self.three_body(length)
            J, K = None if J is None else J.to(wide), None if K is None else K.to(wide)
            self._recorded = (fields.detach(), None if J is None else J.detach())
            return normalised_weights(self._bridge(fields, J, visible, K), visible)

    def extra_repr(self) -> str:
        """Show what the parameters do not."""
        shown = f"num_heads={self.num_heads}, window={self.window}, mode={self.mode!r}, gradient={self.gradient!r}"
        given = {"bandwidth": self.bandwidth, "num_reads": self.num_reads}
        return shown + "".join(f", {name}={value}" for name, value in given.items() if value is not None)


def coupling_parameters(model: nn.Module) -> list[nn.Parameter]:
    """J and K of all layers of a model that have couplings of their own."""
    layers = [module for module in model.modules() if isinstance(module, CoupledHeads)]
    return [p for layer in layers for p in (layer.coupling_pairs, layer.coupling_triples) if p is not None]


def _masked_softmax(fields: Tensor, visible: Tensor) -> Tensor:
    """Softmax over visible keys; a row without any gets zeros instead of NaN."""
    weights = torch.softmax(fields.masked_fill(~visible, torch.finfo(fields.dtype).min), -1)
    return weights.masked_fill(~visible, 0)


def normalised_weights(alpha: Tensor, visible: Tensor) -> Tensor:
    """Alpha / Σ alpha; uniform over the visible keys where every alpha underflows, zero where there is none."""
    # Too small to change an alpha that matters, and its inverse leaves room for a cotangent.
    positive = (alpha + torch.finfo(alpha.dtype).tiny ** 0.75).masked_fill(~visible, 0)
    return positive / positive.sum(-1, keepdim=True).clamp_min(torch.finfo(alpha.dtype).tiny)


def _reach(window: int, bandwidth: int | None) -> int:
    """Largest distance of two coupled positions."""
    return window - 1 if bandwidth is None else min(bandwidth, window - 1)


def _numbers_of_terms(window: int, reach: int) -> tuple[int, int]:
    """Pairs of positions that are at most ``reach`` apart, and triples."""
    return reach * window - reach * (reach + 1) // 2, math.comb(window, 3)


def check_sizes(embed_dim: int, num_heads: int, window: int, mode: str, bandwidth: int | None) -> None:
    """Refuse sizes that are no sizes or fit into no memory, and an unknown mode with the nearest one.

    Raises:
        ValueError: Names the argument.
    """
    for name, value in (("embed_dim", embed_dim), ("num_heads", num_heads), ("window", window)):
        check_count(name, value)
    if embed_dim % num_heads:
        raise ArgumentError("embed_dim", f"expected a multiple of num_heads = {num_heads}, got {embed_dim}.")
    if not isinstance(mode, str) or mode not in MODES:
        lower = {m.lower(): m for m in MODES}
        near = [lower[m] for m in difflib.get_close_matches(str(mode).lower(), lower, n=1)]
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise ArgumentError("mode", f"expected one of {', '.join(MODES)}, got {mode!r}.{hint}")
    _check_bandwidth(bandwidth)
    pairs, triples = _numbers_of_terms(window, _reach(window, bandwidth))
    terms = mode.split("+")
    # float32, with gradients and both moments of an optimiser as large; and J as a matrix, with its gradient.
    numbers = num_heads * (pairs * ("J" in terms) + triples * ("K" in terms)) + 4 * embed_dim**2
    require_memory(
        16 * numbers + (1 + 12 * num_heads * ("J" in terms)) * window**2,
        f"weights of window = {window} and embed_dim = {embed_dim}",
        "window",
    )


def _check_bandwidth(bandwidth: int | None) -> None:
    if bandwidth is not None and (
        isinstance(bandwidth, bool) or not isinstance(bandwidth, int) or bandwidth < 1
    ):
        raise ArgumentError("bandwidth", f"expected None or an integer >= 1, got {bandwidth!r}.")
