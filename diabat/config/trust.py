"""Refuse untrusted entries in the folder of a run: names of code, of other machines, and secrets.

A configuration file and an override may name anything.  A run folder may come from somebody else: its
``config.json`` may name only samplers of known packages, and no address, unless the folder is trusted.
Secrets are refused everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from diabat.config.errors import ConfigError, dotted, refused

RUN_CONFIG = "config.json"
"""Name of the file that makes a folder that of a run."""

KNOWN_PACKAGES = ("diabat", "dimod", "dwave", "greedy", "hybrid", "neal", "openjij", "tabu")
"""Packages whose samplers a run folder may name; importing any other package could run arbitrary code."""

# Where a client connects to, with the token of whoever calls it.
_CONNECTION = re.compile(r"endpoint|proxy|config_file|permissive_ssl|cert|headers|client", re.IGNORECASE)

KeyPath = tuple[str | int, ...]


def refuse_untrusted(document: dict[str, Any], path: Path, given: Iterable[KeyPath] = ()) -> None:
    """Refuse names of foreign code or machines in a configuration that was read from a run folder.

    Args:
        document: The configuration, overrides applied.
        path: Its file; every file except ``config.json`` is trusted.
        given: Keys that the caller has set.

    Raises:
        ConfigError: Names the key, and how to trust the folder.
    """
    if path.name != RUN_CONFIG:
        return
    own = tuple(given)
    for key, value in _leaves(_samplers(document), ()):
        if value is not None and not any(key[: len(mine)] == mine for mine in own):
            expected = _expected(key, value)
            if expected:
                raise ConfigError(
                    dotted(key),
                    f"expected {expected} in the folder of a run, got {value!r:.80} in '{path}'; set "
                    "the key yourself, or give --trust (trust=True) if you trust whoever made the run.",
                )


def refuse_stored_secrets(document: dict[str, Any]) -> None:
    """Refuse secrets in the options of samplers, and addresses with secrets anywhere: all of it is stored with a run.

    Raises:
        ConfigError: Names the key, never the value.
    """
    from diabat.scrubbing import refuse_secrets

    try:
        refuse_secrets("sampler", document.get("sampler"))
        refuse_secrets("fidelity.backends", _samplers(document)["fidelity"]["backends"])
        for key, value in _leaves(document, ()):
            if isinstance(value, str) and "://" in value:
                refuse_secrets(dotted(key), value)
    except RecursionError:  # it contains itself, which is reported elsewhere
        return
    except ValueError as error:
        raise refused(error) from None


def _expected(key: KeyPath, value: Any) -> str | None:
    """Describe the expected value for an error message."""
    if isinstance(value, str) and _package(value) not in (None, *KNOWN_PACKAGES):
        return f"a sampler of {', '.join(KNOWN_PACKAGES)}"
    if isinstance(value, str) and "://" in value:
        return "no address"
    if any(isinstance(part, str) and _CONNECTION.search(part) for part in key[1:]):
        return "no way to connect"
    return None


def _package(value: str) -> str | None:
    """The package that ``module:name`` leads to; None for any other text."""
    module, _, name = value.partition(":")
    parts = module.split(".")
    return parts[0] if name.isidentifier() and all(part.isidentifier() for part in parts) else None


def _samplers(document: dict[str, Any]) -> dict[str, Any]:
    """The sections from which samplers are built."""
    fidelity = document.get("fidelity")
    backends = fidelity.get("backends") if isinstance(fidelity, dict) else None
    return {"sampler": document.get("sampler"), "fidelity": {"backends": backends}}


def _leaves(value: Any, key: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, (*key, str(name)))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from _leaves(inner, (*key, place))
    else:
        yield key, value
