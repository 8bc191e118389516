"""What the models are trained on: Tiny Shakespeare, bracket matching, natural language inference."""

from diabat.checks import ArgumentTypeError
from diabat.tasks.base import IGNORED, Examples, Split, Task
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
from diabat.tasks.shakespeare import ShakespeareOptions, shakespeare

__all__ = [
    "IGNORED",
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
    "brackets",
    "build_task",
    "fetch",
    "pair_task",
    "shakespeare",
]


def build_task(options: ShakespeareOptions | BracketOptions) -> Task:
    """Build the task that the type of ``options`` names.

    Raises:
        TypeError: If ``options`` is of neither type.
    """
    if isinstance(options, ShakespeareOptions):
        return shakespeare(options)
    if isinstance(options, BracketOptions):
        return brackets(options)
    raise ArgumentTypeError(
        "options", f"expected ShakespeareOptions or BracketOptions, got {type(options).__name__}."
    )
