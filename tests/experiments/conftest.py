"""Scripts that are run within a test."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

Tables = Callable[..., list[Any]]


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tables:
    """From a script and the words of its command line to the rows of each of its tables."""

    def run(script: ModuleType, *words: object) -> list[Any]:
        monkeypatch.setattr(sys, "argv", [script.__name__, *map(str, words), "--json"])
        script.main()
        lines = capsys.readouterr().out.splitlines()
        return [json.loads(line)["rows"] for line in lines if line.startswith("{")]

    return run
