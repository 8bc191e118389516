"""Sentence pairs as numbers: tokenized once, kept ragged, padded batch by batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from diabat.checks import ArgumentError
from diabat.tasks.base import Examples
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
        segments: int64 [B, T], 0 in the premise and 1 in the hypothesis; None if the tokenizer has no such numbers.
    """

    tokens: Tensor
    padding: Tensor
    special: Tensor
    segments: Tensor | None

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, eq=False)
class PairSplit(Examples):
    """Tokenized pairs with their labels, stored one after the other.

    Attributes:
        tokens: int32 [sum of lengths].
        special: bool, the same shape.
        segments: uint8, the same shape, or None.
        ends: Where each pair ends in them, int64 [N].
        targets: Classes, int64 [N].
        pad_id: Token at padding.
    """

    tokens: Tensor
    special: Tensor
    segments: Tensor | None
    ends: Tensor
    targets: Tensor
    pad_id: int

    @property
    def lengths(self) -> Tensor:
        """Tokens of each pair, int64 [N] on the CPU."""
        return self.ends.diff(prepend=self.ends.new_zeros(1)).cpu()

    @property
    def ordinary_lengths(self) -> Tensor:
        """Tokens of each pair without special ones, int64 [N] on the CPU."""
        ordinary = (~self.special).cumsum(0)[self.ends - 1]
        return ordinary.diff(prepend=ordinary.new_zeros(1)).cpu()

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
        return batch, self.targets[chosen]


def tokenize_pairs(tokenizer: Any, pairs: Pairs, window: int) -> PairSplit:
    """Tokenize premise and hypothesis by a fast tokenizer as a pair of at most ``window`` tokens with the special ones.

    The longer sentence is cut first.

    Raises:
        DataError: If a sentence has no token.
        ValueError: If the window has no room for a token of each sentence.
    """
    least = tokenizer.num_special_tokens_to_add(pair=True) + 2
    if window < least:
        raise ArgumentError("window", f"expected at least {least} for this tokenizer, got {window}.")
    ids, special, segments, lengths = [], [], [], []
    for first in range(0, len(pairs), _CHUNK):
        some = slice(first, first + _CHUNK)
        encoded = tokenizer(
            list(pairs.premises[some]),
            list(pairs.hypotheses[some]),
            truncation="longest_first",
            max_length=window,
            return_special_tokens_mask=True,
            return_token_type_ids=True,
        )
        for row, tokens in enumerate(encoded["input_ids"]):
            lengths.append(len(tokens))
            if missing := {0, 1} - {*encoded.sequence_ids(row)}:
                name = ("premise", "hypothesis")[min(missing)]
                raise DataError(f"pair {first + row}: {name}: expected at least one token, got none.")
        ids.append(_flat(encoded["input_ids"], torch.int32))
        special.append(_flat(encoded["special_tokens_mask"], torch.bool))
        segments.append(_flat(encoded["token_type_ids"], torch.uint8))
    return PairSplit(
        tokens=torch.cat(ids),
        special=torch.cat(special),
        segments=torch.cat(segments) if "token_type_ids" in tokenizer.model_input_names else None,
        ends=torch.tensor(lengths).cumsum(0),
        targets=torch.tensor(list(pairs.labels), dtype=torch.int64),
        pad_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0,
    )


def _flat(rows: list[list[int]], dtype: torch.dtype) -> Tensor:
    return torch.tensor([value for row in rows for value in row], dtype=dtype)
