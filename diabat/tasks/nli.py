"""Natural language inference: does the premise entail the hypothesis, contradict it, or neither?"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from diabat.checks import ArgumentError, ArgumentTypeError
from diabat.tasks.nli_files import CLASSES, Columns, Pairs, read_pairs
from diabat.tasks.nli_sources import read_hub, read_originals, read_sick
from diabat.tasks.nli_tokens import PairSplit, tokenize_pairs


@dataclass(frozen=True)
class PairOptions(ABC):
    """Options of all tasks of sentence pairs.

    Attributes:
        name: Name of the task.
        window: Tokens of a pair at most, special ones included; longer pairs are cut, the longer sentence first.
        num_train: Use this many training pairs from the beginning; None uses all.
        data: The data file or folder; None looks in the usual places.
    """

    name: str = field(kw_only=True)
    window: int = 128
    num_train: int | None = None
    data: str | None = None

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ArgumentError("window", f"expected an integer >= 1, got {self.window}.")
        if self.num_train is not None and self.num_train < 1:
            raise ArgumentError("num_train", f"expected an integer >= 1 or None, got {self.num_train}.")

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


@dataclass(frozen=True)
class SickOptions(PairOptions):
    """SICK; ``data`` is SICK.txt or its folder, None looks in DIABAT_DATA and in the user cache."""

    name: Literal["sick"] = field(default="sick", kw_only=True)

    def read(self) -> dict[str, Pairs]:
        """Read SICK.txt."""
        return read_sick(self.data)


@dataclass(frozen=True)
class SnliOptions(PairOptions):
    """SNLI.

    ``data`` is a folder with the original ``snli_1.0_train.jsonl``, ``_dev`` and ``_test``, or else the cache folder of
    the library datasets, for which None takes its own.
    """

    name: Literal["snli"] = field(default="snli", kw_only=True)

    def read(self) -> dict[str, Pairs]:
        """Read the original files or load the sets of the hub."""
        sets = {"train": "train", "validation": "validation", "test": "test"}
        return read_originals("snli", sets, self.data) or read_hub("snli", sets, self.data)


@dataclass(frozen=True)
class MnliOptions(PairOptions):
    """MNLI; ``data`` as for SNLI, with ``multinli_1.0_train.jsonl``, ``_dev_matched`` and ``_dev_mismatched``.

    Attributes:
        genres: Validation on genres that are in the training data (``matched``) or on others
            (``mismatched``).  The labels of the test set are not public.
    """

    name: Literal["mnli"] = field(default="mnli", kw_only=True)
    genres: Literal["matched", "mismatched"] = "matched"

    def read(self) -> dict[str, Pairs]:
        """Read the original files or load the sets of the hub."""
        sets = {"train": "train", "validation": f"validation_{self.genres}"}
        return read_originals("mnli", sets, self.data) or read_hub("mnli", sets, self.data)


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
        """Columns that the options name."""
        return Columns(self.premise, self.hypothesis, self.label)

    def read(self) -> dict[str, Pairs]:
        """Read the files."""
        folder = Path(self.data or ".")
        files = {"train": self.train, "validation": self.validation, "test": self.test}
        return {
            name: read_pairs(folder / file, self.columns, self.classes)
            for name, file in files.items()
            if file is not None
        }


@dataclass(frozen=True, eq=False)
class PairTask:
    """Data of a pair classifier.

    Attributes:
        name: Name in configurations and reports.
        window: Largest number of tokens of a pair.
        classes: Names of the classes 0 .. C - 1.
        train: Training pairs.
        validation: Validation pairs.
        test: Test pairs, or None.
        tokenizer: The tokenizer, for further sentences.
        dropped: Pairs that were left out because they have no agreed label, by set; empty if there were none.
    """

    name: str
    window: int
    classes: tuple[str, ...]
    train: PairSplit
    validation: PairSplit
    test: PairSplit | None
    tokenizer: Any
    dropped: Mapping[str, int]

    @property
    def sets(self) -> Mapping[str, PairSplit]:
        """The sets by name."""
        there = {"train": self.train, "validation": self.validation}
        return there if self.test is None else {**there, "test": self.test}

    @property
    def num_classes(self) -> int:
        """Number of classes C."""
        return len(self.classes)

    @property
    def metric(self) -> Literal["accuracy"]:
        """Share of pairs whose most probable class is the label, in 0 .. 1, higher is better."""
        return "accuracy"

    @property
    def higher_is_better(self) -> bool:
        """True: higher accuracy is better."""
        return True

    def metric_value(self, loss: float, accuracy: float) -> float:
        """Return the accuracy."""
        return accuracy


def pair_task(options: PairOptions, tokenizer: Any) -> PairTask:
    """Read and tokenize the pairs of a task.

    Args:
        options: Options of one of the tasks of this module.
        tokenizer: A fast tokenizer of Hugging Face.

    Raises:
        DataError: If the data cannot be found, read or loaded.
        ImportError: If the extra ``hf`` is needed and not installed.
        TypeError: If ``options`` is not the options of a task of this module.
        ValueError: If the window is too short for the tokenizer.
    """
    if not isinstance(options, PairOptions):
        raise ArgumentTypeError(
            "options", f"expected the options of a task of sentence pairs, got {type(options).__name__}."
        )
    sets = options.read()
    sets["train"] = sets["train"].first(options.num_train)
    splits = {key: tokenize_pairs(tokenizer, pairs, options.window) for key, pairs in sets.items()}
    return PairTask(
        name=options.name,
        window=options.window,
        classes=options.class_names,
        train=splits["train"],
        validation=splits["validation"],
        test=splits.get("test"),
        tokenizer=tokenizer,
        dropped={key: pairs.dropped for key, pairs in sets.items() if pairs.dropped},
    )
