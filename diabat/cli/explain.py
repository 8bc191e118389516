"""``diabat explain``: explain a trained classifier for a pair of sentences, or a trained decoder over a text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diabat.checks import ArgumentError
from diabat.cli.arguments import JsonOption, RunArgument, TrustOption, as_overrides
from diabat.cli.explain_decoder import explain_text
from diabat.cli.failures import importing, naming
from diabat.cli.figures import require_writable
from diabat.cli.output import print_json, print_table

if TYPE_CHECKING:
    from diabat.models.explanation import PairExplanation
    from diabat.tasks import ExampleKind

NAMED = 0.1
"""Default of the smallest |J_ij|/γ that is named: such a coupling alone makes a correlation of tanh(0.1), 0.1."""

TextsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="PREMISE HYPOTHESIS | TEXT", help="Two sentences for a classifier, one text for a decoder."
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
        "--at-least",
        min=0.0,
        help=f"Smallest |J_ij|/γ of a pair that is named (default {NAMED}); of a decoder smallest |C_jk| "
        "(default 0).",
    ),
]
DataOption = Annotated[Path | None, typer.Option(help="The data of a decoder's task, if they have moved.")]
WeightingOption = Annotated[
    str | None, typer.Option(help="gibbs or uniform coalitions instead of those of the run (NeuroGame).")
]
CoalitionsOption = Annotated[
    int | None, typer.Option(min=1, help="Number of coalitions instead of that of the run (NeuroGame).")
]
SeedOption = Annotated[
    int | None, typer.Option(min=0, help="Seed of coalitions and reads instead of the run's.")
]
FigureOption = Annotated[
    Path | None, typer.Option(help="Write weights, and interactions or correlations, as a figure.")
]


def explain_prediction(
    run: RunArgument,
    texts: TextsArgument,
    position: PositionOption = None,
    layer: LayerOption = None,
    head: HeadOption = None,
    top: TopOption = 8,
    at_least: SizeOption = None,
    weighting: WeightingOption = None,
    coalitions: CoalitionsOption = None,
    seed: SeedOption = None,
    data: DataOption = None,
    figure: FigureOption = None,
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Explain the prediction of a trained classifier for two sentences, or a trained decoder over a text.

    Of a classifier: weights, Shapley values and interactions of tokens.  They are estimates from random coalitions:
    repeat with another --seed, or with more --coalitions, to see how far they can be trusted.  The prediction is that
    of the same coalitions.

    Of a decoder: the attention of one query and the connected correlations of its spins; for every position the
    entropy of the weights, the effective number of positions, and what is predicted.
    """
    with importing():
        from diabat.runs import examples_of_run

    kind = examples_of_run(run, trust=trust)
    _require_texts(kind, texts)
    _require_options(
        kind,
        pairs={"--weighting": weighting, "--coalitions": coalitions},
        sequences={"--position": position, "--layer": layer, "--data": data},
    )
    if figure is not None:
        require_writable(figure)
    if kind == "pairs":
        at_least = NAMED if at_least is None else at_least
        overrides = as_overrides({"model.weighting": weighting, "model.eval_coalitions": coalitions})
        _explain_pair(run, texts, overrides, head, top, at_least, seed, figure, trust, as_json)
        return
    explain_text(
        run,
        texts[0],
        position=position,
        layer=layer,
        head=head,
        top=top,
        at_least=at_least or 0.0,
        seed=seed,
        data=data,
        figure=figure,
        trust=trust,
        as_json=as_json,
    )


def _require_texts(kind: ExampleKind, texts: list[str]) -> None:
    """Refuse a number of texts that the model does not take."""
    wanted = {
        "pairs": (2, "two texts, premise and hypothesis, for a run of a classifier of sentence pairs"),
        "sequences": (1, "one text in quotation marks for a run of a decoder"),
    }
    from diabat.config.errors import ConfigError  # help needs no pydantic

    count, what = wanted[kind]
    if len(texts) != count:
        raise ConfigError("TEXT", f"expected {what}, got {len(texts)}.")


def _require_options(kind: ExampleKind, **options: dict[str, Any]) -> None:
    """Refuse options of the other kind of models."""
    wanted = {"pairs": "a run of a classifier of sentence pairs", "sequences": "a run of a decoder"}
    for other in options.keys() - {kind}:
        for option, value in options[other].items():
            if value is not None:
                raise ArgumentError(option, f"expected {wanted[other]}, got {wanted[kind]}.")


def _explain_pair(
    run: Path,
    texts: list[str],
    overrides: list[str],
    head: int | None,
    top: int,
    at_least: float,
    seed: int | None,
    figure: Path | None,
    trust: bool,
    as_json: bool,
) -> None:
    from diabat.models.figures import plot_explanation
    from diabat.runs import explain_run

    with naming({"model.weighting": "--weighting"}):
        explanation = explain_run(run, texts[0], texts[1], overrides, seed=seed, trust=trust)
    if overrides and explanation.pooling != "neurogame":
        option = "--weighting" if overrides[0].startswith("model.weighting") else "--coalitions"
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
    from diabat.models.explanation import selected
    from diabat.studies.report import formatted

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
    there = {name: selected(value, head) for name, value in quantities.items() if value is not None}
    rows = [
        (token, side, *(formatted(float(value[i]), ".4f") for value in there.values()))
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
        (*_named(explanation, i), *_named(explanation, j), formatted(J, "+.4f"), _kind(J))
        for i, j, J in strongest
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
