"""Checks of arguments.  Each raises an error of one sentence that names the argument."""

from __future__ import annotations

import difflib
import json
import math
import unicodedata
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any, overload

_LARGEST_COUNT = 2**63 - 1


# Controls, formats such as U+202E, halves of pairs, private and unassigned characters, ends of lines and paragraphs.
_NOT_SHOWN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def escaped(text: str, keep: str = "") -> str:
    r"""The text with all characters that a terminal would obey or not show as in JSON: ``\u001b``, ``\u202e``, ``\n``.

    What comes from a file is printed in this form, so that it can neither change the screen nor look like another line.
    Those in ``keep`` stay.
    """
    if text.isprintable():
        return text
    hidden = {c for c in set(text) - set(keep) if unicodedata.category(c) in _NOT_SHOWN}
    return text.translate({ord(c): json.dumps(c)[1:-1] for c in hidden})


class ArgumentError(ValueError):
    """A value that cannot be used; the message is "argument: expected X, got Y.", from three strings or a whole one.

    Attributes:
        argument: Name of the argument, option or key; None if the message is about no particular one.
        reason: The message after the argument.
    """

    @overload
    def __init__(self, sentence: str, /) -> None: ...
    @overload
    def __init__(self, argument: str | None, reason: str, /) -> None: ...
    @overload
    def __init__(self, argument: str | None, expected: str, got: object, /) -> None: ...
    def __init__(self, first: str | None, second: str | None = None, /, *got: object) -> None:
        if got:
            second = f"expected {second}, got {got[0]}."
        super().__init__(*((first,) if second is None else (first, second)))
        self.argument, self.reason = (None, str(first)) if second is None else (first, second)

    def __str__(self) -> str:
        return escaped(self.reason if self.argument is None else f"{self.argument}: {self.reason}")


class ArgumentTypeError(ArgumentError, TypeError):
    """A value of a type that cannot be used."""


def is_number(value: Any) -> bool:
    """Whether a value is a real number; True and False are not numbers."""
    return isinstance(value, Real) and not isinstance(value, bool)


def as_float(value: Any) -> float:
    """The float of a number, infinite for integers beyond; they have no bound."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def is_finite(value: Any) -> bool:
    """Whether a value is a number, and finite as a float."""
    return is_number(value) and math.isfinite(as_float(value))


def is_integer(value: Any) -> bool:
    """Whether a value is an integer, of Python or numpy; True and False are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_count(
    name: str, value: Any, *, least: int = 1, most: int | None = None, optional: bool = False
) -> Any:
    """Raise ArgumentError unless a value is an integer in ``least`` .. ``most`` (2^63 - 1), or None if optional.

    Returns it as an int of Python: small integers of numpy overflow, and JSON has none.
    """
    if optional and value is None:
        return None
    if not is_integer(value) or value < least:
        raise ArgumentError(name, f"an integer >= {least}{' or None' * optional}", number_text(value))
    most = _LARGEST_COUNT if most is None else most
    if value > most:
        raise ArgumentError(name, f"at most {most}", number_text(value))
    return int(value)


def keep_count(owner: Any, name: str, **limits: Any) -> None:
    """Check an attribute as :func:`check_count` does, and keep what it returns, also in a frozen dataclass."""
    object.__setattr__(owner, name, check_count(name, getattr(owner, name), **limits))


def number_text(value: Any) -> str:
    """The value in a message; Python refuses to write thousands of digits."""
    large = is_integer(value) and abs(value) >= 10 * _LARGEST_COUNT
    return f"about {'-' * (value < 0)}1e{math.log10(abs(value)):.0f}" if large else repr(value)


def check_number(name: str, value: Any, interval: str, *, optional: bool = False) -> None:
    """Raise ArgumentError unless a value is a number in an interval such as "[0, 1)", or None if it is optional."""
    if optional and value is None:
        return
    low, high = (float(end) for end in interval[1:-1].split(","))
    fits = is_number(value) and low <= value <= high and (is_finite(value) or value in (low, high))
    if not fits or (value == low and interval[0] == "(") or (value == high and interval[-1] == ")"):
        raise ArgumentError(name, f"a number in {interval}{' or None' * optional}", number_text(value))


def is_positive(value: Any) -> bool:
    """Whether a value is a finite number above 0."""
    return is_finite(value) and bool(value > 0)


def check_positive(name: str, value: Any) -> None:
    """Raise ArgumentError unless a value is a finite number above 0."""
    if not is_positive(value):
        raise ArgumentError(name, "a positive finite number", number_text(value))


def check_choice(name: str, value: Any, known: Iterable[str]) -> None:
    """Raise ArgumentError, which suggests the nearest name, unless a value is one of the known names."""
    names = tuple(known)
    if not isinstance(value, str) or value not in names:
        hint = did_you_mean(value, names)
        raise ArgumentError(name, f"expected one of {', '.join(names)}, got {value!r}.{hint}")


def check_flag(name: str, value: Any) -> None:
    """Raise ArgumentError unless a value is True or False."""
    if not isinstance(value, bool):
        raise ArgumentError(name, "True or False", f"{value!r}")


def refuse_unknown(options: Iterable[str], known: Iterable[str]) -> None:
    """Raise ArgumentTypeError, which suggests the nearest name, for an option that there is not."""
    names = tuple(known)
    for name in options:
        if name not in names:
            hint = did_you_mean(name, names)
            raise ArgumentTypeError("options", f"expected some of {', '.join(names)}, got {name!r}.{hint}")


def did_you_mean(value: Any, known: Iterable[str]) -> str:
    """Return the hint " Did you mean ...?" with the nearest known name; empty if no name is similar."""
    names, text = tuple(known), str(value)
    of_other_case = [name for name in names if name.casefold() == text.casefold()]
    near = of_other_case or difflib.get_close_matches(text, names, n=1)
    return f" Did you mean '{near[0]}'?" if near else ""
