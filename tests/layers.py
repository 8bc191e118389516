"""Layers with random couplings, their inputs, and what tests hold them against.

    from layers import F64, LAYERS, answer, attention, tokens

    layer = attention(4, relative=True, weights="odds")    # BoltzmannAttention of 2 heads in float64, J not zero
    out = answer(layer, tokens(2, 11))                     # the output of any layer on B x T tokens

    @pytest.mark.parametrize("kind", LAYERS)
    def test_...(kind: str) -> None:                       # what holds for every layer
        layer = LAYERS[kind](8, 2, 4, sampler="exact")

The same arguments give the same numbers.  A new kind of layer is a line of `LAYERS`.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import diabat
from diabat.attention.pooling import BoltzmannPooling
from diabat.huggingface.boltzmann.layer import BoltzmannHeads

F64 = torch.float64


def _attention(**fixed: Any) -> Callable[..., Any]:
    return lambda dim, heads, window, **options: diabat.BoltzmannAttention(
        dim, heads, window, **fixed | options
    )


# Of embed_dim, num_heads and window, and options of the layer.
LAYERS: dict[str, Callable[..., Any]] = {
    "attention": _attention(),
    "odds": _attention(weights="odds"),
    "own spin": _attention(mode="J-self"),
    "slots": _attention(relative=True),
    "multihead": lambda dim, heads, window, **options: diabat.BoltzmannMultiheadAttention(
        dim, heads, batch_first=True, window=window, **options
    ),
    "pooling": BoltzmannPooling,
    "neurogame": lambda dim, heads, window, **options: diabat.NeuroGameAttention(dim, heads, **options),
}


def coupled(layer: Any, std: float = 0.5) -> Any:
    """The layer with random couplings and biases of offsets in place of zeros."""
    with torch.no_grad():
        for name in ("coupling_pairs", "coupling_triples", "offset_bias"):
            if (parameter := getattr(layer, name, None)) is not None:
                nn.init.normal_(parameter, std=std)
    return layer


def attention(
    window: int | None = 4,
    dim: int = 8,
    heads: int = 2,
    *,
    dtype: torch.dtype = F64,
    std: float = 0.5,
    seed: int = 1,
    **options: Any,
) -> Any:
    """`diabat.BoltzmannAttention` with random couplings."""
    torch.manual_seed(seed)
    return coupled(diabat.BoltzmannAttention(dim, heads, window, **options).to(dtype), std)


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
        heads = x[:, None].expand(-1, layer.num_heads, -1, -1)
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


def slopes(out: Tensor, *leaves: Tensor, **options: Any) -> tuple[Tensor, ...]:
    """Gradients of a nonlinear function of an output, zeros where there are none."""
    return torch.autograd.grad(out.sin().sum(), leaves, materialize_grads=True, **options)


def trained(call: Callable[..., Any], owner: nn.Module, x: Tensor) -> list[Tensor]:
    """Output and all gradients of a call, the reads from one seed."""
    torch.manual_seed(3)
    owner.zero_grad()
    y = call(x)
    y.square().sum().backward()
    return [y.detach(), *(p.grad.clone() for p in owner.parameters() if p.grad is not None)]


def reloaded(layer: Any, fresh: Any) -> Any:
    """A fresh layer with the state of another, by way of a file of tensors only."""
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    return fresh


@contextmanager
def refused(sentence: str, kind: type[Exception] = ValueError) -> Iterator[None]:
    """One sentence that begins so."""
    with pytest.raises(kind, match=f"^{sentence}"):
        yield
