"""A decoder on batches of sequences of different lengths, padded on the left where that changes nothing."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from diabat.attention.heads.attention import Switch
from diabat.attention.heads.decoder import find_decoder, forward_logits, greedy, padding_token
from diabat.attention.heads.pretrained import pretrained_model
from diabat.attention.heads.values import Request
from diabat.checks import ArgumentError


class Batches:
    """Logits and greedy texts of batches; the model stays as it is, calibrated or not.

    Sequences are padded on the left, with a mask and with positions that count from the first token.  A model that
    takes no positions is given batches of one length.

    Args:
        model: A causal language model of transformers behind the AttentionInterface.

    Attributes:
        decoder: Its blocks and attention.

    Raises:
        UnsupportedError: If the model is no such decoder.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.decoder = find_decoder(Switch(model))
        self._positions = "position_ids" in inspect.signature(pretrained_model(model).forward).parameters
        self._checked = False

    def changed(self) -> None:
        """Note that the calibration of the model changed: padding is checked anew."""
        self._checked = False

    @torch.no_grad()
    def logits(self, requests: Sequence[Request]) -> list[Tensor]:
        """Logits of requests (tokens [T], positions [K]), each [1, K, vocabulary]; all of them are one batch.

        Raises:
            ArgumentError: If the model gives other logits with padding than without; this is checked once.
        """
        found: list[Tensor | None] = [None] * len(requests)
        for group in self._groups([len(tokens) for tokens, _ in requests]):
            for place, logits in zip(group, self._batch([requests[i] for i in group]), strict=True):
                found[place] = logits
        return [logits for logits in found if logits is not None]

    @torch.no_grad()
    def generate(self, prompts: Sequence[Tensor], max_new_tokens: int) -> list[Tensor]:
        """Tokens [<= max_new_tokens] that are written greedily behind prompts [T]; all of them are one batch."""
        found: list[Tensor | None] = [None] * len(prompts)
        for group in self._groups([len(tokens) for tokens in prompts]):
            rows, mask = self._padded([prompts[i] for i in group])
            written = greedy(self.model, rows, mask, max_new_tokens)
            for place, tokens in zip(group, written, strict=True):
                found[place] = tokens
        return [tokens for tokens in found if tokens is not None]

    def _groups(self, lengths: list[int]) -> list[list[int]]:
        """Places of the sequences that run together."""
        if self._positions:
            return [list(range(len(lengths)))]
        places = sorted(range(len(lengths)), key=lengths.__getitem__)
        return [list(group) for _, group in groupby(places, lengths.__getitem__)]

    def _batch(self, requests: list[Request]) -> list[Tensor]:
        rows, mask = self._padded([tokens for tokens, _ in requests])
        width = rows.shape[1]
        # From the right: that is where the sequences end together.
        places = [keep % len(tokens) + width - len(tokens) for tokens, keep in requests]
        union = torch.unique(torch.cat(places))
        padded = bool((mask == 0).any())
        logits = self._forward(rows, union, mask if padded else None)
        found = [
            logits[i : i + 1, torch.searchsorted(union, place).to(logits.device)]
            for i, place in enumerate(places)
        ]
        if padded and not self._checked:
            shortest = int(mask.sum(-1).argmin())
            self._check(requests[shortest], found[shortest])
        return found

    def _check(self, request: Request, padded: Tensor) -> None:
        tokens, keep = request
        alone = self._forward(tokens[None], keep, None)
        # Rounding leaves 1e-5; half precision, a few hundredths.
        allowed = 1e-3 if alone.dtype.itemsize >= 4 else 0.1
        error = float((alone - padded).abs().max())
        if error > allowed * max(1.0, float(alone.abs().max())):
            raise ArgumentError(
                "batch_size",
                f"expected 1 for {type(self.model).__name__}, got more: padding changes its logits by {error:.2g}.",
            )
        self._checked = True

    def _forward(self, rows: Tensor, keep: Tensor, mask: Tensor | None) -> Tensor:
        return forward_logits(self.model, self.decoder.head, rows, keep, mask)

    def _padded(self, sequences: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Tokens [B, T] and their mask, 0 where padded."""
        width = max(map(len, sequences))
        rows = torch.full((len(sequences), width), padding_token(self.model))
        mask = torch.zeros_like(rows)
        for row, there, tokens in zip(rows, mask, sequences, strict=True):
            row[width - len(tokens) :] = tokens
            there[width - len(tokens) :] = 1
        return rows, mask
