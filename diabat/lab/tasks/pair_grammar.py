"""Pairs of sentences of a small grammar: quantifiers, negation and the order of words decide what follows.

The premise entails the hypothesis, contradicts it, or leaves it open.  Nouns of plural sentences exist: "all dogs ran"
entails "some dogs ran".
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import permutations, product

from diabat.checks import ArgumentError
from diabat.lab.tasks.pair_files import Labelled

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
            found = next(drawn[turns[label][turn % len(turns[label])]], None)
            if found is None:
                got = f"{num_train} + {num_validation}"
                raise ArgumentError("num_train", f"fewer pairs than the grammar has of '{label}'", got)
            sets[part].append(Labelled(found[1:], label, None, "generated"))
    return sets
