"""Predictions of a trained classifier for sentence pairs without labels."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diabat.checks import ArgumentError
from diabat.files import replace_file
from diabat.runs.finished import TrainedClassifier
from diabat.tasks.nli_files import Columns, Pairs, read_pairs
from diabat.tasks.nli_tokens import tokenize_pairs
from diabat.training.evaluate import predict

SUFFIXES = (".jsonl", ".tsv")
"""Supported suffixes of files of predictions."""


@dataclass(frozen=True)
class Predictions:
    """Predicted pairs in the order of the file.

    ``rows`` have ``premise``, ``hypothesis``, ``label``, the most probable class, and ``probabilities`` by class.
    """

    classes: tuple[str, ...]
    rows: list[dict[str, Any]]

    @property
    def counts(self) -> dict[str, int]:
        """How many pairs have each label."""
        found = Counter(row["label"] for row in self.rows)
        return {name: found[name] for name in self.classes}

    def lines(self) -> Iterator[str]:
        """The rows as JSON, one object a line."""
        for row in self.rows:
            yield f"{json.dumps(row, ensure_ascii=False, allow_nan=False)}\n"

    def table(self) -> Iterator[str]:
        """The rows as tab-separated lines, with a column of probabilities for each class."""
        require_table((row["premise"], row["hypothesis"]) for row in self.rows)
        yield "\t".join(("premise", "hypothesis", "label", *self.classes)) + "\n"
        for row in self.rows:
            *texts, chances = row.values()
            yield "\t".join((*texts, *(f"{chance:.6f}" for chance in chances.values()))) + "\n"

    def write(self, path: Path) -> None:
        """Write all predictions to a .jsonl or .tsv file, atomically; OSError leaves the previous file unchanged.

        Raises:
            ArgumentError: If a sentence does not fit into a table.
        """
        replace_file(path, "".join(self.lines() if path.suffix == ".jsonl" else self.table()).encode())


def read_unlabelled(path: Path, run: TrainedClassifier, columns: Columns) -> tuple[Pairs, Any]:
    """Read and tokenize a file of pairs as the run's own data were.

    Raises:
        DataError: If the file cannot be read, lacks a column or holds no pairs.
    """
    pairs = read_pairs(path, columns, classes=None)
    return pairs, tokenize_pairs(run.tokenizer, pairs, run.task.window)


def predict_pairs(
    run: TrainedClassifier, pairs: Pairs, split: Any, advanced: Callable[[int], None] = lambda count: None
) -> Predictions:
    """Predict the class of every pair, which are also given tokenized; the same file gives the same answers.

    ``advanced`` is called with the number of pairs of every batch as it is done.

    Raises:
        UnsupportedError: If the sampler cannot answer pairs as long as these.
    """
    training, device = run.config.training, next(run.model.parameters()).device
    options: dict[str, Any] = {"seed": training.seed, "precision": training.precision, "advanced": advanced}
    logits, _ = predict(run.model, split.to(device), **options)
    found, classes, rows = logits.double().softmax(-1), run.task.class_names, []
    columns = pairs.premises, pairs.hypotheses, found.argmax(-1).tolist(), found.tolist()
    for premise, hypothesis, best, chances in zip(*columns, strict=True):
        row = {"premise": premise, "hypothesis": hypothesis, "label": classes[best]}
        rows.append(row | {"probabilities": dict(zip(classes, chances, strict=True))})
    return Predictions(classes, rows)


def require_table(pairs: Iterable[tuple[str, str]]) -> None:
    """Refuse sentences that a tab-separated file cannot hold, by an ArgumentError that names the pair."""
    for number, sentences in enumerate(pairs, start=1):
        if any(mark in sentence for sentence in sentences for mark in "\t\n\r"):
            raise ArgumentError(
                "output",
                f"expected sentences without tabs and line breaks for a .tsv file, got pair {number} with one; "
                "write a .jsonl file.",
            )
