"""Five sets of questions with an answer of one token, as JSON lines for ``diabat heads analyse``.

    python -m experiments.heads.sets MODEL FOLDER [--validation 24] [--test 60] [--seed 0] [--json]

Writes FOLDER/SET-validation.jsonl and FOLDER/SET-test.jsonl, which share no name, word, noun or country, and prints the
accuracy of the model.  ``corrupted`` is a prompt of as many tokens that asks for another choice, or for none.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diabat.heads import Calibration, disable_gac, enable_gac
from diabat.heads.games.questions import tokenised
from diabat.heads.games.values import value_of
from diabat.huggingface.loading import load_decoder
from experiments.common import Row, parser, report, run_script

NAMES = """John Mary Tom Anna James Kate Sarah Peter Paul Emma David Laura Mark Alice Robert Susan Michael Lisa
    Daniel Jane Henry Helen George Rachel Simon Julia Jack Lucy Adam Ruth"""
WORDS = """red dog moon tree book cat fish bird star ship king door road hill lake sun rain snow fire gold iron
    salt milk bread apple horse cow wolf bear lion chair table lamp clock glass stone wood paper cloud river"""
EVENTS = "war siege trial strike voyage project drought reign campaign expedition famine treaty"
GOOD = "wonderful excellent great fantastic delightful superb lovely brilliant amazing charming"
BAD = "terrible awful horrible boring dreadful poor disgusting disappointing bad unpleasant"
THINGS = "film food hotel book concert service game show music coffee dinner trip"
CAPITALS = """France:Paris Germany:Berlin Italy:Rome Spain:Madrid Japan:Tokyo Russia:Moscow China:Beijing
    Egypt:Cairo Greece:Athens Portugal:Lisbon Austria:Vienna Poland:Warsaw Ireland:Dublin Cuba:Havana
    Peru:Lima Norway:Oslo Sweden:Stockholm Finland:Helsinki Denmark:Copenhagen Hungary:Budapest Turkey:Ankara
    Iran:Tehran Iraq:Baghdad Kenya:Nairobi Chile:Santiago Thailand:Bangkok Belgium:Brussels Canada:Ottawa
    England:London Syria:Damascus Lebanon:Beirut Romania:Bucharest Bulgaria:Sofia Ukraine:Kiev
    Indonesia:Jakarta"""
PLACES = ("The capital of {} is", "The capital city of {} is called", "Q: What is the capital of {}? A:")
VISITS = ("When {} and {} went to the store, {} gave a drink to", "After {} and {} had lunch, {} handed the keys to",
          "While {} and {} were at the office, {} sent a letter to")  # fmt: skip

SETS = ("indirect-objects", "induction", "greater-than", "capitals", "sentiment")


@dataclass(frozen=True)
class Questions:
    """Questions of one length: tokens int64 [B, T], tokens of choices [B, C], labels as positions among them [B]."""

    tokens: Tensor
    choices: Tensor
    labels: Tensor


def question(name: str, draw: random.Random, own: Callable[[str], list[str]]) -> tuple[str, str, list[str]]:
    """Prompt, corrupted prompt, and choices, the right one first; ``own`` takes the words of the part."""
    if name == "indirect-objects":  # A and B ..., A gave to: B; corrupted: a third person gives
        a, b, third = draw.sample(own(NAMES), 3)
        text, pair = draw.choice(VISITS), draw.sample((a, b), 2)
        return text.format(*pair, a), text.format(*pair, third), [f" {b}", f" {a}"]
    if name == "induction":  # ... A B ... A: B, among words of the text; corrupted: a new word at the end
        *words, other = draw.sample(own(WORDS), 9)
        at, text = draw.randrange(7), " ".join(words)
        rest = draw.sample([word for k, word in enumerate(words) if k not in (at, at + 1)], 3)
        return f"{text} {words[at]}", f"{text} {other}", [f" {word}" for word in (words[at + 1], *rest)]
    if name == "greater-than":
        # From 1742 to 17: a digit above 4, one below; corrupted: 1701, both may follow.
        tens, century = draw.randrange(2, 8), draw.randrange(11, 20)
        text = f"The {draw.choice(own(EVENTS))} lasted from the year {century}{{}} to the year {century}"
        above, below, unit = draw.randrange(tens + 1, 10), draw.randrange(1, tens), draw.randrange(1, 9)
        return text.format(f"{tens}{unit}"), text.format("01"), [str(above), str(below)]
    if name == "capitals":  # one of four; corrupted: the country of another choice
        text, four = draw.choice(PLACES), [pair.split(":") for pair in draw.sample(own(CAPITALS), 4)]
        return text.format(four[0][0]), text.format(four[1][0]), [f" {city}" for _, city in four]
    # Polarity of an adjective; corrupted: one of the other polarity.
    text = f"Review: The {draw.choice(own(THINGS))} was {{}}. Sentiment:"
    sides = [(draw.choice(own(GOOD)), " positive"), (draw.choice(own(BAD)), " negative")]
    (word, right), (other, wrong) = draw.sample(sides, 2)
    return text.format(word), text.format(other), [right, wrong]


def questions(name: str, part: str, count: int, seed: int, tokenizer: Any) -> list[Row]:
    """Different questions of one part of a set; every third word is for validation, the others for the test."""
    draw, asked = random.Random(f"{name} {part} {seed}"), dict[str, Row]()

    def own(words: str) -> list[str]:
        return [word for k, word in enumerate(words.split()) if (k % 3 == 0) == (part == "validation")]

    for _ in range(100 * count):
        prompt, corrupted, choices = question(name, draw, own)
        row = {"prompt": prompt, "choices": choices, "answer": 0}
        if len(tokenizer(prompt).input_ids) == len(tokenizer(corrupted).input_ids):
            row["corrupted"] = corrupted
        asked.setdefault(prompt, row)
        if len(asked) == count:
            return [*asked.values()]
    raise ValueError(f"count: expected at most {len(asked)} different questions of {name}, got {count}.")


def batches(rows: Sequence[Row], tokenizer: Any, vocabulary: int) -> list[Questions]:
    """Questions by length; ArgumentError if one has a single choice, or two that start with the same token."""
    by_length: dict[int, list[tuple[Tensor, list[int], int | None]]] = {}
    for k, sample in enumerate(tokenised(rows, tokenizer, vocabulary)):
        value_of("log_odds").check(sample, f"question {k}")
        first = [int(choice[0]) for choice in sample.choices]
        by_length.setdefault(len(sample.tokens), []).append((sample.tokens, first, sample.answer))
    groups = (zip(*group, strict=True) for group in by_length.values())
    return [Questions(torch.stack(t), torch.tensor(c), torch.tensor(a)) for t, c, a in groups]


@torch.no_grad()
def answers(
    model: Any, parts: list[Questions], calibration: Calibration | None = None
) -> tuple[Tensor, Tensor]:
    """Whether each answer is right, bool [N], and the log-odds v = z_y - logsumexp(others), float64 [N]."""
    if calibration is not None:
        enable_gac(model, calibration)
    right, odds = [], []
    for part in parts:
        output = model(part.tokens, logits_to_keep=1, use_cache=False)
        logits, label = output.logits[:, -1].gather(1, part.choices).double(), part.labels[:, None]
        others = logits.scatter(1, label, -torch.inf).logsumexp(-1)
        right.append(logits.argmax(-1) == part.labels)
        odds.append(logits.gather(1, label)[:, 0] - others)
    disable_gac(model)
    return torch.cat(right), torch.cat(odds)


def main(arguments: list[str] | None = None) -> None:
    """Write the sets, and print how well the model does."""
    command = parser(__doc__)
    command.add_argument("model")
    command.add_argument("folder", type=Path)
    for name, value in (("--validation", 24), ("--test", 60), ("--seed", 0)):
        command.add_argument(name, type=int, default=value)
    options = command.parse_args(arguments)
    model, tokenizer = load_decoder(options.model)
    options.folder.mkdir(parents=True, exist_ok=True)
    table = []
    for name, part in product(SETS, ("validation", "test")):
        asked = questions(name, part, getattr(options, part), options.seed, tokenizer)
        right, odds = answers(model, batches(asked, tokenizer, model.config.vocab_size))
        lines = "".join(json.dumps(one) + "\n" for one in asked)
        (options.folder / f"{name}-{part}.jsonl").write_text(lines, encoding="utf-8")
        exact = sum("corrupted" in one for one in asked)
        row = {"set": name, "part": part, "right": int(right.sum()), "of": len(right), "corrupted": exact}
        table.append(row | {"v": float(odds.mean())})
    report("Right answers of the model", table, as_json=options.json)


if __name__ == "__main__":
    run_script(main)
