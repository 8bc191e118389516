"""``diabat predict``: labels and probabilities for sentence pairs that have none."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from diabat.cli import arguments
from diabat.cli.output import print_json, print_table, require_writable

PairsArgument = Annotated[
    Path,
    typer.Argument(
        metavar="PAIRS",
        help="File of pairs: .jsonl, .tsv (.txt) or .csv with columns premise and hypothesis.",
    ),
]
OutputOption = Annotated[
    Path | None, typer.Option(help="Write predictions to this .jsonl or .tsv file instead of to stdout.")
]
PremiseOption = Annotated[str | None, typer.Option(help="Column of the first sentence.")]
HypothesisOption = Annotated[str | None, typer.Option(help="Column of the second sentence.")]


def predict_pairs_of_file(
    run: arguments.RunArgument,
    pairs: PairsArgument,
    overrides: arguments.OverridesArgument = None,
    output: OutputOption = None,
    premise: PremiseOption = None,
    hypothesis: HypothesisOption = None,
    force: arguments.ForceOption = False,
    progress: arguments.ProgressOption = True,
    trust: arguments.TrustOption = False,
    as_json: arguments.JsonOption = False,
) -> None:
    """Predict the label of sentence pairs with a trained classifier.

    Prints one JSON object per line with sentences, label and probabilities, in the order of the file; --output
    writes a file instead, atomically.
    """
    from diabat.progress import new_bar
    from diabat.runs import load_classifier
    from diabat.runs.predict import SUFFIXES, predict_pairs, read_unlabelled, require_table
    from diabat.tasks.nli_files import Columns

    require_writable(output, "output", SUFFIXES, new=not force)
    classifier = load_classifier(run, overrides or (), trust=trust)
    own = classifier.task.columns
    columns = Columns(premise or own.premise, hypothesis or own.hypothesis)
    read, split = read_unlabelled(pairs, classifier, columns)
    if output is not None and output.suffix == ".tsv":
        require_table(read)
    with new_bar(shown=progress) as bar:
        task = bar.add_task("pairs", total=len(read))
        found = predict_pairs(classifier, read, split, lambda done: bar.advance(task, done))
    if output is not None:
        found.write(output)
    if as_json:
        every = None if output is not None else list(found.rows())
        summary = {"run": run, "data": pairs, "output": output, "pairs": len(read), "counts": found.counts}
        print_json(summary | {"classes": found.classes, "predictions": every})
    elif output is None:
        sys.stdout.writelines(found.lines())
    else:
        rows = [(name, f"{count:,}") for name, count in found.counts.items()]
        print_table(f"Predictions, {len(found.pairs):,} pairs", ("label", "pairs"), rows)
        typer.echo(f"Written: {output}")
