"""``diabat explain``: explain a decoder over a text or a classifier over sentences, or show learned couplings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diabat.checks import ArgumentError
from diabat.cli import arguments
from diabat.cli.output import print_figure, print_json, print_table, require_writable, say

if TYPE_CHECKING:
    from diabat.lab.models.explanation import DecoderExplanation
    from diabat.lab.models.learned_couplings import LearnedCouplings

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
        for name, value, unset in (
            ("position", position, None),
            ("top", top, _TOP),
            ("at_least", at_least, 0),
        ):
            if value != unset:
                raise ArgumentError(name, f"cannot be combined with --couplings, got {value}.")
        _explain_couplings(run, texts, layer, head, figure, trust, as_json)
        return
    if text is None:
        raise ArgumentError("text", "a text or sentences, or --couplings without one", "neither")
    if chosen(read_config(stored, trust=True))["task"] == "pairs":
        for name, value in {"position": position, "layer": layer}.items():
            if value is not None:
                expected = "none for sentences, whose pooling has one query in one layer"
                raise ArgumentError(name, expected, value)
        _explain_sentences(run, texts, head, top, at_least, figure, trust, as_json)
        return
    from diabat.lab.models.figures import plot_decoder
    from diabat.lab.runs import explain_decoder_run

    found = explain_decoder_run(run, text, more or (), position=position, trust=trust)
    layers, heads = found.attention.shape[:2]
    layer, head = _index("layer", layer, layers), _index("head", head, heads)
    if figure is not None:
        plot_decoder(found, figure, layer=layer, head=head, at_least=at_least)
    if as_json:
        print_json({**vars(found), "effective": found.effective})
        return
    _print_decoder(found, layer, head, top, at_least)
    print_figure(figure)


def _explain_couplings(
    run: Path,
    more: list[str],
    layer: int | None,
    head: int | None,
    figure: Path | None,
    trust: bool,
    as_json: bool,
) -> None:
    """Show learned couplings; ``more`` are further runs, then overrides."""
    from diabat.lab.models.learned_couplings import PANEL, coupling_panels
    from diabat.lab.runs import learned_couplings
    from diabat.plots import lines

    runs, overrides = _split(more)
    found = learned_couplings(run, *runs, overrides=overrides, trust=trust)
    layers, heads = found.couplings.shape[1:3]
    layer, head = _index("layer", layer, layers), _index("head", head, heads)
    if figure is not None:
        lines([coupling_panels(found, layer=layer, head=head)], figure, size=PANEL, shared=False)
    if as_json:
        print_json({**vars(found), "by_distance": [vars(row) for row in found.by_distance(layer, head)]})
        return
    _print_couplings(found, layer, head)
    print_figure(figure)


def _print_couplings(found: LearnedCouplings, layer: int | None, head: int | None) -> None:
    """Print J at each distance, of one layer and head or, for None, of all."""
    from diabat.report import formatted

    runs = len(found.couplings)
    chosen = {"layer": layer, "head": head}
    which = ", ".join(f"all {name}s" if i is None else f"{name} {i}" for name, i in chosen.items())
    say(f"Attention {found.attention}{f', {runs} runs' if runs > 1 else ''}\n")
    columns = ["|j - k|", "pairs", "mean J", "σ of pairs", "σ of runs", "J < 0", "largest |J|"]
    rows = [
        [str(row.distance), str(row.pairs), formatted(row.mean, "+.4f"), formatted(row.deviation_of_pairs, ".4f"),
         formatted(row.deviation_of_runs, ".4f"), f"{row.negative:.0%}", formatted(row.largest, ".4f")]
        for row in found.by_distance(layer, head)
    ]  # fmt: skip
    print_table(f"Learned J by distance, {which}", columns, rows)


def _explain_sentences(
    run: Path,
    texts: list[str],
    head: int | None,
    top: int,
    at_least: float,
    figure: Path | None,
    trust: bool,
    as_json: bool,
) -> None:
    """Explain a classifier; the texts are its sentences, then overrides."""
    from diabat.cli.explain_pair import print_pair
    from diabat.lab.models.figures import plot_pair
    from diabat.lab.runs import explain_pair_run

    sentences, overrides = _split(texts[1:])
    found = explain_pair_run(run, texts[0], *sentences, overrides=overrides, trust=trust)
    head = _index("head", head, len(found.alpha))
    if figure is not None:
        plot_pair(found, figure, head=head, at_least=at_least)
    if as_json:
        print_json(vars(found))
        return
    print_pair(found, head, top, at_least)
    print_figure(figure)


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
        strongest = explanation.strongest(top, layer, head, at_least)
        J = [explanation.coupling(j, k, layer, head) for j, k, _ in strongest]
        _print_correlations(explanation, [*zip(strongest, J, strict=True)], at_least, which)
    rows = []
    numbers = (selected(values, layer, head) for values in (explanation.entropy, explanation.effective))
    for i, (expected, entropy, effective) in enumerate(zip(explanation.targets, *numbers, strict=True)):
        place = None if expected is None else explanation.classes.index(expected)
        chance = "" if place is None else formatted(float(explanation.probabilities[i, place]), ".4f")
        seen, H = str(int(explanation.visible[i])), formatted(float(entropy), ".4f")
        rows.append((str(i), tokens[i], H, f"{effective:.2f}", seen, likely[i], chance))
    columns = ["position", "token", "entropy", "effective", "of", "predicted", "P(expected)"]
    title = f"Entropy of the weights in nats and effective positions, {which}; predictions"
    print_table(title, columns, rows)


def _print_correlations(
    explanation: DecoderExplanation,
    found: list[tuple[tuple[int, int, float], float | None]],
    at_least: float,
    which: str,
) -> None:
    from diabat.lab.models.figures import shown
    from diabat.report import formatted

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
        rows.append([*named, f"{C:+#.3g}", "together" if C > 0 else "one or the other", formatted(J, "+.4f")])
    columns = ("position", "token", "and position", "and token", "C_jk", "attended", "J_jk")
    title = f"Strongest connected correlations of position {explanation.position}, {which}"
    print_table(title, columns, rows)
    if explanation.num_reads is not None:
        say(
            f"Estimated from {explanation.num_reads} reads; the standard error of a correlation is about "
            f"{explanation.num_reads**-0.5:.2g} in each layer and head if they are independent.\n"
        )
