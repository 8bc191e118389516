"""The parts of a decoder that games act on: its blocks, their attention and its logits; heads as players."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from diabat.attention.heads.ablation import NAME, Ablation
from diabat.attention.heads.pretrained import attention_modules, pretrained_model
from diabat.checks import ArgumentError, check_count, is_integer
from diabat.samplers.base import UnsupportedError

Head = tuple[int, int]
"""Layer and position of a query head, both counted from 0."""
Groups = tuple[tuple[Head, ...], ...]


@dataclass(frozen=True)
class Site:
    """The attention of one block.

    Attributes:
        module: The attention module.
        heads: Query heads H.
        groups: Key/value heads, a divisor of H.
    """

    module: nn.Module
    heads: int
    groups: int


@dataclass(frozen=True)
class Decoder:
    """The parts of a decoder that coalitions act on.

    Attributes:
        blocks: Its blocks, in the order in which they run.
        sites: Attention by position of the block; a block without attention has none.
        head: The module that makes logits of hidden states.
        vocabulary: Number of tokens.
    """

    blocks: tuple[nn.Module, ...]
    sites: Mapping[int, Site]
    head: nn.Module
    vocabulary: int


def find_decoder(ablation: Ablation) -> Decoder:
    """The attention modules of a model, in the blocks that they are in.

    Raises:
        UnsupportedError: If no attention goes through the attention interface, the blocks do not form one list with at
            most one attention each, or the model makes no logits or has an encoder.
    """
    model = ablation.model
    base = pretrained_model(model)
    head, table, kind = model.get_output_embeddings(), model.get_input_embeddings(), type(model).__name__
    if head is None:
        raise UnsupportedError(
            "model", f"expected a causal language model, got {kind}, which makes no logits."
        )
    modules = attention_modules(base)
    with ablation.applied():
        if any(module.config._attn_implementation != NAME for module in modules.values()):
            raise UnsupportedError(
                "model",
                f"expected attention behind the AttentionInterface of transformers, found none in {kind}.",
            )
    names = {module: name for name, module in model.named_modules()}
    places = [_list_around(model, names[module]) for module in modules.values()]
    if len({path for path, _ in places}) > 1 or len(set(places)) < len(places):
        raise UnsupportedError("model", f"expected one attention in each block of one list, got {kind}.")
    sites = {layer: _site(module) for (_, layer), module in zip(places, modules.values(), strict=True)}
    blocks: Any = model.get_submodule(places[0][0])
    return Decoder(tuple(blocks), sites, head, table.weight.shape[0])


def _site(module: Any) -> Site:
    heads = module.config.num_attention_heads
    # As attention functions know it; a configuration may have keys that the model does not use.
    return Site(module, heads, heads // getattr(module, "num_key_value_groups", 1))


def forward_logits(model: Any, head: nn.Module, tokens: Tensor, keep: Tensor) -> Tensor:
    """Logits [C, K, vocabulary] at positions ``keep`` [K] of tokens [C, T], int64; others are not even made.

    ``head`` is the module that makes logits; positions may be negative.
    """
    rows = tokens.to(model.device)

    def select(module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return (arguments[0][:, keep.to(arguments[0].device)], *arguments[1:])

    # Before other hooks, which may refuse logits of more positions than are asked for.
    hook = head.register_forward_pre_hook(select, prepend=True)
    try:
        return model(input_ids=rows, attention_mask=torch.ones_like(rows), use_cache=False).logits
    finally:
        hook.remove()


def _list_around(model: nn.Module, name: str) -> tuple[str, int]:
    """Name of the outermost list of modules around a module, and the position in it."""
    parts = name.split(".")
    for end in range(1, len(parts)):
        path = ".".join(parts[:end])
        if isinstance(model.get_submodule(path), nn.ModuleList):
            return path, int(parts[end])
    raise UnsupportedError("model", f"expected attention inside a list of blocks, got it at '{name}'.")


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
    chosen = check_layers("layer", [layers] if isinstance(layers, int) else layers, sites)
    check_count("heads_per_player", heads_per_player, optional=True)
    players: list[tuple[Head, ...]] = []
    for layer in chosen:
        heads = sites[layer].heads
        size = heads_per_player or heads // sites[layer].groups
        if heads % size:
            raise ArgumentError(
                "heads_per_player", f"expected a divisor of {heads}, the heads of layer {layer}, got {size}."
            )
        players += [tuple((layer, first + i) for i in range(size)) for first in range(0, heads, size)]
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
            check_layers("players", [layer], sites)
            if not is_integer(head) or not 0 <= head < sites[layer].heads:
                raise ArgumentError(
                    "players", f"expected heads 0 .. {sites[layer].heads - 1} of layer {layer}, got {head!r}."
                )
            if (layer, head) in owner:
                raise ArgumentError(
                    "players",
                    f"expected groups without a common head, got head {head} of layer {layer} in players "
                    f"{owner[layer, head]} and {player}.",
                )
            owner[layer, head] = player
    return groups


def check_layers(argument: str, layers: Any, sites: Mapping[int, object]) -> list[int]:
    """Layers as a list, if they are different blocks with attention.

    Raises:
        ArgumentError: If they are not.
    """
    if not isinstance(layers, Sequence) or isinstance(layers, str) or not layers:
        raise ArgumentError(argument, f"expected a list of one layer or more, got {layers!r}.")
    for layer in layers:
        if not is_integer(layer) or layer not in sites:
            known = f"{min(sites)} .. {max(sites)}" if len(sites) > max(sites) - min(sites) else sorted(sites)
            raise ArgumentError(argument, f"expected a layer with attention, {known}, got {layer!r}.")
    if len(set(layers)) < len(layers):
        raise ArgumentError(argument, f"expected different layers, got {list(layers)}.")
    return list(layers)
