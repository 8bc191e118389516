"""The options of a sampler: recorded when it is built, and shown in its repr."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Self

import numpy as np

from diabat.secrets import SECRET_NAME, without_secrets

_RECORD = "_built_with"
_MOST_ITEMS = 8


class WithOptions:
    """Base class that records the arguments of the constructor, also of subclasses with their own ``__init__``."""

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Record the arguments; none if they do not fit, in which case the constructor raises."""
        built = super().__new__(cls)
        try:
            bound = inspect.signature(cls.__init__).bind(built, *args, **options)
        except TypeError:  # also where copy and pickle give no arguments, and set the record afterwards
            return built
        bound.apply_defaults()
        record: dict[str, Any] = {}
        for p in list(bound.signature.parameters.values())[1:]:
            if p.kind is p.VAR_KEYWORD:
                record |= bound.arguments[p.name]
            elif p.kind is not p.VAR_POSITIONAL:
                record[p.name] = bound.arguments[p.name]
        vars(built)[_RECORD] = _kept(record)
        return built

    @property
    def options(self) -> dict[str, Any]:
        """Options of the constructor, defaults included: ``diabat.sampler(s.name, **s.options)`` builds an equal one.

        Containers are copied; other objects are the given ones.  Learned parameters and state between calls are not
        options.  Options named like a token or a password are neither recorded nor shown.
        """
        fields = getattr(type(self), "__dataclass_fields__", ())  # a default may be made for each object
        record = vars(self).get(_RECORD, {}).items()
        return _kept({name: getattr(self, name) if name in fields else value for name, value in record})

    def __repr__(self) -> str:
        """``Name(option=value, ...)``, without options that have their default None.

        Objects that are not plain data are shown as their type.  Long lists are shortened, and users of URLs are
        removed.
        """
        known = inspect.signature(type(self).__init__).parameters
        listed = [
            f"{name}={_plain(value)}"
            for name, value in self.options.items()
            if value is not None or name not in known or known[name].default is not None
        ]
        return f"{type(self).__name__}({', '.join(listed)})"


def _kept(value: Any) -> Any:
    """Copy containers, which the caller may change later, without the entries named like a secret; numpy's numbers."""
    if type(value) is dict:
        return {key: _kept(item) for key, item in value.items() if not SECRET_NAME.search(str(key))}
    if type(value) in (list, tuple):
        return type(value)(_kept(item) for item in value)
    return value.item() if isinstance(value, np.generic) else value


def _plain(value: Any) -> str:
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
