"""``diabat explain``: explain the prediction of a trained classifier for a pair of sentences."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diabat.checks import ArgumentError
from diabat.cli.arguments import JsonOption, RunArgument, TrustOption, as_overrides
from diabat.cli.failures import importing, naming
from diabat.cli.figures import require_writable
from diabat.cli.output import print_json, print_table

if TYPE_CHECKING:
    from diabat.models.explanation import PairExplanation

NAMED = 0.1
"""Default of the smallest |J_ij|/γ that is named: such a coupling alone makes a correlation of tanh(0.1), 0.1."""

PremiseArgument = Annotated[str, typer.Argument(metavar="PREMISE", help="First sentence.")]
HypothesisArgument = Annotated[str, typer.Argument(metavar="HYPOTHESIS", help="Second sentence.")]
HeadOption = Annotated[int | None, typer.Option(min=0, help="Show this head instead of the mean over heads.")]
TopOption = Annotated[int, typer.Option(min=0, help="Interactions that are listed at most.")]
SizeOption = Annotated[
    float, typer.Option("--at-least", min=0.0, help="Smallest |J_ij|/γ of a pair that is named.")
]
WeightingOption = Annotated[
    str | None, typer.Option(help="gibbs or uniform coalitions instead of those of the run (NeuroGame).")
]
CoalitionsOption = Annotated[
    int | None, typer.Option(min=1, help="Number of coalitions instead of that of the run (NeuroGame).")
]
SeedOption = Annotated[
    int | None, typer.Option(min=0, help="Seed of coalitions and reads instead of the run's.")
]
FigureOption = Annotated[Path | None, typer.Option(help="Write weights and interactions as a figure.")]


def explain_prediction(
    run: RunArgument,
    premise: PremiseArgument,
    hypothesis: HypothesisArgument,
    head: HeadOption = None,
    top: TopOption = 8,
    at_least: SizeOption = NAMED,
    weighting: WeightingOption = None,
    coalitions: CoalitionsOption = None,
    seed: SeedOption = None,
    figure: FigureOption = None,
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Explain the prediction of a trained classifier for two sentences, token by token.

    Shapley values and interactions are estimates from random coalitions: repeat with another --seed, or with more
    --coalitions, to see how far they can be trusted.  The prediction is that of the same coalitions.
    """
    with importing():
        from diabat.models.explanation import plot_explanation
        from diabat.runs import explain_run

    if figure is not None:
        require_writable(figure)
    overrides = as_overrides({"model.weighting": weighting, "model.eval_coalitions": coalitions})
    with naming({"model.weighting": "--weighting"}):
        explanation = explain_run(run, premise, hypothesis, overrides, seed=seed, trust=trust)
    if overrides and explanation.pooling != "neurogame":
        option = "--coalitions" if weighting is None else "--weighting"
        raise ArgumentError(
            option, f"expected a run with neurogame pooling, got {explanation.pooling} pooling."
        )
    if head is not None and head >= len(explanation.alpha):
        raise ArgumentError("--head", f"expected a head in 0 .. {len(explanation.alpha) - 1}, got {head}.")
    if figure is not None:
        plot_explanation(explanation, figure, head=head, at_least=at_least)
    if as_json:
        print_json({"predicted": explanation.predicted, **vars(explanation)})
        return
    _print(explanation, head, top, at_least)
    if figure is not None:
        typer.echo(f"Figure: {figure}")


def _print(explanation: PairExplanation, head: int | None, top: int, at_least: float) -> None:
    from diabat.models.explanation import of_head

    chances = ", ".join(f"{name} {chance:.3f}" for name, chance in explanation.probabilities.items())
    typer.echo(f"Predicted: {explanation.predicted} ({chances})")
    for name, value in explanation.facts.items():
        typer.echo(f"{name.replace('_', ' ')}: {_shown(value)}")
    typer.echo()
    quantities = {
        "α" if explanation.fields is not None else "weight": explanation.alpha,
        "J_i": explanation.fields,
        "φ": explanation.shapley,
        "β": explanation.banzhaf,
        "λ": explanation.gate,
    }
    there = {name: of_head(value, head) for name, value in quantities.items() if value is not None}
    rows = [
        (token, side, *(f"{float(value[i]):.4f}" for value in there.values()))
        for i, (token, side) in enumerate(zip(explanation.tokens, explanation.sides, strict=True))
    ]
    which = "mean over heads" if head is None else f"head {head}"
    print_table(
        f"Tokens, {explanation.pooling} pooling, {which}", ("token", "side", *there), rows, right=[*there]
    )
    if explanation.interactions is None or not top:
        return
    strongest = explanation.strongest(top, head, at_least)
    found = [
        (*_named(explanation, i), *_named(explanation, j), f"{J:+.4f}", _kind(J)) for i, j, J in strongest
    ]
    columns = ("token", "side", "and token", "of side", "J/γ", "active")
    if found:
        print_table(
            f"Strongest interactions, |J_ij|/γ of at least {at_least:g}", columns, found, right=["J/γ"]
        )
    else:
        typer.echo(f"No interaction with |J_ij|/γ of at least {at_least:g}.")


def _named(explanation: PairExplanation, place: int) -> tuple[str, str]:
    return explanation.tokens[place], explanation.sides[place]


def _kind(J: float) -> str:
    return "together" if J > 0 else "one or the other"


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_shown(v) for v in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
