"""Classification of pairs of sentences, or of single ones: those of a file, or of a small grammar."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Self

import torch

from diabat.checks import ArgumentError, check_flag, check_number, keep_count
from diabat.compute.memory import require_memory
from diabat.lab.tasks import base
from diabat.lab.tasks.data import DataError
from diabat.lab.tasks.pair_rows import Labelled, generated, read_labelled
from diabat.lab.tasks.text import TRAIN_FRACTION

_ANY_LENGTH = 2**31


@dataclass(frozen=True)
class PairOptions(base.TaskOptions):
    """Options of sentences with labels.

    A sequence is the words of both sentences with a separator between them, padded behind.  Words and classes are those
    of the training set; other words are the unknown one.

    Attributes:
        name: Name of the task.
        data: A file in UTF-8: cells with tabs between them below a header, or a JSON object in every line.  None draws
            pairs of a small grammar.
        validation: A second file, all of which is for validation.
        test: A third file, for testing.
        train_fraction: Share of ``data`` that is trained on; the rest, chosen by a hash of the sentences, is for
            validation.  None takes 0.9, and is required where a file or a column names the validation set.
        sentences: Sentences of a line, 2 or 1.
        first: Column or key of the first sentence; None takes ``first``, ``sentence`` or ``sentence_A``.
        second: That of the second; None takes ``second`` or ``sentence_B``.
        label: That of the label; None takes ``label``, ``entailment_label`` or ``entailment_judgment``.
        part: That of the set, ``train``, ``validation`` (``trial``, ``dev``) or ``test``; None takes ``part`` or
            ``SemEval_set``, if there is one.
        window: Largest number of tokens T, the separator included; None for that of the data.  A run stores its own.
        truncate: Drop the last words of the longer sentence where a pair is too long, in place of refusing it.
        min_count: Occurrences in the training set from which a word is known.
        words: The words that are known; None takes those of the training set.  A run stores its own.
        classes: The labels; None takes those of the training set.  A run stores its own.
        num_train: Training pairs of the grammar.
        num_validation: Validation pairs of the grammar.
        seed: Seed of the pairs of the grammar and of the share for validation.
    """

    answers: ClassVar[base.Answers] = "sequence"

    name: Literal["pairs"] = field(default="pairs", kw_only=True)
    data: str | None = None
    validation: str | None = None
    test: str | None = None
    train_fraction: float | None = None
    sentences: int = 2
    first: str | None = None
    second: str | None = None
    label: str | None = None
    part: str | None = None
    window: int | None = None
    truncate: bool = False
    min_count: int = 1
    words: tuple[str, ...] | None = None
    classes: tuple[str, ...] | None = None
    num_train: int = 3_000
    num_validation: int = 600
    seed: int = 0

    def __post_init__(self) -> None:
        keep_count(self, "sentences", most=2)
        keep_count(self, "window", least=3, optional=True)
        for name in ("min_count", "num_train", "num_validation"):
            keep_count(self, name)
        keep_count(self, "seed", least=0)
        check_flag("truncate", self.truncate)
        check_number("train_fraction", self.train_fraction, "(0, 1)", optional=True)
        for name in ("words", "classes"):
            value = getattr(self, name)
            if value is not None and not len({*value}) == len(value) > (name == "classes"):
                raise ArgumentError(name, "different ones", f"{value!r:.60}")
        if self.data is None:
            if self.sentences == 1:
                raise ArgumentError("sentences", "2 without task.data", "1")
            for name in ("validation", "test", "train_fraction"):
                if (value := getattr(self, name)) is not None:
                    raise ArgumentError(name, "None without task.data", repr(value))

    def build(self) -> base.Task:
        """Build the task: one class for each sequence; the metric is the accuracy, also of every class.

        DataError if a line of a file is not as it should be; ValueError if options contradict each other.
        """
        sets = self._sets()
        words, classes = self.words, self.classes
        if words is None:
            texts = [text for row in sets["train"] for text in row.sentences]
            counts = Counter(word for text in texts for word in base.words_of(text))
            words = tuple(sorted(word for word, count in counts.items() if count >= self.min_count))
        if classes is None:
            classes = tuple(sorted({row.label for row in sets["train"]}))
            if len(classes) == 1:
                raise DataError(f"task.data: expected two labels or more, got only {classes[0]!r}.")
        form = base.SentenceForm(words, classes, self.window or _ANY_LENGTH, self.sentences)
        symbols = {name: [self._encoded(form, row) for row in rows] for name, rows in sets.items()}
        longest = max(len(sequence) for of_set in symbols.values() for sequence in of_set)
        form = replace(form, window=self.window or longest)
        count = sum(map(len, sets.values()))
        require_memory(24 * count * longest, f"{count} pairs of up to {longest} tokens", "data")
        splits = {name: _split(symbols[name], longest, rows, classes) for name, rows in sets.items()}
        sizes = (form.window, base.UNKNOWN + 1 + len(words), len(classes))

        def by_class(split: base.Split) -> dict[str, base.Split]:
            return split.parts({name: split.targets == index for index, name in enumerate(classes)})

        parts = (splits["train"], splits["validation"], splits.get("test"))
        return base.Task(self.name, *sizes, "accuracy", *parts, sentences=form, parts=by_class)

    def as_built(self, task: base.Task) -> Self:
        """The options with words, classes and length of the task, which are then the same on any file."""
        assert task.sentences is not None
        form = task.sentences
        return replace(self, words=form.words, classes=form.classes, window=form.window)

    def _sets(self) -> dict[str, list[Labelled]]:
        """The rows of training, validation and, if there are some, test."""
        if self.data is None:
            return generated(self.num_train, self.num_validation, self.seed)
        named = {what: getattr(self, what) for what in ("first", "second", "label", "part")}
        rows = read_labelled("task.data", self.data, named, self.sentences)
        sets = {
            name: [row for row in rows if (row.part or "train") == name]
            for name in ("train", "validation", "test")
        }
        for name in ("validation", "test"):
            if (path := getattr(self, name)) is not None:
                sets[name] = read_labelled(f"task.{name}", path, named, self.sentences)
        if not sets["validation"]:
            rows = sorted(sets["train"], key=self._place)
            cut = min(round(len(rows) * (self.train_fraction or TRAIN_FRACTION)), len(rows) - 1)
            sets |= {"train": rows[:cut], "validation": rows[cut:]}
        elif self.train_fraction is not None:
            expected = "None where validation pairs are named"
            raise ArgumentError("train_fraction", expected, self.train_fraction)
        if not sets["train"]:
            raise DataError(f"task.data: expected pairs to train on, got none in '{self.data}'.")
        return {name: rows for name, rows in sets.items() if rows}

    def _place(self, row: Labelled) -> bytes:
        """A place that does not depend on the order of the file."""
        return hashlib.sha256("\t".join((str(self.seed), *row.sentences)).encode()).digest()

    def _encoded(self, form: base.SentenceForm, row: Labelled) -> torch.Tensor:
        try:
            symbols = form.encode(*row.sentences, truncate=self.truncate)
        except ArgumentError as error:
            fix = "; give task.truncate=true, or a larger task.window" * ("tokens" in error.reason)
            raise DataError(f"{row.where}: {error.reason.removesuffix('.')}{fix}.") from error
        if row.label not in form.classes:
            expected = f"one of the labels {', '.join(form.classes):.100}"
            raise DataError(f"{row.where}: expected {expected}, got {row.label!r:.60}.")
        return symbols


def _split(
    symbols: list[torch.Tensor], longest: int, rows: Sequence[Labelled], classes: tuple[str, ...]
) -> base.Split:
    inputs = torch.full((len(symbols), longest), base.PADDING)
    for row, sequence in zip(inputs, symbols, strict=True):
        row[: len(sequence)] = sequence
    return base.Split(inputs, torch.tensor([[classes.index(row.label)] for row in rows]))
