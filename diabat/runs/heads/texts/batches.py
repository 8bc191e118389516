"""Texts as padded batches of Hugging Face."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from diabat.attention.heads.interaction.targets import IGNORED
from diabat.checks import check_count
from diabat.runs.heads.texts.token_texts import TokenText


def batches_of(texts: Sequence[TokenText], batch_size: int) -> list[dict[str, Tensor]]:
    """Batches of so many texts each, padded on the right: ``input_ids``, ``attention_mask`` and ``labels``, [B, T]."""
    check_count("batch_size", batch_size)
    return [_padded(texts[start : start + batch_size]) for start in range(0, len(texts), batch_size)]


def _padded(texts: Sequence[TokenText]) -> dict[str, Tensor]:
    width = max(len(text.tokens) for text in texts)

    def rows(values: Sequence[Sequence[int]], padding: int) -> Tensor:
        return torch.tensor([[*row, *[padding] * (width - len(row))] for row in values])

    return {
        "input_ids": rows([text.tokens for text in texts], 0),
        "attention_mask": rows([[1] * len(text.tokens) for text in texts], 0),
        "labels": rows([text.labels for text in texts], IGNORED),
    }
