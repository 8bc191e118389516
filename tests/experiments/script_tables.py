"""Scripts that are run within a test."""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stdout
from types import ModuleType
from typing import Any
from unittest.mock import patch


def tables(script: ModuleType, *words: object) -> list[Any]:
    """The rows of each table that a script prints with these words behind its name."""
    out = io.StringIO()
    with redirect_stdout(out), patch.object(sys, "argv", [script.__name__, *map(str, words), "--json"]):
        script.main()
    return [json.loads(line)["rows"] for line in out.getvalue().splitlines() if line.startswith("{")]
