"""The parts of a decoder that games act on: its blocks, their attention, and its logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from diabat.attention.heads.attention import NAME, Switch
from diabat.attention.heads.pretrained import attention_modules, pretrained_model
from diabat.checks import ArgumentError
from diabat.samplers.base import UnsupportedError


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


def find_decoder(switch: Switch) -> Decoder:
    """The attention modules of a model, in the blocks that they are in.

    Raises:
        UnsupportedError: If no attention goes through the attention interface, the blocks do not form one list with at
            most one attention each, or the model makes no logits or has an encoder.
    """
    model = switch.model
    base = pretrained_model(model)
    head, table, kind = model.get_output_embeddings(), model.get_input_embeddings(), type(model).__name__
    if head is None:
        raise UnsupportedError(
            "model", f"expected a causal language model, got {kind}, which makes no logits."
        )
    modules = attention_modules(base)
    with switch.opened():
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
    return Site(module, heads, getattr(module.config, "num_key_value_heads", None) or heads)


def forward_logits(
    model: Any, head: nn.Module, tokens: Tensor, keep: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Logits [C, K, vocabulary] at positions ``keep`` [K] of tokens [C, T]; others are not even made.

    Args:
        model: The model, which takes ``position_ids`` if a mask is given.
        head: Its module that makes logits.
        tokens: int64 [C, T].
        keep: Positions, int64 [K]; may be negative.
        mask: 0 where a token is padding on the left, int64 [C, T]; None if none is.
    """
    rows = tokens.to(model.device)
    named = {"attention_mask": torch.ones_like(rows)}
    if mask is not None:
        there = mask.to(model.device)
        named = {"attention_mask": there, "position_ids": (there.cumsum(-1) - 1).clamp(min=0)}

    def select(module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return (arguments[0][:, keep.to(arguments[0].device)], *arguments[1:])

    # Before other hooks, which may refuse logits of more positions than are asked for.
    hook = head.register_forward_pre_hook(select, prepend=True)
    try:
        return model(input_ids=rows, use_cache=False, **named).logits
    finally:
        hook.remove()


def greedy(model: Any, tokens: Tensor, mask: Tensor, max_new_tokens: int) -> Tensor:
    """Tokens [C, <= max_new_tokens] written greedily behind tokens [C, T]; what follows an end is its padding.

    Args:
        model: A causal language model.
        tokens: int64 [C, T].
        mask: 0 where a token is padding on the left, int64 [C, T].
        max_new_tokens: Longest text.

    Raises:
        ArgumentError: If the model is configured to generate with another cache than the dynamic one.
    """
    options = model.generation_config
    if options.cache_implementation not in (None, "dynamic", "dynamic_full"):
        raise ArgumentError(
            "model",
            "expected a dynamic cache, got generation_config.cache_implementation = "
            f"{options.cache_implementation!r}.",
        )
    rows = tokens.to(model.device)
    written = model.generate(
        input_ids=rows,
        attention_mask=mask.to(model.device),
        max_new_tokens=max_new_tokens,
        do_sample=False,
        num_beams=1,
        pad_token_id=padding_token(model),
    )
    return written[:, tokens.shape[1] :]


def padding_token(model: Any) -> int:
    """The token that pads: the model's own, else its end of text, which decoding leaves out as well, else 0."""
    options = model.generation_config
    ends = options.eos_token_id if isinstance(options.eos_token_id, list) else [options.eos_token_id]
    return next((token for token in (options.pad_token_id, *ends) if token is not None), 0)


def _list_around(model: nn.Module, name: str) -> tuple[str, int]:
    """Name of the outermost list of modules around a module, and the position in it."""
    parts = name.split(".")
    for end in range(1, len(parts)):
        path = ".".join(parts[:end])
        if isinstance(model.get_submodule(path), nn.ModuleList):
            return path, int(parts[end])
    raise UnsupportedError("model", f"expected attention inside a list of blocks, got it at '{name}'.")


def states_of(block: nn.Module, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Tensor:
    """Hidden states among the arguments of a block.

    Raises:
        UnsupportedError: If they are not where the blocks of transformers take them.
    """
    states = arguments[0] if arguments else named.get("hidden_states")
    if not isinstance(states, Tensor):
        raise UnsupportedError(
            "model", f"expected blocks that take hidden states first, got {type(block).__name__}."
        )
    return states
