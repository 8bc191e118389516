r"""Games as tables: v [..., 2^n], and the transforms over all coalitions that every exact index is made of.

Bit i of the index is player i, 1 where the player is in the coalition (the package's convention for states).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from diabat.checks import ArgumentError, ArgumentTypeError, is_integer

MAX_PLAYERS = 20
_CHUNK = 1 << 14


def mobius(table: Tensor) -> Tensor:
    r"""Möbius transform m(S) = Σ_{T ⊆ S} (-1)^{|S|-|T|} v(T), by n butterflies: n 2^(n-1) subtractions.

    Args:
        table: v, floating [..., 2^n], n <= 20.

    Returns:
        m, of the same shape and dtype; differentiable.  ``inverse_mobius`` undoes it.

    Raises:
        TypeError: If the table is not a floating tensor.
        ValueError: If its last dimension is not a power of two, or n > 20.
    """
    num_players(table)
    result: Any = _Butterflies.apply(table, -1, False)
    return result


def inverse_mobius(dividends: Tensor) -> Tensor:
    r"""Zeta transform v(S) = Σ_{T ⊆ S} m(T) of dividends [..., 2^n]; the inverse of :func:`mobius`."""
    num_players(dividends)
    result: Any = _Butterflies.apply(dividends, 1, False)
    return result


def superset_sums(table: Tensor) -> Tensor:
    r"""Compute Σ_{T ⊇ S} x(T) for every S, [..., 2^n]; differentiable."""
    num_players(table)
    result: Any = _Butterflies.apply(table, 1, True)
    return result


class _Butterflies(torch.autograd.Function):
    """One pass per player: the half with the player takes ± the half without it, or (``up``) the reverse."""

    generate_vmap_rule = True

    @staticmethod
    def forward(table: Tensor, sign: int, up: bool) -> Tensor:
        out = table.clone(memory_format=torch.contiguous_format)
        for player in range(num_players(table)):
            halves = out.view(-1, 2, 1 << player)
            without, within = halves[:, 0], halves[:, 1]
            (without if up else within).add_(within if up else without, alpha=sign)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int, bool], output: Tensor) -> None:
        _, ctx.sign, ctx.up = inputs

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, None, None]:
        # The transpose of a butterfly is the butterfly of the other direction.
        return _Butterflies.apply(cotangents[0], ctx.sign, not ctx.up), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return _Butterflies.apply(tangents[0], ctx.sign, ctx.up)


def num_players(table: Tensor) -> int:
    """Number n of players of a table [..., 2^n]; errors as :func:`mobius`."""
    if not isinstance(table, Tensor) or not table.is_floating_point():
        got = table.dtype if isinstance(table, Tensor) else type(table).__name__
        raise ArgumentTypeError("table", "a floating tensor", got)
    size = table.shape[-1] if table.ndim else 0
    n = size.bit_length() - 1
    if size < 1 or size != 1 << n:
        raise ArgumentError("table", "shape [..., 2^n]", list(table.shape))
    if n > MAX_PLAYERS:
        raise ArgumentError("table", f"at most {MAX_PLAYERS} players", n)
    return n


def all_coalitions(n: int, device: torch.device | str = "cpu") -> Tensor:
    """Masks of all coalitions in table order, bool [2^n, n]; ValueError if n is not an integer in 0 .. 20."""
    if not is_integer(n) or not 0 <= n <= MAX_PLAYERS:
        raise ArgumentError("n", f"an integer in 0 .. {MAX_PLAYERS}", repr(n))
    index = torch.arange(1 << int(n), device=device)
    return (index[:, None] >> torch.arange(n, device=device)) % 2 == 1


def value_table(value: Callable[[Tensor], Tensor], n: int) -> Tensor:
    """Tabulate a value function, in chunks of 2^14 coalitions.

    Args:
        value: Takes bool masks [M, n], returns floating values [..., M].
        n: Number of players, at most 20.

    Returns:
        [..., 2^n].

    Raises:
        ValueError: If n is out of range, or the values have another shape.
    """
    parts = [evaluate(value, masks) for masks in all_coalitions(n).split(_CHUNK)]
    return torch.cat(parts, -1)


def evaluate(value: Callable[[Tensor], Tensor], masks: Tensor) -> Tensor:
    """Values [..., M] of a value function on masks [M, n]; TypeError or ValueError if it returns anything else."""
    out = value(masks)
    if not isinstance(out, Tensor) or not out.is_floating_point():
        got = out.dtype if isinstance(out, Tensor) else type(out).__name__
        raise ArgumentTypeError("value", "a function that returns a floating tensor", got)
    if out.ndim < 1 or out.shape[-1] != masks.shape[0]:
        expected = f"values [..., {masks.shape[0]}] of {masks.shape[0]} coalitions"
        raise ArgumentError("value", expected, list(out.shape))
    return out


def sizes(n: int, device: torch.device | str = "cpu") -> Tensor:
    """Number of players of every coalition, int64 [2^n]."""
    return all_coalitions(n, device).sum(-1)


def containing_one(weighted: Tensor) -> Tensor:
    """Σ_{C ∋ i} x(C) for every player i, [..., n], from x [..., 2^n]."""
    low, high, grid = _halves(weighted)
    return torch.cat((grid.sum(-2) @ low, grid.sum(-1) @ high), -1)


def containing_two(weighted: Tensor) -> Tensor:
    """Σ_{C ⊇ {i, j}} x(C) for every pair, symmetric [..., n, n], from x [..., 2^n]; the diagonal is that of one.

    The index is split in half, so that all pairs cost two matrix products: about 2^n n/2 multiply-adds.
    """
    low, high, grid = _halves(weighted)
    both_low = low.T @ (grid.sum(-2)[..., None] * low)
    both_high = high.T @ (grid.sum(-1)[..., None] * high)
    mixed = high.T @ (grid @ low)  # [..., n_high, n_low]
    upper = torch.cat((both_low, mixed.transpose(-1, -2)), -1)
    return torch.cat((upper, torch.cat((mixed, both_high), -1)), -2)


def _halves(weighted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Bits of the lower and of the upper half of the players, and the table as [..., 2^high, 2^low]."""
    n = num_players(weighted)
    few = n // 2
    low, high = (all_coalitions(k, weighted.device).to(weighted) for k in (few, n - few))
    return low, high, weighted.reshape(*weighted.shape[:-1], 1 << (n - few), 1 << few)
