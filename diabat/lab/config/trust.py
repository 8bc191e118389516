"""What a run folder may name without trust, and secrets, which no configuration may hold.

A configuration file and an override may name any backend.  A run folder may come from somebody else: its
``config.json`` may name only built-in backends that run nothing but diabat's own code on this machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from diabat.documents.errors import ConfigError, dotted, refused

RUN_CONFIG = "config.json"
"""Name of the file that makes a folder that of a run."""

LOCAL_BACKENDS = ("banded", "dqa", "exact", "mean_field", "refine", "tempering")
"""Backends that import no named module and open no connection."""

KeyPath = tuple[str | int, ...]


def refuse_untrusted(document: dict[str, Any], path: Path, chosen: Iterable[KeyPath] = ()) -> None:
    """Refuse other backends than the local ones in a configuration from ``path``, if that is one of a run folder.

    ``chosen`` are keys that the caller has set; a sampler whose every key is the caller's is not refused.  The
    ConfigError names the key, and how to trust the folder.
    """
    if path.name != RUN_CONFIG:
        return
    own = tuple(chosen)
    for place, section in sampler_sections(document).items():
        leaves = list(_leaves(section, place))
        if all(any(key[: len(mine)] == mine for mine in own) for key, _ in leaves):
            continue
        for key, name in leaves:
            # A composite names its base as ``sampler``, at any depth.
            if key[-1] in ("backend", "sampler") and name not in LOCAL_BACKENDS:
                expected = f"one of {', '.join(LOCAL_BACKENDS)} in a run folder that is not trusted"
                fix = "or give --trust (trust=True) if you trust whoever made the run"
                got = f"{name!r:.80} in '{path}'; choose another backend, {fix}"
                raise ConfigError(dotted(key), expected, got)


def refuse_stored_secrets(document: dict[str, Any]) -> None:
    """Refuse secrets in the options of samplers, and addresses with secrets anywhere: all of it is stored with a run.

    The ConfigError names the key, never the value.
    """
    from diabat.secrets import refuse_secrets

    try:
        for place, section in sampler_sections(document).items():
            refuse_secrets(dotted(place), section)
        for key, value in _leaves(document, ()):
            if isinstance(value, str) and "://" in value:
                refuse_secrets(dotted(key), value)
    except RecursionError:  # it contains itself, which is reported elsewhere
        return
    except ValueError as error:
        raise refused(error) from None


def sampler_sections(document: dict[str, Any]) -> dict[KeyPath, Any]:
    """The sections of a document from which samplers are built, by their keys."""
    fidelity = document.get("fidelity")
    backends = fidelity.get("backends") if isinstance(fidelity, dict) else None
    named = backends.items() if isinstance(backends, dict) else ()
    sections: list[tuple[KeyPath, Any]] = [(("sampler",), document.get("sampler"))]
    sections += [(("fidelity", "backends", label), section) for label, section in named]
    return {key: section for key, section in sections if section is not None}


def _leaves(value: Any, key: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    if not isinstance(value, dict | list):
        yield key, value
        return
    inner = ((str(k), v) for k, v in value.items()) if isinstance(value, dict) else enumerate(value)
    for place, part in inner:
        yield from _leaves(part, (*key, place))
