"""Tokens stay in the Ocean configuration or the environment; nothing here sees, stores or prints one."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from diabat.circuits.scrubbing import scrubbed

_SECRET = re.compile(r"token|secret|password|passwd|credential|authorization|api_?key", re.IGNORECASE)
# Where Ocean reads a token from.
_VARIABLE = "DWAVE_API_TOKEN"


def refuse_secrets(name: str, options: Mapping[str, Any]) -> None:
    """Refuse options that are named like a token, at any depth; their values are not looked at.

    Raises:
        ValueError: Names the option, never its value.
    """
    for key, value in options.items():
        if _SECRET.search(str(key)):
            raise ValueError(
                f"{name}: expected no '{key}' here, where it would be stored with the run; put it into the Ocean "
                f"configuration ('dwave config create') or the variable {_VARIABLE}."
            )
        if isinstance(value, Mapping):
            refuse_secrets(name, value)


def safe_message(error: BaseException) -> str:
    """``Type: message`` of an exception on one line, without anything that looks like a token."""
    text = str(error)
    token = os.environ.get(_VARIABLE)
    if token:
        text = text.replace(token, "***")
    return f"{type(error).__name__}: {scrubbed(text)}"
