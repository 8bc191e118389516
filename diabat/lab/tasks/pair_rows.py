"""Sentences with labels: of a file, a table with tabs below a header or one JSON object in a line; or of a grammar.

The grammar has quantifiers, negation and the order of words.  The premise entails the hypothesis, contradicts it, or
leaves it open.  Nouns of plural sentences exist: "all dogs ran" entails "some dogs ran".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import permutations, product
from typing import Any

from diabat.checks import ArgumentError
from diabat.lab.tasks.data import DataError, text_of

NAMES: Mapping[str, tuple[str, ...]] = {
    "first": ("first", "sentence", "sentence_A"),
    "second": ("second", "sentence_B"),
    "label": ("label", "entailment_label", "entailment_judgment"),
    "part": ("part", "SemEval_set"),
}
"""Columns or keys by what they hold, where no option names them; the last ones are those of the files of SICK."""
PARTS = {
    "train": "train",
    "trial": "validation",
    "dev": "validation",
    "validation": "validation",
    "test": "test",
}


@dataclass(frozen=True)
class Labelled:
    """One or two sentences with a label, the set that the file puts them into, and where they stand."""

    sentences: tuple[str, ...]
    label: str
    part: str | None
    where: str


def read_labelled(place: str, path: str, named: Mapping[str, str | None], sentences: int) -> list[Labelled]:
    """Read a file in UTF-8 with 1 or 2 sentences in a line; ``place`` is the option that names it.

    One that begins with ``{`` has a JSON object in every line, another one cells with tabs between them below a header;
    empty lines are left out (else DataError).  ``named`` has the column or key of ``first``, ``second``, ``label`` and
    ``part``; None takes one of :data:`NAMES`.
    """
    rows, columns = [], None
    for where, names, record in _records(place, path):
        columns = columns or _columns(where, names, named, sentences)
        if record is None:
            continue
        if missing := [name for name in columns.values() if name not in record]:
            raise DataError(f"{where}: expected the key {missing[0]!r}, got {_listed(record)}.")
        cells = {what: record[name] for what, name in columns.items()}
        for what, value in cells.items():
            # Labels may be numbers in JSON.
            if not isinstance(value, str | int if what == "label" else str) or not str(value).strip():
                raise DataError(f"{where}: expected a text as {columns[what]!r}, got {value!r:.60}.")
        part = cells.get("part")
        if part is not None and part.lower() not in PARTS:
            expected = f"one of {', '.join(PARTS)} as {columns['part']!r}"
            raise DataError(f"{where}: expected {expected}, got {part!r}.")
        texts = tuple(cells[what] for what in ("first", "second")[:sentences])
        rows.append(Labelled(texts, str(cells["label"]), part and PARTS[part.lower()], where))
    if not rows:
        raise DataError(f"{place}: expected sentences with labels, got none in '{path}'.")
    return rows


def _records(place: str, path: str) -> Iterator[tuple[str, list[str], dict[str, Any] | None]]:
    """Where a line stands, the columns or keys, and what it holds by them; None of a header."""
    # Only these end a line: a sentence may have other separators.
    lines = text_of(place, path).replace("\r\n", "\n").split("\n")
    full = [
        (f"{place}: line {number} of '{path}'", line) for number, line in enumerate(lines, 1) if line.strip()
    ]
    if full and full[0][1].startswith("{"):
        for where, line in full:
            record = _object(where, line)
            yield where, [*record], record
        return
    header: list[str] = []
    for where, line in full:
        cells = line.split("\t")
        if header and len(cells) != len(header):
            raise DataError(f"{where}: expected {len(header)} cells as the header, got {len(cells)}.")
        yield where, header or cells, dict(zip(header, cells, strict=True)) if header else None
        header = header or cells


def _object(where: str, line: str) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        record = json.loads(line)
        if isinstance(record, dict):
            return record
    raise DataError(f"{where}: expected a JSON object, got {line!r:.40}.")


def _columns(where: str, there: list[str], named: Mapping[str, str | None], sentences: int) -> dict[str, str]:
    """The column or key of each thing; that of the set may be missing."""
    columns = {}
    for what, known in NAMES.items():
        if what == "second" and sentences == 1:
            continue
        names = known if (own := named[what]) is None else (own,)
        chosen = next((name for name in names if name in there), None)
        if chosen is not None:
            columns[what] = chosen
        elif what != "part" or own is not None:
            expected = " or ".join(map(repr, names))
            raise DataError(f"{where}: expected {expected}, got {_listed(there)}; name it by task.{what}.")
    return columns


def _listed(names: Any) -> str:
    return f"{', '.join(map(str, names)) or 'none':.100}"


CLASSES = ("entailment", "neutral", "contradiction")
_NOUNS = ("dogs", "cats", "birds", "boys", "girls", "cooks", "kings", "bakers")
_VERBS = (
    "ran", "slept", "sang", "danced", "jumped", "smiled", "ate", "cried", "swam", "read", "wrote",
    "played", "worked", "left",
)  # fmt: skip
_NAMES = ("ann", "bob", "eve", "tom", "mia", "max", "joe", "zoe")
_DEEDS = ("called", "helped", "saw", "paid", "thanked", "blamed")
_QUANTIFIED = {
    "all {} {}": "all",
    "no {} {}": "no",
    "some {} {}": "some",
    "not all {} {}": "not all",
    "some {} never {}": "not all",
}
_ENTAILS = {"all": ("all", "some"), "no": ("no", "not all"), "some": ("some",), "not all": ("not all",)}
_CONTRADICTS = {"all": ("no", "not all"), "no": ("all", "some"), "some": ("no",), "not all": ("all",)}
_EVENTS = {"{} {} {}": True, "{} never {} {}": False}

Kind = tuple[str, str]
"""Class of a pair, and what decides it."""


def _quantified() -> Iterator[tuple[Kind, str, str]]:
    for noun, verb, (first, premise), (second, claim) in product(
        _NOUNS, _VERBS, _QUANTIFIED.items(), _QUANTIFIED.items()
    ):
        said = first.format(noun, verb)
        follows = CLASSES[2 if claim in _CONTRADICTS[premise] else 1 - (claim in _ENTAILS[premise])]
        yield (follows, "quantifier"), said, second.format(noun, verb)


def _events() -> Iterator[tuple[Kind, str, str]]:
    for (one, other), deed, (first, true), (second, claimed) in product(
        permutations(_NAMES, 2), _DEEDS, _EVENTS.items(), _EVENTS.items()
    ):
        said, same, swapped = first.format(one, deed, other), (one, deed, other), (other, deed, one)
        yield (CLASSES[0 if true == claimed else 2], "order"), said, second.format(*same)
        yield (CLASSES[1], "order"), said, second.format(*swapped)


def generated(num_train: int, num_validation: int, seed: int) -> dict[str, list[Labelled]]:
    """Different pairs for training and validation, of every class equally many, and of every kind of a class.

    Raises:
        ValueError: If the grammar has fewer pairs.
    """
    kinds: dict[Kind, list[tuple[bytes, str, str]]] = {}
    for kind, first, second in (*_quantified(), *_events()):
        place = hashlib.sha256(f"{seed} {[first, second]}".encode()).digest()
        kinds.setdefault(kind, []).append((place, first, second))
    drawn = {kind: iter(sorted(pairs)) for kind, pairs in kinds.items()}
    turns = {name: [kind for kind in drawn if kind[0] == name] for name in CLASSES}
    sets: dict[str, list[Labelled]] = {}
    for part, count in (("train", num_train), ("validation", num_validation)):
        sets[part] = []
        for index in range(count):
            label, turn = CLASSES[index % 3], index // 3
            pair = next(drawn[turns[label][turn % len(turns[label])]], None)
            if pair is None:
                got = f"{num_train} + {num_validation}"
                raise ArgumentError("num_train", f"fewer pairs than the grammar has of '{label}'", got)
            sets[part].append(Labelled(pair[1:], label, None, "generated"))
    return sets
