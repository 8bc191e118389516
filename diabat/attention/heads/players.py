"""Players of a game on heads: groups of heads (layer, head), of one layer or of several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from diabat.attention.heads.decoder import Site
from diabat.checks import ArgumentError, check_count, is_integer

Head = tuple[int, int]
Groups = tuple[tuple[Head, ...], ...]


def key_value_groups(
    sites: Mapping[int, Site], layers: int | Sequence[int], heads_per_player: int | None = None
) -> Groups:
    """Players of whole layers: the query heads that share a key/value head, or runs of equal length.

    Args:
        sites: Attention of the model, by layer.
        layers: A layer, or several; counted from 0.
        heads_per_player: Consecutive query heads of one player; None for those of one key/value head.

    Returns:
        Players in the order of layers and heads.

    Raises:
        ValueError: If a layer has no attention or is given twice, or its heads cannot be divided so.
    """
    chosen = [layers] if isinstance(layers, int) else layers
    if not isinstance(chosen, Sequence) or not chosen:
        raise ArgumentError("layer", f"expected a layer or a list of layers, got {layers!r}.")
    for layer in chosen:
        check_layer("layer", layer, sites)
    if len(set(chosen)) < len(chosen):
        raise ArgumentError("layer", f"expected different layers, got {list(chosen)}.")
    check_count("heads_per_player", heads_per_player, optional=True)
    players: list[tuple[Head, ...]] = []
    for layer in chosen:
        heads = sites[layer].heads
        size = heads_per_player or heads // sites[layer].groups
        if heads % size:
            raise ArgumentError(
                "heads_per_player", f"expected a divisor of {heads}, the heads of layer {layer}, got {size}."
            )
        players += [
            tuple((layer, head) for head in range(start, start + size)) for start in range(0, heads, size)
        ]
    return tuple(players)


def given_groups(sites: Mapping[int, Site], players: Iterable[Iterable[Head]]) -> Groups:
    """Players as given: each a group of heads (layer, head).

    Raises:
        ValueError: If there is none, one is empty or names no head of the model, or two share a head.
    """
    try:
        groups = tuple(tuple((layer, head) for layer, head in group) for group in players)
    except (TypeError, ValueError):
        raise ArgumentError("players", f"expected groups of (layer, head), got {players!r:.80}.") from None
    if not groups or not all(groups):
        raise ArgumentError("players", "expected one or more groups, each of one or more heads.")
    owner: dict[Head, int] = {}
    for player, group in enumerate(groups):
        for layer, head in group:
            check_layer("players", layer, sites)
            _check_head(head, layer, sites[layer].heads)
            if (layer, head) in owner:
                raise ArgumentError(
                    "players",
                    f"expected groups without a common head, got head {head} of layer {layer} in players "
                    f"{owner[layer, head]} and {player}.",
                )
            owner[layer, head] = player
    return groups


def check_layer(argument: str, layer: Any, sites: Mapping[int, object]) -> None:
    """Raise ArgumentError unless a layer is an integer that counts a block with attention."""
    if not is_integer(layer) or layer not in sites:
        known = f"{min(sites)} .. {max(sites)}" if len(sites) > max(sites) - min(sites) else sorted(sites)
        raise ArgumentError(argument, f"expected a layer with attention, {known}, got {layer!r}.")


def _check_head(head: Any, layer: int, heads: int) -> None:
    if not is_integer(head) or not 0 <= head < heads:
        raise ArgumentError("players", f"expected heads 0 .. {heads - 1} of layer {layer}, got {head!r}.")
