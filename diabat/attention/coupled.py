r"""Base class of the layers whose weights come from free couplings: the terms of each head, and weights from scores.

For one query P(s) ∝ exp( Σ_j h_j s_j + Σ_{j<k} J_jk s_j s_k + Σ_{j<k<l} K_jkl s_j s_k s_l ) over the visible keys, and
weights alpha_j / Σ_k alpha_k with alpha_j = P(s_j = +1), or alpha_j / (1 - alpha_j) normalised
(:mod:`diabat.attention.odds`).
"""

from __future__ import annotations

import difflib
import math
from functools import partial

import torch
from torch import Tensor, nn

from diabat.attention.coupling_init import CouplingInit
from diabat.attention.layer import IsingLayer, LayerProblems
from diabat.attention.normalisation import masked_softmax, normalised_weights
from diabat.attention.odds import log_odds, odds_fields
from diabat.checks import ArgumentError, check_choice, check_count, is_integer
from diabat.compute.memory import require_memory
from diabat.edges import Edges
from diabat.ising import pack_couplings, pack_three_body, pair_indices
from diabat.samplers.base import Sampler

MODES = ("softmax", "h+J", "h", "J", "h+K", "J+K", "h+J+K", "K")
SELF_MODES = (*MODES, "J-self")
"""Modes of self-attention, where a query has a spin of its own."""
WEIGHTS = ("probability", "odds")
_INDEPENDENT = ("softmax", "h")


class CoupledHeads(IsingLayer):
    """Couplings of H heads over ``window`` key positions, and the weights that follow from fields.

    A subclass calls ``_build_terms`` in its constructor and ``_weights`` in its forward pass.  The parameters have
    these names in its ``state_dict``.  The couplings of a *relative* layer are between the last keys that a query sees,
    the others between absolute positions.

    Attributes:
        coupling_pairs: J_jk for j < k, [H, window(window-1)/2], in modes with J; with a bandwidth w the pairs with
            k - j <= w, [H, Σ_{d=1..w} (window-d)], in the same row-major order.
        coupling_triples: K_jkl for j < k < l, [H, window(window-1)(window-2)/6], in modes with K.
    """

    _takes_bias = False
    """Whether fields can be added in modes without them, so that mode J calls the sampler."""

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
        weights: str = "probability",
        relative: bool = False,
        coupling_init: CouplingInit | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Register the parameters of the terms, after those of the projections, and check the backend.

        Raises:
            ValueError: If ``num_reads``, ``bandwidth`` or ``weights`` is invalid.
            UnsupportedError: If the sampler does not support the mode, the window or the estimator.
        """
        check_choice("weights", weights, WEIGHTS)
        self.num_heads, self.window, self.bandwidth, self.mode = num_heads, window, bandwidth, mode
        self.weighting, self.relative = weights, relative
        reach, terms = _reach(window, bandwidth), _terms_of(mode)
        problems = (
            LayerProblems()
            if mode in _INDEPENDENT or (mode == "J" and not self._takes_bias)
            else LayerProblems(window, reach if "J" in terms else None, "K" in terms)
        )
        self._bind(problems, sampler, gradient=gradient, num_reads=num_reads)
        self._has_fields = "h" in terms or mode == "softmax"
        pairs, triples = _numbers_of_terms(window, reach)
        zeros = partial(torch.zeros, device=device, dtype=dtype)
        self.coupling_pairs = nn.Parameter(zeros(num_heads, pairs)) if "J" in terms else None
        if self.coupling_pairs is not None and coupling_init is not None:
            coupling_init.fill(self.coupling_pairs, window, bandwidth)
        self.coupling_triples = nn.Parameter(zeros(num_heads, triples)) if "K" in terms else None
        self._recorded: tuple[Tensor, Tensor | Edges | None] | None = None

    def couplings(self, length: int | None = None) -> Tensor | None:
        """Symmetric J over the first ``length`` positions, or the last slots of a relative layer, [H, 1, T, T].

        None in modes without J.
        """
        if self.coupling_pairs is None:
            return None
        part = self._part(length)
        return pack_couplings(self.coupling_pairs, self.window, self.bandwidth)[:, None, part, part]

    def _band(self, length: int) -> Edges:
        """The same couplings as edges, with values [H, 1, E]."""
        pairs = self.coupling_pairs
        assert pairs is not None
        index = torch.stack(pair_indices(self.window, self.bandwidth, pairs.device), 1)
        if length == self.window:
            return Edges(index, pairs[:, None])
        index = index - (self._part(length).start or 0)
        inside = ((index >= 0) & (index < length)).all(1)
        return Edges(index[inside], pairs[:, None, inside])

    def three_body(self, length: int | None = None) -> Tensor | None:
        """Symmetric K over the same positions, [H, 1, T, T, T]; None in modes without K."""
        if self.coupling_triples is None:
            return None
        part = self._part(length)
        return pack_three_body(self.coupling_triples, self.window)[:, None, part, part, part]

    def _part(self, length: int | None) -> slice:
        T = self.window if length is None else length
        return slice(self.window - T, self.window) if self.relative else slice(T)

    def last_fields_and_couplings(self) -> tuple[Tensor, Tensor | None]:
        """Fields [B, H, T, T] and J [H, 1, T, T] of the last forward pass, detached.

        The fields of a relative layer are those of the slots, [B, H, L, T].

        Raises:
            RuntimeError: Before the first forward pass, or in a mode that does not call the sampler.
        """
        if self._recorded is None:
            raise RuntimeError(
                "no Boltzmann forward pass has been made yet; call the layer on an input first."
            )
        fields, J = self._recorded
        return fields, J.matrix(fields.shape[-1]) if isinstance(J, Edges) else J

    def _weights(self, q: Tensor, k: Tensor, visible: Tensor, bias: Tensor | None = None) -> Tensor:
        """Normalised weights [B, H, L, T], in float32 where queries and keys are of half precision.

        Args:
            q: [B, H, L, d].
            k: [B, H, T, d].
            visible: bool, broadcastable to [B, H, L, T].
            bias: Added to the fields, in modes without fields too; broadcastable to [B, H, L, T].
        """
        # Samplers compute in float32 or float64; exponents need this precision.
        wide = torch.promote_types(q.dtype, torch.float32)
        with torch.autocast(q.device.type, enabled=False):
            scores = q.to(wide) @ k.to(wide).transpose(-2, -1) / math.sqrt(q.shape[-1])
            if not self._has_fields:
                scores = torch.zeros_like(scores)
            if bias is not None:
                scores = scores + bias.to(wide)
            return self._weights_of(scores, visible, zero=not self._has_fields and bias is None)

    def _weights_of(self, scores: Tensor, visible: Tensor, *, zero: bool) -> Tensor:
        """Normalised weights [B, H, L, T] of keys that are all coupled.

        Args:
            scores: [B, H, L, T].
            visible: bool, broadcastable to the scores.
            zero: The mode has no fields, and the scores are 0.
        """
        if self.mode == "softmax":
            return masked_softmax(scores, visible)
        if self.weighting == "odds":
            h = scores if zero else odds_fields(scores, visible)
            return masked_softmax(self._log_odds(h, visible, zero=zero), visible)
        return normalised_weights(self._probabilities(scores, visible, zero=zero), visible)

    def _probabilities(self, fields: Tensor, visible: Tensor, *, zero: bool) -> Tensor:
        """P(s_j = +1), [B, H, L, T]."""
        J, K = self._terms(fields)
        if self.mode == "h":
            return torch.sigmoid(2 * fields)
        if zero and self.mode == "J":
            # The law does not change when all spins are flipped: every P is 1/2, whatever J is.
            return self._without_gradient(torch.full_like(fields, 0.5))
        return self._bridge(fields, J, visible, K, self._fixed_seed)

    def _log_odds(self, fields: Tensor, visible: Tensor, *, zero: bool) -> Tensor:
        """Log-odds of s_j = +1 in the same problems."""
        J, K = self._terms(fields)
        if self.mode == "h":
            return 2 * fields
        if zero and self.mode == "J":
            return self._without_gradient(torch.zeros_like(fields))
        return log_odds(self._bridge, fields, J, visible, K, self._fixed_seed)

    def _moved_softmax(self, logits: Tensor, keys: Tensor, visible: Tensor, *, zero: bool) -> Tensor:
        """Softmax over all keys, [B, H, L, S], whose logits the couplings move at the keys of the window.

        Args:
            logits: Log-softmax of the scores of all visible keys, [B, H, L, S].
            keys: The key in each slot, int64, broadcastable to [B, H, L, T].
            visible: Whether a slot holds a visible key, bool, likewise.  Other slots move nothing.
            zero: The mode has no fields.
        """
        keys = keys.expand(*logits.shape[:-1], -1)
        h = logits.gather(-1, keys).masked_fill(~visible, 0) * (0 if zero else 0.5)
        moved = (self._log_odds(h, visible, zero=zero) - 2 * h).masked_fill(~visible, 0)
        return logits.scatter_add(-1, keys, moved).softmax(-1)

    def _without_gradient(self, values: Tensor) -> Tensor:
        """Give J the gradient 0 rather than none, which some wrappers and optimisers treat differently."""
        return values if self.coupling_pairs is None else values + 0 * self.coupling_pairs.sum()

    def _terms(self, fields: Tensor) -> tuple[Tensor | Edges | None, Tensor | None]:
        """J and K in the precision of the fields; recorded with the fields."""
        length = fields.shape[-1]
        if self.bandwidth is not None and self.coupling_pairs is not None and self._bridge.takes_edges:
            band = self._band(length).mapped(lambda values: values.to(fields))
            self._record(fields.detach(), band.mapped(Tensor.detach))
            return band, None
        J, K = (
            None if t is None else t.to(fields) for t in (self.couplings(length), self.three_body(length))
        )
        self._record(fields.detach(), None if J is None else J.detach())
        return J, K

    def _record(self, fields: Tensor, couplings: Tensor | Edges | None) -> None:
        """Keep the problems of this pass for `last_fields_and_couplings`."""
        self._recorded = (fields, couplings)

    def extra_repr(self) -> str:
        """Show the options in ``repr``."""
        shown = f"num_heads={self.num_heads}, window={self.window}, mode={self.mode!r}, gradient={self.gradient!r}"
        given = {"bandwidth": self.bandwidth, "num_reads": self.num_reads}
        return shown + "".join(f", {name}={value}" for name, value in given.items() if value is not None)


def _terms_of(mode: str) -> list[str]:
    return mode.removesuffix("-self").split("+")


def _reach(window: int, bandwidth: int | None) -> int:
    """Largest distance of two coupled positions."""
    return window - 1 if bandwidth is None else min(bandwidth, window - 1)


def _numbers_of_terms(window: int, reach: int) -> tuple[int, int]:
    """Pairs of positions that are at most ``reach`` apart, and triples."""
    return reach * window - reach * (reach + 1) // 2, math.comb(window, 3)


def check_sizes(
    embed_dim: int,
    num_heads: int,
    window: int,
    mode: str,
    bandwidth: int | None,
    modes: tuple[str, ...] = MODES,
) -> None:
    """Refuse invalid sizes, weights that do not fit into memory, and unknown modes (suggesting the nearest one).

    Raises:
        ValueError: Names the argument.
    """
    for name, value in (("embed_dim", embed_dim), ("num_heads", num_heads), ("window", window)):
        check_count(name, value)
    if embed_dim % num_heads:
        raise ArgumentError("embed_dim", f"expected a multiple of num_heads = {num_heads}, got {embed_dim}.")
    if not isinstance(mode, str) or mode not in modes:
        lower = {m.lower(): m for m in modes}
        near = [lower[m] for m in difflib.get_close_matches(str(mode).lower(), lower, n=1)]
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise ArgumentError("mode", f"expected one of {', '.join(modes)}, got {mode!r}.{hint}")
    _check_bandwidth(bandwidth)
    pairs, triples = _numbers_of_terms(window, _reach(window, bandwidth))
    terms = _terms_of(mode)
    # float32: weights, gradients and both moments of an optimiser; and J as a matrix, with its gradient.
    numbers = num_heads * (pairs * ("J" in terms) + triples * ("K" in terms)) + 4 * embed_dim**2
    require_memory(
        16 * numbers + (1 + 12 * num_heads * ("J" in terms)) * window**2,
        f"weights of window = {window} and embed_dim = {embed_dim}",
        "window",
    )


def _check_bandwidth(bandwidth: int | None) -> None:
    if bandwidth is not None and (not is_integer(bandwidth) or bandwidth < 1):
        raise ArgumentError("bandwidth", f"expected None or an integer >= 1, got {bandwidth!r}.")
