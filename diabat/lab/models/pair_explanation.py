"""The explanation of a classifier of sentences: its prediction, and what its pooling makes of each token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from diabat.attention.coupled import recording
from diabat.attention.evaluating import evaluating
from diabat.attention.neurogame import NeuroGameAttention, token_ising
from diabat.checks import ArgumentError
from diabat.lab.models.explanation import selected, strongest
from diabat.lab.models.pairs import PairClassifier


@dataclass(frozen=True, eq=False)
class PairExplanation:
    """Prediction and pooling of one sequence; n tokens, H heads, C classes.  The mean has one head.

    Attributes:
        pooling: The pooling, with its mode.
        sampler: Name of the backend; None if the pooling uses none.
        tokens: Words and separator, n of them; [UNK] for a word that was not in the training set.
        classes: Names of the classes, C of them.
        probabilities: Of each class, [C].
        alpha: P(s_i = +1) of ``neurogame``, normalised weights of the others, [H, n].
        fields: h_i of P(s) ∝ exp( Σ h s + Σ J s s ), [H, n]; None without a law.
        couplings: J_ij, symmetric, 0 on the diagonal, [H, n, n]; None without a law, or if the mode has none.
        shapley: φ_i before normalisation, [H, n]; this and all below are None but for ``neurogame``.
        banzhaf: β_i, [H, n].
        gate: λ_i, the share of φ in the field, [H, n].
        temperature: γ of each head, [H].
        effective: Mean effective numbers of samples of ``shapley``, ``banzhaf`` and ``pairs``.
        num_coalitions: K.
    """

    pooling: str
    sampler: str | None
    tokens: tuple[str, ...]
    classes: tuple[str, ...]
    probabilities: Tensor
    alpha: Tensor
    fields: Tensor | None = None
    couplings: Tensor | None = None
    shapley: Tensor | None = None
    banzhaf: Tensor | None = None
    gate: Tensor | None = None
    temperature: Tensor | None = None
    effective: Mapping[str, float] | None = None
    num_coalitions: int | None = None

    def strongest(
        self, count: int, head: int | None = None, at_least: float = 0.0
    ) -> list[tuple[int, int, float]]:
        """:func:`~diabat.lab.models.explanation.strongest` couplings; ``head`` None takes the mean over heads."""
        if self.couplings is None:
            return []
        return strongest(selected(self.couplings, head), range(len(self.tokens)), count, at_least)


@torch.no_grad()
def explain_pair(
    model: PairClassifier, symbols: Tensor, tokens: Sequence[str], classes: Sequence[str]
) -> PairExplanation:
    """Explain a classifier over one sequence, symbols int64 [n] (else ValueError); its training mode is unchanged.

    Coalitions and reads are drawn as in a forward pass of the model from the same state of torch's generator.
    """
    if symbols.ndim != 1:
        raise ArgumentError("symbols", "int64 [n]", list(symbols.shape))
    options, pooling = model.options, model.pooling
    law: dict[str, Tensor] = {}
    with evaluating(model):
        x, padding = model.states(symbols[None].to(next(model.parameters()).device))
        if isinstance(pooling, NeuroGameAttention):
            pooled, why = pooling(x, padding, need_explanation=True)
            h, J = token_ising(why.fields, why.interactions, why.temperature)
            law = {"alpha": why.alpha, "fields": h, "couplings": J, "gate": why.gate}
            law |= {"shapley": why.shapley.value, "banzhaf": why.banzhaf.value}
        else:
            with recording(model.attention_layers()):
                pooled, law["alpha"] = pooling(x, padding), pooling.weights(x, padding)
                if options.pooling == "boltzmann":
                    problem = model.attention_layers()[0].last_problem()
                    law["fields"] = problem.fields[:, :, 0]
                    if problem.couplings is not None:
                        law["couplings"] = problem.couplings.flatten(0, -4)[None, :, 0]
        logits = model.classifier(pooled)[0]
    if "J" not in options.mode:
        law.pop("couplings", None)
    more: dict[str, Any] = {name: value[0].float().cpu() for name, value in law.items()}
    if isinstance(pooling, NeuroGameAttention):
        estimates = {"shapley": why.shapley, "banzhaf": why.banzhaf, "pairs": why.pairs}
        more |= {
            "temperature": why.temperature.float().cpu(),
            "effective": {name: float(e.effective_samples.mean()) for name, e in estimates.items()},
            "num_coalitions": why.num_coalitions,
        }
    return PairExplanation(
        pooling=options.described,
        sampler=model.attention_layers()[0].sampler.name if options.uses_sampler else None,
        tokens=tuple(tokens),
        classes=tuple(classes),
        probabilities=logits.float().softmax(-1).cpu(),
        **more,
    )
