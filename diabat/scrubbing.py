"""Secrets: refused in options, and taken out of messages before they are printed.

Tokens stay in the Ocean configuration or the environment; nothing here stores or prints one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from diabat.checks import ArgumentError

SECRET_NAME = re.compile(
    r"token(?!s\b|i[sz])|secret|password|passwd|passphrase|credential|authorization|(?:api|access|private)_?key",
    re.IGNORECASE,
)
"""Names of options that hold a secret; "tokens" are words of a text."""
_MAX_MESSAGE = 300
_MOST_READ = 3000

_NAMES = (
    r"[\w-]*(?:token|(?:api|access|private|auth)[_-]?key|secret|passw(?:or)?d|passphrase|credentials?"
    r"|authorization)"
)
_SCHEMES = r"(?:(?:bearer|basic|digest|token)\s+)?"
# A list, a text in quotes, or what stands before the next space or comma.
_VALUE = r"(?:\[[^\]]*\]?|\([^)]*\)?|\{[^}]*\}?|\\?\"[^\"]*\"?|\\?'[^']*'?|[^\s,;)]+)"

# Names and schemes begin where nothing of theirs stands before: a long text is then gone through once.
_USER = re.compile(r"((?<![a-z0-9+.-])[a-z0-9+.-]+://)[^\s/?#@]*@", re.IGNORECASE)
_QUERY = re.compile(r"((?<![a-z0-9+.-])[a-z0-9+.-]+://[^\s?#'\"]*)[?#][^\s'\",)]+", re.IGNORECASE)
_EQUALS = rf"\\?[\"']?\s*(?:[:=]|%3D)\s*)(?!\*\*\*){_SCHEMES}{_VALUE}"
_ASSIGNED = re.compile(rf"(?<![\w-])({_NAMES}{_EQUALS}", re.IGNORECASE)
_KEY = re.compile(rf"(?<![\w-])([\w-]*key{_EQUALS}", re.IGNORECASE)
# In a header or on a command line, and in quotes, nothing but a space stands between.
_FOLLOWED = re.compile(
    rf"((?<!\w)(?:x-auth-token|--?{_NAMES})\s+|\b(?:token|password|secret)\s+(?=[\"'])){_VALUE}",
    re.IGNORECASE,
)
_BEARER = re.compile(
    r"\b((?:bearer|basic)\s+)(?=[^\s,;)]*[\d._=-])[^\s,;)]+|\b(bearer\s+)[^\s,;)]+", re.IGNORECASE
)
_LONG = re.compile(r"(?=[\w\-+/=~]*\d)[\w\-+/=~]{20,}")


def without_secrets(text: str) -> str:
    """A text without what stands where secrets stand, however short: user and query of an address, and values.

    Values are what follows "token:", "key=", "secret", "password", "authorization" and the like, a list or a text in
    quotes as a whole, and "bearer".
    """
    text = _USER.sub(r"\1***@", text)
    text = _QUERY.sub(r"\1?***", text)
    text = _ASSIGNED.sub(r"\1***", text)
    text = _FOLLOWED.sub(r"\1***", text)
    return _BEARER.sub(lambda found: f"{found[1] or found[2]}***", text)


def scrubbed(message: str) -> str:
    """A message on one line, at most 300 characters, without secrets and without what looks like a key.

    What follows any "key:" or "...key=" counts as a secret here.  Words of 20 or more letters, digits and _-+/=~ with a
    digit among them are taken for keys.
    """
    text = without_secrets(_LONG.sub("***", " ".join(message[:_MOST_READ].split())))
    text = _KEY.sub(r"\1***", text)
    return text if len(text) <= _MAX_MESSAGE else text[: _MAX_MESSAGE - 1] + "…"


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
