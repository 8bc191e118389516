"""The law of attention by enumeration of all states of all keys: what every path computes, in its plainest form."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from diabat.attention.core import far_of
from diabat.attention.couplings import WindowCouplings
from diabat.attention.readout import Readout, as_readout
from diabat.attention.visible import visible_in


def naive_attention(
    query: Tensor, key: Tensor, value: Tensor, couplings: WindowCouplings | None = None,
    attn_mask: Tensor | None = None, scale: float | None = None, *, readout: Readout | str = "odds",
    far: str | None = None, softcap: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Outputs [B, H, L, E_v] and weights [B, H, L, S] of :func:`diabat.boltzmann_attention`, in float64.

    Arguments are those of the function; tensors have four dimensions, and there are 2^S states.
    """
    q, k, v = (t.double().repeat_interleave(query.shape[1] // t.shape[1], 1) for t in (query, key, value))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)  # [B, H, L, S], as all below
    scores = scores if softcap is None else softcap * (scores / softcap).tanh()
    seen = torch.ones_like(scores, dtype=torch.bool)
    if attn_mask is not None:
        seen = visible_in(attn_mask).expand(scores.shape)
        scores = scores if attn_mask.dtype == torch.bool else scores + torch.where(seen, attn_mask, 0)
    spins = torch.tensor([*product((-1.0, 1.0), repeat=k.shape[2])], dtype=torch.float64)  # [2^S, S]
    exponents = torch.zeros(*scores.shape[:3], len(spins), dtype=torch.float64)
    if couplings is not None:
        slot = torch.arange(k.shape[2]).expand(scores.shape)
        if couplings.relative:  # the last visible key of a query is in the last slot of its window
            slot = couplings.window - seen.flip(-1).cumsum(-1).flip(-1)
        near, at = seen & (slot >= 0), slot.clamp(0, couplings.window - 1)
        placed = torch.nn.functional.one_hot(at, couplings.window) * near[..., None]  # [B, H, L, S, T]
        s = torch.einsum("nj,bhqjt->bhqnt", spins, placed.double())  # spins of slots, 0 where there is no key
        if couplings.offset_bias is not None:
            scores = scores + torch.einsum("bhqjt,ht->bhqj", placed.double(), couplings.offset_bias.double())
        if (J := couplings.matrix()) is not None:
            exponents = exponents + torch.einsum("bhqnt,bhqnu,htu->bhqn", s, s, J[:, 0].double()) / 2
        if (K := couplings.three_body()) is not None:
            exponents = (
                exponents + torch.einsum("bhqnt,bhqnu,bhqnw,htuw->bhqn", s, s, s, K[:, 0].double()) / 6
            )
        seen = seen if far_of(far, couplings) == "independent" else near
    fields = as_readout(readout).fields(scores, seen).masked_fill(~seen, 0)
    exponents = (exponents + fields @ spins.T)[..., None]
    up, down = (exponents.masked_fill(spins == sign, -torch.inf).logsumexp(-2) for sign in (-1, 1))
    weights = as_readout(readout).weights(up - down, seen)
    return weights @ v, weights
