"""Registry of tasks by name: options and builder of each.  A new task is one more entry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from diabat.checks import ArgumentTypeError
from diabat.tasks.base import Task
from diabat.tasks.brackets import BracketOptions, brackets
from diabat.tasks.nli import MnliOptions, PairFileOptions, PairTask, SickOptions, SnliOptions, pair_task
from diabat.tasks.shakespeare import ShakespeareOptions, shakespeare

ExampleKind = Literal["sequences", "pairs"]
"""Kind of examples of a task: sequences with a target per position, or tokenized sentence pairs."""


@dataclass(frozen=True)
class TaskKind:
    """A kind of task.

    Attributes:
        options: Class of its options, whose field ``name`` is the name of the task.
        build: Builds the task from its options, and for ``pairs`` a tokenizer.
        examples: Kind of its examples.
    """

    options: type
    build: Callable[..., Task | PairTask]
    examples: ExampleKind = "sequences"


TASKS: Mapping[str, TaskKind] = {
    "brackets": TaskKind(BracketOptions, brackets),
    "shakespeare": TaskKind(ShakespeareOptions, shakespeare),
    "sick": TaskKind(SickOptions, pair_task, "pairs"),
    "snli": TaskKind(SnliOptions, pair_task, "pairs"),
    "mnli": TaskKind(MnliOptions, pair_task, "pairs"),
    "pairs": TaskKind(PairFileOptions, pair_task, "pairs"),
}


def build_task(options: Any, tokenizer: Any = None) -> Task | PairTask:
    """Build the task that ``options`` names.

    Args:
        options: Options of a registered task.
        tokenizer: A fast tokenizer of Hugging Face, for tasks of sentence pairs.

    Raises:
        TypeError: If ``options`` are not the options of a task.
        ValueError: If the task cannot be built with them.
        DataError: If its data cannot be found, verified or downloaded.
    """
    kind = next((kind for kind in TASKS.values() if isinstance(options, kind.options)), None)
    if kind is None:
        known = ", ".join(kind.options.__name__ for kind in TASKS.values())
        raise ArgumentTypeError("options", f"expected one of {known}, got {type(options).__name__}.")
    return kind.build(options) if kind.examples == "sequences" else kind.build(options, tokenizer)
