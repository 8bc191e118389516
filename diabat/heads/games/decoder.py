"""The parts of a decoder that games act on: its blocks and their attention; heads as players."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

from torch import nn

from diabat.checks import ArgumentError, check_count, is_integer
from diabat.huggingface.pretrained import attention_modules, pretrained_model, query_heads
from diabat.samplers.capabilities import UnsupportedError

Head = tuple[int, int]
"""Layer and position of a query head, both counted from 0."""
Groups = tuple[tuple[Head, ...], ...]


def layers_of(groups: Groups) -> tuple[int, ...]:
    """Layers of players, ascending."""
    return tuple(sorted({layer for group in groups for layer, _ in group}))


def find_blocks(model: Any) -> tuple[tuple[nn.Module, ...], dict[int, Any]]:
    """The blocks of a model in the order in which they run, and the attention module by position of the block.

    A block may have none.

    Raises:
        UnsupportedError: If the model has an encoder, has no attention modules of transformers, or its blocks do not
            form one list with at most one of them each.
    """
    attention = attention_modules(pretrained_model(model))
    names = {module: name for name, module in model.named_modules()}
    blocks: Any = ()
    for layer, module in attention.items():
        path = names[module].split(".")
        parents = [model.get_submodule(".".join(path[:end])) for end in range(1, len(path))]
        around = next((part for part in parents if isinstance(part, nn.ModuleList)), ())
        blocks = blocks or around
        if around is not blocks or layer >= len(blocks) or module not in blocks[layer].modules():
            got = f"got {type(model).__name__}."
            raise UnsupportedError("model", f"expected one attention in each block of one list, {got}")
    return tuple(blocks), attention


def player_groups(
    attention: Mapping[int, Any],
    layers: int | Sequence[int] | None,
    players: Iterable[Iterable[Head]] | None = None,
    heads_per_player: int | None = None,
) -> Groups:
    """Players as given, each a group of heads; or the heads of a key/value head, or equal runs of heads, of layers.

    Args:
        attention: Attention modules of the model, by layer.
        layers: A layer, or several, counted from 0; None for all.
        players: Groups of heads (layer, head), in place of layers.
        heads_per_player: Consecutive query heads of one player; None for those of one key/value head.

    Raises:
        ValueError: If a layer has no attention or is given twice, its heads cannot be divided so, or there are no
            players, or one is empty, names no head of the model or shares one with another.
    """
    if players is not None:
        for name, value in (("layer", layers), ("heads_per_player", heads_per_player)):
            if value is not None:
                raise ArgumentError(name, "None with players, which say it", f"{value!r}")
        return _given_groups(attention, players)
    chosen = [*attention] if layers is None else [layers] if isinstance(layers, Integral) else layers
    heads_per_player = check_count("heads_per_player", heads_per_player, optional=True)
    groups: list[tuple[Head, ...]] = []
    for layer in check_layers("layer", chosen, attention):
        heads = query_heads(attention[layer])
        # As attention functions know it; a configuration may have keys that the model does not use.
        size = heads_per_player or int(getattr(attention[layer], "num_key_value_groups", 1))
        if heads % size:
            raise ArgumentError("heads_per_player", f"a divisor of {heads}, the heads of layer {layer}", size)
        groups += [tuple((layer, first + i) for i in range(size)) for first in range(0, heads, size)]
    return tuple(groups)


def _given_groups(attention: Mapping[int, Any], players: Iterable[Iterable[Head]]) -> Groups:
    try:
        groups = tuple(tuple((layer, head) for layer, head in group) for group in players)
    except (TypeError, ValueError):
        raise ArgumentError("players", "groups of (layer, head)", f"{players!r:.80}") from None
    if not groups or not all(groups):
        raise ArgumentError("players", "expected one or more groups, each of one or more heads.")
    owner: dict[Head, int] = {}
    for player, group in enumerate(groups):
        for layer, head in group:
            check_layers("players", [layer], attention)
            last = query_heads(attention[layer]) - 1
            if not is_integer(head) or not 0 <= head <= last:
                raise ArgumentError("players", f"expected heads 0 .. {last} of layer {layer}, got {head!r}.")
            if (layer, head) in owner:
                got = f"head {head} of layer {layer} in players {owner[layer, head]} and {player}"
                raise ArgumentError("players", "groups without a common head", got)
            owner[layer, head] = player
    return tuple(tuple((int(layer), int(head)) for layer, head in group) for group in groups)


def check_layers(argument: str, layers: Any, attention: Mapping[int, object]) -> list[int]:
    """Layers as a list, if they are different blocks with attention; else raise ArgumentError."""
    if not isinstance(layers, Sequence) or isinstance(layers, str) or not layers:
        raise ArgumentError(argument, "a list of one layer or more", f"{layers!r}")
    for layer in layers:
        if not is_integer(layer) or layer not in attention:
            known = [*attention]
            among = f"{known[0]} .. {known[-1]}" if len(known) > known[-1] - known[0] else known
            raise ArgumentError(argument, f"a layer with attention, {among}", f"{layer!r}")
    if len(set(layers)) < len(layers):
        raise ArgumentError(argument, "different layers", list(layers))
    return [int(layer) for layer in layers]
