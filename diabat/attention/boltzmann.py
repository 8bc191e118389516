r"""Boltzmann attention: an Ising model over key positions in place of softmax (arXiv:2606.12478, §3).

For query i, P_i(s) ∝ exp( Σ_j h_ij s_j + Σ_{j<k} J_jk s_j s_k + Σ_{j<k<l} K_jkl s_j s_k s_l ) over the visible
positions.  With the readout of the paper h_ij = q_i·k_j / sqrt(d_k), and the attention weights are
alpha_ij / Σ_k alpha_ik with alpha_ij = P_i(s_j = +1); by default both are those of odds (`diabat.attention.readout`).
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn

from diabat.attention.core import LawOptions
from diabat.attention.coupled import SELF_MODES, CoupledLayer, check_mode
from diabat.attention.couplings import CouplingInit, WindowCouplings
from diabat.attention.decoding import DecodingState, check_state
from diabat.attention.head_axis import merged_heads, rotated, split_heads
from diabat.attention.layer import check_heads, check_sequences
from diabat.attention.visible import Visible
from diabat.checks import ArgumentError, check_flag, check_number


class BoltzmannAttention(CoupledLayer):
    """Multi-head self-attention with Ising models over windows of ``window`` positions.

    Couplings J (and K) are free parameters of each head.  They are zero at first: training starts from softmax, or with
    ``readout="probability"``, the form of the paper, from sigmoid attention.  ``coupling_init`` gives J another start.
    Batch first, as ``x [B, T, D]``.  Under autocast, and with weights of half precision, fields and marginals are
    computed in float32.

    Absolute couplings are between positions 0 .. window-1, and sequences have at most ``window`` positions.  With
    ``relative=True`` query i sees the positions i-T+1 .. i, T = ``window``; spin t of its problem is position i-T+1+t,
    and J belongs to these slots.  Sequences are of any length, and :meth:`step` decodes one token at a time.

    Args:
        embed_dim: D, divisible by ``num_heads``.
        num_heads: H.
        window: T, the number of coupled positions.
        mode: Terms of the exponent: softmax, h+J, h, J, h+K, J+K, h+J+K or K; or ``J-self``, the couplings with the
            query's own spin held at +1.  Without fields the law of mode ``J`` does not change when all spins are
            flipped: every alpha is 1/2, and the attention is uniform whatever J is, which has the gradient 0.
        relative: Couplings between the last ``window`` keys of every query, for sequences of any length.
        bandwidth: w; J_jk is a parameter for |j - k| <= w and 0 beyond.  None makes every pair a parameter.  The
            ``banded`` backend needs it at long windows, and uses this value if it was built without a bandwidth.
        offset_bias: With relative couplings, a learned b_t per head and slot, added to the scores of the last T keys:
            the term of a window that needs no couplings.
        coupling_init: Initial J: a :class:`diabat.attention.CouplingInit`, a number for all of J, or None for 0.
        causal: Position i attends to j <= i; relative couplings need it.
        dropout: Dropout of the normalised attention weights.
        bias: Bias of the projections.
        rotary: Rotary positions on queries and keys (arXiv:2104.09864); D / H must be even.
        device: Device of the parameters.
        dtype: Dtype of the parameters.
        law: ``sampler``, ``gradient``, ``num_reads``, ``readout``, ``far`` and ``softcap`` of
            :func:`diabat.attention.boltzmann_attention`.

    Attributes:
        couplings: The :class:`diabat.attention.WindowCouplings`.

    Raises:
        ValueError: If a size or an option is invalid, or options contradict each other.
        UnsupportedError: If the sampler does not support the mode, the window or the estimator.
    """

    couplings: WindowCouplings

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        window: int,
        *,
        mode: str = "h+J",
        relative: bool = False,
        bandwidth: int | None = None,
        offset_bias: bool = False,
        coupling_init: CouplingInit | float | None = None,
        causal: bool = True,
        dropout: float = 0.0,
        bias: bool = True,
        rotary: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **law: Unpack[LawOptions],
    ) -> None:
        terms = check_mode(mode, SELF_MODES)
        super().__init__()
        embed_dim, num_heads = check_heads(embed_dim, num_heads)
        check_flag("causal", causal)
        check_flag("rotary", rotary)
        if rotary and embed_dim // num_heads % 2:
            raise ArgumentError("rotary", "an even embed_dim / num_heads", f"{embed_dim} / {num_heads}")
        check_number("dropout", dropout, "[0, 1]")
        self.embed_dim, self.num_heads, self.causal, self.rotary = embed_dim, num_heads, causal, rotary
        self.register_module("couplings", None)  # parameters of couplings come first
        self.query, self.key, self.value, self.output = (
            nn.Linear(embed_dim, embed_dim, bias=bias, device=device, dtype=dtype) for _ in range(4)
        )
        self.dropout = nn.Dropout(dropout)
        couplings = WindowCouplings(
            num_heads, window, terms=terms, bandwidth=bandwidth, relative=relative, offset_bias=offset_bias,
            init=coupling_init, device=device, dtype=dtype,
        )  # fmt: skip
        if relative and not causal:
            raise ArgumentError("relative", "causal=True, since windows end at the query", "causal=False")
        self.window, self.relative = couplings.window, relative
        self._couple(couplings, mode, **law)

    def forward(
        self, x: Tensor, key_padding_mask: Tensor | None = None, need_weights: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attend.

        Args:
            x: [B, T, D], T <= window with absolute couplings; else of any length.
            key_padding_mask: bool [B, T], True where a key is padding (as in torch.nn.MultiheadAttention), on either
                side.
            need_weights: Also return the normalised weights of query i for key j, [B, H, T, T].

        Returns:
            [B, T, D], or that and the weights.  A query without a visible key gets weight 0 everywhere.

        Raises:
            ValueError: If a shape or dtype is wrong or T exceeds the window of absolute couplings.
        """
        q, k, v, key_mask = self._inputs(x, key_padding_mask)
        out, weights = self._mixed(q, k, v, key_mask, need_weights)
        if not need_weights:
            return out
        assert weights is not None
        return out, weights

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
        q, k, v, key_mask = self._inputs(x, key_padding_mask)
        out, _ = self._mixed(q, k, v, key_mask)
        count = torch.full((), x.shape[1], dtype=torch.int64, device=x.device)
        return out, DecodingState(k, v, key_mask, count).last(self._keys_kept)

    def step(self, x: Tensor, state: DecodingState | None = None) -> tuple[Tensor, DecodingState]:
        """Attend with one new token; equals the last position of :meth:`forward` over all tokens so far.

        Args:
            x: The new token of every sequence, [B, D].
            state: State of the tokens before it; None for the first token.

        Returns:
            The output, [B, D], and the new state.  With ``far="none"`` the state keeps the last ``window`` keys, with
            ``independent``, the default, all of them.

        Raises:
            ValueError: If a shape or dtype is wrong, or the couplings are absolute.
        """
        self._require_relative()
        x = x.unsqueeze(1) if isinstance(x, Tensor) and x.ndim == 2 else x
        check_sequences(x, self.query, self.embed_dim, None)
        check_state(x, state, self.num_heads, self.embed_dim)
        q, k, v = self._projected(x, 0 if state is None else state.position)
        if state is None:
            state = DecodingState.empty(k, v)
        state = state.extended(k, v, self._keys_kept)
        out, _ = self._mixed(q, state.keys, state.values, state.key_mask)
        return out.squeeze(1), state

    def _inputs(self, x: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Queries, keys and values of checked tokens, and which keys are not padding."""
        check_sequences(x, self.query, self.embed_dim, padding, self._longest)
        return *self._projected(x), None if padding is None else ~padding

    def _projected(self, x: Tensor, first: Tensor | int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, [B, H, L, d]; ``first`` is the position of the first token."""
        q, k, v = [split_heads(linear(x), self.num_heads) for linear in (self.query, self.key, self.value)]
        if self.rotary:
            q, k = rotated(torch.cat((q, k), 1), first).chunk(2, 1)
        return q, k, v

    def _mixed(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Outputs [B, Q, D] of the last Q of S tokens, and weights [B, H, Q, S] if they are needed."""
        visible = Visible(q.shape[2], k.shape[2], self.causal, key_mask)
        dropout = self.dropout.p if self.training else 0.0
        mixed, weights = self._attend(
            q, k, v, self.couplings, visible, dropout=dropout, need_weights=need_weights
        )
        out: Tensor = self.output(merged_heads(mixed))
        return out, weights

    @property
    def _longest(self) -> int | None:
        return None if self.relative else self.window

    @property
    def _keys_kept(self) -> int | None:
        return self.window if self._law.far == "none" else None

    def _require_relative(self) -> None:
        if self._longest is not None:
            raise ArgumentError("relative", "True to decode token by token", "False")

    def extra_repr(self) -> str:
        """Show the options in ``repr``."""
        shown = f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, {super().extra_repr()}"
        shown += f", causal={self.causal}"
        return shown + ", rotary=True" * self.rotary
