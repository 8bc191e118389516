"""Explanation of a pair classifier token by token: weights, fields and interactions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from diabat.attention.neurogame import NeuroGameAttention
from diabat.attention.pooling import BoltzmannPooling
from diabat.checks import ArgumentError
from diabat.models.pairs import PairClassifier, full_precision
from diabat.tasks.nli_files import Pairs
from diabat.tasks.nli_tokens import tokenize_pairs


@dataclass(frozen=True, eq=False)
class PairExplanation:
    """Prediction and token quantities of one pair; n tokens of the pooling, H heads.

    Attributes:
        pooling: Name of the pooling.
        tokens: The tokens that take part in the pooling, n of them.
        sides: ``premise``, ``hypothesis`` or ``special``, n of them.
        probabilities: Probability of each class by its name.
        facts: Further numbers by name: expected number of active tokens, temperature, convergence, coalitions.
        alpha: α_i = P(s_i = +1) if the pooling has an Ising model, otherwise its weights, which sum to 1; [H, n].
        fields: Fields on the spins, before the division by the temperature; [H, n] or None.
        interactions: Couplings likewise; symmetric, [H, n, n] or None.
        shapley: φ_i of the value game, before normalisation, [H, n] or None.
        banzhaf: β_i, likewise.
        gate: λ_i, the share of φ in J_i, [H, n] or None.
    """

    pooling: str
    tokens: tuple[str, ...]
    sides: tuple[str, ...]
    probabilities: dict[str, float]
    facts: dict[str, Any]
    alpha: Tensor
    fields: Tensor | None = None
    interactions: Tensor | None = None
    shapley: Tensor | None = None
    banzhaf: Tensor | None = None
    gate: Tensor | None = None

    @property
    def predicted(self) -> str:
        """Name of the most probable class."""
        return max(self.probabilities, key=lambda name: self.probabilities[name])

    @property
    def strengths(self) -> Tensor | None:
        """J_ij/γ of each head, the couplings of the law, [H, n, n]; γ = 1 where the pooling has none."""
        if self.interactions is None:
            return None
        gamma = torch.as_tensor(self.facts.get("temperature", 1.0), dtype=self.interactions.dtype)
        return self.interactions / gamma.reshape(-1, 1, 1)

    def strongest(
        self, count: int, head: int | None = None, at_least: float = 0.0
    ) -> list[tuple[int, int, float]]:
        """Pairs i < j of tokens with |J_ij|/γ >= ``at_least``, strongest first, at most ``count``.

        Returns:
            (i, j, J_ij/γ) of a head; None takes the mean over heads.
        """
        strengths = self.strengths
        return [] if strengths is None else strongest_pairs(selected(strengths, head), count, at_least)


def selected(values: Tensor, *indices: int | None) -> Tensor:
    """One layer, head, ... of the first dimensions of a tensor; None takes the mean over one."""
    for index in indices:
        values = values.mean(0) if index is None else values[index]
    return values


def strongest_pairs(values: Tensor, count: int, at_least: float) -> list[tuple[int, int, float]]:
    """Pairs i < j of a symmetric matrix with the largest absolute value, strongest first, no zeros."""
    i, j = torch.triu_indices(len(values), len(values), 1)
    order = values[i, j].abs().argsort(descending=True, stable=True)[:count].tolist()
    found = [(int(i[k]), int(j[k]), float(values[i[k], j[k]])) for k in order]
    return [pair for pair in found if pair[2] and abs(pair[2]) >= at_least]


@torch.no_grad()
def explain_pair(
    model: PairClassifier, tokenizer: Any, premise: str, hypothesis: str, classes: Sequence[str]
) -> PairExplanation:
    """Explain the prediction for one pair; the training mode of the model is unchanged.

    Coalitions and reads are drawn from torch's global generator, and are the same for prediction and explanation.

    Args:
        model: The classifier.
        tokenizer: Its tokenizer.
        premise: First sentence.
        hypothesis: Second sentence.
        classes: Names of the classes.

    Raises:
        ValueError: If a sentence is empty.
    """
    for name, sentence in (("premise", premise), ("hypothesis", hypothesis)):
        if not sentence.strip():
            raise ArgumentError(name, "expected a sentence, got an empty one.")
    device = next(model.parameters()).device
    split = tokenize_pairs(tokenizer, Pairs([premise], [hypothesis], [0]), model.window).to(device)
    batch, _ = split.batch(torch.zeros(1, dtype=torch.int64, device=device))
    was_training = model.training
    model.eval()
    states, mask = model.encode(batch), model.mask(batch)
    state = torch.get_rng_state()
    chances = model.classify(states, mask)[0].softmax(-1).tolist()
    torch.set_rng_state(state)
    with full_precision(states):
        of_tokens, facts = _quantities(model, states, mask)
    model.train(was_training)
    kept = (~mask[0]).nonzero()[:, 0]
    encoded = tokenizer(premise, hypothesis, truncation="longest_first", max_length=model.window)
    tokens = tokenizer.convert_ids_to_tokens(encoded["input_ids"])
    sides = [("premise", "hypothesis", "special")[2 if s is None else s] for s in encoded.sequence_ids(0)]
    return PairExplanation(
        pooling=model.options.pooling,
        tokens=tuple(tokens[i] for i in kept.tolist()),
        sides=tuple(sides[i] for i in kept.tolist()),
        probabilities=dict(zip(classes, chances, strict=True)),
        facts=facts,
        # [H, T] or [H, T, T] of the tokens that take part
        **{
            k: (v[:, kept] if v.ndim == 2 else v[:, kept][..., kept]).float().cpu()
            for k, v in of_tokens.items()
        },
    )


def _quantities(
    model: PairClassifier, states: Tensor, mask: Tensor
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What the pooling provides: for tokens, [H, T] or [H, T, T], and further numbers by name."""
    pooling = model.pooling
    if isinstance(pooling, NeuroGameAttention):
        found = pooling.explain(states, mask)
        of_tokens = {name: getattr(found, name)[0] for name in ("alpha", "fields", "interactions", "gate")}
        of_tokens |= {"shapley": found.shapley.value[0], "banzhaf": found.banzhaf.value[0]}
        facts = {
            "expected_active": found.expected_active[0].tolist(), "temperature": found.temperature.tolist(),
            "residual": found.residual[0].tolist(), "coalitions": found.num_coalitions,
            "weighting": pooling.weighting, "seed": found.seed,
        }  # fmt: skip
        return of_tokens, facts | {k: v for k, v in found.info.items() if k in ("converged", "iterations")}
    if isinstance(pooling, BoltzmannPooling):
        alpha = pooling.probabilities(states, mask)[0]
        h, J = pooling.last_fields_and_couplings()
        assert J is not None
        facts = {"expected_active": alpha.sum(-1).tolist()}
        return {"alpha": alpha, "fields": h[0], "interactions": J}, facts
    return {"alpha": pooling.weights(states, mask)[0]}, {}
