"""What the models are trained on: Tiny Shakespeare and bracket matching."""

from diabat.tasks.base import IGNORED, Split, Task
from diabat.tasks.brackets import BracketOptions, brackets
from diabat.tasks.data import DataError, fetch
from diabat.tasks.shakespeare import ShakespeareOptions, shakespeare

__all__ = [
    "IGNORED",
    "BracketOptions",
    "DataError",
    "ShakespeareOptions",
    "Split",
    "Task",
    "brackets",
    "build_task",
    "fetch",
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
    raise TypeError(f"options: expected ShakespeareOptions or BracketOptions, got {type(options).__name__}.")
