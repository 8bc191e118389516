"""Explanations of a decoder over one text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from diabat.attention.correlations import query_moments, reason_without_correlations
from diabat.attention.coupled import recording
from diabat.attention.evaluating import evaluating
from diabat.checks import ArgumentError, is_integer
from diabat.compute.memory import require_memory
from diabat.lab.models.base import check_symbols
from diabat.lab.models.transformer import Transformer


@dataclass(frozen=True, eq=False)
class DecoderExplanation:
    """Attention and predictions over one text; n tokens, L layers, H heads, C classes.

    Attributes:
        mode: Mode of the attention.
        sampler: Name of the backend; None if the mode uses none.
        tokens: The tokens of the text, n of them.
        classes: Names of the classes, C of them.
        position: Position q of the query whose correlations are reported.
        attention: Normalised weight of key j for query i, [L, H, n, n]; rows sum to 1.
        entropy: -Σ_j w_ij log w_ij of the weights of each query in nats, [L, H, n].
        visible: Number of keys that each query sees, int64 [n].
        probabilities: Probability of each class at each position, [n, C].
        targets: Class that the task expects at each position, n of them; None where it expects none or the text ends.
        coupled: Positions of the coupled keys that the query sees, ascending, m of them; empty without correlations.
        alpha: P(s_j = +1) of these keys for the query, [L, H, m]; None without correlations.
        correlations: C_jk = <s_j s_k> - <s_j><s_k> of these keys, symmetric, 1 - <s_j>² on the diagonal,
            [L, H, m, m]; None without correlations.
        couplings: J_jk between these keys, likewise; None also in modes without J.
        without_correlations: One sentence on why there are none; None if there are.
        num_reads: Number of reads that the correlations are estimated from, None if they are computed without reads.
    """

    mode: str
    sampler: str | None
    tokens: tuple[str, ...]
    classes: tuple[str, ...]
    position: int
    attention: Tensor
    entropy: Tensor
    visible: Tensor
    probabilities: Tensor
    targets: tuple[str | None, ...]
    coupled: tuple[int, ...]
    alpha: Tensor | None
    correlations: Tensor | None
    couplings: Tensor | None
    without_correlations: str | None
    num_reads: int | None

    @property
    def effective(self) -> Tensor:
        """Effective number of positions that a query attends to, exp(entropy), [L, H, n]."""
        return self.entropy.exp()

    def most_probable(self, position: int, count: int) -> list[tuple[str, float]]:
        """Names and probabilities of the most probable classes at a position, at most ``count``."""
        chances, classes = self.probabilities[position].topk(min(count, len(self.classes)))
        return [
            (self.classes[c], chance) for c, chance in zip(classes.tolist(), chances.tolist(), strict=True)
        ]

    def strongest(
        self, count: int, layer: int | None = None, head: int | None = None, at_least: float = 0.0
    ) -> list[tuple[int, int, float]]:
        """:func:`strongest` correlations (j, k, C_jk); ``layer`` or ``head`` None takes the mean over them."""
        if self.correlations is None:
            return []
        return strongest(selected(self.correlations, layer, head), self.coupled, count, at_least)

    def coupling(self, j: int, k: int, layer: int | None = None, head: int | None = None) -> float | None:
        """J between two coupled positions, likewise; None without J."""
        if self.couplings is None:
            return None
        return float(selected(self.couplings, layer, head)[self.coupled.index(j), self.coupled.index(k)])


def selected(values: Tensor, *indices: int | None) -> Tensor:
    """One layer, head, ... of the first dimensions of a tensor; None takes the mean over one."""
    for index in indices:
        values = values.mean(0) if index is None else values[index]
    return values


def strongest(
    matrix: Tensor, places: Sequence[int], count: int, at_least: float
) -> list[tuple[int, int, float]]:
    """Places j < k of the largest |values| of a symmetric matrix that are >= ``at_least`` and not 0, with them."""
    j, k = torch.triu_indices(len(matrix), len(matrix), 1)
    values = matrix[j, k]
    order = values.abs().argsort(descending=True, stable=True)[:count].tolist()
    pairs = [(places[j[i]], places[k[i]], float(values[i])) for i in order]
    return [pair for pair in pairs if pair[2] and abs(pair[2]) >= at_least]


@torch.no_grad()
def explain_decoder(
    model: Transformer,
    symbols: Tensor,
    tokens: Sequence[str],
    classes: Sequence[str],
    *,
    targets: Sequence[str | None] | None = None,
    position: int | None = None,
) -> DecoderExplanation:
    """Explain a decoder over one text, symbols int64 [n]; the training mode of the model is unchanged.

    Reads are drawn from torch's global generator: the weights are those of a forward pass from the same state.
    ``position`` is that of the query whose correlations are computed, None for the last one; ``targets`` are the
    classes that are expected.  ValueError if the text is longer than the context, or does not have this position.
    """
    position = _checked_position(model, symbols, position)
    length, layers = len(symbols), model.attention_layers()
    with evaluating(model), recording(layers):
        x, maps = model.embedded(symbols[None].to(next(model.parameters()).device)), []
        for block in model.all_blocks():
            attended, weights = block.attention(block.attention_norm(x), need_weights=True)
            maps.append(weights[0])
            x = block.added(x, attended)
        attention, logits = torch.stack(maps), model.logits(x)[0]
        reason = reason_without_correlations(layers[0])
        of_query = [] if reason is not None else [query_moments(layer, position) for layer in layers]
    visible, first = torch.arange(1, length + 1), layers[0]
    if not first.causal:
        visible = torch.full((length,), length)
    elif first.relative and first.far == "none":
        visible = visible.clamp(max=first.window)

    def stacked(of_layers: list[Tensor]) -> Tensor | None:
        return torch.stack(of_layers).float().cpu() if of_layers else None

    return DecoderExplanation(
        mode=model.options.mode,
        sampler=layers[0].sampler.name if layers[0].mode not in ("softmax", "h", "J") else None,
        tokens=tuple(tokens),
        classes=tuple(classes),
        position=position,
        attention=attention.float().cpu(),
        entropy=torch.special.entr(attention.double()).sum(-1).float().cpu(),
        visible=visible,
        probabilities=logits.float().softmax(-1).cpu(),
        targets=(None,) * length if targets is None else tuple(targets),
        coupled=tuple(of_query[0].positions.tolist()) if of_query else (),
        alpha=stacked([moments.probability for moments in of_query]),
        correlations=stacked([moments.correlations for moments in of_query]),
        couplings=stacked([moments.couplings for moments in of_query if moments.couplings is not None]),
        without_correlations=reason,
        num_reads=of_query[0].num_reads if of_query else None,
    )


def _checked_position(model: Transformer, symbols: Tensor, position: int | None) -> int:
    """Position of the query, if the text fits the model and memory."""
    check_symbols("symbols", symbols, "[n]")
    length, longest = len(symbols), model.longest
    if longest is not None and length > longest:
        raise ArgumentError("text", f"at most {longest} tokens, the context of the model", length)
    position = length - 1 if position is None else position
    if not is_integer(position) or not 0 <= position < length:
        raise ArgumentError("position", f"a position of the text in 0 .. {length - 1}", f"{position!r}")
    # The maps of one layer are made in several copies.
    maps = (model.options.num_layers + 8) * model.options.num_heads * length**2
    require_memory(8 * maps, f"attention maps of {length} tokens", "text")
    return position
