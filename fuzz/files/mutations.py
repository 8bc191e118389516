"""Mutations of files of any content."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from fuzz.dice import Dice

_NUMBERS = """
0 -0 1 -1 2 3 7 255 1e-3 0.5 -1.5 1e400 -1e400 1e308 -1e308 1e30 3e38 5e-324 1_0 0x10 010 +1 1. .5 1e 1e1000000
2147483648 -2147483649 4294967296 9223372036854775807 9223372036854775808 -9223372036854775809 1000000000000
100000000000000000000000000000 nan NaN inf Infinity -inf .nan .inf null true ~ x "1" [] {} ''
"""
NUMBERS = tuple(_NUMBERS.split())
TOKENS = (*"[]{},:\"'#-|\x00\ufeff", "&a", "*a", "!!python/name:os.system")
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 0.5, -0.5, 1e308, 2**31, 2**63, -(2**63) - 1, 10**30, 10**9, "", "x", "SPIN",
    [], [0], [0, 0], [[0, 1, 0.5]], {}, {"a": 1}, "1", float("nan"), float("inf"),
)  # fmt: skip

_NUMBER = re.compile(rb"[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?")
_KEY = re.compile(rb'"[^"\n]{1,40}":\s*[^,{}\[\]\n]+|^\w+:.*$', re.MULTILINE)


def damaged(dice: Dice, content: bytes, others: Sequence[bytes]) -> bytes:
    """One to three mutations of a file; ``others`` are spliced in."""
    for _ in range(dice.weighted({1: 6, 2: 2, 3: 1})):
        content = dice.pick(MUTATIONS)(dice, content, others)
    return content


def _flip(dice: Dice, content: bytes, others: Sequence[bytes]) -> bytes:
    changed = bytearray(content)
    for _ in range(dice.pick([1, 1, 2, 8])):
        if changed:
            changed[dice.integer(0, len(changed) - 1)] ^= 1 << dice.integer(0, 7)
    return bytes(changed)


def _truncate(dice: Dice, content: bytes, others: Sequence[bytes]) -> bytes:
    return content[: dice.integer(0, len(content))]


def _insert(dice: Dice, content: bytes, others: Sequence[bytes]) -> bytes:
    at = dice.integer(0, len(content))
    some = dice.random.bytes(dice.pick([1, 2, 8, 300]))
    return content[:at] + (dice.pick(TOKENS).encode() if dice.chance(0.6) else some) + content[at:]


def _cut(dice: Dice, content: bytes, others: Sequence[bytes]) -> bytes:
    start = dice.integer(0, len(content))
    return content[:start] + content[start + dice.pick([1, 4, 8, 40]) :]


def _splice(dice: Dice, content: bytes, others: Sequence[bytes]) -> bytes:
    other = dice.pick(others)
    return content[: dice.integer(0, len(content))] + other[dice.integer(0, len(other)) :]


def _repeat(dice: Dice, content: bytes, others: Sequence[bytes]) -> bytes:
    lines = content.splitlines(keepends=True)
    if not lines:
        return content
    at = dice.integer(0, len(lines) - 1)
    return b"".join([*lines[: at + 1], *[lines[at]] * dice.pick([1, 2, 50]), *lines[at + 1 :]])


def _shuffle(dice: Dice, content: bytes, others: Sequence[bytes]) -> bytes:
    lines = content.splitlines(keepends=True)
    if len(lines) > 1:
        a, b = dice.integer(0, len(lines) - 1), dice.integer(0, len(lines) - 1)
        lines[a], lines[b] = lines[b], lines[a]
    return b"".join(lines)


def _number(dice: Dice, content: bytes, others: Sequence[bytes]) -> bytes:
    return _replaced(dice, content, _NUMBER, lambda _: dice.pick(NUMBERS).encode())


def _key_twice(dice: Dice, content: bytes, others: Sequence[bytes]) -> bytes:
    separator = b", " if b'"' in content else b"\n"
    return _replaced(dice, content, _KEY, lambda found: found + separator + found)


def _replaced(dice: Dice, content: bytes, what: re.Pattern[bytes], by: Callable[[bytes], bytes]) -> bytes:
    found = list(what.finditer(content))
    if not found:
        return content
    match = dice.pick(found)
    return content[: match.start()] + by(match[0]) + content[match.end() :]


MUTATIONS: tuple[Callable[[Dice, bytes, Sequence[bytes]], bytes], ...] = (
    _flip,
    _truncate,
    _insert,
    _cut,
    _splice,
    _repeat,
    _shuffle,
    _number,
    _number,
    _number,
    _key_twice,
)


def tampered(dice: Dice, document: Any) -> Any:
    """A JSON document with one to three of its nodes replaced, removed, doubled or renamed."""
    document = json.loads(json.dumps(document))
    for _ in range(dice.pick([1, 1, 2, 3])):
        places = list(_places(document))
        if not places:
            return copy.deepcopy(dice.pick(VALUES))
        _change(dice, *dice.pick(places))
    return document


def _places(node: Any) -> list[tuple[Any, Any]]:
    keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else []
    return [place for key in keys for place in ((node, key), *_places(node[key]))]


def _change(dice: Dice, parent: Any, key: Any) -> None:
    how = dice.weighted({"replace": 6, "remove": 2, "double": 1, "scale": 2})
    value = parent[key]
    if how == "remove":
        del parent[key]
    elif how == "double" and isinstance(parent, list):
        parent.insert(key, value)
    elif how == "double":
        parent[f"{key}2"] = value
    elif how == "scale" and isinstance(value, int | float) and not isinstance(value, bool):
        parent[key] = dice.pick([-value, value + 1, value * 10**6, value * 1.5])
    else:
        parent[key] = copy.deepcopy(dice.pick(VALUES))  # which later changes may go into


def other_header(dice: Dice, content: bytes) -> bytes:
    """A safetensors file with another header, or another claim of its length."""
    length = int.from_bytes(content[:8], "little")
    header = json.dumps(tampered(dice, json.loads(content[8 : 8 + length]))).encode()
    claimed = len(header) if dice.chance(0.8) else dice.pick([0, 1, len(header) + 1, 2**40, 2**64 - 1])
    return claimed.to_bytes(8, "little") + header + content[8 + length :]
