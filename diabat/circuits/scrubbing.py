"""Messages of remote services, made safe to print."""

from __future__ import annotations

import re

_MAX_MESSAGE = 300


def scrubbed(message: str) -> str:
    """A message on one line, at most 300 characters, without what looks like a key or follows the name of one.

    Words of 20 or more letters, digits and _-+/=~ with a digit among them are taken for keys, and so is what follows
    "token:", "key=", "secret", "password", "authorization" and the like, or "bearer".
    """
    text = " ".join(message.split())
    text = re.sub(r"(?=[\w\-+/=~]*\d)[\w\-+/=~]{20,}", "***", text)
    names = (
        r"(?i)\b([\w-]*(?:token|key|secret|password|authorization)[\"']?\s*[:=]\s*)(?:bearer\s+)?[^\s,;)]+"
    )
    text = re.sub(names, r"\1***", text)
    text = re.sub(r"(?i)\b(bearer\s+)[^\s,;)]+", r"\1***", text)
    return text if len(text) <= _MAX_MESSAGE else text[: _MAX_MESSAGE - 1] + "…"
