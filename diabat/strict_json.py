"""JSON as our files have it: every key once, neither NaN nor Infinity, nothing nested out of reach."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON document.

    Raises:
        json.JSONDecodeError: It is not JSON.
        ValueError: A key is given twice, a number is NaN or Infinity or has thousands of digits, or it is nested too
            deeply; half a sentence that says which.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {twice!r:.60} is given twice")
    return found


def _refuse_constant(constant: str) -> float:
    raise ValueError(f"expected finite numbers, got {constant}")
