"""What ``diabat explain`` prints of a classifier of sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diabat.cli.output import print_table, say

if TYPE_CHECKING:
    from diabat.lab.models.pair_explanation import PairExplanation


def print_pair(explanation: PairExplanation, head: int | None, top: int, at_least: float) -> None:
    """Print prediction, tokens and the strongest couplings, of one head or, for None, the mean over heads."""
    from diabat.report import formatted

    tokens, game = explanation.tokens, explanation.shapley is not None
    which = "mean over heads" if head is None else f"head {head}"
    sampler = "" if explanation.sampler is None else f", sampler {explanation.sampler}"
    chances, order = (
        explanation.probabilities,
        explanation.probabilities.argsort(descending=True, stable=True),
    )
    predicted = ", ".join(f"{explanation.classes[c]} {float(chances[c]):.3f}" for c in order.tolist())
    say(f"Pooling {explanation.pooling}{sampler}")
    say(f"Predicted: {predicted}\n")
    columns = {
        "P(s = +1)" if game else "weight": explanation.alpha,
        "h": explanation.fields,
        "φ": explanation.shapley,
        "β": explanation.banzhaf,
        "λ": explanation.gate,
    }
    shown = {
        name: (values.mean(0) if head is None else values[head]).tolist()
        for name, values in columns.items()
        if values is not None
    }
    rows = [
        (str(i), token, *(formatted(values[i], ".4f") for values in shown.values()))
        for i, token in enumerate(tokens)
    ]
    print_table(f"Tokens, {which}", ("position", "token", *shown), rows)
    if explanation.couplings is not None and top:
        pairs = explanation.strongest(top, head, at_least)
        cells = [
            (str(i), tokens[i], str(j), tokens[j], f"{J:+#.3g}", "together" if J > 0 else "one or the other")
            for i, j, J in pairs
        ]
        columns_of_pairs = ("position", "token", "and position", "and token", "J_ij", "favoured")
        print_table(f"Strongest couplings, {which}", columns_of_pairs, cells)
    if explanation.effective is not None:
        numbers = ", ".join(f"{number:.1f} for {name}" for name, number in explanation.effective.items())
        say(f"Estimated from K = {explanation.num_coalitions} coalitions; effective samples: {numbers}.")
