"""Properties: checks that draw their arguments from strategies of hypothesis, run by name and seed."""

from __future__ import annotations

import inspect
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st

from fuzz.outcome import Wrong, judge

Check = Callable[..., None]
PROPERTIES: dict[str, Check] = {}
_EXAMPLES = 50


@dataclass
class Outcome:
    """How runs of a property ended.

    Attributes:
        name: Name of the property.
        answers: Examples that were answered correctly.
        sentences: Examples that were refused in one sentence.
        finding: What is wrong, with the smallest example that hypothesis found; empty if nothing is.
        seed: Seed of the last run.
    """

    name: str
    answers: int = 0
    sentences: int = 0
    finding: str = ""
    seed: int = 0


def holds(check: Check) -> Check:
    """Register a check ``check(draw)``, or ``check(draw, folder)`` with an empty folder, under its name."""
    PROPERTIES[check.__name__] = check
    return check


def run(
    name: str,
    number: int,
    *,
    examples: int = _EXAMPLES,
    begins: Callable[[], None] = lambda: None,
    verbosity: Verbosity = Verbosity.normal,
) -> Outcome:
    """Run a property with a seed, and shrink what it finds; ``begins`` is called before every example."""
    check, endings = PROPERTIES[name], Counter[str]()
    in_folder = "folder" in inspect.signature(check).parameters

    def example(data: Any) -> None:
        begins()
        torch.manual_seed(0)
        if not in_folder:
            endings[judge(lambda: check(data.draw))] += 1
            return
        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
            endings[judge(lambda: check(data.draw, Path(folder)))] += 1

    choices = settings(
        max_examples=examples,
        phases=[Phase.generate, Phase.shrink],
        verbosity=verbosity,
        database=None,
        deadline=None,
        derandomize=False,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    finding = ""
    try:
        seed(number)(choices(given(st.data())(example)))()
    except Exception as error:
        finding = _described(error)
    return Outcome(name, endings["answer"], endings["sentence"], finding, number)


def _described(error: Exception) -> str:
    lines = [f"{type(error).__name__}: {error}"]
    if not isinstance(error, Wrong):
        lines += traceback.format_tb(error.__traceback__)[-3:]
    text = "\n".join((*lines, *getattr(error, "__notes__", ())))
    return "\n".join(line[:300] for line in text.splitlines()[:80])
