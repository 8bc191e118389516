"""What the models are trained on: texts, bracket matching, recall, sentences."""

from collections.abc import Mapping

from diabat.lab.tasks.base import IGNORED, SentenceForm, Split, Task, TaskOptions, TextForm
from diabat.lab.tasks.brackets import BracketOptions
from diabat.lab.tasks.data import DataError, fetch
from diabat.lab.tasks.pairs import PairOptions
from diabat.lab.tasks.recall import RecallOptions
from diabat.lab.tasks.text import ShakespeareOptions, TextOptions

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
