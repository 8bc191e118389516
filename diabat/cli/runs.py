"""``diabat train``, ``evaluate`` and ``predict``: train the model of a configuration, and use the run."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diabat.checks import ArgumentError
from diabat.cli import arguments
from diabat.cli.output import print_figure, print_json, print_table, require_writable, say

if TYPE_CHECKING:
    from diabat.config import Config
    from diabat.runs import Evaluation
    from diabat.training import TrainResult
    from diabat.training.scores import Scores

ResumeOption = Annotated[bool, typer.Option("--resume", help="Continue the run from its newest checkpoint.")]


def train_model(
    config: arguments.ConfigArgument,
    overrides: arguments.OverridesArgument = None,
    resume: ResumeOption = False,
    progress: arguments.ProgressOption = True,
    trust: arguments.TrustOption = False,
    as_json: arguments.JsonOption = False,
) -> None:
    """Train a model; Ctrl-C saves the state and prints how to continue.

    The run is written to the folder output, which is new or empty unless --resume.
    """
    resolved = arguments.load(config, overrides, trust=trust)
    from diabat.config import to_plain
    from diabat.runs.build import require_same_run, run_training
    from diabat.training import OutputError, TrainingInterrupted

    if resume:
        require_same_run(resolved)
    try:
        result = run_training(resolved, resume=resume, progress=progress)
    except (KeyboardInterrupt, TrainingInterrupted) as error:
        words = [*filter(None, [config]), *(overrides or []), *(["--trust"] if trust else [])]
        again = shlex.join(["diabat", "train", *words, "--resume"])
        saved = isinstance(error, TrainingInterrupted) or (resolved.output / "latest.safetensors").exists()
        how = f"The run is saved in '{resolved.output}'; continue with: {again}"
        raise KeyboardInterrupt(how if saved else "Nothing was saved yet.") from error
    except OutputError as error:
        said = str(error).replace("run_dir:", "output:")
        said = said.replace(
            "resume=True, or name another folder", "--resume, or name another by output=FOLDER"
        )
        raise OutputError(said) from error
    if as_json:
        print_json({**vars(result), "task": resolved.task.name, "config": to_plain(resolved)})
    else:
        _print_training(resolved, result)


def _print_training(config: Config, result: TrainResult) -> None:
    backend = f" with {config.sampler.backend}" if config.model.uses_sampler else ""
    rows = [
        ("task", f"{config.task.name}, T = {config.task.window}"),
        ("attention", f"{config.model.attention}{backend}"),
        (f"best validation {result.metric}", f"{result.best_metric:.4f} at step {result.best_step}"),
        ("best validation loss", f"{result.best_loss:.4f} nats"),
        ("trained", f"{result.epochs} epochs, {result.steps} steps, {result.seconds:.1f} s"),
        ("run folder", str(result.run_dir)),
    ]
    if result.dropped:
        left_out = ", ".join(f"{count:,} of {name}" for name, count in result.dropped.items())
        rows.append(("left out without agreed label", left_out))
    print_table("Training finished", ("", ""), rows)


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
    require_writable(figure)
    from diabat.config.keys import check_keys
    from diabat.config.loading import find_run, read_config

    check_keys(read_config(find_run(run), overrides or (), trust=trust))  # before torch is imported
    from diabat.runs import evaluate_run, load_run
    from diabat.training.scores import plot_scores

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
    _print_evaluation(result)
    print_figure(figure)


def _print_evaluation(result: Evaluation) -> None:
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
        require_table(zip(read.premises, read.hypotheses, strict=True))
    with new_bar(shown=progress) as bar:
        task = bar.add_task("pairs", total=len(read))
        found = predict_pairs(classifier, read, split, lambda done: bar.advance(task, done))
    if output is not None:
        found.write(output)
    if as_json:
        summary = {"run": run, "data": pairs, "output": output, "pairs": len(read), "counts": found.counts}
        every = None if output is not None else found.rows
        print_json(summary | {"classes": found.classes, "predictions": every})
    elif output is None:
        for line in found.lines():
            say(line, end="")
    else:
        rows = [(name, f"{count:,}") for name, count in found.counts.items()]
        print_table(f"Predictions, {len(found.rows):,} pairs", ("label", "pairs"), rows)
        say(f"Written: {output}")
