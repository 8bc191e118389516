"""Properties: checks that draw their arguments from strategies of hypothesis, run by name and seed."""

from __future__ import annotations

import inspect
import linecache
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException

import diabat
from diabat.checkpoints import TrainingError
from diabat.checks import escaped
from diabat.lab.tasks.data import DataError

PROPERTIES: dict[str, Callable[..., None]] = {}
REFUSALS = (ValueError, TypeError, FileNotFoundError, DataError, TrainingError)
"""Types of errors that the library raises on purpose; UnsupportedError, IsingError and others derive from them."""


class Wrong(AssertionError):  # noqa: N818 (it is what the fuzz looks for)
    """A finding; the message states what was expected and what was found."""


@dataclass
class Outcome:
    """Examples of a property that were answered and that were refused in a sentence; what is wrong, if anything."""

    name: str
    answers: int = 0
    sentences: int = 0
    finding: str = ""
    seed: int = 0


def holds(check: Callable[..., None]) -> Callable[..., None]:
    """Register a check ``check(draw)``, or ``check(draw, folder)`` with an empty folder, under its name."""
    PROPERTIES[check.__name__] = check
    return check


def run(
    name: str, number: int, *, examples: int = 50, begins: Callable[[], None] = lambda: None, verbose: bool = False
) -> Outcome:  # fmt: skip
    """Run a property with a seed, and shrink what it finds; ``begins`` is called before every example."""
    check, endings, finding = PROPERTIES[name], Counter[str](), ""
    in_folder = "folder" in inspect.signature(check).parameters

    def example(data: Any) -> None:
        begins()
        torch.default_generator.manual_seed(0)
        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
            rest = [Path(folder)] if in_folder else []
            endings[judge(lambda: check(data.draw, *rest))] += 1

    choices = settings(
        max_examples=examples, phases=[Phase.generate, Phase.shrink], database=None, deadline=None,
        derandomize=False, report_multiple_bugs=False, suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.verbose if verbose else Verbosity.normal,
    )  # fmt: skip
    try:
        seed(number)(choices(given(st.data())(example)))()
    except Exception as error:
        lines = [f"{type(error).__name__}: {error}"]
        if not isinstance(error, Wrong):
            lines += traceback.format_tb(error.__traceback__)[-3:]
        text = "\n".join((*lines, *getattr(error, "__notes__", ())))
        finding = "\n".join(line[:300] for line in text.splitlines()[:80])
    return Outcome(name, endings["answer"], endings["sentence"], finding, number)


def judge(check: Callable[[], None]) -> str:
    """Run a check: an ``answer``, or a ``sentence``; all else that it raises is a finding, and most warnings are."""
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
        sound = issubclass(warning.category, UserWarning) and text.endswith(".")
        got = f"{warning.category.__name__}: {text} ({warning.filename})"
        demand(sound, f"warning: expected a sentence, got {got}")
    return "answer"


def demand(condition: bool, sentence: str) -> None:
    """Raise :class:`Wrong` with the sentence unless the condition holds."""
    if not condition:
        raise Wrong(sentence)


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
    """Why an exception is not a refusal that diabat raised on purpose, in one sentence; empty if it is one."""
    text = str(error)
    if not isinstance(error, REFUSALS):
        return f"expected a refusal, got {type(error).__name__}"
    if escaped(text) != text or len(text.split()) < 4:
        return "expected one sentence, without what a terminal would obey"
    frames = traceback.extract_tb(error.__traceback__)
    ours = bool(frames) and frames[-1].filename.startswith(str(Path(diabat.__file__).parent))
    line = linecache.getline(frames[-1].filename, frames[-1].lineno or 0) if ours else ""
    return "" if line.lstrip().startswith("raise") else "expected a refusal of diabat, got one of a library"
