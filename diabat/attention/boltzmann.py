r"""Boltzmann attention: an Ising model over key positions in place of softmax (arXiv:2606.12478, §3).

For query i, P_i(s) ∝ exp( Σ_j h_ij s_j + Σ_{j<k} J_jk s_j s_k + Σ_{j<k<l} K_jkl s_j s_k s_l ) over the visible
positions, with h_ij = q_i·k_j / sqrt(d_k), and attention weights alpha_ij / Σ_k alpha_ik, alpha_ij = P_i(s_j = +1).
`CoupledHeads` is the base class of these layers: free couplings of each head, and weights from fields.
"""

from __future__ import annotations

import difflib
import math
from functools import partial

import torch
from torch import Tensor, nn

from diabat.attention.layer import IsingLayer, LayerProblems, check_sequences
from diabat.checks import ArgumentError, check_count, check_flag, is_integer
from diabat.compute.memory import require_memory
from diabat.ising import pack_couplings, pack_three_body
from diabat.samplers.base import Sampler

MODES = ("softmax", "h+J", "h", "J", "h+K", "J+K", "h+J+K", "K")


class CoupledHeads(IsingLayer):
    """Couplings of H heads over ``window`` key positions, and the weights that follow from fields.

    A subclass calls ``_build_terms`` in its constructor and ``_weights`` in its forward pass.  The parameters have
    these names in its ``state_dict``.

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
        problems = (
            LayerProblems()
            if mode == "softmax"
            else LayerProblems(window, reach if "J" in terms else None, "K" in terms)
        )
        self._bind(problems, sampler, gradient=gradient, num_reads=num_reads)
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
        # Samplers compute in float32 or float64; exponents need this precision.
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
        """Show the options in ``repr``."""
        shown = f"num_heads={self.num_heads}, window={self.window}, mode={self.mode!r}, gradient={self.gradient!r}"
        given = {"bandwidth": self.bandwidth, "num_reads": self.num_reads}
        return shown + "".join(f", {name}={value}" for name, value in given.items() if value is not None)


class BoltzmannAttention(CoupledHeads):
    """Multi-head self-attention over windows of up to ``window`` positions.

    Couplings J (and K) are free parameters of each head over absolute positions, initialised to zero, so that
    training starts from sigmoid attention (mode ``h+J``).  Batch first, as ``x [B, T, D]``.  Under autocast, and with
    weights of half precision, fields and marginals are computed in float32.

    Args:
        embed_dim: D, divisible by ``num_heads``.
        num_heads: H.
        window: Largest T.
        sampler: Backend of the marginals, or its name.  Unused in mode ``softmax``.
        mode: Terms of the exponent: softmax, h+J, h, J, h+K, J+K, h+J+K or K.
        gradient: Estimator, see :func:`diabat.spin_probabilities`.
        causal: Position i attends to j <= i.
        dropout: Dropout of the normalised attention weights.
        bias: Bias of the projections.
        num_reads: Reads per query for sampling backends.
        bandwidth: w; J_jk is a parameter for |j - k| <= w and 0 beyond.  None makes every pair a parameter.  The
            ``banded`` backend needs it at long windows, and uses this value if it was built without a bandwidth.

    Attributes:
        coupling_pairs: J_jk for j < k, [H, window(window-1)/2], in modes with J; with a bandwidth the pairs with
            k - j <= w, [H, Σ_{d=1..w} (window-d)], in the same row-major order.
        coupling_triples: K_jkl for j < k < l, [H, window(window-1)(window-2)/6], in modes with K.
        sampler: The backend, a submodule: its parameters (the learnable angles of an anneal) train with the layer.

    Raises:
        ValueError: If a size or the mode is invalid.
        UnsupportedError: If the sampler does not support the mode, the window or the estimator.
    """

    _causal_mask: Tensor

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        window: int,
        *,
        sampler: Sampler | str = "exact",
        mode: str = "h+J",
        gradient: str = "auto",
        causal: bool = True,
        dropout: float = 0.0,
        bias: bool = True,
        num_reads: int | None = None,
        bandwidth: int | None = None,
    ) -> None:
        super().__init__()
        check_sizes(embed_dim, num_heads, window, mode, bandwidth)
        check_flag("causal", causal)
        self.embed_dim, self.causal = embed_dim, causal
        self.query = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.key = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.value = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.output = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.dropout = nn.Dropout(dropout)
        self._build_terms(
            num_heads,
            window,
            sampler=sampler,
            mode=mode,
            gradient=gradient,
            num_reads=num_reads,
            bandwidth=bandwidth,
        )
        self.register_buffer(
            "_causal_mask", torch.ones(window, window, dtype=torch.bool).tril(), persistent=False
        )

    def forward(
        self, x: Tensor, key_padding_mask: Tensor | None = None, need_weights: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attend.

        Args:
            x: [B, T, D], T <= window.
            key_padding_mask: bool [B, T], True where a key is padding (as in torch.nn.MultiheadAttention).
            need_weights: Also return the normalised weights [B, H, T, T].

        Returns:
            [B, T, D], or that and the weights.  A query without a visible key gets weight 0 everywhere.

        Raises:
            ValueError: If a shape or dtype is wrong or T exceeds the window.
        """
        check_sequences(x, self.query.weight, self.embed_dim, key_padding_mask, self.window)
        batch, length, _ = x.shape
        by_head = (batch, length, self.num_heads, -1)
        q = self.query(x).view(by_head).transpose(1, 2)
        k = self.key(x).view(by_head).transpose(1, 2)
        v = self.value(x).view(by_head).transpose(1, 2)
        visible = self._visible(length, key_padding_mask, x.device)  # [T, T] or [B, 1, T, T]
        weights = self._weights(q, k, visible).to(v.dtype)
        mixed = (self.dropout(weights) @ v).transpose(1, 2).reshape(batch, length, self.embed_dim)
        out: Tensor = self.output(mixed)
        return (out, weights) if need_weights else out

    def _visible(self, length: int, padding: Tensor | None, device: torch.device) -> Tensor:
        mask = self._causal_mask[:length, :length]
        if not self.causal:
            mask = torch.ones(length, length, dtype=torch.bool, device=device)
        return mask if padding is None else mask & ~padding[:, None, None, :]

    def extra_repr(self) -> str:
        """Show the options in ``repr``."""
        return f"{super().extra_repr()}, causal={self.causal}"


def coupling_parameters(model: nn.Module) -> list[nn.Parameter]:
    """J and K of all layers of a model that have trainable couplings."""
    layers = [module for module in model.modules() if isinstance(module, CoupledHeads)]
    return [p for layer in layers for p in (layer.coupling_pairs, layer.coupling_triples) if p is not None]


def _masked_softmax(fields: Tensor, visible: Tensor) -> Tensor:
    """Softmax over visible keys; a row without visible keys gets zeros instead of NaN."""
    weights = torch.softmax(fields.masked_fill(~visible, torch.finfo(fields.dtype).min), -1)
    return weights.masked_fill(~visible, 0)


def normalised_weights(alpha: Tensor, visible: Tensor) -> Tensor:
    """Alpha / Σ alpha; uniform over the visible keys where every alpha underflows, zero without visible keys."""
    # Too small to change any significant alpha; its inverse does not overflow in the backward pass.
    positive = (alpha + torch.finfo(alpha.dtype).tiny ** 0.75).masked_fill(~visible, 0)
    return positive / positive.sum(-1, keepdim=True).clamp_min(torch.finfo(alpha.dtype).tiny)


def _reach(window: int, bandwidth: int | None) -> int:
    """Largest distance of two coupled positions."""
    return window - 1 if bandwidth is None else min(bandwidth, window - 1)


def _numbers_of_terms(window: int, reach: int) -> tuple[int, int]:
    """Pairs of positions that are at most ``reach`` apart, and triples."""
    return reach * window - reach * (reach + 1) // 2, math.comb(window, 3)


def check_sizes(embed_dim: int, num_heads: int, window: int, mode: str, bandwidth: int | None) -> None:
    """Refuse invalid sizes, weights that do not fit into memory, and unknown modes (suggesting the nearest one).

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
