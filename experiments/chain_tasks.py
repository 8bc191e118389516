"""Tasks that need to know which tokens belong together: sequences, and the symbols asked for at their end.

`gaps` is noise, then five pairs in random order with 0 to G random tokens of 16 between key and value, then four keys,
whose values are asked for; in `distractors` half of the tokens in between are keys that are not asked for.  In
`anywhere` a value is behind its key, and pairs stand at random places among noise.  A record of `records` begins with
a mark, and holds a key, its value and noise in any order.  `speakers` are four speeches of Tiny Shakespeare, whose
speakers have random names: who said this word?  Values of `doubles` are two tokens, of which the second is asked for
behind the first.  `copies` are random tokens of 8, and a part of them once more: what comes next depends on the last
two tokens.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import NamedTuple

import torch
from torch import Tensor

from diabat.tasks.data import fetch

VALUES, NOISE, PAIRS, QUERIES = 16, 16, 5, 4
GAP, GROWN = 5, 800
TESTED = (0, 5, 8, 12, 20, 40, 80)
PLACED = ((6, 48), (16, 96), (64, 256))
"""Pairs and context of `anywhere`."""
RECORD, RECORDS = 8, (8, 16, 32)
"""Longest record in training, and those of the tests."""
SPEECH, SPEECHES, SPEAKERS, WORDS = 24, (12, 24, 96), 4, 2000
FIRST_VALUES, DOUBLES = 4, 96
LETTERS, COPIED, COPIES = 8, 17, (64, 128)

Draw = Callable[[int, int, torch.Generator], tuple[Tensor, Tensor]]
ALL: Mapping[str, slice] = {"": slice(None)}


class Study(NamedTuple):
    """Sequences and steps of one training.

    ``draw(count, size, generator)`` gives sequences [count, L] and the symbols [count, answers] that are asked for by
    their last tokens; ``parts`` are answers that are counted apart.
    """

    name: str
    symbols: int
    steps: int
    batch: int
    context: int
    sizes: Callable[[int], int]
    tested: Sequence[int]
    draw: Draw
    title: str
    parts: Mapping[str, slice] = ALL
    test: Draw | None = None
    """Draws the sequences of the test, if they are not those of ``draw``."""


def drawn(
    count: int, keys: int, pairs: int, length: int, first: Tensor, second: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Sequences [B, L] with keys and values at these places, [B, pairs], and the values asked for, [B, queries]."""
    symbols = torch.rand(count, keys, generator=generator).argsort(1)[:, :pairs]
    values = torch.randint(VALUES, (count, pairs), generator=generator)
    found = keys + VALUES + torch.randint(NOISE, (count, length), generator=generator)
    found.scatter_(1, first, symbols)
    found.scatter_(1, second, keys + values)
    asked = torch.rand(count, pairs, generator=generator).argsort(1)[:, :QUERIES]
    found[:, -QUERIES:] = symbols.gather(1, asked)
    return found, values.gather(1, asked)


def with_gaps(count: int, gap: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Noise, then pairs with 0 to ``gap`` tokens between key and value."""
    gaps = torch.randint(gap + 1, (count, PAIRS), generator=generator)
    length = PAIRS * (2 + gap) + QUERIES
    first = length - QUERIES - (gaps + 2).flip(1).cumsum(1).flip(1)
    return drawn(count, VALUES, PAIRS, length, first, first + gaps + 1, generator)


def with_distractors(count: int, gap: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The same, with half of the noise replaced by keys that are in no pair."""
    found, answers = with_gaps(count, gap, generator)
    used = torch.zeros(count, VALUES, dtype=torch.bool)
    used.scatter_(1, torch.where(found < VALUES, found, found[:, -1:]), True)
    others = torch.multinomial((~used).double(), found.shape[1], True, generator=generator)
    chosen = (found >= 2 * VALUES) & (torch.rand(found.shape, generator=generator) < 0.5)
    return torch.where(chosen, others, found), answers


def places(count: int, pairs: int, width: int, length: int, generator: torch.Generator) -> Tensor:
    """Random places of the first tokens of pairs of ``width`` tokens that do not meet, [B, pairs], in order."""
    free = length - QUERIES - (width - 1) * pairs
    found = torch.rand(count, free, generator=generator).argsort(1)[:, :pairs].sort(1).values
    return found + (width - 1) * torch.arange(pairs)


def placed(pairs: int, count: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pairs at random places."""
    first = places(count, pairs, 2, length, generator)
    return drawn(count, max(VALUES, 2 * pairs), pairs, length, first, first + 1, generator)


def in_records(count: int, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Records of a mark and ``size`` - 1 tokens, of which two, in any order, are a key and its value."""
    places = 1 + torch.rand(count, PAIRS, size - 1, generator=generator).argsort(-1)[..., :2]
    first, second = (places + size * torch.arange(PAIRS)[:, None]).unbind(-1)
    found, answers = drawn(count, VALUES, PAIRS, PAIRS * size + QUERIES, first, second, generator)
    found[:, :-QUERIES:size] = 2 * VALUES + NOISE
    return found, answers


@cache
def speeches() -> list[list[tuple[str, list[int]]]]:
    """Speakers and words of the speeches of Tiny Shakespeare, for training and for the test; rare words are 0."""
    text = fetch("tinyshakespeare", None).read_text(encoding="utf-8").lower()
    found = [(name, re.findall(r"[a-z']+", said)) for name, said in re.findall(r"(.+):\n((?:.+\n)+)", text)]
    cut = len(found) * 9 // 10
    common = Counter(word for _, words in found[:cut] for word in words).most_common(WORDS - 1)
    symbol = {word: code for code, (word, _) in enumerate(common, 1)}
    coded = [(name, [symbol.get(word, 0) for word in words]) for name, words in found]
    return [coded[:cut], coded[cut:]]


@cache
def conversations(part: int, size: int) -> tuple[Tensor, Tensor]:
    """4,096 sequences of the speeches of four speakers behind their names, at most ``size`` words each.

    Padding is on the left.  A word that is asked for was said by one of the four; the answer is the speaker's name.
    """
    text, generator = speeches()[part], torch.Generator().manual_seed(part)
    length = SPEAKERS * (size + 1) + QUERIES
    found, answers = (torch.zeros(4096, columns, dtype=torch.int64) for columns in (length, QUERIES))
    for row in range(len(found)):
        asked: list[tuple[int, int]] = []
        while len(asked) < QUERIES:
            at = int(torch.randint(len(text) - SPEAKERS + 1, (), generator=generator))
            some = [words[:size] for _, words in text[at : at + SPEAKERS]]
            if len({name for name, _ in text[at : at + SPEAKERS]}) < SPEAKERS:
                continue
            by = Counter(word for words in some for word in set(words))
            said = ((k, word) for k, words in enumerate(some) for word in set(words))
            asked = [(k, word) for k, word in said if word and by[word] == 1]
        names = torch.randperm(VALUES, generator=generator)[:SPEAKERS]
        chosen = [asked[k] for k in torch.randperm(len(asked), generator=generator)[:QUERIES]]
        tokens = [t for k, words in enumerate(some) for t in (WORDS + int(names[k]), *words)]
        tokens += [word for _, word in chosen]
        found[row, length - len(tokens) :] = torch.tensor(tokens)
        answers[row] = torch.stack([names[k] for k, _ in chosen])
    return found, answers


def of_speakers(part: int, count: int, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Some of the conversations for training (part 0) or for the test (part 1)."""
    found, answers = conversations(part, size)
    chosen = torch.randint(len(found), (count,), generator=generator)
    return found[chosen], answers[chosen]


def doubles(count: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A key and two values behind it, at random places; asked for are both, the second behind the first."""
    keys, asked = VALUES, QUERIES // 2
    first = places(count, PAIRS, 3, length, generator)
    symbols = torch.rand(count, keys, generator=generator).argsort(1)[:, :PAIRS]
    values = torch.randint(VALUES, (count, PAIRS), generator=generator)
    starts = torch.randint(FIRST_VALUES, (count, PAIRS), generator=generator)
    found = keys + VALUES + torch.randint(NOISE, (count, length), generator=generator)
    for place, token in ((first, symbols), (first + 1, keys + starts), (first + 2, keys + values)):
        found.scatter_(1, place, token)
    chosen = torch.rand(count, PAIRS, generator=generator).argsort(1)[:, :asked]
    key, one, two = (t.gather(1, chosen) for t in (symbols, starts, values))
    found[:, -QUERIES:] = torch.stack((key, keys + one), -1).flatten(1)
    return found, torch.stack((one, two), -1).flatten(1)


def copies(count: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random tokens, and a part of them once more: the next token follows from the last two."""
    text = torch.randint(LETTERS, (count, length), generator=generator)
    at = torch.randint(length - COPIED, (count, 1), generator=generator) + torch.arange(COPIED + 1)
    part = text.gather(1, at)
    return torch.cat((text, part[:, :-1]), 1), part[:, 2:]


def growing(least: int, most: int, step: int) -> int:
    """The largest size of a step."""
    return min(most, least + step * (most - least) // GROWN)


def doubling(most: int, step: int) -> int:
    """A quarter of the size, a half, and all of it."""
    return most >> max(0, 2 - 3 * step // GROWN)


def constant(length: int, step: int) -> int:
    """The same length in every step."""
    return length


NAMES = ("gaps", "anywhere", "distractors", "records", "speakers", "doubles", "copies")


def studies(names: Sequence[str], steps: int | None) -> Iterator[Study]:
    """The studies of these names; ``steps`` in place of their own."""
    symbols, long, short = VALUES + VALUES + NOISE, steps or 3000, steps or 1000
    for name, draw in (("gaps", with_gaps), ("distractors", with_distractors)):
        sizes, context = partial(growing, 0, GAP), PAIRS * (2 + TESTED[-1]) + QUERIES
        if name in names:
            yield Study(name, symbols, long, 128, context, sizes, TESTED, draw, "gaps to {}")
    for pairs, length in PLACED if "anywhere" in names else ():
        name, keys, batch = f"{pairs} pairs in {length}", max(VALUES, 2 * pairs), min(128, 4096 // length)
        sizes, both, draw = partial(constant, length), (length, 2 * length), partial(placed, pairs)
        yield Study(name, keys + VALUES + NOISE, short, batch, 2 * length, sizes, both, draw, "{} tokens")
    if "records" in names:
        context, sizes = PAIRS * RECORDS[-1] + QUERIES, partial(growing, 3, RECORD)
        yield Study("records", symbols + 1, long, 128, context, sizes, RECORDS, in_records, "records of {}")
    if "speakers" in names:
        context, sizes = SPEAKERS * (SPEECHES[-1] + 1) + QUERIES, partial(doubling, SPEECH)
        draw, test = partial(of_speakers, 0), partial(of_speakers, 1)
        study = Study("speakers", WORDS + VALUES, long, 64, context, sizes, SPEECHES, draw, "{} words")
        yield study._replace(test=test)
    if "doubles" in names:
        parts = {", first": slice(0, None, 2), ", second": slice(1, None, 2)}
        sizes, both = partial(constant, DOUBLES), (DOUBLES, 2 * DOUBLES)
        yield Study("doubles", symbols, short, 64, 2 * DOUBLES, sizes, both, doubles, "{} tokens", parts)
    if "copies" in names:
        context, sizes = COPIES[-1] + COPIED, partial(constant, COPIES[0])
        yield Study("copies", LETTERS, long, 64, context, sizes, COPIES, copies, "{} tokens")
