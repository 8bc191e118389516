"""What the models are trained on: texts, bracket matching, recall, sentences."""

from collections.abc import Mapping

from diabat.tasks.base import IGNORED, SentenceForm, Split, Task, TaskOptions, TextForm
from diabat.tasks.brackets import BracketOptions
from diabat.tasks.data import DataError, fetch
from diabat.tasks.pairs import PairOptions
from diabat.tasks.recall import RecallOptions
from diabat.tasks.text import ShakespeareOptions, TextOptions

TASKS: Mapping[str, type[TaskOptions]] = {
    "brackets": BracketOptions,
    "recall": RecallOptions,
    "pairs": PairOptions,
    "text": TextOptions,
    "shakespeare": ShakespeareOptions,
}
"""Options of every task by its name, which build it.  A new task is one file and one entry."""

__all__ = [
    "IGNORED",
    "TASKS",
    "BracketOptions",
    "DataError",
    "PairOptions",
    "RecallOptions",
    "SentenceForm",
    "ShakespeareOptions",
    "Split",
    "Task",
    "TaskOptions",
    "TextForm",
    "TextOptions",
    "fetch",
]
