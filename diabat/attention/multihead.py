r"""Boltzmann attention with the interface of ``torch.nn.MultiheadAttention``, as a drop-in replacement.

For query i, P_i(s) ∝ exp( Σ_j (h_ij + m_ij) s_j + Σ_{j<k} J_jk s_j s_k + ... ) over the visible keys, with
a float mask m.  With the readout ``probability`` h_ij = q_i·k_j / sqrt(d), and weights are alpha_ij / Σ_k alpha_ik,
alpha_ij = P_i(s_j = +1); by default both are those of odds (`diabat.attention.readout`).
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diabat.attention.core import LawOptions
from diabat.attention.coupled import CoupledLayer, check_mode
from diabat.attention.couplings import CouplingInit, WindowCouplings
from diabat.attention.head_axis import merged_heads, split_heads
from diabat.attention.layer import check_heads, check_tokens, warn_of_causal
from diabat.attention.visible import Visible, read_mask
from diabat.checks import ArgumentError, check_number


class BoltzmannMultiheadAttention(CoupledLayer, nn.MultiheadAttention):
    """``torch.nn.MultiheadAttention`` with marginals of Ising models over the keys in place of the softmax.

    Constructor, forward pass and parameters are those of torch.  It can replace ``self_attn`` of
    ``nn.TransformerEncoderLayer`` or ``multihead_attn`` of ``nn.TransformerDecoderLayer``, and loads their weights
    (``load_state_dict(..., strict=False)``; J is unchanged).  As in :class:`diabat.BoltzmannAttention`, couplings
    are free parameters of each head over the positions of the keys, and start at 0.
    torch's fused inference path supports only softmax and is not used; ``nn.TransformerEncoder`` warns about that
    unless it is built with ``enable_nested_tensor=False``.

    Args:
        embed_dim: E, divisible by ``num_heads``.
        num_heads: H.
        dropout: Dropout of the normalised attention weights.
        bias: Bias of the projections.
        add_bias_kv: Must be False.
        add_zero_attn: Must be False.
        kdim: Features of the keys; None for E.
        vdim: Features of the values; None for E.
        batch_first: Inputs are [B, L, E] instead of [L, B, E].
        device: Device of the parameters.
        dtype: Dtype of the parameters.
        window: Largest number S of keys, whose positions are coupled.
        mode: Terms of the exponent: softmax, h+J, h, J, h+K, J+K, h+J+K or K.
        bandwidth: w; J_jk is a parameter for |j - k| <= w and 0 beyond.  None makes every pair a parameter.
        coupling_init: Initial J: a :class:`diabat.attention.CouplingInit`, a number for all of J, or None for 0.
        law: ``sampler``, ``gradient``, ``num_reads``, ``readout`` and ``softcap`` of
            :func:`diabat.attention.boltzmann_attention`.

    Attributes:
        couplings: As in :class:`diabat.BoltzmannAttention`.

    Raises:
        ValueError: If a size or an option is invalid, or ``add_bias_kv`` or ``add_zero_attn`` is set.
        UnsupportedError: If the sampler does not support the mode, the window or the estimator.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        window: int,
        mode: str = "h+J",
        bandwidth: int | None = None,
        coupling_init: CouplingInit | float | None = None,
        **law: Unpack[LawOptions],
    ) -> None:
        terms = check_mode(mode)
        embed_dim, num_heads = check_heads(embed_dim, num_heads)
        for name, value in (("add_bias_kv", add_bias_kv), ("add_zero_attn", add_zero_attn)):
            if value:
                raise ArgumentError(name, "False, since couplings are between keys", f"{value!r}")
        check_number("dropout", dropout, "[0, 1]")
        nn.MultiheadAttention.__init__(
            self, embed_dim, num_heads, dropout, bias, kdim=kdim, vdim=vdim, batch_first=batch_first,
            device=device, dtype=dtype,
        )  # fmt: skip
        # torch's transformer layers read this before they use a fused softmax with the weights of this module.
        self._qkv_same_embed_dim = False
        couplings = WindowCouplings(
            num_heads, window, terms=terms, bandwidth=bandwidth, relative=False, init=coupling_init,
            device=device, dtype=dtype,
        )  # fmt: skip
        self.window = couplings.window
        self._couple(couplings, mode, **law)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend.

        Args:
            query: [L, B, E], or [B, L, E] with ``batch_first``, or [L, E] of one sequence.
            key: [S, B, kdim], [B, S, kdim] or [S, kdim], S <= window.
            value: [S, B, vdim], [B, S, vdim] or [S, vdim].
            key_padding_mask: [B, S] or [S]; True hides a key.  A float mask is added to the scores, which are the
                fields of ``probability``; -inf hides the key, and so does the lowest number of its dtype, or of one
                that it was cast from.
            need_weights: Also return the normalised weights.
            attn_mask: [L, S] or [B·H, L, S], as ``key_padding_mask``.
            average_attn_weights: Average the weights over heads.
            is_causal: Without ``attn_mask``, query i sees the keys j <= i; with ``attn_mask`` it is ignored.

        Returns:
            The output, in the form of the query, and the weights, [B, L, S] or [B, H, L, S] (without B for one
            sequence), or None.  Dropout acts on them, as in torch.  A query without a visible key gets weight 0
            everywhere.

        Raises:
            ValueError: If a shape or dtype is wrong or S exceeds the window.
        """
        if is_nested(query, key, value):
            if attn_mask is not None or key_padding_mask is not None:
                raise ArgumentError("attn_mask", "cannot be combined with nested tensors, got a mask.")
            return self._attend_nested(query, key, value, need_weights, average_attn_weights, is_causal)
        batched = self._check_inputs(query, key, value)
        if not batched:
            query, key, value = (x[None] for x in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        q, k, v = self._projected(query, key, value)
        shape = (*q.shape[:3], k.shape[2])
        visible = visible_keys(shape, key_padding_mask, attn_mask, is_causal, q.device)
        mixed, weights = self._attend(
            q, k, v, self.couplings, visible,
            dropout=self.dropout if self.training else 0.0, need_weights=need_weights,
        )  # fmt: skip
        out: Tensor = self.out_proj(merged_heads(mixed))
        if not batched:
            out = out[0]
        elif not self.batch_first:
            out = out.transpose(0, 1)
        if weights is None:
            return out, None
        shown = weights.mean(1) if average_attn_weights else weights
        return out, shown if batched else shown[0]

    def _attend_nested(
        self, query: Tensor, key: Tensor, value: Tensor, need_weights: bool, average: bool, is_causal: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Attend over sequences of different lengths, as ``nn.TransformerEncoder`` packs them at inference."""
        if not self.batch_first:
            raise ArgumentError("query", "dense tensors without batch_first", "a nested one")
        lengths, keys = (torch.tensor([len(t) for t in x.unbind()], device=x.device) for x in (query, key))
        q, k, v = (x.to_padded_tensor(0.0) for x in (query, key, value))
        hidden = torch.arange(k.shape[1], device=k.device) >= keys[:, None]
        out, weights = self.forward(q, k, v, hidden, need_weights, None, average, is_causal)
        mask = torch.arange(out.shape[1], device=out.device) < lengths[:, None]
        # The same constructor as in torch's layers, so that the two can be added.
        return torch._nested_tensor_from_mask(out, mask, mask_check=False), weights

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """Queries [B, H, L, d], keys and values [B, H, S, d]."""
        packed: Tensor | None = self.in_proj_weight
        separate = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        matrices = separate if packed is None else packed.chunk(3)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return tuple(
            split_heads(F.linear(x, matrix, bias), self.num_heads)
            for x, matrix, bias in zip((query, key, value), matrices, biases, strict=True)
        )

    def _check_inputs(self, query: Tensor, key: Tensor, value: Tensor) -> bool:
        """Whether the inputs have a batch dimension."""
        inputs = {"query": (query, self.embed_dim), "key": (key, self.kdim), "value": (value, self.vdim)}
        for name, (x, features) in inputs.items():
            check_tokens(x, self.out_proj.weight, name)
            if x.ndim not in (2, 3) or x.ndim != query.ndim or x.shape[-1] != features or 0 in x.shape:
                form = "[L, B, E], [B, L, E] or [L, E]" if name == "query" else f"{query.ndim} dimensions"
                expected = f"{form} with {features} features, none of them empty"
                raise ArgumentError(name, expected, list(x.shape))
        batched = query.ndim == 3
        axis = 1 if batched and self.batch_first else 0
        if key.shape[:-1] != value.shape[:-1]:
            expected = f"the positions of the keys, {list(key.shape[:-1])}"
            raise ArgumentError("value", expected, list(value.shape[:-1]))
        if batched and query.shape[1 - axis] != key.shape[1 - axis]:
            expected = f"a batch of {query.shape[1 - axis]} as the queries"
            raise ArgumentError("key", expected, key.shape[1 - axis])
        if key.shape[axis] > self.window:
            got = f"{key.shape[axis]}; diabat.BoltzmannAttention with relative=True takes any number"
            raise ArgumentError("key", f"at most window = {self.window} positions", got)
        return batched

    def extra_repr(self) -> str:
        """Show the options in ``repr``."""
        sizes = f"embed_dim={self.embed_dim}, num_heads={self.num_heads}"
        return f"{sizes}, {super().extra_repr()}, batch_first={self.batch_first}"


def visible_keys(
    shape: tuple[int, ...], padding: Tensor | None, mask: Tensor | None, is_causal: bool, device: torch.device
) -> Visible:
    """What queries see, for weights of this shape, (B, H, L, S); ValueError if a mask is of another shape or dtype."""
    B, H, L, S = shape
    if padding is not None:
        _check("key_padding_mask", padding, ((B, S),))
    if mask is not None:
        _check("attn_mask", mask, ((L, S), (B * H, L, S)))
        mask = mask.view(1, 1, L, S) if mask.ndim == 2 else mask.view(B, H, L, S)
    elif (not is_causal or L == S) and (padding is None or padding.dtype == torch.bool):
        return Visible(L, S, is_causal, None if padding is None else ~padding)
    else:
        if is_causal:
            warn_of_causal(L, S)
        hidden = torch.ones(1, 1, L, S, dtype=torch.bool, device=device)
        mask = hidden.triu(1) if is_causal else ~hidden
    seen, added = _split("attn_mask", mask)
    if padding is not None:
        of_keys, bias = _split("key_padding_mask", padding[:, None, None, :])
        seen = seen & of_keys
        if bias is not None:
            added = bias if added is None else added + bias
    return Visible(L, S, mask=seen, bias=added)


def _split(name: str, mask: Tensor) -> tuple[Tensor, Tensor | None]:
    """Split a mask, whose True hides, into visible positions and the values that it adds there."""
    return read_mask(name, ~mask if mask.dtype == torch.bool else mask)


def _check(name: str, mask: Tensor, shapes: tuple[tuple[int, ...], ...]) -> None:
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise ArgumentError(name, "dtype bool or float", mask.dtype)
    if all(tuple(mask.shape) != shape for shape in shapes):
        expected = " or ".join(str(list(shape)) for shape in shapes)
        raise ArgumentError(name, f"shape {expected}", list(mask.shape))


def is_nested(*tensors: Tensor) -> bool:
    """Whether all tensors are nested; ValueError if only some are nested."""
    # An input that is not a tensor is refused by _check_inputs.
    kinds = {isinstance(tensor, Tensor) and tensor.is_nested for tensor in tensors}
    if len(kinds) == 2:
        raise ArgumentError("query", "query, key and value all nested or all dense", "both kinds")
    return kinds == {True}
