"""Tokens stay in the Ocean configuration or the environment; nothing here sees, stores or prints one."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from diabat.checks import ArgumentError
from diabat.scrubbing import SECRET_NAME, scrubbed, without_secrets

# As D-Wave and others write them.
_TOKEN = re.compile(r"[A-Za-z]{2,6}-[0-9a-fA-F]{32,64}|(?:ghp|hf|sk)_?[-\w]{20,}")
# Where Ocean reads a token from.
_VARIABLE = "DWAVE_API_TOKEN"


def refuse_secrets(name: str, options: Any, key: str | None = None) -> None:
    """Refuse options that are named like a token, and values that hold one, at any depth and in lists too.

    Args:
        name: What the options are, for the message.
        options: A mapping, a list, or a value.
        key: The option that a value is of.

    Raises:
        ValueError: Names the option, never its value.
    """
    if isinstance(options, Mapping):
        for inner, value in options.items():
            # A key may be the secret itself, in a mapping by address.
            if _holds_secret(str(inner)):
                raise _refusal(name, "such key")
            if SECRET_NAME.search(str(inner)):
                raise _refusal(name, f"'{inner}'")
            refuse_secrets(name, value, str(inner))
    elif isinstance(options, (list, tuple, set, frozenset)):
        for value in options:
            refuse_secrets(name, value, key)
    elif isinstance(options, str) and _holds_secret(options):
        raise _refusal(name, "token or password" + (f" in '{key}'" if key else ""))


def _holds_secret(text: str) -> bool:
    own = os.environ.get(_VARIABLE)
    return bool((own and own in text) or _TOKEN.fullmatch(text.strip()) or without_secrets(text) != text)


def _refusal(name: str, what: str) -> ArgumentError:
    return ArgumentError(
        name,
        f"expected no {what} here, where it would be stored with the run; put it into the Ocean "
        f"configuration ('dwave config create') or the variable {_VARIABLE}.",
    )


def safe_message(error: BaseException) -> str:
    """``Type: message`` of an exception on one line, without anything that looks like a token."""
    text = str(error)
    token = os.environ.get(_VARIABLE)
    if token:
        text = text.replace(token, "***")
    return f"{type(error).__name__}: {scrubbed(text)}"
