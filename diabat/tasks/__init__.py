"""What the models are trained on: Tiny Shakespeare, bracket matching, recall, natural language inference."""

from collections.abc import Mapping

from diabat.tasks.base import IGNORED, ExampleKind, Examples, Split, Task, TaskOptions, TextForm
from diabat.tasks.brackets import BracketOptions
from diabat.tasks.data import DataError, fetch
from diabat.tasks.nli import MnliOptions, PairFileOptions, PairOptions, SickOptions, SnliOptions
from diabat.tasks.nli_tokens import PairBatch, PairSplit
from diabat.tasks.recall import RecallOptions
from diabat.tasks.shakespeare import ShakespeareOptions

TASKS: Mapping[str, type[TaskOptions]] = {
    "brackets": BracketOptions,
    "recall": RecallOptions,
    "shakespeare": ShakespeareOptions,
    "sick": SickOptions,
    "snli": SnliOptions,
    "mnli": MnliOptions,
    "pairs": PairFileOptions,
}
"""Options of every task by its name, which build it.  A new task is one file and one entry."""

__all__ = [
    "IGNORED",
    "TASKS",
    "BracketOptions",
    "DataError",
    "ExampleKind",
    "Examples",
    "MnliOptions",
    "PairBatch",
    "PairFileOptions",
    "PairOptions",
    "PairSplit",
    "RecallOptions",
    "ShakespeareOptions",
    "SickOptions",
    "SnliOptions",
    "Split",
    "Task",
    "TaskOptions",
    "TextForm",
    "fetch",
]
