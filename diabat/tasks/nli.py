"""Natural language inference: does the premise entail the hypothesis, contradict it, or neither?

SICK: 9,927 pairs of short descriptive sentences (Marelli et al. 2014, SemEval-2014 task 1).  The public editions
differ.  The one of 9,840 pairs has a column ``SemEval_set`` and a label column ``entailment_label``; the files of the
shared task put together have 9,927 pairs, ``entailment_judgment``, and no split.  For the latter a split of our own is
made: pairs in the order of a hash of their pair_ID, the first 4,439 for training, the next 495 for validation, the
rest for testing.  It is NOT the official one.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from diabat.checks import ArgumentError, check_count
from diabat.extras import extra
from diabat.tasks.base import ExampleKind, Task, TaskOptions
from diabat.tasks.data import DataError, fetch
from diabat.tasks.nli_files import CLASSES, Columns, Pairs, Row, pairs_of, read_pairs, read_rows
from diabat.tasks.nli_tokens import PairSplit, tokenize_pairs

NUM_TRAIN, NUM_VALIDATION = 4_439, 495
_SALT = "diabat sick"
_OFFICIAL = {"TRAIN": "train", "TRIAL": "validation", "TEST": "test"}
_LABELS = ("entailment_label", "entailment_judgment")


@dataclass(frozen=True)
class PairOptions(TaskOptions):
    """Options of all tasks of sentence pairs.

    Attributes:
        name: Name of the task.
        window: Tokens of a pair at most, special ones included; longer pairs are cut, the longer sentence first.
        num_train: Use this many training pairs from the beginning; None uses all.
        data: The data file or folder; None looks in the usual places.
    """

    examples: ClassVar[ExampleKind] = "pairs"
    name: str = field(kw_only=True)
    window: int = 128
    num_train: int | None = None
    data: str | None = None

    def __post_init__(self) -> None:
        check_count("window", self.window)
        check_count("num_train", self.num_train, optional=True)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes 0 .. C - 1."""
        return CLASSES

    @property
    def columns(self) -> Columns:
        """Columns of files of pairs that belong to the task."""
        return Columns()

    @abstractmethod
    def read(self) -> dict[str, Pairs]:
        """Read the sets ``train``, ``validation`` and, if there is one, ``test``.

        Raises:
            DataError: If the data cannot be found, read or loaded.
            ImportError: If the extra ``hf`` is needed and not installed.
        """

    def build(self, tokenizer: Any = None) -> Task[PairSplit]:
        """Read and tokenize the pairs; the metric is accuracy.

        Raises:
            DataError, ImportError: As :meth:`read`.
            ValueError: If the window is too short for the tokenizer.
        """
        sets = self.read()
        sets["train"] = sets["train"].first(self.num_train)
        splits = {name: tokenize_pairs(tokenizer, pairs, self.window) for name, pairs in sets.items()}
        return Task(
            self.name,
            self.window,
            len(tokenizer),
            len(self.class_names),
            "accuracy",
            splits["train"],
            splits["validation"],
            splits.get("test"),
            classes=self.class_names,
            tokenizer=tokenizer,
            dropped={name: pairs.dropped for name, pairs in sets.items() if pairs.dropped},
        )


@dataclass(frozen=True)
class SickOptions(PairOptions):
    """SICK; ``data`` is SICK.txt or its folder, None looks in DIABAT_DATA and in the user cache."""

    name: Literal["sick"] = field(default="sick", kw_only=True)

    def read(self) -> dict[str, Pairs]:
        """Read SICK.txt."""
        path = fetch("sick", self.data)
        try:
            return _sick_sets(path)
        except DataError as error:
            raise DataError(
                f"{str(error).removesuffix('.')}; this task takes SICK only, other files go with task.name=pairs."
            ) from error


def _sick_sets(path: Path) -> dict[str, Pairs]:
    rows = list(read_rows(path, ("pair_ID", "sentence_A", "sentence_B")))
    there = rows[0][1] if rows else {}
    label = next((name for name in _LABELS if name in there), None)
    if label is None:
        got = ", ".join(there) or "no pair"
        raise DataError(f"'{path}': expected the column {' or '.join(_LABELS)}, got {got}.")
    sets = _official_sets(path, rows) if "SemEval_set" in there else _own_sets(path, rows)
    columns = Columns("sentence_A", "sentence_B", label)
    return {name: pairs_of(f"'{path}'", part, columns) for name, part in sets.items()}


def _official_sets(path: Path, rows: list[tuple[int, Row]]) -> dict[str, list[tuple[int, Row]]]:
    sets: dict[str, list[tuple[int, Row]]] = {name: [] for name in _OFFICIAL.values()}
    for line, row in rows:
        name = str(row.get("SemEval_set")).strip()
        if name not in _OFFICIAL:
            expected = ", ".join(_OFFICIAL)
            raise DataError(f"'{path}', line {line}: SemEval_set: expected one of {expected}, got '{name}'.")
        sets[_OFFICIAL[name]].append((line, row))
    return sets


def _own_sets(path: Path, rows: list[tuple[int, Row]]) -> dict[str, list[tuple[int, Row]]]:
    cut = NUM_TRAIN + NUM_VALIDATION
    if len(rows) <= cut:
        expected = f"more than {cut} pairs or a column SemEval_set"
        raise DataError(f"'{path}': expected {expected}, got {len(rows)} pairs without one.")

    def place(row: tuple[int, Row]) -> str:  # does not depend on the order of the file
        return hashlib.sha256(f"{_SALT} {str(row[1]['pair_ID']).strip()}".encode()).hexdigest()

    ordered = sorted(rows, key=place)
    return {"train": ordered[:NUM_TRAIN], "validation": ordered[NUM_TRAIN:cut], "test": ordered[cut:]}


@dataclass(frozen=True)
class SnliOptions(PairOptions):
    """SNLI; ``data`` is a folder with the original ``snli_1.0_train.jsonl``, ``_dev`` and ``_test``.

    Else it is the cache folder of the library datasets, for which None takes its own.
    """

    name: Literal["snli"] = field(default="snli", kw_only=True)

    def read(self) -> dict[str, Pairs]:
        """Read the original files or load the sets of the hub."""
        sets = {"train": ("train", "train"), "validation": ("dev", "validation"), "test": ("test", "test")}
        return _read_published("snli_1.0_{}.jsonl", ("stanfordnlp/snli",), sets, self.data)


@dataclass(frozen=True)
class MnliOptions(PairOptions):
    """MNLI; ``data`` as for SNLI, with ``multinli_1.0_train.jsonl``, ``_dev_matched`` and ``_dev_mismatched``.

    Attributes:
        genres: Validation on genres that are in the training data (``matched``) or on others (``mismatched``).  The
            labels of the test set are not public.
    """

    name: Literal["mnli"] = field(default="mnli", kw_only=True)
    genres: Literal["matched", "mismatched"] = "matched"

    def read(self) -> dict[str, Pairs]:
        """Read the original files or load the sets of the hub."""
        validation = (f"dev_{self.genres}", f"validation_{self.genres}")
        sets = {"train": ("train", "train"), "validation": validation}
        return _read_published("multinli_1.0_{}.jsonl", ("nyu-mll/glue", "mnli"), sets, self.data)


def _read_published(
    pattern: str, hub: tuple[str, ...], sets: Mapping[str, tuple[str, str]], data: str | None
) -> dict[str, Pairs]:
    """Read the sets from the files of their authors in a folder, or through the library ``datasets``.

    ``pattern`` names files of JSON lines, ``hub`` the arguments of ``datasets.load_dataset``, whose classes 0, 1, 2 are
    entailment, neutral, contradiction; ``sets`` has the names of both by ours.
    """
    if data is not None and (folder := Path(data)).joinpath(pattern.format("train")).is_file():
        columns = Columns("sentence1", "sentence2", "gold_label")
        return {ours: read_pairs(folder / pattern.format(file), columns) for ours, (file, _) in sets.items()}
    datasets, found = extra("datasets"), {}
    for ours, (_, theirs) in sets.items():
        try:
            rows = datasets.load_dataset(*hub, split=theirs, cache_dir=data).to_list()
        # Of several libraries, in many kinds; their text may hold addresses with access tokens.
        except Exception as error:
            raise DataError(
                f"cannot load the set '{theirs}' of '{hub[0]}' ({type(error).__name__}); check the connection to "
                "huggingface.co, or use a cache folder by task.data or files by task.name=pairs."
            ) from None
        found[ours] = pairs_of(f"'{hub[0]}', {theirs}", enumerate(rows, 1), Columns(), ("0", "1", "2"))
    return found


@dataclass(frozen=True)
class PairFileOptions(PairOptions):
    """Pairs from files, see :func:`diabat.tasks.nli_files.read_pairs`.

    Attributes:
        train: File of the training pairs, inside ``data`` if that is given.
        validation: File of the validation pairs.
        test: File of the test pairs, or None.
        premise: Column of the first sentence.
        hypothesis: Column of the second sentence.
        label: Column of the class.
        classes: Names of the classes in the file.
    """

    name: Literal["pairs"] = field(default="pairs", kw_only=True)
    train: str = "train.csv"
    validation: str = "validation.csv"
    test: str | None = None
    premise: str = "premise"
    hypothesis: str = "hypothesis"
    label: str = "label"
    classes: tuple[str, ...] = CLASSES

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.classes) < 2 or len({name.casefold() for name in self.classes}) < len(self.classes):
            raise ArgumentError("classes", f"expected two or more different names, got {list(self.classes)}.")

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes 0 .. C - 1."""
        return self.classes

    @property
    def columns(self) -> Columns:
        """Columns of files of pairs that belong to the task."""
        return Columns(self.premise, self.hypothesis, self.label)

    def read(self) -> dict[str, Pairs]:
        """Read the files."""
        files = {"train": self.train, "validation": self.validation, "test": self.test}
        there = {name: Path(self.data or ".") / file for name, file in files.items() if file is not None}
        return {name: read_pairs(path, self.columns, self.classes) for name, path in there.items()}
