"""``diabat explain``: explain a decoder over a text or a classifier over sentences, or show learned couplings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diabat.checks import ArgumentError
from diabat.cli import arguments
from diabat.cli.output import print_figure, print_json, print_table, require_writable, say

if TYPE_CHECKING:
    from diabat.lab.models.explanation import DecoderExplanation
    from diabat.lab.models.learned_couplings import LearnedCouplings
    from diabat.lab.models.pair_explanation import PairExplanation

_NEXT, _TOP = 3, 8
"""Most probable classes that are listed for each position; keys and correlations that are."""

TextArgument = Annotated[
    str | None,
    typer.Argument(help="A text or the first sentence, in quotation marks; with --couplings none."),
]
SecondArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[SECOND] [KEY=VALUE]...", help="The second sentence, and dotted overrides."),
]
CouplingsOption = Annotated[
    bool,
    typer.Option(
        "--couplings", help="Show the learned J by distance, of this run and others that follow it."
    ),
]
PositionOption = Annotated[
    int | None, typer.Option(min=0, help="Position of the query; default the last one.")
]
LayerOption = Annotated[
    int | None, typer.Option(min=0, help="Show this layer instead of the mean over layers, or of all.")
]
HeadOption = Annotated[
    int | None, typer.Option(min=0, help="Show this head instead of the mean over heads, or of all.")
]
TopOption = Annotated[int, typer.Option(min=0, help="Keys and correlations listed at most.")]
SizeOption = Annotated[float, typer.Option(min=0.0, help="Smallest |C_jk| of a pair that is named.")]


def explain_prediction(
    run: arguments.RunArgument,
    text: TextArgument = None,
    more: SecondArgument = None,
    couplings: CouplingsOption = False,
    position: PositionOption = None,
    layer: LayerOption = None,
    head: HeadOption = None,
    top: TopOption = _TOP,
    at_least: SizeOption = 0.0,
    figure: arguments.FigureOption = None,
    trust: arguments.TrustOption = False,
    as_json: arguments.JsonOption = False,
) -> None:
    """Explain a trained decoder over a text, or a classifier over one or two sentences.

    Of sentences shown are the prediction, and what the pooling makes of each token: weight, field, indices and gate of
    the game, and the strongest couplings.

    Of a text shown are the attention of one query and the connected correlations of its spins.  For every position
    there are the entropy of the weights, the effective number of positions, and what is predicted.

    With --couplings shown is J against the distance of two keys, in place of a text: mean, standard deviations over
    pairs and runs, and the share of negative J.
    """
    from diabat.lab.config.keys import chosen
    from diabat.lab.config.loading import find_run, read_config

    stored = find_run(run)  # refuses a mistake before torch is imported
    require_writable(figure)
    texts = [*([] if text is None else [text]), *(more or ())]
    if couplings:
        options = (("position", position, None), ("top", top, _TOP), ("at_least", at_least, 0))
        for name, value, unset in options:
            if value != unset:
                raise ArgumentError(name, f"cannot be combined with --couplings, got {value}.")
        draw, document, tell = _couplings(run, texts, layer, head, trust)
    elif not texts:
        raise ArgumentError("text", "a text or sentences, or --couplings without one", "neither")
    elif chosen(read_config(stored, trust=True))["task"] == "pairs":
        for name, index in {"position": position, "layer": layer}.items():
            if index is not None:
                expected = "none for sentences, whose pooling has one query in one layer"
                raise ArgumentError(name, expected, index)
        draw, document, tell = _sentences(run, texts, head, top, at_least, trust)
    else:
        draw, document, tell = _decoder(run, texts, position, layer, head, top, at_least, trust)
    if figure is not None:
        draw(figure)
    if as_json:
        print_json(document)
    else:
        tell()
        print_figure(figure)


Explained = tuple[Callable[[Path], object], dict[str, Any], Callable[[], None]]
"""What draws the figure, what --json prints, and what prints the tables."""


def _couplings(run: Path, more: list[str], layer: int | None, head: int | None, trust: bool) -> Explained:
    """Learned couplings; ``more`` are further runs, then overrides."""
    from diabat.lab.models.learned_couplings import PANEL, coupling_panels
    from diabat.lab.runs import learned_couplings
    from diabat.plots import lines

    runs, overrides = _split(more)
    learned = learned_couplings(run, *runs, overrides=overrides, trust=trust)
    layers, heads = learned.couplings.shape[1:3]
    layer, head = _index("layer", layer, layers), _index("head", head, heads)
    document = {**vars(learned), "by_distance": [vars(row) for row in learned.by_distance(layer, head)]}
    panels = coupling_panels(learned, layer=layer, head=head)
    draw = partial(lines, [panels], size=PANEL, shared=False)
    return draw, document, partial(_print_couplings, learned, layer, head)


def _sentences(
    run: Path, texts: list[str], head: int | None, top: int, at_least: float, trust: bool
) -> Explained:
    """A classifier; the texts are its sentences, then overrides."""
    from diabat.lab.models.figures import plot_pair
    from diabat.lab.runs import explain_pair_run

    sentences, overrides = _split(texts[1:])
    explanation = explain_pair_run(run, texts[0], *sentences, overrides=overrides, trust=trust)
    head = _index("head", head, len(explanation.alpha))
    draw = partial(plot_pair, explanation, head=head, at_least=at_least)
    return draw, vars(explanation), partial(_print_pair, explanation, head, top, at_least)


def _decoder(
    run: Path, texts: list[str], position: int | None, layer: int | None, head: int | None, top: int,
    at_least: float, trust: bool,
) -> Explained:  # fmt: skip
    """A decoder over the first text; the others are overrides."""
    from diabat.lab.models.figures import plot_decoder
    from diabat.lab.runs import explain_decoder_run

    explanation = explain_decoder_run(run, texts[0], texts[1:], position=position, trust=trust)
    layers, heads = explanation.attention.shape[:2]
    layer, head = _index("layer", layer, layers), _index("head", head, heads)
    draw = partial(plot_decoder, explanation, layer=layer, head=head, at_least=at_least)
    document = {**vars(explanation), "effective": explanation.effective}
    return draw, document, partial(_print_decoder, explanation, layer, head, top, at_least)


def _split(texts: list[str]) -> tuple[list[str], list[str]]:
    """What stands before the first override, and all from it on."""
    from diabat.documents.overrides import is_override

    count = next((i for i, text in enumerate(texts) if is_override(text)), len(texts))
    return texts[:count], texts[count:]


def _index(name: str, index: int | None, count: int) -> int | None:
    """Check the index of a layer or head; the only one needs none."""
    if index is not None and index >= count:
        raise ArgumentError(name, f"a {name} in 0 .. {count - 1}", index)
    return 0 if count == 1 else index


def _print_couplings(learned: LearnedCouplings, layer: int | None, head: int | None) -> None:
    """Print J at each distance, of one layer and head or, for None, of all."""
    from diabat.report import formatted

    runs = len(learned.couplings)
    chosen = {"layer": layer, "head": head}
    which = ", ".join(f"all {name}s" if i is None else f"{name} {i}" for name, i in chosen.items())
    say(f"Attention {learned.attention}{f', {runs} runs' if runs > 1 else ''}\n")
    columns = ["|j - k|", "pairs", "mean J", "σ of pairs", "σ of runs", "J < 0", "largest |J|"]
    rows = [
        [str(row.distance), str(row.pairs), formatted(row.mean, "+.4f"), formatted(row.deviation_of_pairs, ".4f"),
         formatted(row.deviation_of_runs, ".4f"), f"{row.negative:.0%}", formatted(row.largest, ".4f")]
        for row in learned.by_distance(layer, head)
    ]  # fmt: skip
    print_table(f"Learned J by distance, {which}", columns, rows)


def _print_decoder(
    explanation: DecoderExplanation, layer: int | None, head: int | None, top: int, at_least: float
) -> None:
    """Print attention, correlations and predictions, of one layer and head or, for None, the mean over them."""
    from diabat.lab.models.explanation import selected
    from diabat.lab.models.figures import shown
    from diabat.report import formatted

    q, tokens = explanation.position, [shown(token) for token in explanation.tokens]
    likely = [
        ", ".join(f"{shown(name)} {chance:.3f}" for name, chance in explanation.most_probable(i, _NEXT))
        for i in range(len(tokens))
    ]
    heads = "mean over heads" if head is None else f"head {head}"
    which = f"layer {layer}, {heads}"
    if layer is None:
        which = "mean over layers and heads" if head is None else f"{heads}, mean over layers"
    sampler = "" if explanation.sampler is None else f", sampler {explanation.sampler}"
    say(f"Mode {explanation.mode}{sampler}")
    say(f"Predicted at position {q} ({tokens[q]}): {likely[q]}\n")
    if top:
        weights, chances = selected(explanation.attention, layer, head)[q], {}
        columns = ["position", "token", "weight"]
        if explanation.alpha is not None:
            columns.append("P(s = +1)")
            alpha = selected(explanation.alpha, layer, head).tolist()
            chances = {j: formatted(P, ".4f") for j, P in zip(explanation.coupled, alpha, strict=True)}
        order = [j for j in weights.argsort(descending=True, stable=True)[:top].tolist() if weights[j] > 0]
        cells = [(str(j), tokens[j], formatted(float(weights[j]), ".4f"), chances.get(j, "")) for j in order]
        print_table(f"Attention of position {q}, {which}", columns, [row[: len(columns)] for row in cells])
        _print_correlations(explanation, layer, head, top, at_least, which)
    rows = []
    numbers = (selected(values, layer, head) for values in (explanation.entropy, explanation.effective))
    for i, (expected, entropy, effective) in enumerate(zip(explanation.targets, *numbers, strict=True)):
        place = None if expected is None else explanation.classes.index(expected)
        chance = "" if place is None else formatted(float(explanation.probabilities[i, place]), ".4f")
        keys, H = str(int(explanation.visible[i])), formatted(float(entropy), ".4f")
        rows.append((str(i), tokens[i], H, f"{effective:.2f}", keys, likely[i], chance))
    columns = ["position", "token", "entropy", "effective", "of", "predicted", "P(expected)"]
    title = f"Entropy of the weights in nats and effective positions, {which}; predictions"
    print_table(title, columns, rows)


def _print_correlations(
    explanation: DecoderExplanation,
    layer: int | None,
    head: int | None,
    top: int,
    at_least: float,
    which: str,
) -> None:
    from diabat.lab.models.figures import shown
    from diabat.report import formatted

    pairs = explanation.strongest(top, layer, head, at_least)
    if not pairs:
        none = f"No pair with |C_jk| {f'>= {at_least:g}' if at_least else '> 0'}."
        alone = "The query has only one spin." if len(explanation.coupled) < 2 else none
        say(f"{explanation.without_correlations or alone}\n")
        return
    J = [(formatted(explanation.coupling(j, k, layer, head), "+.4f"),) for j, k, _ in pairs]
    rows = [row + last for row, last in zip(_pairs(pairs, [*map(shown, explanation.tokens)]), J, strict=True)]
    columns = ("position", "token", "and position", "and token", "C_jk", "attended", "J_jk")
    print_table(
        f"Strongest connected correlations of position {explanation.position}, {which}", columns, rows
    )
    if (reads := explanation.num_reads) is not None:
        error = f"the standard error of a correlation is about {reads**-0.5:.2g} in each layer and head"
        say(f"Estimated from {reads} reads; {error} if they are independent.\n")


def _pairs(pairs: list[tuple[int, int, float]], tokens: Sequence[str]) -> list[tuple[str, ...]]:
    """Rows of pairs: positions and tokens, the number, and what its sign means."""
    return [
        (str(j), tokens[j], str(k), tokens[k], f"{x:+#.3g}", "together" if x > 0 else "one or the other")
        for j, k, x in pairs
    ]


def _print_pair(explanation: PairExplanation, head: int | None, top: int, at_least: float) -> None:
    """Print prediction, tokens and the strongest couplings, of one head or, for None, the mean over heads."""
    from diabat.lab.models.explanation import selected
    from diabat.report import formatted

    tokens, which = explanation.tokens, "mean over heads" if head is None else f"head {head}"
    sampler = "" if explanation.sampler is None else f", sampler {explanation.sampler}"
    chances = explanation.probabilities
    order = chances.argsort(descending=True, stable=True).tolist()
    predicted = ", ".join(f"{explanation.classes[c]} {float(chances[c]):.3f}" for c in order)
    say(f"Pooling {explanation.pooling}{sampler}")
    say(f"Predicted: {predicted}\n")
    alpha = {"P(s = +1)" if explanation.shapley is not None else "weight": explanation.alpha}
    game = {"φ": explanation.shapley, "β": explanation.banzhaf, "λ": explanation.gate}
    columns = {
        name: selected(values, head).tolist()
        for name, values in {**alpha, "h": explanation.fields, **game}.items()
        if values is not None
    }
    rows = [
        (str(i), token, *(formatted(values[i], ".4f") for values in columns.values()))
        for i, token in enumerate(tokens)
    ]
    print_table(f"Tokens, {which}", ("position", "token", *columns), rows)
    if explanation.couplings is not None and top:
        headings = ("position", "token", "and position", "and token", "J_ij", "favoured")
        cells = _pairs(explanation.strongest(top, head, at_least), tokens)
        print_table(f"Strongest couplings, {which}", headings, cells)
    if explanation.effective is not None:
        numbers = ", ".join(f"{number:.1f} for {name}" for name, number in explanation.effective.items())
        say(f"Estimated from K = {explanation.num_coalitions} coalitions; effective samples: {numbers}.")
