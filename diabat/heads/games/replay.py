"""Logits of coalitions: the blocks before the first player run once, the others on batches of coalitions.

A replay runs the model itself on the batch, with the blocks of the prefix passing on what they get and the first block
of the suffix receiving the states that the prefix left.  So every layer receives the arguments that the model makes
for it (masks differ per type of layer), and what follows the blocks needs no name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from diabat.heads.games.ablation import Ablation, Kind
from diabat.heads.games.decoder import Groups, find_blocks, layers_of
from diabat.huggingface.pretrained import query_heads
from diabat.samplers.capabilities import UnsupportedError


class Replay(Ablation):
    """A causal language model of transformers whose players can be absent while it is :meth:`applied`.

    Attributes:
        groups: The players; set before anything is evaluated.
        blocks: The blocks of the model, in the order in which they run.
        attention: The attention module by position of the block.
        head: The module that makes logits of hidden states.
        vocabulary: Number of tokens.
        positions: Most tokens of an input; None if the configuration does not say.

    Raises:
        UnsupportedError: If the model makes no logits, its attention cannot be switched, or its blocks are no list.
    """

    def __init__(self, model: Any, kind: Kind) -> None:
        super().__init__(model, kind)
        self.head: nn.Module = model.get_output_embeddings()
        if self.head is None:
            got = f"{type(model).__name__}, which makes no logits"
            raise UnsupportedError("model", "a causal language model", got)
        self.blocks, self.attention = find_blocks(model)
        with self.applied():
            pass  # refuses attention that cannot be switched
        self.vocabulary: int = model.get_input_embeddings().weight.shape[0]
        config = self.base.config.get_text_config()
        self.positions: int | None = getattr(config, "max_position_embeddings", None)
        self.groups: Groups = ()
        self._checked: Groups = ()

    @property
    def first(self) -> int:
        """First layer with a player."""
        return layers_of(self.groups)[0]

    def prefix(self, tokens: Tensor) -> Tensor:
        """States [1, T, D] that the first layer with a player receives for tokens [T]."""
        caught: list[Any] = []
        self.present = {}

        def catch(block: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            caught.append(arguments[0] if arguments else named.get("hidden_states"))
            if not isinstance(caught[0], Tensor):
                raise UnsupportedError("model", "blocks that take hidden states first", type(block).__name__)

        with self._hooked(catch, slice(self.first, None)):
            self._logits(tokens[None], torch.tensor([-1]))
        states: Tensor = caught[0]
        return states

    def suffix(self, states: Tensor, tokens: Tensor, present: Tensor, keep: Tensor) -> Tensor:
        """Logits [C, K, vocabulary] of coalitions, from the states [1, T, D] that :meth:`prefix` left for tokens [T].

        ``present`` are the players of every coalition, bool [C, n]; ``keep`` the positions whose logits are asked for,
        int64 [K], which may be negative.
        """
        rows = states.expand(len(present), -1, -1).contiguous()

        def put(block: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
            if arguments:
                return (rows, *arguments[1:]), named
            return arguments, {**named, "hidden_states": rows}

        with self._hooked(put, slice(self.first)):
            return self.direct(tokens, present, keep)

    def direct(self, tokens: Tensor, present: Tensor, keep: Tensor) -> Tensor:
        """Logits as of :meth:`suffix`, by whole forward passes."""
        self._place(present)
        # All rows are copies of one sequence until the first player acts.
        self.alike = self.attention[self.first]
        return self._logits(tokens.expand(len(present), -1), keep)

    def outputs(self, tokens: Tensor) -> dict[nn.Module, Tensor]:
        """Outputs [1, T, H, D] of the heads for tokens [T] by attention module, all of them present."""
        self.present, self.recorded = {}, {}
        try:
            self._logits(tokens[None], torch.tensor([-1]))
            return self.recorded
        finally:
            self.recorded = None

    def average(self, sequences: Iterable[Tensor]) -> dict[nn.Module, Tensor]:
        """Mean output [1, 1, H, D] of the heads over all positions of sequences of tokens, likewise."""
        sums: dict[nn.Module, Tensor] = {}
        count = 0
        for tokens in sequences:
            for module, heads in self.outputs(tokens).items():
                sums[module] = sums.get(module, 0) + heads.float().sum(1, keepdim=True)
            count += len(tokens)
        return {module: total / count for module, total in sums.items()}

    def check(self, tokens: Tensor) -> None:
        """Hold a replay of tokens [T] against the whole pass, once, with all players and with none.

        Raises:
            UnsupportedError: If they differ: a block takes more from those before it than the states it is handed.
        """
        if self._checked == self.groups:
            return
        present = torch.tensor([[True], [False]]).expand(-1, len(self.groups))
        last = torch.tensor([-1])
        whole = self.direct(tokens, present, last)
        replayed = self.suffix(self.prefix(tokens), tokens, present, last)
        # Rounding leaves 1e-6; half precision, a few hundredths.
        allowed = 1e-3 if whole.dtype.itemsize >= 4 else 0.1
        if float((whole - replayed).abs().max()) > allowed * max(1.0, float(whole.abs().max())):
            expected = "blocks that receive the states of the block before and nothing else from it"
            got = f"{type(self.model).__name__}, whose replay differs from the whole pass"
            raise UnsupportedError("model", expected, got)
        self._checked = self.groups

    def _place(self, present: Tensor) -> None:
        """Tell every layer with players which of its heads the rows of the next batch have."""
        masks: dict[nn.Module, Tensor] = {}
        for player, group in enumerate(self.groups):
            for layer, head in group:
                module = self.attention[layer]
                if module not in masks:
                    masks[module] = torch.ones(len(present), query_heads(module), dtype=torch.bool)
                masks[module][:, head] = present[:, player]
        self.present = {module: mask.to(self.model.device) for module, mask in masks.items()}

    def _logits(self, tokens: Tensor, keep: Tensor) -> Tensor:
        """Logits [C, K, vocabulary] at positions ``keep`` [K] of tokens [C, T]; others are not even made."""
        rows = tokens.to(self.model.device)

        def select(module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
            return (arguments[0][:, keep.to(arguments[0].device)], *arguments[1:])

        # Before other hooks, which may refuse logits of more positions than are asked for.
        hook = self.head.register_forward_pre_hook(select, prepend=True)
        try:
            answer = self.model(input_ids=rows, attention_mask=torch.ones_like(rows), use_cache=False)
        finally:
            hook.remove()
        logits: Tensor = answer.logits
        return logits

    @contextmanager
    def _hooked(self, hook: Callable[..., Any], passing: slice) -> Iterator[None]:
        """Hook the first block with a player, and make some blocks return the states that they get."""
        blocks = self.blocks[passing]
        # What stood in their place (hooks of accelerate) is put back.
        before = [vars(block).get("forward") for block in blocks]
        handle = self.blocks[self.first].register_forward_pre_hook(hook, with_kwargs=True)
        try:
            for block in blocks:
                block.forward = _pass_on
            yield
        finally:
            handle.remove()
            for block, forward in zip(blocks, before, strict=True):
                del vars(block)["forward"]
                if forward is not None:
                    block.forward = forward


def _pass_on(*arguments: Any, **named: Any) -> Any:
    return arguments[0] if arguments else named["hidden_states"]
