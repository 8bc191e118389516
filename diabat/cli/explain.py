"""``diabat explain``: what a trained classifier looked at in a pair of sentences."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diabat.cli.arguments import JsonOption, TrustOption
from diabat.cli.evaluate import RunArgument
from diabat.cli.failures import importing
from diabat.cli.figures import require_writable
from diabat.cli.output import print_json, print_table

if TYPE_CHECKING:
    from diabat.models.explanation import PairExplanation

PremiseArgument = Annotated[str, typer.Argument(metavar="PREMISE", help="First sentence.")]
HypothesisArgument = Annotated[str, typer.Argument(metavar="HYPOTHESIS", help="Second sentence.")]
HeadOption = Annotated[int | None, typer.Option(min=0, help="Show this head instead of the mean over heads.")]
TopOption = Annotated[int, typer.Option(min=0, help="Number of interactions that are listed.")]
FigureOption = Annotated[Path | None, typer.Option(help="Write weights and interactions as a figure.")]


def explain_prediction(
    run: RunArgument,
    premise: PremiseArgument,
    hypothesis: HypothesisArgument,
    head: HeadOption = None,
    top: TopOption = 8,
    figure: FigureOption = None,
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Explain the prediction of a trained classifier for two sentences, token by token."""
    with importing():
        from diabat.config.runs import explain_run
        from diabat.models.explanation_figure import plot_explanation

    if figure is not None:
        require_writable(figure)
    told = explain_run(run, premise, hypothesis, trust=trust)
    if head is not None and head >= len(told.alpha):
        raise ValueError(f"--head: expected a head in 0 .. {len(told.alpha) - 1}, got {head}.")
    if figure is not None:
        plot_explanation(told, figure, head=head)
    if as_json:
        print_json({"predicted": told.predicted, **vars(told)})
        return
    _print(told, head, top)
    if figure is not None:
        typer.echo(f"Figure: {figure}")


def _print(told: PairExplanation, head: int | None, top: int) -> None:
    from diabat.models.explanation import of_head

    chances = ", ".join(f"{name} {chance:.3f}" for name, chance in told.probabilities.items())
    typer.echo(f"Predicted: {told.predicted} ({chances})")
    for name, value in told.facts.items():
        typer.echo(f"{name.replace('_', ' ')}: {_shown(value)}")
    typer.echo()
    quantities = {
        "α" if told.fields is not None else "weight": told.alpha,
        "J_i": told.fields,
        "φ": told.shapley,
        "β": told.banzhaf,
        "λ": told.gate,
    }
    there = {name: of_head(value, head) for name, value in quantities.items() if value is not None}
    rows = [
        (token, side, *(f"{float(value[i]):.4f}" for value in there.values()))
        for i, (token, side) in enumerate(zip(told.tokens, told.sides, strict=True))
    ]
    which = "mean over heads" if head is None else f"head {head}"
    print_table(f"Tokens, {told.pooling} pooling, {which}", ("token", "side", *there), rows, right=[*there])
    strongest = told.strongest(top, head)
    if strongest:
        found = [(*_named(told, i), *_named(told, j), f"{J:+.4f}", _kind(J)) for i, j, J in strongest]
        columns = ("token", "side", "and token", "of side", "J", "active")
        print_table("Strongest interactions J_ij", columns, found, right=["J"])


def _named(told: PairExplanation, place: int) -> tuple[str, str]:
    return told.tokens[place], told.sides[place]


def _kind(J: float) -> str:
    return "together" if J > 0 else "one or the other"


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_shown(v) for v in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
