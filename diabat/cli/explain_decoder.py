"""``diabat explain`` for trained decoders: the tables of one text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from diabat.cli.output import print_table

if TYPE_CHECKING:
    from diabat.models.explanation import DecoderExplanation

_NEXT = 3
"""Most probable classes that are listed for each position."""


def print_decoder(
    explanation: DecoderExplanation, layer: int | None, head: int | None, top: int, at_least: float
) -> None:
    """Print attention, correlations and predictions, of one layer and head or, for None, the mean over them."""
    q = explanation.position
    sampler = "" if explanation.sampler is None else f", sampler {explanation.sampler}"
    typer.echo(f"Mode {explanation.mode}{sampler}")
    typer.echo(f"Predicted at position {q} ({_token(explanation, q)}): {_classes(explanation, q)}\n")
    heads = "mean over heads" if head is None else f"head {head}"
    which = f"layer {layer}, {heads}"
    if layer is None:
        which = "mean over layers and heads" if head is None else f"{heads}, mean over layers"
    if top:
        _print_weights(explanation, layer, head, top, which)
        if explanation.without_correlations is not None:
            typer.echo(f"{explanation.without_correlations}\n")
        else:
            found = explanation.strongest(top, layer, head, at_least)
            _print_correlations(explanation, found, at_least, which)
    _print_positions(explanation, layer, head, which)


def _print_weights(
    explanation: DecoderExplanation, layer: int | None, head: int | None, top: int, which: str
) -> None:
    from diabat.models.explanation import selected
    from diabat.studies.report import formatted

    weights = selected(explanation.attention, layer, head)[explanation.position]
    columns, chances = ["position", "token", "weight"], {}
    if explanation.alpha is not None:
        columns.append("P(s = +1)")
        alpha = selected(explanation.alpha, layer, head).tolist()
        chances = {j: formatted(P, ".4f") for j, P in zip(explanation.coupled, alpha, strict=True)}
    rows = [
        [str(j), _token(explanation, j), formatted(float(weights[j]), ".4f"), chances.get(j, "")]
        for j in weights.argsort(descending=True, stable=True)[:top].tolist()
        if weights[j] > 0
    ]
    title = f"Attention of position {explanation.position}, {which}"
    print_table(title, columns, [row[: len(columns)] for row in rows])


def _print_correlations(
    explanation: DecoderExplanation, found: list[tuple[int, int, float]], at_least: float, which: str
) -> None:
    if not found:
        none = f"No pair with |C_jk| {f'>= {at_least:g}' if at_least else '> 0'}."
        typer.echo(f"{'The query has only one spin.' if len(explanation.coupled) < 2 else none}\n")
        return
    rows = [
        (str(j), _token(explanation, j), str(k), _token(explanation, k), f"{C:+#.3g}",
         "together" if C > 0 else "one or the other")
        for j, k, C in found
    ]  # fmt: skip
    columns = ("position", "token", "and position", "and token", "C_jk", "attended")
    print_table(
        f"Strongest connected correlations of position {explanation.position}, {which}", columns, rows
    )
    if explanation.num_reads is not None:
        typer.echo(
            f"Estimated from {explanation.num_reads} reads; the standard error of a correlation is about "
            f"{explanation.num_reads**-0.5:.2g} in each layer and head if they are independent.\n"
        )


def _print_positions(
    explanation: DecoderExplanation, layer: int | None, head: int | None, which: str
) -> None:
    from diabat.models.explanation import selected
    from diabat.studies.report import formatted

    entropy, effective = (
        selected(values, layer, head).tolist() for values in (explanation.entropy, explanation.effective)
    )
    rows = []
    for i, expected in enumerate(explanation.targets):
        place = None if expected is None else explanation.classes.index(expected)
        chance = "" if place is None else formatted(float(explanation.probabilities[i, place]), ".4f")
        numbers = formatted(entropy[i], ".4f"), f"{effective[i]:.2f}", str(int(explanation.visible[i]))
        rows.append((str(i), _token(explanation, i), *numbers, _classes(explanation, i), chance))
    columns = ("position", "token", "entropy", "effective", "of", "predicted", "P(expected)")
    title = f"Entropy of the weights in nats and effective positions, {which}; predictions"
    print_table(title, columns, rows)


def _token(explanation: DecoderExplanation, position: int) -> str:
    from diabat.models.figures import shown

    return shown(explanation.tokens[position])


def _classes(explanation: DecoderExplanation, position: int) -> str:
    from diabat.models.figures import shown

    found = explanation.most_probable(position, _NEXT)
    return ", ".join(f"{shown(name)} {chance:.3f}" for name, chance in found)
