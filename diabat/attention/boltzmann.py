r"""Boltzmann attention: an Ising model over key positions in place of softmax (arXiv:2606.12478, §3).

For query i, P_i(s) ∝ exp( Σ_j h_ij s_j + Σ_{j<k} J_jk s_j s_k + Σ_{j<k<l} K_jkl s_j s_k s_l ) over the visible
positions, with h_ij = q_i·k_j / sqrt(d_k), and attention weights alpha_ij / Σ_k alpha_ik, alpha_ij = P_i(s_j = +1).
With relative couplings the spins of query i are its last T keys, so that one J serves sequences of any length.
Without a window all its keys are spins, and neighbours are coupled (:mod:`diabat.attention.chain`).
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from diabat.attention.coupled import Backend, CoupledHeads, problem_of
from diabat.attention.coupling_init import CouplingInit
from diabat.attention.coupling_layout import SELF_MODES, WEIGHTS, CouplingLayout
from diabat.attention.decoding import DecodingState, check_state
from diabat.attention.fused import FusedLayer, attend
from diabat.attention.head_axis import merged_heads, split_heads
from diabat.attention.key_couplings import ChainOptions, chain_options
from diabat.attention.layer import can_fuse, check_sequences
from diabat.attention.rotary import rotated
from diabat.attention.self_couplings import self_probabilities
from diabat.attention.streaming import FarKeys, far_sums
from diabat.attention.windows import (
    slot_keys,
    slots_to_keys,
    visible_keys,
    visible_slots,
    window_mix,
    window_scores,
)
from diabat.checks import ArgumentError, check_choice, check_flag
from diabat.ising import without_autocast
from diabat.samplers.base import Sampler

FAR = ("none", "independent")


class BoltzmannAttention(CoupledHeads):
    """Multi-head self-attention with Ising models over windows of ``window`` positions.

    Couplings J (and K) are free parameters of each head, zero at first, so that training starts from sigmoid attention
    (mode ``h+J``), or from softmax (``weights="odds"``);
    ``coupling_init`` gives J another start.  Batch first, as ``x [B, T, D]``.  Under autocast,
    and with weights of half precision, fields and marginals are computed in float32.

    Absolute couplings are between positions 0 .. window-1, and sequences have at most ``window`` positions.  With
    ``relative=True`` query i sees the positions i-T+1 .. i, T = ``window``; spin t of its problem is position i-T+1+t,
    and J belongs to these slots.  Sequences are of any length, and :meth:`step` decodes one token at a time.

    With ``relative=True`` and ``window=None`` query i sees all keys 0 .. i, and each is coupled with the ``bandwidth``
    keys before it (:class:`diabat.attention.key_couplings.KeyCouplings`): J depends on their distance, or on both
    tokens, so that it knows which neighbours belong together.  With the backend ``banded`` and a bandwidth of 1 the
    layer takes time and memory linear in L for each query, and no [L, L] is stored on the CPU unless weights are
    asked for.

    Args:
        embed_dim: D, divisible by ``num_heads``.
        num_heads: H.
        window: T, the number of coupled positions; None couples neighbours over the whole context.
        sampler: Backend of the marginals, or its name; None takes ``exact``, or ``banded`` without a window.  Unused
            in the modes ``softmax``, ``h`` and ``J``.
        mode: Terms of the exponent: softmax, h+J, h, J, h+K, J+K, h+J+K or K; or ``J-self``, the couplings with the
            query's own spin held at +1.  Without fields the law of mode ``J`` does not change when all spins are
            flipped: every alpha is 1/2, and the attention is uniform whatever J is, which has the gradient 0.
        gradient: Estimator, see :func:`diabat.spin_probabilities`.  In mode ``J-self``, ``auto`` is ``covariance`` for
            sampling backends.
        causal: Position i attends to j <= i.
        dropout: Dropout of the normalised attention weights.
        bias: Bias of the projections.
        num_reads: Reads per query for sampling backends.
        bandwidth: w; J_jk is a parameter for |j - k| <= w and 0 beyond.  None makes every pair a parameter.  The
            ``banded`` backend needs it at long windows, and uses this value if it was built without a bandwidth.
            Without a window None is 1.
        relative: Couplings between the last ``window`` keys of every query, for sequences of any length.
        far: With relative couplings, what happens to keys before the window: ``none``, they are not visible; or
            ``independent``, they are spins without couplings, alpha = sigmoid(2h), and the weights of near and far keys
            are normalised together.  This is the exact law of a J that is zero beyond the window.
        weights: ``probability``, weights alpha / Σ alpha; or ``odds``: h_j = (s_j - log Σ_k exp s_k)/2 with the scores
            s of all visible keys, and weights proportional to alpha / (1 - alpha).  Without couplings these are
            softmax(s).  With a backend that misses alpha = sigmoid(2h) at J = 0 (``dqa``; ``tempering`` within the
            noise of its reads) they are softmax only approximately.  Unused in mode ``softmax``.
        rotary: Rotary positions on queries and keys (arXiv:2104.09864); D / H must be even.
        offset_bias: With relative couplings, a learned b_t per head and slot, added to the scores of the last T keys:
            the term of a window that needs no couplings.
        coupling_init: Initial J; None for zero.  Unused in modes without J.
        couplings: Without a window, what J depends on: ``distance``, ``tokens`` or ``gates``, see
            :class:`diabat.attention.key_couplings.KeyCouplings`; None takes ``tokens``.
        rank: Number of features of ``tokens``; None takes 8.

    Attributes:
        coupling_pairs: J_jk for j < k, [H, window(window-1)/2], in modes with J; with a bandwidth only k - j <= w.
        coupling_triples: K_jkl for j < k < l, [H, window(window-1)(window-2)/6], in modes with K.
        key_couplings: The couplings without a window, else None.
        offset_bias: b, [H, window], zero at first; or None.
        sampler: The backend, a submodule: its parameters (the learnable angles of an anneal) train with the layer.

    Raises:
        ValueError: If a size or an option is invalid, or options contradict each other.
        UnsupportedError: If the sampler does not support the mode, the window or the estimator.
    """

    _small: FusedLayer | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        window: int | None,
        *,
        sampler: Sampler | str | None = None,
        mode: str = "h+J",
        gradient: str = "auto",
        causal: bool = True,
        dropout: float = 0.0,
        bias: bool = True,
        num_reads: int | None = None,
        bandwidth: int | None = None,
        relative: bool = False,
        far: str = "none",
        weights: str = "probability",
        rotary: bool = False,
        offset_bias: bool = False,
        coupling_init: CouplingInit | None = None,
        couplings: str | None = None,
        rank: int | None = None,
    ) -> None:
        super().__init__()
        chain = chain_options(window, couplings, rank, bandwidth)
        layout = CouplingLayout(1 if window is None else window, mode, bandwidth, relative, weights)
        layout.check(embed_dim, num_heads, SELF_MODES)
        check_flag("causal", causal)
        check_flag("rotary", rotary)
        check_windows(layout, causal, far, offset_bias, chain)
        if rotary and embed_dim // num_heads % 2:
            raise ArgumentError(
                "rotary", f"expected an even embed_dim / num_heads, got {embed_dim} / {num_heads}."
            )
        self.embed_dim, self.causal, self.far, self.rotary = embed_dim, causal, far, rotary
        self._biased = offset_bias  # the parameter is registered last, after the backend is bound
        self.query = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.key = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.value = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.output = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.dropout = nn.Dropout(dropout)
        if sampler is None:
            sampler = "exact" if chain is None else "banded"
        backend = Backend(sampler, gradient, num_reads)
        if chain is None:
            self._build_terms(num_heads, layout, backend, coupling_init=coupling_init)
        else:
            self._build_chain(embed_dim, num_heads, chain, weights, backend, coupling_init=coupling_init)
        self.offset_bias = nn.Parameter(torch.zeros(num_heads, layout.window)) if offset_bias else None

    def forward(
        self, x: Tensor, key_padding_mask: Tensor | None = None, need_weights: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attend.

        Args:
            x: [B, T, D], T <= window; of any length with relative couplings.
            key_padding_mask: bool [B, T], True where a key is padding (as in torch.nn.MultiheadAttention), on either
                side.
            need_weights: Also return the normalised weights of query i for key j, [B, H, T, T].  With relative
                couplings they are zero outside the window, unless ``far`` is ``independent``.

        Returns:
            [B, T, D], or that and the weights.  A query without a visible key gets weight 0 everywhere.

        Raises:
            ValueError: If a shape or dtype is wrong or T exceeds the window of absolute couplings.
        """
        check_sequences(
            x, self.query.weight, self.embed_dim, key_padding_mask, None if self.relative else self.window
        )
        key_mask = None if key_padding_mask is None else ~key_padding_mask
        chain = self._chain_of(x)
        out, weights = self._attend(*self._projected(x), key_mask, chain[0] if chain else None, need_weights)
        if not need_weights:
            return out
        assert weights is not None
        return out, slots_to_keys(weights, x.shape[1]) if self._in_slots else weights

    def prefill(self, x: Tensor, key_padding_mask: Tensor | None = None) -> tuple[Tensor, DecodingState]:
        """Attend over a prompt, and return the state from which :meth:`step` continues.

        Args:
            x: [B, L, D].
            key_padding_mask: bool [B, L], True at padding; of prompts of different lengths on the left.

        Returns:
            The outputs, [B, L, D], and the state.

        Raises:
            ValueError: As :meth:`forward`, or if the couplings are absolute.
        """
        self._require_relative()
        check_sequences(x, self.query.weight, self.embed_dim, key_padding_mask)
        q, k, v = self._projected(x)
        key_mask, chain = None if key_padding_mask is None else ~key_padding_mask, self._chain_of(x)
        out, _ = self._attend(q, k, v, key_mask, chain[0] if chain else None)
        everything = x.new_ones(x.shape[:2], dtype=torch.bool) if key_mask is None else key_mask
        count = torch.full((), x.shape[1], dtype=torch.int64, device=x.device)
        values = torch.cat((self._split(v), *chain), -1) if chain else self._split(v)
        state = DecodingState(self._split(k), values, everything, count)
        return out, state.last(self._kept)

    def step(self, x: Tensor, state: DecodingState | None = None) -> tuple[Tensor, DecodingState]:
        """Attend with one new token; equals the last position of :meth:`forward` over all tokens so far.

        Args:
            x: The new token of every sequence, [B, D].
            state: State of the tokens before it; None for the first token.

        Returns:
            The output, [B, D], and the new state.  With ``far="none"`` the state keeps the last ``window`` keys, with
            ``independent`` all of them.

        Raises:
            ValueError: If a shape or dtype is wrong, or the couplings are absolute.
        """
        self._require_relative()
        x = x[:, None] if isinstance(x, Tensor) and x.ndim == 2 else x
        check_sequences(x, self.query.weight, self.embed_dim, None)
        chain = self.key_couplings
        check_state(x, state, self.num_heads, self.embed_dim, 0 if chain is None else chain.numbers)
        q, k, v = self._projected(x, 0 if state is None else state.position)
        k, v = self._split(k), self._split(v)
        size = v.shape[-1]
        if chain is not None:
            w = chain.bandwidth
            v = torch.cat((v, *chain(x, None if state is None else state.values[:, :, -w:, size + w :])), -1)
        if state is None:
            state = DecodingState.empty(k, v)
        state = state.extended(k, v, self._kept)
        if chain is not None:
            values, band = state.values[..., :size].to(q.dtype), state.values[..., size : size + w]
            out, _ = self._of_heads(self._split(q), state.keys, values, state.key_mask, band)
        elif self._small is None:  # no copy of the keys
            out, _ = self._of_heads(self._split(q), state.keys, state.values, state.key_mask)
        else:
            out, _ = self._attend(q, merged_heads(state.keys), merged_heads(state.values), state.key_mask)
        return out[:, 0], state

    def _chain_of(self, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """Couplings [B, H, L, w] and features [B, H, L, r] of tokens [B, L, D] without a window."""
        found: tuple[Tensor, Tensor] | None = None if self.key_couplings is None else self.key_couplings(x)
        return found

    @property
    def _in_slots(self) -> bool:
        return self.relative and self.far == "none" and self.window is not None

    @property
    def _kept(self) -> int | None:
        """Keys that a state keeps; None for all."""
        return self.window if self.far == "none" else None

    def _require_relative(self) -> None:
        if not self.relative:
            raise ArgumentError("relative", "expected True to decode token by token, got False.")

    def _split(self, tokens: Tensor) -> Tensor:
        return split_heads(tokens, self.num_heads)

    def _projected(self, x: Tensor, first: Tensor | int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, [B, L, D]; ``first`` is the position of the first token."""
        q, k, v = self.query(x), self.key(x), self.value(x)
        if self.rotary:
            q, k = merged_heads(rotated(self._split(torch.cat((q, k))), first)).chunk(2)
        return q, k, v

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None,
        band: Tensor | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Outputs [B, Q, D] of the last Q of S tokens, and the weights, of queries, keys and values [B, L, D].

        The weights are those of slots, [B, H, Q, T], in a full pass where only keys of the window are visible;
        otherwise those of keys, [B, H, Q, S].  ``band`` couples keys with those before them, [B, H, S, w].
        """
        layer, pairs = self._small, self.coupling_pairs
        if layer is not None and can_fuse(q, k, v, pairs):
            slots = self._in_slots and q.shape[1] == k.shape[1]
            dropout = self.dropout.p if self.training else 0.0
            record = partial(self._record, problem_of)
            found = attend(layer, q, k, v, pairs, key_mask, slots=slots, dropout=dropout, record=record)
            if found is not None:
                mixed, weights = found
                return self.output(mixed), weights
        return self._of_heads(self._split(q), self._split(k), self._split(v), key_mask, band, need_weights)

    def _of_heads(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None,
        band: Tensor | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The same of the features of each head, [B, H, L, d]."""
        weights: Tensor | None
        if band is None:
            mixed, weights = self._by_operators(q, k, v, key_mask, need_weights)
        else:
            dropout, causal = self.dropout.p if self.training else 0.0, self.causal
            mixed, weights = self._chained(
                q, k, v, band, key_mask, causal=causal, dropout=dropout, need_weights=need_weights
            )
        out: Tensor = self.output(merged_heads(mixed))
        return out, weights

    def _by_operators(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Mixed values [B, H, Q, d] and weights with a window; no weights of far keys if nobody needs them."""
        queries, keys = q.shape[-2], k.shape[-2]
        if self.far == "independent" and 1 < queries == keys and not need_weights:
            return self._streamed(q, k, v, key_mask), None
        window, in_slots = min(self.layout.window, keys), self._in_slots and queries == keys
        with without_autocast(q):
            scores = self._scores(q, k, window if in_slots else None)
            if self.offset_bias is not None:
                bias = self.offset_bias[:, None, self.layout.window - window :].to(scores)
                scores = scores + (bias if in_slots else slots_to_keys(bias.expand(-1, queries, -1), keys))
            if in_slots:
                visible = visible_slots(keys, window, key_mask, q.device)
            else:
                visible = visible_keys(queries, keys, key_mask, q.device, causal=self.causal)
            zero = not self._has_fields
            if self.far == "independent" and self.mode != "softmax":
                slots = slot_keys(queries, keys, window, q.device)
                filled = (slots >= 0) & visible.gather(-1, (slots % keys).expand(*visible.shape[:-1], -1))
                weights = self._weights_with_far(scores, slots % keys, filled, visible, zero=zero)
            else:
                weights = self._weights_of(scores, visible, zero=zero)
        weights = self.dropout(weights.to(v.dtype))
        return window_mix(weights, v, window) if in_slots else weights @ v, weights

    def _streamed(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        """Mixed values [B, H, L, d] of windows and of the keys before them, in memory linear in L."""
        window, dropout = min(self.layout.window, k.shape[-2]), self.dropout.p if self.training else 0.0
        with without_autocast(q):
            q, k = self._scaled(q, k)
            near, values = window_scores(q, k, window), v.to(q.dtype)
            if self.offset_bias is not None:
                near = near + self.offset_bias[:, None, -window:].to(near)
            keys = FarKeys(1 - window, None if key_mask is None else key_mask[:, None, None])
            far, x = far_sums(q, k, values, keys, odds=self._by_odds, dropout=dropout)
            filled = visible_slots(k.shape[-2], window, key_mask, q.device)
            weights = self._shares(near, filled, x, zero=not self._has_fields)
            mixed = window_mix(self.dropout(weights[..., :-1]), values, window)
            return (mixed + weights[..., -1:] * far).to(v.dtype)

    def use_sampler(
        self, sampler: Sampler | str, *, gradient: str = "auto", num_reads: int | None = None
    ) -> None:
        """As in the base class."""
        super().use_sampler(sampler, gradient=gradient, num_reads=num_reads)
        self._small = None
        if self.window is not None and self.mode in ("h", "h+J") and not self._biased and self.far == "none":
            bridge = None if self.mode == "h" else self._bridge
            layer = FusedLayer(bridge, self.num_heads, self.layout, self.causal)
            self._small = layer if layer.supported else None

    def _solved(self, fields: Tensor, visible: Tensor, *, zero: bool) -> Tensor:
        """As in the base class; in mode J-self with the query's own spin at +1."""
        if self.mode != "J-self":
            return super()._solved(fields, visible, zero=zero)
        J = self.couplings(fields.shape[-1])
        assert J is not None
        J = J.to(fields.dtype, copy=True)  # torch's compiler fails at a break of the graph on views of views
        self._record(problem_of, fields, J)
        found = self_probabilities(self._bridge, J, visible, last=self.relative, seed=self._fixed_seed)
        return found.expand(fields.shape)

    def extra_repr(self) -> str:
        """Show the options in ``repr``."""
        shown = f"{super().extra_repr()}, causal={self.causal}"
        if self.relative:
            shown += f", relative=True, far={self.far!r}"
        if self.weighting != "probability":
            shown += f", weights={self.weighting!r}"
        return shown + ", rotary=True" * self.rotary + ", offset_bias=True" * (self.offset_bias is not None)


def check_windows(
    layout: CouplingLayout, causal: bool, far: str, offset_bias: bool, chain: ChainOptions | None = None
) -> None:
    """Refuse options of windows that contradict each other, or options of a window without one.

    Raises:
        ValueError: Names the argument.
    """
    relative, mode = layout.relative, layout.mode
    check_flag("relative", relative)
    check_flag("offset_bias", offset_bias)
    check_choice("far", far, FAR)
    check_choice("weights", layout.weights, WEIGHTS)
    without_fields = mode != "softmax" and "h" not in layout.terms
    alone = chain is not None
    for refused, name, expected in (
        (alone and mode != "h+J", "mode", f"'h+J' to couple neighbouring keys (window=None), got {mode!r}"),
        (alone and not relative, "relative", "True to couple neighbouring keys (window=None), got False"),
        (alone and far != "none", "far", f"'none' with window=None, where all keys are coupled, got {far!r}"),
        (alone and offset_bias, "offset_bias", "False with window=None, got True"),
        (
            relative and not causal and not alone,
            "relative",
            "causal=True, since windows end at the query, got causal=False",
        ),
        (far != "none" and not relative, "far", f"'none' without relative=True, got {far!r}"),
        (offset_bias and not relative, "offset_bias", "False without relative=True, got True"),
        (offset_bias and without_fields, "offset_bias", f"a mode with fields, got True in mode '{mode}'"),
    ):
        if refused:
            raise ArgumentError(name, f"expected {expected}.")
    if layout.weights == "odds" and mode == "J-self":
        raise ArgumentError(
            "weights", "expected 'probability' in mode 'J-self', where the own spin is certain, got 'odds'."
        )


def coupling_parameters(model: nn.Module) -> list[nn.Parameter]:
    """J, K and biases per offset of all layers of a model: they train at a rate of their own.

    Features of tokens are matrices like those of keys and queries, and train at the rate of the model.
    """
    found: list[nn.Parameter | None] = []
    for module in model.modules():
        if isinstance(module, CoupledHeads):
            found += [module.coupling_pairs, module.coupling_triples]
            if module.key_couplings is not None:
                found.append(module.key_couplings.distance)
        if isinstance(module, BoltzmannAttention):
            found.append(module.offset_bias)
    return [parameter for parameter in found if parameter is not None]
