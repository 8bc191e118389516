"""Explanation of a pair classifier token by token: weights, fields and interactions; and its figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from diabat.attention.neurogame import NeuroGameAttention
from diabat.attention.pooling import BoltzmannPooling
from diabat.checks import ArgumentError
from diabat.drawing import new_figure, save_figure
from diabat.models.pairs import PairClassifier, full_precision
from diabat.tasks.nli_files import Pairs
from diabat.tasks.nli_tokens import tokenize_pairs

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False)
class PairExplanation:
    """Prediction and token quantities of one pair; n tokens of the pooling, H heads.

    Attributes:
        pooling: Name of the pooling.
        tokens: The tokens that take part in the pooling, n of them.
        sides: ``premise``, ``hypothesis`` or ``special``, n of them.
        probabilities: Probability of each class by its name.
        alpha: α_i = P(s_i = +1) if the pooling has an Ising model, otherwise its weights, which sum to 1; [H, n].
        fields: Fields on the spins, before the division by the temperature; [H, n] or None.
        interactions: Couplings likewise; symmetric, [H, n, n] or None.
        shapley: φ_i of the value game, before normalisation, [H, n] or None.
        banzhaf: β_i, likewise.
        gate: λ_i, the share of φ in J_i, [H, n] or None.
        facts: Further numbers by name: expected number of active tokens, temperature, convergence, coalitions.
    """

    pooling: str
    tokens: tuple[str, ...]
    sides: tuple[str, ...]
    probabilities: dict[str, float]
    alpha: Tensor
    fields: Tensor | None
    interactions: Tensor | None
    shapley: Tensor | None
    banzhaf: Tensor | None
    gate: Tensor | None
    facts: dict[str, Any]

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
        """Pairs i < j of tokens with the largest |J_ij|/γ, as (i, j, J_ij/γ), strongest first.

        Args:
            count: Pairs at most.
            head: Head, or None for the mean over heads.
            at_least: Smallest |J_ij|/γ.
        """
        if self.strengths is None:
            return []
        J = of_head(self.strengths, head)
        i, j = torch.triu_indices(len(J), len(J), 1)
        order = J[i, j].abs().argsort(descending=True, stable=True)[:count]
        found = [(int(i[k]), int(j[k]), float(J[i[k], j[k]])) for k in order]
        return [pair for pair in found if abs(pair[2]) >= at_least]


def of_head(values: Tensor, head: int | None) -> Tensor:
    """One head of [H, ...], or the mean over heads if ``head`` is None."""
    return values.mean(0) if head is None else values[head]


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
    quantities = dict.fromkeys(("fields", "interactions", "shapley", "banzhaf", "gate"))
    return PairExplanation(
        pooling=model.options.pooling,
        tokens=tuple(tokens[i] for i in kept.tolist()),
        sides=tuple(sides[i] for i in kept.tolist()),
        probabilities=dict(zip(classes, chances, strict=True)),
        **{**quantities, **{name: _restricted(value, kept) for name, value in of_tokens.items()}},  # type: ignore[arg-type]
        facts=facts,
    )


def _restricted(values: Tensor, kept: Tensor) -> Tensor:
    """[H, T] or [H, T, T] of the tokens that take part, on the CPU."""
    chosen = values[:, kept] if values.ndim == 2 else values[:, kept][..., kept]
    return chosen.detach().float().cpu()


def _quantities(
    model: PairClassifier, states: Tensor, mask: Tensor
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What the pooling provides: for tokens, [H, T] or [H, T, T], and further numbers by name."""
    pooling = model.pooling
    if isinstance(pooling, NeuroGameAttention):
        found = pooling.explain(states, mask)
        of_tokens = {
            "alpha": found.alpha[0],
            "fields": found.fields[0],
            "interactions": found.interactions[0],
            "shapley": found.shapley.value[0],
            "banzhaf": found.banzhaf.value[0],
            "gate": found.gate[0],
        }
        facts = {
            "expected_active": found.expected_active[0].tolist(),
            "temperature": found.temperature.tolist(),
            "residual": found.residual[0].tolist(),
            "coalitions": found.num_coalitions,
            "weighting": pooling.weighting,
            "seed": found.seed,
        }
        return of_tokens, facts | {k: v for k, v in found.info.items() if k in ("converged", "iterations")}
    if isinstance(pooling, BoltzmannPooling):
        alpha = pooling.probabilities(states, mask)[0]
        h, J = pooling.last_fields_and_couplings()
        assert J is not None
        return {"alpha": alpha, "fields": h[0], "interactions": J}, {
            "expected_active": alpha.sum(-1).tolist()
        }
    return {"alpha": pooling.weights(states, mask)[0]}, {}


# Okabe and Ito's palette, told apart by colour-blind readers.
_COLOURS = {"premise": "#0072B2", "hypothesis": "#D55E00", "special": "#999999"}

_LEAST_RANGE = 0.5
"""The colours span at least ±0.5 in units of J_ij/γ, so that a model without interactions looks like one."""


def plot_explanation(
    explanation: PairExplanation,
    path: str | Path,
    *,
    head: int | None = None,
    at_least: float = 0.1,
    named: int = 4,
) -> Path:
    """Draw α as bars from its neutral value 1/2 and, if there are some, J_ij/γ as a heat map.

    Blue is negative, red positive.  Pairs with |J_ij|/γ of at least ``at_least`` are framed and named.  Weights that
    sum to 1 are bars from 0; their neutral value is 1/n.

    Args:
        explanation: The explanation.
        path: Output file; the suffix chooses the format (png, pdf, svg).
        head: Head, or None for the mean over heads.
        at_least: Smallest |J_ij|/γ of a named pair.
        named: Largest number of named pairs, strongest first.

    Returns:
        The path.
    """
    width = max(5.0, 1.8 + 0.3 * len(explanation.tokens))
    pairs = explanation.strengths is not None
    figure = new_figure(width, 2.8 + width if pairs else 3.0)
    ratios = [2.4, width] if pairs else [1.0]
    axes = figure.subplots(len(ratios), 1, squeeze=False, gridspec_kw={"height_ratios": ratios})[:, 0]
    _bars(axes[0], explanation, head)
    if explanation.strengths is not None:
        _heat_map(figure, axes[1], of_head(explanation.strengths, head).numpy(), explanation)
        _name_pairs(axes[1], explanation, explanation.strongest(named, head, at_least), at_least)
    chance = explanation.probabilities[explanation.predicted]
    which = "mean over heads" if head is None else f"head {head}"
    figure.suptitle(
        f"{explanation.predicted} ({chance:.0%}), {explanation.pooling} pooling, {which}", fontsize=11
    )
    return save_figure(figure, path)


def _bars(axis: Axes, explanation: PairExplanation, head: int | None) -> None:
    """Bars from the neutral value of a probability, 1/2, which is marked; of weights, 1/n is marked."""
    places = np.arange(len(explanation.tokens))
    alpha = of_head(explanation.alpha, head).numpy()
    probability = explanation.fields is not None
    base = 0.5 if probability else 0.0
    for side, colour in _COLOURS.items():
        chosen = [i for i, of in enumerate(explanation.sides) if of == side]
        if chosen:
            axis.bar(places[chosen], alpha[chosen] - base, bottom=base, color=colour, width=0.75, label=side)
    neutral = 0.5 if probability else 1 / len(places)
    axis.axhline(neutral, color="black", linewidth=1, label=f"neutral, 1/{'2' if probability else 'n'}")
    if probability:
        # If all values are near 1/2, a fixed axis shows that; a fitted one would magnify noise.
        axis.set_ylim(min(0.45, float(alpha.min()) - 0.02), max(0.55, float(alpha.max()) + 0.02))
    axis.set_ylabel("α = P(s = +1)" if probability else "weight")
    axis.set_xlim(-0.5, len(places) - 0.5)
    axis.set_xticks(places, explanation.tokens, rotation=90, fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8, ncols=4, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0)


def _heat_map(figure: Any, axis: Axes, J: Any, explanation: PairExplanation) -> None:
    largest = max(_LEAST_RANGE, float(np.abs(J).max()))
    image = axis.imshow(J, cmap="RdBu_r", vmin=-largest, vmax=largest)
    places = np.arange(len(explanation.tokens))
    axis.set_xticks(places, explanation.tokens, rotation=90, fontsize=8)
    axis.set_yticks(places, explanation.tokens, fontsize=8)
    figure.colorbar(image, ax=axis, label="coupling $J_{ij}/\\gamma$", shrink=0.8)


def _name_pairs(
    axis: Axes, explanation: PairExplanation, pairs: list[tuple[int, int, float]], at_least: float
) -> None:
    """Frame the pairs and name them below, with their smallest |J_ij|/γ."""
    from matplotlib.patches import Rectangle

    for i, j, _ in pairs:
        for row, column in ((i, j), (j, i)):
            axis.add_patch(
                Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="black", linewidth=1)
            )
    names = [f"{explanation.tokens[i]} and {explanation.tokens[j]} {J:+.2f}" for i, j, J in pairs]
    size = f"$|J_{{ij}}|/\\gamma$ of at least {at_least:g}"
    lines = [f"{size}:", *(", ".join(names[k : k + 2]) for k in range(0, len(names), 2))]
    axis.set_xlabel("\n".join(lines) if names else f"No pair has {size}.", fontsize=8)
