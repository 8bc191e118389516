"""Checks of options: what is no such number, choice or flag is refused by name, whatever it is."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from numbers import Real
from typing import Any


def is_number(value: Any) -> bool:
    """Whether a value is a real number; True and False are none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_positive(name: str, value: Any) -> None:
    """Raise ValueError unless a value is a finite number above 0."""
    if not is_number(value) or not 0 < value < math.inf:
        raise ValueError(f"{name}: expected a positive finite number, got {value!r}.")


def check_choice(name: str, value: Any, known: Iterable[str]) -> None:
    """Raise ValueError, with the nearest name, unless a value is one of the names."""
    names = tuple(known)
    if not isinstance(value, str) or value not in names:
        near = difflib.get_close_matches(str(value), names, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise ValueError(f"{name}: expected one of {', '.join(names)}, got {value!r}.{hint}")


def check_flag(name: str, value: Any) -> None:
    """Raise ValueError unless a value is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name}: expected True or False, got {value!r}.")
