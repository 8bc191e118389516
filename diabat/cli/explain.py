"""``diabat explain``: explain a trained classifier for a pair of sentences, or a trained decoder over a text."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from diabat.checks import ArgumentError, escaped
from diabat.cli import arguments
from diabat.cli.output import print_figure, print_json, print_table, require_writable, say

if TYPE_CHECKING:
    from diabat.models.explanation import DecoderExplanation, PairExplanation

NAMED = 0.1
"""Default of the smallest |J_ij|/γ that is named: such a coupling alone makes a correlation of tanh(0.1), 0.1."""

_NEXT = 3
"""Most probable classes that are listed for each position."""

_KINDS = {
    "pairs": (2, "two texts, premise and hypothesis, for a run of a classifier of sentence pairs"),
    "sequences": (1, "one text in quotation marks for a run of a decoder"),
}
"""Number of texts of a model, and what they are."""

WordsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="TEXT",
        help="Two sentences for a classifier, one text for a decoder; then overrides of the run.",
    ),
]
PositionOption = Annotated[
    int | None, typer.Option(min=0, help="Position of the query of a decoder; default the last one.")
]
LayerOption = Annotated[
    int | None, typer.Option(min=0, help="Show this layer of a decoder instead of the mean over layers.")
]
HeadOption = Annotated[int | None, typer.Option(min=0, help="Show this head instead of the mean over heads.")]
TopOption = Annotated[int, typer.Option(min=0, help="Interactions, keys and correlations listed at most.")]
SizeOption = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        help=f"Smallest |J_ij|/γ of a pair that is named (default {NAMED}); of a decoder smallest |C_jk| "
        "(default 0).",
    ),
]


def explain_prediction(
    run: arguments.RunArgument,
    text: WordsArgument,
    position: PositionOption = None,
    layer: LayerOption = None,
    head: HeadOption = None,
    top: TopOption = 8,
    at_least: SizeOption = None,
    figure: arguments.FigureOption = None,
    trust: arguments.TrustOption = False,
    as_json: arguments.JsonOption = False,
) -> None:
    """Explain the prediction of a trained classifier for two sentences, or a trained decoder over a text.

    Of a classifier: weights, Shapley values and interactions of tokens.  They are estimates from random coalitions:
    repeat with another training.seed, or with more model.eval_coalitions, to see how far they can be trusted.  The
    prediction is that of the same coalitions.

    Of a decoder: the attention of one query and the connected correlations of its spins; for every position the
    entropy of the weights, the effective number of positions, and what is predicted.
    """
    from diabat.config.loading import find_run

    find_run(run)  # refuses a mistake before torch is imported
    from diabat.models.figures import plot_decoder, plot_explanation
    from diabat.runs import examples_of_run, explain_decoder_run, explain_run

    kind = examples_of_run(run)
    count, what = _KINDS[kind]
    texts, overrides = text[:count], text[count:]
    more = [word for word in overrides if "=" not in word]
    if len(texts) < count or more:
        raise ArgumentError("text", f"expected {what}, got {len(texts) + len(more)}.")
    require_writable(figure)
    if kind == "sequences":
        decoder = explain_decoder_run(run, texts[0], overrides, position=position, trust=trust)
        layers, heads = decoder.attention.shape[:2]
        layer, head, at_least = _index("layer", layer, layers), _index("head", head, heads), at_least or 0.0
        document = {**vars(decoder), "effective": decoder.effective}
        plot = partial(plot_decoder, decoder, layer=layer, head=head, at_least=at_least)
        show = partial(_print_decoder, decoder, layer, head, top, at_least)
    else:
        for name, value in {"position": position, "layer": layer}.items():
            if value is not None:
                raise ArgumentError(name, "expected a run of a decoder, got a run of a classifier.")
        pair = explain_run(run, texts[0], texts[1], overrides, trust=trust)
        at_least = NAMED if at_least is None else at_least
        if head is not None:
            _index("head", head, len(pair.alpha))
        document = {"predicted": pair.predicted, **vars(pair)}
        plot = partial(plot_explanation, pair, head=head, at_least=at_least)
        show = partial(_print_pair, pair, head, top, at_least)
    if figure is not None:
        plot(path=figure)
    if as_json:
        print_json(document)
        return
    show()
    print_figure(figure)


def _index(name: str, index: int | None, count: int) -> int | None:
    """Check the index of a layer or head; the only one needs none."""
    if index is not None and index >= count:
        raise ArgumentError(name, f"expected a {name} in 0 .. {count - 1}, got {index}.")
    return 0 if count == 1 else index


def _print_pair(explanation: PairExplanation, head: int | None, top: int, at_least: float) -> None:
    from diabat.models.explanation import selected
    from diabat.studies.report import formatted

    chances = ", ".join(f"{escaped(name)} {chance:.3f}" for name, chance in explanation.probabilities.items())
    say(f"Predicted: {escaped(explanation.predicted)} ({chances})")
    for name, value in explanation.facts.items():
        values = value if isinstance(value, list) else [value]
        parts = (f"{v:.4g}" if isinstance(v, float) else str(v) for v in values)
        say(f"{name.replace('_', ' ')}: {', '.join(parts)}")
    say()
    quantities = {
        "α" if explanation.fields is not None else "weight": explanation.alpha,
        "J_i": explanation.fields,
        "φ": explanation.shapley,
        "β": explanation.banzhaf,
        "λ": explanation.gate,
    }
    there = {name: selected(value, head) for name, value in quantities.items() if value is not None}
    named = list(zip(explanation.tokens, explanation.sides, strict=True))
    rows = [
        (*names, *(formatted(float(value[i]), ".4f") for value in there.values()))
        for i, names in enumerate(named)
    ]
    which = "mean over heads" if head is None else f"head {head}"
    print_table(f"Tokens, {explanation.pooling} pooling, {which}", ("token", "side", *there), rows)
    if explanation.interactions is None or not top:
        return
    strongest = explanation.strongest(top, head, at_least)
    found = [(*named[i], *named[j], formatted(J, "+.4f"), _signed(J)) for i, j, J in strongest]
    if found:
        columns = ("token", "side", "and token", "of side", "J/γ", "active")
        print_table(f"Strongest interactions, |J_ij|/γ of at least {at_least:g}", columns, found)
    else:
        say(f"No interaction with |J_ij|/γ of at least {at_least:g}.")


def _print_decoder(
    explanation: DecoderExplanation, layer: int | None, head: int | None, top: int, at_least: float
) -> None:
    """Print attention, correlations and predictions, of one layer and head or, for None, the mean over them."""
    from diabat.models.explanation import selected
    from diabat.models.figures import shown
    from diabat.studies.report import formatted

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
        rows = [(str(j), tokens[j], formatted(float(weights[j]), ".4f"), chances.get(j, "")) for j in order]
        print_table(f"Attention of position {q}, {which}", columns, [row[: len(columns)] for row in rows])
        strongest = explanation.strongest(top, layer, head, at_least)
        J = [explanation.coupling(j, k, layer, head) for j, k, _ in strongest]
        _print_correlations(explanation, [*zip(strongest, J, strict=True)], at_least, which)
    numbers = [
        selected(values, layer, head).tolist() for values in (explanation.entropy, explanation.effective)
    ]
    _print_positions(explanation, tokens, likely, numbers, which)


def _print_positions(
    explanation: DecoderExplanation,
    tokens: list[str],
    likely: list[str],
    numbers: list[list[float]],
    which: str,
) -> None:
    from diabat.studies.report import formatted

    entropy, effective = numbers
    rows = []
    for i, expected in enumerate(explanation.targets):
        place = None if expected is None else explanation.classes.index(expected)
        chance = "" if place is None else formatted(float(explanation.probabilities[i, place]), ".4f")
        seen = str(int(explanation.visible[i]))
        rows.append(
            (str(i), tokens[i], formatted(entropy[i], ".4f"), f"{effective[i]:.2f}", seen, likely[i], chance)
        )
    columns = ("position", "token", "entropy", "effective", "of", "predicted", "P(expected)")
    title = f"Entropy of the weights in nats and effective positions, {which}; predictions"
    print_table(title, columns, rows)


def _signed(correlation: float) -> str:
    return "together" if correlation > 0 else "one or the other"


def _print_correlations(
    explanation: DecoderExplanation,
    found: list[tuple[tuple[int, int, float], float | None]],
    at_least: float,
    which: str,
) -> None:
    from diabat.models.figures import shown
    from diabat.studies.report import formatted

    if explanation.without_correlations is not None:
        say(f"{explanation.without_correlations}\n")
        return
    if not found:
        none = f"No pair with |C_jk| {f'>= {at_least:g}' if at_least else '> 0'}."
        say(f"{'The query has only one spin.' if len(explanation.coupled) < 2 else none}\n")
        return
    rows = []
    for (*pair, C), J in found:
        named = [text for i in pair for text in (str(i), shown(explanation.tokens[i]))]
        rows.append([*named, f"{C:+#.3g}", _signed(C), formatted(J, "+.4f")])
    columns = ("position", "token", "and position", "and token", "C_jk", "attended", "J_jk")
    title = f"Strongest connected correlations of position {explanation.position}, {which}"
    print_table(title, columns, rows)
    if explanation.num_reads is not None:
        say(
            f"Estimated from {explanation.num_reads} reads; the standard error of a correlation is about "
            f"{explanation.num_reads**-0.5:.2g} in each layer and head if they are independent.\n"
        )
