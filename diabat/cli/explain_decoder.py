"""``diabat explain`` for trained decoders: the tables of one text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from diabat.cli.output import print_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from diabat.models.explanation import DecoderExplanation

    Pick = Callable[[Tensor], Tensor]  # takes the layer and the head of values, or the mean over them

_NEXT = 3
"""Most probable classes that are listed for each position."""


def print_decoder(
    explanation: DecoderExplanation, layer: int | None, head: int | None, top: int, at_least: float
) -> None:
    """Print attention, correlations and predictions, of one layer and head or, for None, the mean over them."""
    from diabat.models.explanation import selected

    q = explanation.position
    sampler = "" if explanation.sampler is None else f", sampler {explanation.sampler}"
    typer.echo(f"Mode {explanation.mode}{sampler}")
    typer.echo(f"Predicted at position {q} ({_token(explanation, q)}): {_classes(explanation, q)}")
    typer.echo()
    heads = "mean over heads" if head is None else f"head {head}"
    which = f"layer {layer}, {heads}"
    if layer is None:
        which = "mean over layers and heads" if head is None else f"{heads}, mean over layers"

    def pick(values: Tensor) -> Tensor:
        return selected(values, layer, head)

    if top:
        _print_weights(explanation, pick, top, which)
        if explanation.without_correlations is not None:
            typer.echo(f"{explanation.without_correlations}\n")
        else:
            found = explanation.strongest(top, layer, head, at_least)
            _print_correlations(explanation, found, at_least, which)
    _print_positions(explanation, pick, which)


def _print_weights(explanation: DecoderExplanation, pick: Pick, top: int, which: str) -> None:
    from diabat.studies.report import formatted

    weights = pick(explanation.attention)[explanation.position]
    order = [j for j in weights.argsort(descending=True, stable=True)[:top].tolist() if weights[j] > 0]
    rows = [[str(j), _token(explanation, j), formatted(float(weights[j]), ".4f")] for j in order]
    columns = ["position", "token", "weight"]
    if explanation.alpha is not None:
        alpha = pick(explanation.alpha).tolist()
        chances = {j: formatted(P, ".4f") for j, P in zip(explanation.coupled, alpha, strict=True)}
        columns.append("P(s = +1)")
        rows = [[*row, chances.get(j, "")] for j, row in zip(order, rows, strict=True)]
    title = f"Attention of position {explanation.position}, {which}"
    print_table(title, columns, rows, right=["position", *columns[2:]])


def _print_correlations(
    explanation: DecoderExplanation, found: list[tuple[int, int, float]], at_least: float, which: str
) -> None:
    rows = [
        (str(j), _token(explanation, j), str(k), _token(explanation, k), f"{C:+#.3g}",
         "together" if C > 0 else "one or the other")
        for j, k, C in found
    ]  # fmt: skip
    if not rows:
        none = f"No pair with |C_jk| {f'>= {at_least:g}' if at_least else '> 0'}."
        typer.echo(f"{'The query has only one spin.' if len(explanation.coupled) < 2 else none}\n")
        return
    columns = ("position", "token", "and position", "and token", "C_jk", "attended")
    title = f"Strongest connected correlations of position {explanation.position}, {which}"
    print_table(title, columns, rows, right=["position", "and position", "C_jk"])
    if explanation.num_reads is not None:
        typer.echo(
            f"Estimated from {explanation.num_reads} reads; the standard error of a correlation is about "
            f"{explanation.num_reads**-0.5:.2g} in each layer and head if they are independent.\n"
        )


def _print_positions(explanation: DecoderExplanation, pick: Pick, which: str) -> None:
    from diabat.studies.report import formatted

    entropy, effective = pick(explanation.entropy).tolist(), pick(explanation.effective).tolist()
    index = {name: number for number, name in enumerate(explanation.classes)}
    rows = []
    for i, expected in enumerate(explanation.targets):
        right = None if expected is None else float(explanation.probabilities[i, index[expected]])
        chance = "" if right is None else formatted(right, ".4f")
        numbers = formatted(entropy[i], ".4f"), f"{effective[i]:.2f}", str(int(explanation.visible[i]))
        rows.append((str(i), _token(explanation, i), *numbers, _classes(explanation, i), chance))
    columns = ("position", "token", "entropy", "effective", "of", "predicted", "P(expected)")
    title = f"Entropy of the weights in nats and effective positions, {which}; predictions"
    print_table(title, columns, rows, right=["position", *columns[2:5], columns[6]])


def _token(explanation: DecoderExplanation, position: int) -> str:
    from diabat.models.figures import shown

    return shown(explanation.tokens[position])


def _classes(explanation: DecoderExplanation, position: int) -> str:
    from diabat.models.figures import shown

    found = explanation.most_probable(position, _NEXT)
    return ", ".join(f"{shown(name)} {chance:.3f}" for name, chance in found)
