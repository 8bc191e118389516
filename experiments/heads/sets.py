"""Five sets of questions with an answer of one token, as JSON lines for ``diabat heads analyse``.

    python -m experiments.heads.sets MODEL FOLDER [--validation 24] [--test 60] [--seed 0] [--json]

Writes FOLDER/SET-validation.jsonl and FOLDER/SET-test.jsonl, which share no name, word, noun or country, and prints the
accuracy of the model.  ``corrupted`` is a prompt of as many tokens that asks for another choice, or for none.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from diabat.attention.heads.samples import read_samples
from diabat.huggingface.loading import load_decoder
from experiments.common import parser, report
from experiments.heads_study import answers
from experiments.heads_tasks import Questions

PARTS = ("validation", "test")
NAMES = """John Mary Tom Anna James Kate Sarah Peter Paul Emma David Laura Mark Alice Robert Susan Michael Lisa
    Daniel Jane Henry Helen George Rachel Simon Julia Jack Lucy Adam Ruth"""
WORDS = """red dog moon tree book cat fish bird star ship king door road hill lake sun rain snow fire gold iron
    salt milk bread apple horse cow wolf bear lion chair table lamp clock glass stone wood paper cloud river"""
EVENTS = "war siege trial strike voyage project drought reign campaign expedition famine treaty"
GOOD = "wonderful excellent great fantastic delightful superb lovely brilliant amazing charming"
BAD = "terrible awful horrible boring dreadful poor disgusting disappointing bad unpleasant"
THINGS = "film food hotel book concert service game show music coffee dinner trip"
CAPITALS = """France:Paris Germany:Berlin Italy:Rome Spain:Madrid Japan:Tokyo Russia:Moscow China:Beijing
    Egypt:Cairo Greece:Athens Portugal:Lisbon Austria:Vienna Poland:Warsaw Ireland:Dublin Cuba:Havana Peru:Lima
    Norway:Oslo Sweden:Stockholm Finland:Helsinki Denmark:Copenhagen Hungary:Budapest Turkey:Ankara Iran:Tehran
    Iraq:Baghdad Kenya:Nairobi Chile:Santiago Thailand:Bangkok Belgium:Brussels Canada:Ottawa England:London
    Syria:Damascus Lebanon:Beirut Romania:Bucharest Bulgaria:Sofia Ukraine:Kiev Indonesia:Jakarta"""
PLACES = ("The capital of {} is", "The capital city of {} is called", "Q: What is the capital of {}? A:")
VISITS = ("When {} and {} went to the store, {} gave a drink to", "After {} and {} had lunch, {} handed the keys to",
          "While {} and {} were at the office, {} sent a letter to")  # fmt: skip

Question = dict[str, Any]
Own = Callable[[str], list[str]]
"""Those of some words that belong to the part of the set."""


def question(prompt: str, corrupted: str, *choices: str) -> Question:
    """A question whose first choice is right."""
    return {"prompt": prompt, "corrupted": corrupted, "choices": choices, "answer": 0}


def indirect_object(draw: random.Random, own: Own) -> Question:
    """A and B ..., A gave to: B.  Corrupted: a third person gives."""
    a, b, third = draw.sample(own(NAMES), 3)
    text, pair = draw.choice(VISITS), draw.sample((a, b), 2)
    return question(text.format(*pair, a), text.format(*pair, third), f" {b}", f" {a}")


def induction(draw: random.Random, own: Own) -> Question:
    """... A B ... A: B, among four words of the text.  Corrupted: a new word at the end."""
    *words, other = draw.sample(own(WORDS), 9)
    at, text = draw.randrange(7), " ".join(words)
    rest = draw.sample([word for k, word in enumerate(words) if k not in (at, at + 1)], 3)
    choices = (f" {word}" for word in (words[at + 1], *rest))
    return question(f"{text} {words[at]}", f"{text} {other}", *choices)


def greater_than(draw: random.Random, own: Own) -> Question:
    """From 1742 to 17: a digit above 4, and one below.  Corrupted: from 1701, behind which both may follow."""
    tens, century = draw.randrange(2, 8), draw.randrange(11, 20)
    text = f"The {draw.choice(own(EVENTS))} lasted from the year {century}{{}} to the year {century}"
    above, below, unit = draw.randrange(tens + 1, 10), draw.randrange(1, tens), draw.randrange(1, 9)
    return question(text.format(f"{tens}{unit}"), text.format("01"), str(above), str(below))


def capital(draw: random.Random, own: Own) -> Question:
    """Capital of a country among four.  Corrupted: the country of another choice."""
    text, four = draw.choice(PLACES), [pair.split(":") for pair in draw.sample(own(CAPITALS), 4)]
    return question(text.format(four[0][0]), text.format(four[1][0]), *(f" {city}" for _, city in four))


def sentiment(draw: random.Random, own: Own) -> Question:
    """Polarity of an adjective.  Corrupted: an adjective of the other polarity."""
    text = f"Review: The {draw.choice(own(THINGS))} was {{}}. Sentiment:"
    sides = [(draw.choice(own(GOOD)), " positive"), (draw.choice(own(BAD)), " negative")]
    (word, right), (other, wrong) = draw.sample(sides, 2)
    return question(text.format(word), text.format(other), right, wrong)


SETS: dict[str, Callable[[random.Random, Own], Question]] = {
    "indirect-objects": indirect_object, "induction": induction, "greater-than": greater_than, "capitals": capital,
    "sentiment": sentiment,
}  # fmt: skip


def questions(name: str, part: str, count: int, seed: int, tokenizer: Any) -> list[Question]:
    """Different questions of one part of a set; every third word is for validation, the others for the test."""
    draw, found = random.Random(f"{name} {part} {seed}"), dict[str, Question]()

    def own(words: str) -> list[str]:
        return [word for k, word in enumerate(words.split()) if (k % 3 == 0) == (part == "validation")]

    for _ in range(100 * count):
        made = SETS[name](draw, own)
        if len(tokenizer(made["prompt"]).input_ids) != len(tokenizer(made["corrupted"]).input_ids):
            del made["corrupted"]
        found.setdefault(made["prompt"], made)
        if len(found) == count:
            return [*found.values()]
    raise ValueError(f"count: expected at most {len(found)} different questions of {name}, got {count}.")


def batches(rows: Sequence[Question], tokenizer: Any, vocabulary: int) -> list[Questions]:
    """Questions by length.

    Raises:
        ValueError: If a question has one choice, or two choices that start with the same token.
    """
    by_length: dict[int, list[tuple[torch.Tensor, list[int], int | None]]] = {}
    for row, sample in zip(rows, read_samples(rows, tokenizer, vocabulary), strict=True):
        first = [int(choice[0]) for choice in sample.choices]
        if len(first) < 2 or len(set(first)) < len(first):
            raise ValueError(
                f"choices: expected two or more with different first tokens, got {row['choices']}."
            )
        by_length.setdefault(len(sample.tokens), []).append((sample.tokens, first, sample.answer))
    groups = (zip(*group, strict=True) for group in by_length.values())
    return [Questions(torch.stack(t), torch.tensor(c), torch.tensor(a)) for t, c, a in groups]


def main(arguments: list[str] | None = None) -> None:
    """Write the sets, and print how well the model does."""
    command = parser(__doc__)
    command.add_argument("model")
    command.add_argument("folder", type=Path)
    for part, count in zip(PARTS, (24, 60), strict=True):
        command.add_argument(f"--{part}", type=int, default=count, help="questions of each set")
    command.add_argument("--seed", type=int, default=0)
    given = command.parse_args(arguments)
    model, tokenizer = load_decoder(given.model)
    given.folder.mkdir(parents=True, exist_ok=True)
    table = []
    for name in SETS:
        row: dict[str, Any] = {"set": name}
        for part in PARTS:
            asked = questions(name, part, getattr(given, part), given.seed, tokenizer)
            right, odds = answers(model, batches(asked, tokenizer, model.config.vocab_size))
            lines = "".join(json.dumps(one) + "\n" for one in asked)
            (given.folder / f"{name}-{part}.jsonl").write_text(lines, encoding="utf-8")
            row |= {part: f"{int(right.sum())}/{len(right)}", f"v, {part}": float(odds.mean())}
            row[f"corrupted, {part}"] = sum("corrupted" in one for one in asked)
        table.append(row)
    report("Right answers of the model", table, as_json=given.json)


if __name__ == "__main__":
    main()
