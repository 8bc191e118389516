"""Layers with random couplings, their inputs, and what tests hold them against.

    from layers import F64, LAYERS, answer, attention, tokens

    layer = attention(4, relative=True, readout="odds")    # BoltzmannAttention of 2 heads in float64, J not zero
    out = answer(layer, tokens(2, 11))                     # the output of any layer on B x T tokens

    @pytest.mark.parametrize("kind", LAYERS)
    def test_...(kind: str) -> None:                       # what holds for every layer
        layer = LAYERS[kind](sampler="mean_field")

The same arguments give the same numbers.  A new kind of layer is a line of `LAYERS`.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

import diabat
from diabat.attention import couplings_of
from diabat.attention.coupled import SELF_MODES
from diabat.huggingface.boltzmann.config import BoltzmannOptions
from diabat.huggingface.boltzmann.layer import BoltzmannHeads
from diabat.ising import Ising
from diabat.testing import brute_force

F64 = torch.float64
PAPER: dict[str, Any] = {"readout": "probability", "far": "none"}
"""The law of the paper, which all have here unless they ask for another."""


def _attention(window: int = 6, **fixed: Any) -> Callable[..., Any]:
    return lambda **options: diabat.BoltzmannAttention(8, 2, window, **PAPER | fixed | options)


def _multihead(**options: Any) -> Any:
    return diabat.BoltzmannMultiheadAttention(8, 2, batch_first=True, **PAPER | options)


# Every kind of layer on tokens [B, 6, 8], by what it is asked for beside its kind.
LAYERS: dict[str, Callable[..., Any]] = {
    "attention": _attention(),
    "odds": _attention(readout="odds"),
    "own spin": _attention(mode="J-self"),
    "band": _attention(bandwidth=1, sampler="banded"),
    "three-body": _attention(mode="h+J+K"),
    "slots": _attention(3, relative=True),
    "odds of slots": _attention(3, relative=True, readout="odds"),
    "own spin of slots": _attention(3, relative=True, mode="J-self"),
    "far keys": _attention(3, relative=True, far="independent"),
    "odds of far keys": _attention(3, relative=True, far="independent", readout="odds"),
    "multihead": partial(_multihead, window=6),
    "hugging face": lambda **options: BoltzmannHeads(2, BoltzmannOptions(3, **options)),
    "neurogame": lambda **options: diabat.NeuroGameAttention(8, 2, **options),
}


# What `attention` is asked for, by kind: windows of 4 that move with the query,
MOVING: dict[str, dict[str, Any]] = {
    "probability": {},
    "far": {"far": "independent"},
    "odds": {"readout": "odds"},
    "far odds": {"far": "independent", "readout": "odds"},
    "rotary": {"rotary": True, "far": "independent", "readout": "odds"},
    "K": {"mode": "h+J+K", "readout": "odds"},
    "far K": {"mode": "h+K", "far": "independent"},
    "without fields": {"mode": "J+K", "readout": "odds", "far": "independent"},
    "J": {"mode": "J"},
    "far J": {"mode": "J", "far": "independent", "readout": "odds"},
    "h": {"mode": "h", "far": "independent"},
    "h odds": {"mode": "h", "readout": "odds"},
    "softmax": {"mode": "softmax"},
    "far softmax": {"mode": "softmax", "far": "independent"},
    "J-self": {"mode": "J-self"},
    "far J-self": {"mode": "J-self", "far": "independent"},
    "bias": {"offset_bias": True},
    "far bias": {"offset_bias": True, "far": "independent", "readout": "odds"},
    "softmax bias": {"mode": "softmax", "offset_bias": True},
    "far softmax bias": {"mode": "softmax", "offset_bias": True, "far": "independent"},
    "soft cap": {"softcap": 1.5},
}
MOVING = {kind: {"relative": True, **options} for kind, options in MOVING.items()}
# and all 6 positions, causal or not.
STILL: dict[str, dict[str, Any]] = {
    f"still {mode} {readout}{' of all keys' * (not causal)}": {
        **{"window": 6, "mode": mode, "readout": readout, "causal": causal}
    }
    for mode in SELF_MODES
    for readout in ("probability", "odds")
    for causal in (True, False)
    if (mode, readout) != ("J-self", "odds")
}
STILL |= {
    f"still banded{' of all keys' * (not causal)}": {
        **STILL["still J-self probability"],
        "sampler": "banded",
        "causal": causal,
    }
    for causal in (True, False)
}
KINDS = MOVING | STILL


def coupled(layer: Any, std: float = 0.5) -> Any:
    """The layer with random couplings and biases of offsets in place of zeros."""
    with torch.no_grad():
        for part in couplings_of(layer).values():
            for parameter in part.parameters():
                nn.init.normal_(parameter, std=std)
    return layer


def attention(
    window: int = 4,
    dim: int = 8,
    heads: int = 2,
    *,
    dtype: torch.dtype = F64,
    std: float = 0.5,
    seed: int = 1,
    **options: Any,
) -> Any:
    """`diabat.BoltzmannAttention` with random couplings, of the law of the paper if no other is asked for."""
    torch.manual_seed(seed)
    return coupled(diabat.BoltzmannAttention(dim, heads, window, **PAPER | options).to(dtype), std)


def as_multihead(layer: Any, **options: Any) -> Any:
    """`diabat.BoltzmannMultiheadAttention` with the parameters of `diabat.BoltzmannAttention`."""
    dim, options = (
        layer.query.in_features,
        {"batch_first": True, "dtype": F64, "readout": layer.readout} | options,
    )
    made = diabat.BoltzmannMultiheadAttention(dim, layer.num_heads, **options)
    state = layer.state_dict()
    for kind in ("weight", "bias"):
        parts = [state.pop(f"{name}.{kind}") for name in ("query", "key", "value")]
        state[f"in_proj_{kind}"] = torch.cat(parts)
        state[f"out_proj.{kind}"] = state.pop(f"output.{kind}")
    made.load_state_dict(state)
    return made


def decoded(layer: Any, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
    """Outputs of tokens [B, T, D] that come one after another, and the last state."""
    outputs = []
    for i in range(x.shape[1]):
        y, state = layer.step(x[:, i], state)
        outputs.append(y)
    return torch.stack(outputs, 1), state


def tokens(
    batch: int = 2, length: int = 11, dim: int = 8, *, dtype: torch.dtype = F64, seed: int = 2
) -> Tensor:
    return torch.randn(batch, length, dim, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def padded(length: int = 11) -> Tensor:
    """Padding of three sequences, bool [3, L], True at padding: on the left, on the right, and inside."""
    mask = torch.zeros(3, length, dtype=torch.bool)
    mask[0, :5] = mask[1, 8:] = mask[2, [0, 3, 4, 9]] = True
    return mask


def arguments(layer: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    """The arguments of a layer from tokens [B, T, D]: self-attention where it takes queries, keys and values."""
    if isinstance(layer, BoltzmannHeads):
        visible = torch.ones(1, 1, x.shape[1], x.shape[1], dtype=torch.bool).tril()
        heads = x[:, None].expand(-1, layer.couplings.num_heads, -1, -1)
        return heads, heads.flip(-1), heads, visible
    return (x,) * (3 if isinstance(layer, diabat.BoltzmannMultiheadAttention) else 1)


def answer(layer: nn.Module, x: Tensor) -> Tensor:
    """What a layer makes of tokens [B, T, D]."""
    found: Any = layer(*arguments(layer, x))
    out: Tensor = found[0] if isinstance(found, tuple) else found
    return out


def functional(layer: nn.Module) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """The layer as a function of its input and of all its parameters, and these as leaves."""
    names = [name for name, _ in layer.named_parameters()]

    def function(x: Tensor, *values: Tensor) -> Tensor:
        found: Tensor = torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x,))
        return found

    return function, [p.detach().clone().requires_grad_() for p in layer.parameters()]


def reloaded(layer: Any, fresh: Any) -> Any:
    """A fresh layer with the state of another, by way of a file of tensors only."""
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    return fresh


def scores_of(layer: Any, x: Tensor) -> Tensor:
    """q·k/sqrt(d) of all pairs of positions, [B, H, L, L], with the biases of offsets inside the window."""
    q, k, _ = layer._projected(x)
    scores: Tensor = q @ k.mT / q.shape[-1] ** 0.5
    if (cap := layer._law.softcap) is not None:
        scores = cap * (scores / cap).tanh()
    if layer.couplings.offset_bias is not None:
        offsets = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        slots = layer.window - 1 - offsets
        near = (offsets >= 0) & (slots >= 0)
        scores = scores + torch.where(near, layer.couplings.offset_bias[:, slots * near], 0)
    return scores


def keys_of(layer: Any, seen: Tensor, i: int) -> list[int]:
    """The keys that query i sees, far ones included; ``seen`` is bool [L], False at padding."""
    last = i + 1 if layer.causal else len(seen)
    first = i - layer.window + 1 if layer.relative and layer.far != "independent" else 0
    return [j for j in range(max(0, first), last) if seen[j]]


def problem_of(layer: Any, scores: Tensor, keys: list[int], head: int | slice, i: int) -> Ising:
    """The problem of the keys of query i, whose scores are [*, L]; far ones are spins without couplings."""
    s = scores[..., keys]
    h = s if layer.readout == "probability" else (s - s.logsumexp(-1, keepdim=True)) / 2
    h = h if "h" in layer.mode.split("+") else torch.zeros_like(h)
    slots = torch.tensor(keys) - (i - layer.window + 1 if layer.relative else 0)
    near, at = slots >= 0, slots.clamp(min=0)
    J, K = layer.couplings.matrix(), layer.couplings.three_body()
    pairs = None if J is None else J[head, 0][..., at, :][..., at] * near * near[:, None]
    cube = near * near[:, None] * near[:, None, None]
    return Ising(h, pairs, None, None if K is None else K[head, 0][..., at, :, :][..., at, :][..., at] * cube)


@torch.no_grad()
def enumerated(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Weights [B, H, L, L] of `diabat.BoltzmannAttention`, one enumeration for each query of sequences padded alike."""
    scores = scores_of(layer, x)
    seen = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else ~mask
    weights = torch.zeros_like(scores)
    for pattern, i in product(seen.unique(dim=0), range(x.shape[1])):
        alike, keys = (seen == pattern).all(1), keys_of(layer, pattern, i)
        rows = scores[alike, :, i]
        if keys and layer.mode == "softmax":
            found = rows[..., keys].softmax(-1)
        elif keys:
            moments: Any = brute_force(problem_of(layer, rows, keys, slice(None), i))
            own = layer.mode == "J-self" and i in keys
            alpha = (1 + moments.correlation[..., keys.index(i), :]) / 2 if own else moments.probability
            positive = alpha if layer.readout == "probability" else alpha / (1 - alpha)
            found = positive / positive.sum(-1, keepdim=True)
        else:
            continue
        some = weights[alike]
        some[:, :, i, keys] = found
        weights[alike] = some
    return weights
