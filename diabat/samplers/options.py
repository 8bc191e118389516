"""The options of a sampler: recorded when it is built, and shown in its repr."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

import numpy as np

from diabat.scrubbing import SECRET_NAME, without_secrets

_RECORD = "_built_with"
_MOST_ITEMS = 8


class WithOptions:
    """Base class that records the arguments of the constructor, also for subclasses with their own ``__init__``."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "__init__" in vars(cls):
            setattr(cls, "__init__", _recording(vars(cls)["__init__"]))  # noqa: B010 - mypy knows no such assignment

    @property
    def options(self) -> dict[str, Any]:
        """Options of the constructor, defaults included: ``diabat.sampler(s.name, **s.options)`` builds an equal one.

        Containers are copied; other objects are the given ones.  Learned parameters and state between calls are not
        options.  Options named like a token or a password are neither recorded nor shown.
        """
        parameters = _parameters(type(self))
        given = vars(self).get(_RECORD)
        if (
            given is None
        ):  # the constructor of a dataclass is generated later, and stores its arguments as fields
            given = {name: getattr(self, name) for name in parameters if hasattr(self, name)}
        found = {name: given.get(name, p.default) for name, p in parameters.items()} | given
        return _kept({name: value for name, value in found.items() if value is not inspect.Parameter.empty})

    def __repr__(self) -> str:
        """``Name(option=value, ...)``, without options that have their default None.

        Objects that are not plain data are shown as their type.  Long lists are shortened, and users of URLs are
        removed.
        """
        unset = {name for name, p in _parameters(type(self)).items() if p.default is None}
        given = [
            (name, value) for name, value in self.options.items() if value is not None or name not in unset
        ]
        listed = [f"{name}={_plain(value)}" for name, value in given]
        return f"{type(self).__name__}({', '.join(listed)})"


def amend(built: WithOptions, **options: Any) -> None:
    """Record changed options for a copy that was made without the constructor."""
    vars(built)[_RECORD] = {**vars(built).get(_RECORD, {}), **options}


def _recording(constructor: Callable[..., None]) -> Callable[..., None]:
    """Wrap an ``__init__`` so that the object records its arguments."""

    @functools.wraps(constructor)
    def init(self: Any, *args: Any, **options: Any) -> None:
        # If a subclass constructor calls this one, the arguments are not those of the caller: record only the first.
        if type(self).__init__ is init:
            vars(self)[_RECORD] = _given(constructor, self, args, options)
        constructor(self, *args, **options)

    return init


def _parameters(kind: Any) -> dict[str, inspect.Parameter]:
    constructor = kind.__init__
    if constructor is object.__init__:  # inspect reports that it accepts anything
        return {}
    _, *own = inspect.signature(constructor).parameters.values()
    return {p.name: p for p in own if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}


def _given(
    constructor: Callable[..., None], built: Any, args: tuple[Any, ...], options: dict[str, Any]
) -> dict[str, Any]:
    """Arguments by name, without secrets; empty if they do not fit, in which case the constructor raises."""
    signature = inspect.signature(constructor)
    try:
        bound = signature.bind(built, *args, **options).arguments
    except TypeError:
        return {}
    _, *own = (p for p in signature.parameters.values() if p.kind is not p.VAR_POSITIONAL)
    found: dict[str, Any] = {}
    for p in own:
        if p.name in bound:
            found |= bound[p.name] if p.kind is p.VAR_KEYWORD else {p.name: bound[p.name]}
    return _kept(found)


def _kept(value: Any) -> Any:
    """Copy containers, which the caller may change later, without the entries named like a secret."""
    if type(value) is dict:
        return {key: _kept(item) for key, item in value.items() if not SECRET_NAME.search(str(key))}
    if type(value) in (list, tuple):
        return type(value)(_kept(item) for item in value)
    return value


def _plain(value: Any) -> str:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str | PurePath):
        return repr(without_secrets(str(value)))
    if isinstance(value, Mapping):
        return "{" + _items([f"{key!r}: {_plain(item)}" for key, item in value.items()]) + "}"
    if isinstance(value, list | tuple):
        listed = _items([_plain(item) for item in value])
        return f"[{listed}]" if isinstance(value, list) else f"({listed}{',' * (len(value) == 1)})"
    if value is None or isinstance(value, bool | int | float | complex):
        return repr(value)
    # The repr of an object may contain a memory address or a token.
    return repr(value) if isinstance(value, WithOptions) else f"{type(value).__name__}(...)"


def _items(items: list[str]) -> str:
    more = ["..."] if len(items) > _MOST_ITEMS else []
    return ", ".join([*items[:_MOST_ITEMS], *more])
