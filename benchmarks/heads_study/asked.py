"""What a calibration does to the answers of a decoder: accuracy and log-odds, before and after."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from itertools import combinations
from math import comb
from typing import Any

import torch
from torch import Tensor

from benchmarks.heads_study.decoder import CHOICES, HEADS, Questions
from diabat.attention.heads import Calibration
from diabat.huggingface import disable_gac, enable_gac

Groups = Mapping[int, Collection[int]]
"""The players of some layers that are not calibrated; players are heads."""


class Asked:
    """Questions to a decoder; the blocks below the first that is calibrated are run once.

    Args:
        model: The decoder.
        questions: One entry for each length.
        first: The first layer that calibrations name.
    """

    def __init__(self, model: Any, questions: list[Questions], first: int = 0) -> None:
        self._questions = questions
        self._states = []
        with torch.no_grad():
            for part in questions:
                found = model(part.tokens, use_cache=False, output_hidden_states=True, logits_to_keep=1)
                self._states.append(found.hidden_states[first])
        # The same modules and configuration, with fewer blocks.
        self._model, inner = copy.copy(model), copy.copy(model.model)
        inner._modules = {**model.model._modules, "layers": model.model.layers[first:]}
        self._model._modules = {**model._modules, "model": inner}

    @torch.no_grad()
    def answers(self, calibration: Calibration | None = None) -> tuple[Tensor, Tensor]:
        """Whether each answer is right, bool [N], and the log-odds v = z_y - logsumexp(others), float64 [N]."""
        if calibration is not None:
            enable_gac(self._model, calibration)
        try:
            parts = [
                self._part(part, states) for part, states in zip(self._questions, self._states, strict=True)
            ]
        finally:
            disable_gac(self._model)
        right, odds = zip(*parts, strict=True)
        return torch.cat(right), torch.cat(odds)

    def _part(self, part: Questions, states: Tensor) -> tuple[Tensor, Tensor]:
        choices = list(CHOICES[part.task])
        found = self._model(inputs_embeds=states, logits_to_keep=1, use_cache=False)
        logits = found.logits[:, -1, choices].double()
        label = part.labels[:, None]
        others = logits.scatter(1, label, -torch.inf).logsumexp(-1)
        return logits.argmax(-1) == part.labels, logits.gather(1, label)[:, 0] - others


def compared(before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor]) -> dict[str, float]:
    """Means after, and the mean of the paired differences with its standard error; accuracies in percent."""
    row: dict[str, float] = {}
    for name, scale, old, new in zip(("accuracy", "v"), (100.0, 1.0), before, after, strict=True):
        difference = scale * (new.double() - old.double())
        row |= {
            name: scale * float(new.double().mean()),
            f"{name} change": float(difference.mean()),
            f"{name} error": float(difference.std()) / len(difference) ** 0.5,
        }
    return row


def random_groups(salient: Groups, count: int, seed: int) -> list[dict[int, tuple[int, ...]]]:
    """Different groups of as many players in each layer, none of them the salient one.

    Returns:
        ``count`` groups, or all there are.
    """
    sizes = {layer: len(players) for layer, players in salient.items()}
    room = 1
    for size in sizes.values():
        room *= comb(HEADS, size)
    if room - 1 <= count:
        (layer, size), *others = sizes.items()
        if others:
            raise ValueError(f"expected groups of one layer, got {room} groups of {len(sizes)} layers.")
        every = [{layer: group} for group in combinations(range(HEADS), size)]
        return [group for group in every if set(group[layer]) != set(salient[layer])]
    generator = torch.Generator().manual_seed(seed)
    found: list[dict[int, tuple[int, ...]]] = []
    while len(found) < count:
        drawn = {
            layer: tuple(sorted(torch.randperm(HEADS, generator=generator)[:size].tolist()))
            for layer, size in sizes.items()
        }
        if drawn not in found and any(set(drawn[layer]) != set(salient[layer]) for layer in drawn):
            found.append(drawn)
    return found
