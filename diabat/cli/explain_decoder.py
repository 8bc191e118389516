"""``diabat explain`` for trained decoders: tables and figure of one text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from diabat.checks import ArgumentError
from diabat.cli.arguments import as_overrides
from diabat.cli.evaluate import naming_data
from diabat.cli.failures import naming
from diabat.cli.output import print_json, print_table

if TYPE_CHECKING:
    from diabat.models.decoder_explanation import DecoderExplanation

_NEXT = 3
"""Most probable classes that are listed for each position."""


def explain_text(
    run: Path,
    text: str,
    *,
    position: int | None,
    layer: int | None,
    head: int | None,
    top: int,
    at_least: float,
    seed: int | None,
    data: Path | None,
    figure: Path | None,
    trust: bool,
    as_json: bool,
) -> None:
    """Explain a decoder over a text, and print or draw it; the arguments are those of the command."""
    from diabat.config.errors import ConfigError
    from diabat.models.figures import plot_decoder
    from diabat.runs import explain_decoder_run

    with naming_data(data), naming({"position": "--position", "text": "TEXT"}, ConfigError):
        explanation = explain_decoder_run(
            run, text, as_overrides({"task.data": data}), position=position, seed=seed, trust=trust
        )
    layers, heads = explanation.attention.shape[:2]
    layer, head = _chosen("layer", layer, layers), _chosen("head", head, heads)
    if figure is not None:
        plot_decoder(explanation, figure, layer=layer, head=head, at_least=at_least)
    if as_json:
        print_json({**vars(explanation), "effective": explanation.effective})
        return
    _print(explanation, layer, head, top, at_least)
    if figure is not None:
        typer.echo(f"Figure: {figure}")


def _chosen(name: str, index: int | None, count: int) -> int | None:
    """Check the index of a layer or head; the only one needs none."""
    if index is not None and index >= count:
        raise ArgumentError(f"--{name}", f"expected a {name} in 0 .. {count - 1}, got {index}.")
    return 0 if count == 1 else index


def _print(
    explanation: DecoderExplanation, layer: int | None, head: int | None, top: int, at_least: float
) -> None:
    q = explanation.position
    sampler = "" if explanation.sampler is None else f", sampler {explanation.sampler}"
    typer.echo(f"Mode {explanation.mode}{sampler}")
    typer.echo(f"Predicted at position {q} ({_token(explanation, q)}): {_classes(explanation, q)}")
    typer.echo()
    which = _which(layer, head)
    if top:
        _print_weights(explanation, layer, head, top, which)
        _print_correlations(explanation, layer, head, top, at_least, which)
    _print_positions(explanation, layer, head, which)


def _which(layer: int | None, head: int | None) -> str:
    """Which layers and heads the numbers of a table are of."""
    if layer is None and head is None:
        return "mean over layers and heads"
    if layer is None:
        return f"head {head}, mean over layers"
    return f"layer {layer}, {'mean over heads' if head is None else f'head {head}'}"


def _print_weights(
    explanation: DecoderExplanation, layer: int | None, head: int | None, top: int, which: str
) -> None:
    from diabat.models.explanation import selected
    from diabat.studies.report import formatted

    weights = selected(explanation.attention, layer, head)[explanation.position]
    order = weights.argsort(descending=True, stable=True)[:top].tolist()
    rows = [
        [str(j), _token(explanation, j), formatted(float(weights[j]), ".4f")] for j in order if weights[j] > 0
    ]
    columns = ["position", "token", "weight"]
    if explanation.alpha is not None:
        alpha = selected(explanation.alpha, layer, head).tolist()
        known = dict(zip(explanation.coupled, alpha, strict=True))
        columns.append("P(s = +1)")
        for row in rows:
            chance = known.get(int(row[0]))
            row.append("" if chance is None else formatted(chance, ".4f"))
    print_table(
        f"Attention of position {explanation.position}, {which}",
        columns,
        rows,
        right=["position", *columns[2:]],
    )


def _print_correlations(
    explanation: DecoderExplanation,
    layer: int | None,
    head: int | None,
    top: int,
    at_least: float,
    which: str,
) -> None:
    if explanation.without_correlations is not None:
        typer.echo(f"{explanation.without_correlations}\n")
        return
    found = explanation.strongest(top, layer, head, at_least)
    if not found:
        if len(explanation.coupled) < 2:
            typer.echo("The query has only one spin.\n")
        else:
            typer.echo(f"No pair with |C_jk| {f'>= {at_least:g}' if at_least else '> 0'}.\n")
        return
    rows = [
        (
            str(j),
            _token(explanation, j),
            str(k),
            _token(explanation, k),
            f"{C:+#.3g}",
            "together" if C > 0 else "one or the other",
        )
        for j, k, C in found
    ]
    columns = ("position", "token", "and position", "and token", "C_jk", "attended")
    title = f"Strongest connected correlations of position {explanation.position}, {which}"
    print_table(title, columns, rows, right=["position", "and position", "C_jk"])
    if explanation.num_reads is not None:
        error = explanation.num_reads**-0.5
        typer.echo(
            f"Estimated from {explanation.num_reads} reads; the standard error of a correlation is about "
            f"{error:.2g} in each layer and head if they are independent.\n"
        )


def _print_positions(
    explanation: DecoderExplanation, layer: int | None, head: int | None, which: str
) -> None:
    from diabat.models.explanation import selected
    from diabat.studies.report import formatted

    entropy = selected(explanation.entropy, layer, head).tolist()
    effective = selected(explanation.effective, layer, head).tolist()
    index = {name: number for number, name in enumerate(explanation.classes)}
    rows = []
    for i, expected in enumerate(explanation.targets):
        chance = (
            "" if expected is None else formatted(float(explanation.probabilities[i, index[expected]]), ".4f")
        )
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
