"""Secrets: refused in options, and removed from messages before they are printed.

Tokens stay in the Ocean configuration or the environment; nothing here stores or prints one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from diabat.checks import ArgumentError

SECRET_NAME = re.compile(
    r"token(?!s\b|i[sz])|secret|password|passwd|passphrase|credential|authorization|cookie|jwt|connection_?string"
    r"|(?:api|access|private|cert|account)_?key|(?:\b|_)(?:pat|pwd)(?:\b|_)",
    re.IGNORECASE,
)
"""Names of options that hold a secret; "tokens" are words of a text."""
_MAX_MESSAGE = 300
_MOST_READ = 3000

_NAMES = (
    r"(?:[\w-]*(?:token|(?:api|access|private|auth|cert|account)[_-]?key|secret|passw(?:or)?d|passphrase|credentials?"
    r"|authorization|cookie|jwt|connection[_-]?string)|(?:[\w-]*[_-])?(?:pat|pwd))"
)
_SCHEMES = r"(?:(?:bearer|basic|digest|token)\s+)?"
# A list, a quoted text, or everything up to the next space or comma.
_VALUE = r"(?:\[[^\]]*\]?|\([^)]*\)?|\{[^}]*\}?|\\?\"[^\"]*\"?|\\?'[^']*'?|[^\s,;)]+)"

# Names and schemes begin where nothing of theirs stands before: a long text is then gone through once.
# A password with a slash or the like is one, too; host:80/path is none.
_USER = re.compile(
    r"((?<![a-z0-9+.-])[a-z0-9+.-]+://)(?:[^\s/?#@:]*:(?!\d{1,5}[/?#])[^\s'\",]{0,200}@|[^\s/?#@]*@)",
    re.IGNORECASE,
)
_BARE_USER = re.compile(r"(?<![\w/:.@+-])[\w.+-]+:[^\s:@/'\"]+@(?=[\w\[])")  # without the scheme
_QUERY = re.compile(r"((?<![a-z0-9+.-])[a-z0-9+.-]+://[^\s?#'\"]*)[?#][^\s'\",)]+", re.IGNORECASE)
_EQUALS = rf"\\?[\"']?\s*(?:[:=]|%3D)\s*)(?!\*\*\*){_SCHEMES}{_VALUE}"
_ASSIGNED = re.compile(rf"(?<![\w-])({_NAMES}{_EQUALS}", re.IGNORECASE)
_COOKIES = re.compile(
    r"((?<![\w-])(?:set-)?cookie:\s*)[\w-]+=[^\s;,]*(?:;\s*[\w-]+=[^\s;,]*)*", re.IGNORECASE
)
_KEY = re.compile(rf"(?<![\w-])([\w-]*key{_EQUALS}", re.IGNORECASE)
# In a header or on a command line, and in quotes, nothing but a space stands between.
_QUOTED = r"\b(?:token|password|secret)\s+(?=[\"'])"
# A word that is none of a sentence: with a digit or a sign inside, and after "token" of eight letters and digits.
_WORD = r"\b(?:password|passwd|passphrase)\s+(?:is\s+)?(?!\*\*\*)(?=[^\s,;)]*(?:\d|[@#$%^&*+~!](?=\w)))"
_TOKEN_WORD = r"\b(?:token|secret)\s+(?:is\s+)?(?=[\w-]{8})(?=[\w-]*\d)(?=[\w-]*[a-z])"
_FOLLOWED = re.compile(
    rf"((?<!\w)(?:x-auth-token|--?{_NAMES})\s+|{_QUOTED}|{_WORD}|{_TOKEN_WORD}){_VALUE}", re.IGNORECASE
)
_BEARER = re.compile(
    r"\b((?:bearer|basic)\s+)(?=[^\s,;)]*[\d._=-])[^\s,;)]+|\b(bearer\s+)[^\s,;)]+", re.IGNORECASE
)
_LONG = re.compile(r"(?=[\w\-+/=~]*\d)[\w\-+/=~]{20,}")


def without_secrets(text: str) -> str:
    """Remove secrets from a text by their position: user and query of a URL, and values of secret names.

    A value follows "token:", "key=", "secret", "password", "authorization" or similar, or "bearer"; a list or a quoted
    text is one value.  Its length does not matter.  After "password" and a space it is a quoted text or a word with a
    digit or a sign inside, after "token" and a space one of eight letters and digits or more: other words stay.
    """
    text = _COOKIES.sub(r"\1***", text)
    text = _QUERY.sub(r"\1?***", _USER.sub(r"\1***@", text))
    text = _FOLLOWED.sub(r"\1***", _ASSIGNED.sub(r"\1***", text))
    return _BEARER.sub(lambda match: f"{match[1] or match[2]}***", text)


# Tokens as D-Wave and others write them.
_TOKEN = re.compile(r"[A-Za-z]{2,6}-[0-9a-fA-F]{32,64}|(?:ghp|hf|sk)_?[-\w]{20,}")
# The environment variable from which Ocean reads a token.
_VARIABLE = "DWAVE_API_TOKEN"


def refuse_secrets(name: str, options: Any, key: str | None = None) -> None:
    """Refuse options (a mapping, a list or a value) named like a token or with one in them, at any depth.

    The ArgumentError names the argument and the option ``key``, never its value.
    """
    if isinstance(options, Mapping):
        for inner, value in options.items():
            if _holds_secret(str(inner)):  # for example a URL
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
    """Return ``Type: message`` of an exception on one line, without secrets and without words that look like keys.

    The message has at most 300 characters.  Here the value of any "key:" or "...key=" is a secret.  Words of 20 or more
    letters, digits and _-+/=~ that contain a digit look like keys.
    """
    text = str(error)
    if token := os.environ.get(_VARIABLE):
        text = text.replace(token, "***")
    text = without_secrets(_LONG.sub("***", " ".join(text[:_MOST_READ].split())))
    text = _BARE_USER.sub("***@", _KEY.sub(r"\1***", text))
    shown = text if len(text) <= _MAX_MESSAGE else text[: _MAX_MESSAGE - 1] + "…"
    return f"{type(error).__name__}: {shown}"
