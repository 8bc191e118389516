"""``diabat evaluate``: evaluate a finished run on one of its sets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from diabat.checks import ArgumentError
from diabat.cli import arguments
from diabat.cli.output import print_figure, print_json, print_table, require_writable

if TYPE_CHECKING:
    from diabat.runs import Evaluation
    from diabat.training.scores import Scores

SplitOption = Annotated[
    str | None, typer.Option(help="train, validation or test; default test if there is one.")
]


def evaluate_model(
    run: arguments.RunArgument,
    overrides: arguments.OverridesArgument = None,
    split: SplitOption = None,
    figure: arguments.FigureOption = None,
    trust: arguments.TrustOption = False,
    as_json: arguments.JsonOption = False,
) -> None:
    """Evaluate the best weights of a run, or the weights of a checkpoint; task.data=PATH if its data have moved.

    Classifiers of sentence pairs report accuracy, F1, precision, recall and calibration, and draw confusion matrix and
    reliability diagram; other models report the metric of their task.
    """
    from diabat.runs import evaluate_run, load_run
    from diabat.training.scores import plot_scores

    require_writable(figure)
    loaded = load_run(run, overrides or (), trust=trust)
    result = evaluate_run(loaded, split or ("test" if "test" in loaded.task.sets else "validation"))
    if figure is not None:
        if result.scores is None:
            raise ArgumentError(
                "figure", f"expected a classifier of sentence pairs, got the task '{result.task}'."
            )
        plot_scores(result.scores, figure)
    if as_json:
        print_json(result)
        return
    _print(result)
    print_figure(figure)


def _print(result: Evaluation) -> None:
    from diabat.studies.report import formatted, share

    value = share(result.value, result.count) if result.metric == "accuracy" else f"{result.value:.4f}"
    rows = [(result.metric, value), ("loss", f"{formatted(result.loss, '.4f')} nats")]
    scores = result.scores
    if scores is not None:
        rows += [
            ("macro F1", f"{scores.macro_f1:.4f}"),
            (f"calibration error, {len(scores.bins)} bins", formatted(scores.calibration_error, ".4f")),
            ("Brier score", formatted(scores.brier, ".4f")),
        ]
    rows += [(name, formatted(part, ".4f")) for name, part in result.parts.items()]
    rows.append(("predictions", f"{result.count:,}"))
    if result.dropped:
        rows.append(("left out without agreed label", f"{result.dropped:,}"))
    print_table(f"{result.task}, {result.split} set", ("", ""), rows)
    if scores is not None:
        _print_classes(scores)


def _print_classes(scores: Scores) -> None:
    names = [c.name for c in scores.classes]
    columns = ("label", "precision", "recall", "F1")
    rows = [(c.name, f"{c.precision:.4f}", f"{c.recall:.4f}", f"{c.f1:.4f}") for c in scores.classes]
    print_table("Classes", columns, rows)
    taken = tuple(f"as {name}" for name in names)
    counts = [(name, *(f"{n:,}" for n in row)) for name, row in zip(names, scores.confusion, strict=True)]
    print_table("How many pairs of each label were taken for which", ("label", *taken), counts)
