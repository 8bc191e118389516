"""What the models are trained on: Tiny Shakespeare, bracket matching, natural language inference."""

from diabat.tasks.base import IGNORED, Examples, Split, Task, TaskOptions
from diabat.tasks.brackets import BracketOptions, brackets
from diabat.tasks.data import DataError, fetch
from diabat.tasks.nli import (
    MnliOptions,
    PairFileOptions,
    PairOptions,
    PairTask,
    SickOptions,
    SnliOptions,
    pair_task,
)
from diabat.tasks.nli_tokens import PairBatch, PairSplit
from diabat.tasks.registry import TASKS, TaskKind, build_task
from diabat.tasks.shakespeare import ShakespeareOptions, shakespeare

__all__ = [
    "IGNORED",
    "TASKS",
    "BracketOptions",
    "DataError",
    "Examples",
    "MnliOptions",
    "PairBatch",
    "PairFileOptions",
    "PairOptions",
    "PairSplit",
    "PairTask",
    "ShakespeareOptions",
    "SickOptions",
    "SnliOptions",
    "Split",
    "Task",
    "TaskKind",
    "TaskOptions",
    "brackets",
    "build_task",
    "fetch",
    "pair_task",
    "shakespeare",
]
