"""Outcome of a case: an answer, a refusal in one sentence, or a finding."""

from __future__ import annotations

import linecache
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

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


@dataclass(frozen=True)
class Outcome:
    """How a case ended.

    Attributes:
        kind: ``answer``, ``sentence`` or ``finding``.
        case: What was tried, e.g. ``law exact``.
        text: The refusal, or what is wrong.
        place: Where a finding was raised; findings of one place are reported together.
    """

    kind: Literal["answer", "sentence", "finding"]
    case: str
    text: str = ""
    place: str = ""


def judge(name: str, case: Callable[[], None]) -> Outcome:
    """Run a case and return its outcome; a warning that is not a sentence is a finding."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            case()
        except Wrong as wrong:
            return Outcome("finding", name, str(wrong), f"{name}: {str(wrong).partition(':')[0]}")
        except Exception as error:
            if flaw := refusal_flaw(error):
                return Outcome("finding", name, f"{flaw}: {_described(error)}", f"{name}: {_place(error)}")
            return Outcome("sentence", name, str(error))
    for warning in caught:
        text = str(warning.message)
        if not issubclass(warning.category, UserWarning) or not text.endswith("."):
            shown = f"{warning.category.__name__}: {text} ({warning.filename}:{warning.lineno})"
            return Outcome(
                "finding", name, f"a warning that is not a sentence: {shown}", f"{name}: {text[:40]}"
            )
    return Outcome("answer", name)


@contextmanager
def naming(word: str) -> Iterator[None]:
    """Require that a refusal in the block names this file or argument."""
    try:
        yield
    except REFUSALS as error:
        if word not in str(error) and not refusal_flaw(error):
            raise Wrong(f"refusal without the name '{word}': {_described(error)}") from error
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


def _place(error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(PACKAGE)]
    where = f"{Path(frames[-1].filename).relative_to(PACKAGE)}:{frames[-1].lineno}" if frames else "?"
    return f"{type(error).__name__} at {where}"


def _described(error: BaseException) -> str:
    return f"{_place(error)}: {' '.join(str(error).split())[:300]}"
