"""Sentence pairs as numbers: tokenized once, kept ragged, padded batch by batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from diabat.checks import ArgumentError
from diabat.tasks.data import DataError
from diabat.tasks.nli_files import Pairs

_CHUNK = 10_000


@dataclass(frozen=True, eq=False)
class PairBatch:
    """Pairs padded to the longest of them.

    Attributes:
        tokens: int64 [B, T].
        padding: bool [B, T], True at padding.
        special: bool [B, T], True at tokens that the tokenizer put between or around the sentences.
        segments: int64 [B, T], 0 in the premise and 1 in the hypothesis; None if the tokenizer has no such
            numbers.
    """

    tokens: Tensor
    padding: Tensor
    special: Tensor
    segments: Tensor | None

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, eq=False)
class PairSplit:
    """Tokenized pairs with their labels, stored one after the other.

    Attributes:
        tokens: int32 [sum of lengths].
        special: bool, the same shape.
        segments: uint8, the same shape, or None.
        ends: Where each pair ends in them, int64 [N].
        labels: Classes, int64 [N].
        pad_id: Token at padding.
    """

    tokens: Tensor
    special: Tensor
    segments: Tensor | None
    ends: Tensor
    labels: Tensor
    pad_id: int

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def lengths(self) -> Tensor:
        """Tokens of each pair, int64 [N] on the CPU."""
        return self.ends.diff(prepend=self.ends.new_zeros(1)).cpu()

    @property
    def ordinary_lengths(self) -> Tensor:
        """Tokens of each pair without special ones, int64 [N] on the CPU."""
        ordinary = (~self.special).cumsum(0)[self.ends - 1]
        return ordinary.diff(prepend=ordinary.new_zeros(1)).cpu()

    def to(self, device: torch.device) -> PairSplit:
        """Return the same pairs on a device."""
        segments = None if self.segments is None else self.segments.to(device)
        moved = {name: getattr(self, name).to(device) for name in ("tokens", "special", "ends", "labels")}
        return replace(self, segments=segments, **moved)

    def batch(self, chosen: Tensor) -> tuple[PairBatch, Tensor]:
        """Return the chosen pairs (int64 [B]) padded to the longest of them, and their labels [B]."""
        ends = self.ends[chosen]
        starts = torch.where(chosen > 0, self.ends[chosen - 1], 0)
        place = torch.arange(int((ends - starts).max()), device=ends.device) + starts[:, None]  # [B, T]
        padding = place >= ends[:, None]
        place = place.masked_fill(padding, 0)
        batch = PairBatch(
            tokens=self.tokens[place].long().masked_fill(padding, self.pad_id),
            padding=padding,
            special=self.special[place] & ~padding,
            segments=None if self.segments is None else self.segments[place].long().masked_fill(padding, 0),
        )
        return batch, self.labels[chosen]

    def counted(self, chosen: Tensor) -> int:
        """Return the number of chosen pairs: every label counts."""
        return len(chosen)

    def tensors(self) -> tuple[Tensor, ...]:
        """Return tokens, segments, ends and labels."""
        segments = () if self.segments is None else (self.segments,)
        return (self.tokens, *segments, self.ends, self.labels)


def tokenize_pairs(tokenizer: Any, pairs: Pairs, window: int) -> PairSplit:
    """Tokenize premise and hypothesis as a pair, at most ``window`` tokens, the longer sentence cut first.

    Args:
        tokenizer: A fast tokenizer of Hugging Face.
        pairs: The pairs.
        window: Tokens at most, special ones included.

    Raises:
        DataError: If a sentence has no token.
        ValueError: If the window has no room for a token of each sentence.
    """
    _require_room(tokenizer, window)
    parts = [
        _encode(tokenizer, pairs.premises[i : i + _CHUNK], pairs.hypotheses[i : i + _CHUNK], window, i)
        for i in range(0, len(pairs), _CHUNK)
    ]
    tokens, special, segments, lengths = (torch.cat(column) for column in zip(*parts, strict=True))
    has_segments = "token_type_ids" in tokenizer.model_input_names
    return PairSplit(
        tokens=tokens,
        special=special,
        segments=segments if has_segments else None,
        ends=lengths.cumsum(0),
        labels=torch.tensor(list(pairs.labels), dtype=torch.int64),
        pad_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0,
    )


def _require_room(tokenizer: Any, window: int) -> None:
    least = tokenizer.num_special_tokens_to_add(pair=True) + 2
    if window < least:
        raise ArgumentError("window", f"expected at least {least} for this tokenizer, got {window}.")


def _encode(
    tokenizer: Any, premises: Sequence[str], hypotheses: Sequence[str], window: int, first: int
) -> tuple[Tensor, ...]:
    encoded = tokenizer(
        list(premises),
        list(hypotheses),
        truncation="longest_first",
        max_length=window,
        return_special_tokens_mask=True,
        return_token_type_ids=True,
    )
    for row in range(len(premises)):
        sides = set(encoded.sequence_ids(row)) - {None}
        if sides != {0, 1}:
            name = "premise" if 0 not in sides else "hypothesis"
            raise DataError(f"pair {first + row}: {name}: expected at least one token, got none.")
    flat = {
        key: [value for row in encoded[key] for value in row]
        for key in ("input_ids", "special_tokens_mask", "token_type_ids")
    }
    return (
        torch.tensor(flat["input_ids"], dtype=torch.int32),
        torch.tensor(flat["special_tokens_mask"], dtype=torch.bool),
        torch.tensor(flat["token_type_ids"], dtype=torch.uint8),
        torch.tensor([len(row) for row in encoded["input_ids"]]),
    )
