"""What a check may end in: an answer, a refusal in one sentence, or a finding, which is everything else."""

from __future__ import annotations

import linecache
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Literal

from hypothesis.errors import HypothesisException

import diabat
from diabat.tasks.data import DataError
from diabat.training.errors import TrainingError

PACKAGE = str(Path(diabat.__file__).parent)
REFUSALS = (ValueError, TypeError, FileNotFoundError, DataError, TrainingError)
"""Types of errors that the library raises on purpose; UnsupportedError, IsingError and others derive from them."""
_FEWEST_WORDS = 4


class Wrong(AssertionError):  # noqa: N818 (it is what the fuzz looks for)
    """A finding; the message states what was expected and what was found."""


def demand(condition: bool, sentence: str) -> None:
    """Raise :class:`Wrong` with the sentence unless the condition holds."""
    if not condition:
        raise Wrong(sentence)


def judge(check: Callable[[], None]) -> Literal["answer", "sentence"]:
    """Run a check; what it raises is a finding unless it is a refusal, and a warning must be a sentence."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            check()
        except (Wrong, HypothesisException):
            raise
        except Exception as error:
            if flaw := refusal_flaw(error):
                error.add_note(flaw)
                raise
            return "sentence"
    for warning in caught:
        text = str(warning.message)
        if not issubclass(warning.category, UserWarning) or not text.endswith("."):
            where = f"{warning.category.__name__}: {text} ({warning.filename}:{warning.lineno})"
            raise Wrong(f"warning: expected a sentence, got {where}")
    return "answer"


@contextmanager
def naming(word: str) -> Iterator[None]:
    """Require that a refusal in the block names this file or argument."""
    try:
        yield
    except REFUSALS as error:
        if word not in str(error) and not refusal_flaw(error):
            raise Wrong(f"refusal without the name '{word}': {error}") from error
        raise


def refusal_flaw(error: BaseException) -> str:
    """Why an exception is not a deliberate refusal in one sentence; empty if it is one."""
    text = str(error)
    if not isinstance(error, REFUSALS):
        return f"expected a refusal, got {type(error).__name__}"
    if "\n" in text or len(text.split()) < _FEWEST_WORDS:
        return "expected one sentence"
    return "" if _on_purpose(error.__traceback__) else "expected a refusal of diabat, got one of a library"


def _on_purpose(trace: TracebackType | None) -> bool:
    """Whether the exception comes from a raise statement of diabat, not from a library that it called."""
    frames = traceback.extract_tb(trace)
    if not frames or not frames[-1].filename.startswith(PACKAGE):
        return False
    line = linecache.getline(frames[-1].filename, frames[-1].lineno or 0)
    return line.lstrip().startswith("raise")
