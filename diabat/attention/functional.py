r"""Boltzmann attention as a function, in place of ``torch.nn.functional.scaled_dot_product_attention``."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor

from diabat.attention.compiled import LayerBridge
from diabat.attention.core import Attention, Law, attend, far_of
from diabat.attention.couplings import WindowCouplings
from diabat.attention.layer import Limits, check_tokens, fitted, warn_of_causal
from diabat.attention.readout import Readout, as_readout
from diabat.attention.visible import Visible, read_mask
from diabat.checks import ArgumentError, ArgumentTypeError, check_number
from diabat.samplers.base import Sampler
from diabat.samplers.registry import as_sampler


def boltzmann_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    couplings: WindowCouplings | None = None,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    readout: Readout | str = "odds",
    far: str | None = None,
    softcap: float | None = None,
    sampler: Sampler | str | None = None,
    gradient: str = "auto",
    num_reads: int | None = None,
    seed: int | None = None,
    need_weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    r"""Attend with weights from an Ising model over the keys that a query sees.

    The law of the spins σ_j of the visible keys is

        P(σ) ∝ exp( Σ_j h_j σ_j + Σ_{j<k} J_jk σ_j σ_k + Σ_{j<k<l} K_jkl σ_j σ_k σ_l ).

    With the scores s_j = scale q·k_j, ``odds`` have the fields h_j = (s_j - log Σ_k exp s_k) / 2.  The weights are
    P(σ_j = +1) / P(σ_j = -1), normalised.  ``probability`` has the fields s_j, and the weights are P(σ_j = +1),
    normalised (arXiv:2606.12478, §3).  Without couplings, or at J = 0, odds are ``scaled_dot_product_attention``,
    whose shapes, masks and other shared arguments these are.

    Args:
        query: [*, H, L, E], floating; or [L, E].
        key: [*, H, S, E]; with ``enable_gqa`` of H_kv heads, H a multiple of it.
        value: [*, H, S, E_v]; with ``enable_gqa`` of H_kv heads.
        couplings: :class:`diabat.attention.WindowCouplings`, between the last visible keys of a query or between
            absolute positions; None for independent spins.
        attn_mask: Broadcastable to [*, H, L, S]: bool, True where a key is visible, or floating, added to the scores;
            -inf hides a key, and so does the lowest number of its dtype, or of one that it was cast from.
        dropout_p: Probability of dropout of the normalised weights.
        is_causal: Query i sees the keys j <= i; not together with ``attn_mask``.
        scale: Factor of q·k; None for 1/√E.
        enable_gqa: Keys and values may have fewer heads than queries.
        readout: ``odds``, ``probability`` or a :class:`diabat.attention.Readout` of your own.
        far: Keys before a window that moves: ``independent``, spins without couplings, if it is None; or ``none``, not
            visible.
        softcap: c; scores s become c tanh(s / c).
        sampler: Backend of the marginals, or its name; None for ``exact``.
        gradient: Estimator, see :func:`diabat.spin_probabilities`.
        num_reads: Reads per query for backends that draw.
        seed: Seed of the reads; None draws one.
        need_weights: Also return the weights.

    Returns:
        [*, H, L, E_v]; and with ``need_weights`` weights [*, H, L, S].  A query that sees no key gets 0.

    Raises:
        ValueError: If a shape, dtype or option is invalid, or a tensor is nested.
        UnsupportedError: If the backend does not support the couplings or the estimator.
    """
    _check(query, key, value, attn_mask, is_causal, enable_gqa)
    check_number("dropout_p", dropout_p, "[0, 1]")
    lead = query.shape[:-2]
    heads = lead[-1] if lead else 1
    q, k, v = (_four_dimensions(t) for t in (query, key, value))
    visible = _visible(attn_mask, is_causal, (*lead, query.shape[-2], key.shape[-2]), q.device)
    _check_couplings(couplings, heads, k.shape[2])
    law = _law(couplings, (sampler, gradient, num_reads), as_readout(readout), far, softcap, scale)
    call = Attention(law, q, k, v, visible, dropout_p, need_weights, seed)
    out, weights = _of_nothing(q, k, v) if 0 in (*q.shape, *k.shape) else attend(call, couplings)
    out = out.reshape(*lead, *out.shape[-2:])
    if not need_weights:
        return out
    assert weights is not None
    return out, weights.reshape(*lead, *weights.shape[-2:])


def _of_nothing(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs and weights without queries, keys, heads or sequences: 0, whose derivatives are 0."""
    zero = 0 * (q.sum() + k.sum() + v.sum())
    lead = q.shape[:3]
    return zero.expand(*lead, v.shape[3]).clone(), zero.expand(*lead, k.shape[2]).clone()


def _four_dimensions(t: Tensor) -> Tensor:
    """[*, H, L, E] as [B, H, L, E]."""
    if t.ndim == 4:
        return t
    return t.reshape(math.prod(t.shape[:-3]), *(1,) * (3 - t.ndim), *t.shape[-3:])


def _visible(mask: Tensor | None, is_causal: bool, shape: tuple[int, ...], device: torch.device) -> Visible:
    """What queries see, for weights of this shape, [*, H, L, S]."""
    queries, keys = shape[-2:]
    if mask is None and (not is_causal or queries == keys):
        return Visible(queries, keys, is_causal)
    if mask is None:
        warn_of_causal(queries, keys)
        seen = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=device)
        return Visible(queries, keys, mask=seen.tril())
    if mask.ndim > 3 and len(shape) > 4:
        mask = mask.expand(*shape[:-3], *mask.shape[-3:]).flatten(0, -4)
    mask = mask.reshape(*(1,) * (4 - mask.ndim), *mask.shape).expand(-1, -1, -1, keys)
    seen, added = read_mask("attn_mask", mask)
    return Visible.of(seen.expand(-1, -1, queries, -1), added)


def _check_couplings(couplings: Any, heads: int, keys: int) -> None:
    """Refuse couplings that do not fit to queries and keys."""
    if couplings is None:
        return
    if not isinstance(couplings, WindowCouplings):
        fix = "; a mask goes to attn_mask=" if isinstance(couplings, Tensor) else ""
        raise ArgumentTypeError("couplings", "WindowCouplings or None", f"{type(couplings).__name__}{fix}")
    if couplings.num_heads != heads:
        raise ArgumentError("couplings", f"those of {heads} heads as the queries have", couplings.num_heads)
    if not couplings.relative and keys > couplings.window:
        got = f"{keys}; WindowCouplings with relative=True take any number"
        raise ArgumentError("key", f"at most window = {couplings.window} positions", got)


def _law(
    couplings: WindowCouplings | None, backend: tuple[Sampler | str | None, str, int | None], readout: Readout,
    far: str | None, softcap: float | None, scale: float | None,
) -> Law:  # fmt: skip
    """What is computed."""
    sampler, gradient, num_reads = backend
    far = far_of(far, couplings)
    if couplings is None:
        if sampler is not None:
            _built(sampler, gradient, num_reads)  # of no use, but a wrong name is refused
        return Law(readout, far, softcap, scale)
    sampler, limits = "exact" if sampler is None else sampler, couplings.limits
    bridge = None if limits == Limits() else getattr(_BRIDGES, _built(sampler, gradient, num_reads, *limits))
    return Law(readout, far, softcap, scale, bridge=bridge)


class _Bridges:
    """Bridges as attributes, by which graphs find them; equal options have one, so that backends are bound once."""


_BRIDGES = _Bridges()
_NAMES: dict[Any, str] = {}
_numbers = itertools.count()


def _built(sampler: Sampler | str, gradient: str, num_reads: int | None, *limits: Any) -> str:
    """The name of a bridge."""
    options = (sampler, gradient, num_reads, limits)
    if options not in _NAMES:
        bridge = LayerBridge(fitted(as_sampler(sampler), Limits(*limits)), gradient, num_reads)
        if len(_NAMES) == 64:  # of somebody who makes a sampler for every call
            delattr(_BRIDGES, _NAMES.pop(next(iter(_NAMES))))
        _NAMES[options] = f"bridge_{next(_numbers)}"
        setattr(_BRIDGES, _NAMES[options], bridge)
    return _NAMES[options]


# A graph does not build backends.  torch.compiler.assume_constant_result does the same, and takes a second to load.
_built._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _check(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, enable_gqa: bool
) -> None:
    """Refuse tensors that do not fit together."""
    for name, t in (("query", query), ("key", key), ("value", value)):
        check_tokens(t, query, name, "the query")
        if t.ndim < 2 or t.ndim != query.ndim:
            raise ArgumentError(name, "[*, H, L, E] as the query has", list(t.shape))
    H, groups = (t.shape[-3] if t.ndim > 2 else 1 for t in (query, key))
    if key.shape[:-1] != value.shape[:-1] or key.shape[:-3] != query.shape[:-3]:
        got = f"{list(query.shape)}, {list(key.shape)} and {list(value.shape)}"
        raise ArgumentError("key", "[*, H, S, E] of the batch of queries, and values alike", got)
    if key.shape[-1] != query.shape[-1] or not key.shape[-1]:
        raise ArgumentError("key", f"{query.shape[-1]} features as queries have, at least 1", key.shape[-1])
    if groups != H and not (enable_gqa and groups and H % groups == 0):
        hint = "" if enable_gqa else " without enable_gqa=True"
        raise ArgumentError("key", f"{H} heads as the query has{hint}", groups)
    if mask is None:
        return
    if is_causal:
        raise ArgumentError("is_causal", "False together with attn_mask", "True")
    if not isinstance(mask, Tensor) or not (mask.dtype == torch.bool or mask.is_floating_point()):
        got = str(mask.dtype) if isinstance(mask, Tensor) else type(mask).__name__
        raise ArgumentError("attn_mask", "a bool or floating tensor", got)
    shape = (*query.shape[:-1], key.shape[-2])
    try:
        fits = torch.broadcast_shapes(mask.shape, shape) == shape
    except RuntimeError:
        fits = False
    if not fits:
        raise ArgumentError("attn_mask", f"a shape that broadcasts to {list(shape)}", list(mask.shape))
