"""Associative recall: pairs of a key and a value, then keys again, whose values are asked for.

The multi-query form of Arora et al. ("Zoology", arXiv:2312.04927, sec. 3), with the queries behind all pairs and the
answer given at the query itself.  Values are drawn with replacement, so that guessing among the values of a sequence
is right a little more often than once in P.
"""

from __future__ import annotations

import string
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from diabat.checks import ArgumentError, keep_count
from diabat.compute.memory import require_memory
from diabat.lab.tasks.base import IGNORED, Split, Task, TaskOptions, TextForm
from diabat.lab.tasks.brackets import hash_of_ten

DISTANCES = (1, 2, "mixed")
_MAX_DRAWS = 200


@dataclass(frozen=True)
class RecallOptions(TaskOptions):
    """Options of associative recall.

    A sequence is: fillers where it has fewer than ``pairs`` pairs; the pairs, with ``filler`` fillers at random places
    between them; the queries.  Keys are 0 .. S-1, values S .. 2S-1 and the filler 2S, S = ``symbols``.  The keys of a
    sequence differ, its values are independent, and its queries are different keys of it.

    Attributes:
        name: Name of the task.
        pairs: P, pairs of a sequence.
        min_pairs: Least number of pairs; every sequence of training and validation draws its own from here to P.  None
            gives all of them P.
        symbols: S >= P, number of keys and of values.
        queries: Q <= ``min_pairs``, queries of a sequence.
        distance: Positions from a key to its value, 1 or 2; ``mixed`` draws it for every pair.  A pair takes two
            positions with distance 1, and otherwise three, one of them a filler.
        filler: Fillers between the pairs of a sequence, at random places.
        test_pairs: Pairs of a test sequence, at least P; None takes P.
        num_train: Training sequences.
        num_validation: Validation sequences.
        num_test: Test sequences.
        seed: Seed of the data, independent of the seed of the training.
    """

    name: Literal["recall"] = field(default="recall", kw_only=True)
    pairs: int = 4
    min_pairs: int | None = None
    symbols: int = 16
    queries: int = 1
    distance: int | str = 1
    filler: int = 0
    test_pairs: int | None = None
    num_train: int = 20_000
    num_validation: int = 1_000
    num_test: int = 1_000
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in {"pairs": 1, "symbols": 1, "queries": 1, "filler": 0, "seed": 0}.items():
            keep_count(self, name, least=least)
        for name in ("num_train", "num_validation", "num_test"):
            keep_count(self, name)
        keep_count(self, "min_pairs", optional=True)
        keep_count(self, "test_pairs", optional=True)
        if self.distance not in DISTANCES:
            raise ArgumentError("distance", "1, 2 or 'mixed'", f"{self.distance!r}")
        if self.distance != "mixed":
            keep_count(self, "distance")
        bounds = (
            ("symbols", self.longest <= self.symbols, f"at least one key for each of {self.longest} pairs"),
            ("min_pairs", self.least <= self.pairs, f"at most pairs = {self.pairs}"),
            ("test_pairs", self.longest >= self.pairs, f"at least pairs = {self.pairs}"),
            ("queries", self.queries <= self.least, f"at most one for each of {self.least} pairs"),
        )
        for name, holds, expected in bounds:
            if not holds:
                raise ArgumentError(name, expected, getattr(self, name))

    @property
    def least(self) -> int:
        """Least number of pairs of a training sequence."""
        return self.pairs if self.min_pairs is None else self.min_pairs

    @property
    def longest(self) -> int:
        """Pairs of the longest sequence."""
        return self.pairs if self.test_pairs is None else self.test_pairs

    @property
    def pair_width(self) -> int:
        """Positions of a pair."""
        return 2 if self.distance == 1 else 3

    @property
    def window(self) -> int:
        """Length T of a sequence."""
        return self.pair_width * self.longest + self.filler + self.queries

    def check_model(self, model: Any) -> None:
        """Refuse options of a model whose couplings or keys do not reach from a query over its pairs."""
        super().check_model(model)
        reach = 1 if self.distance == 1 else 2
        if getattr(model, "bandwidth", None) is not None and model.bandwidth < reach:
            expected = f"at least {reach}, the distance from a key to its value"
            raise ArgumentError("model.bandwidth", expected, model.bandwidth)
        keys = getattr(model, "attention_window", None)
        if keys is not None and model.far == "none" and keys < self.window:
            expected = f"at least the {self.window} positions of a sequence with far=none"
            raise ArgumentError("model.attention_window", expected, keys)

    def build(self) -> Task:
        """Build the task: S classes (values), accuracy over the queries.

        Training, validation and test have no sequence in common: a hash reserves a tenth of all sequences for each of
        the latter two.  The same options give the same tensors.  ValueError if there are too few different sequences,
        or memory does not hold them.
        """
        train, validation, test = _draw_sets(self)
        text = None  # of more symbols than there are letters
        if self.symbols <= len(string.ascii_lowercase):
            keys, values = string.ascii_lowercase[: self.symbols], string.ascii_uppercase[: self.symbols]
            text = TextForm(f"{keys}{values}.", tuple(values), partial(recalled, symbols=self.symbols))
        sizes = (self.window, 2 * self.symbols + 1, self.symbols)
        parts = partial(by_distance, symbols=self.symbols)
        return Task(self.name, *sizes, "accuracy", train, validation, test, text=text, parts=parts)


def _draw_sets(options: RecallOptions) -> tuple[Split, Split, Split]:
    """Training, validation and test: sequences whose hash is 2 .. 9, 0 and 1."""
    total = options.num_train + options.num_validation + options.num_test
    needed = 16 * total * (2 * options.window + 3 * options.symbols)
    require_memory(needed, f"{total} sequences of {options.window} positions", "num_train")
    generator = torch.Generator().manual_seed(options.seed)

    def drawn(count: int, least: int, most: int, hashes: range) -> Split:
        words = targets = torch.empty(0, options.window, dtype=torch.int64)
        for _ in range(_MAX_DRAWS):
            more, answers = draw_sequences(options, 2 * count, least, most, generator)
            tenth = hash_of_ten(more, options.seed)
            own = (tenth >= hashes.start) & (tenth < hashes.stop)
            words, targets = torch.cat((words, more[own])), torch.cat((targets, answers[own]))
            if len(words) >= count:
                return Split(words[:count], targets[:count])
        raise ArgumentError("symbols", "enough of them to hold sequences back from training", options.symbols)

    return (
        drawn(options.num_train, options.least, options.pairs, range(2, 10)),
        drawn(options.num_validation, options.least, options.pairs, range(1)),
        drawn(options.num_test, options.longest, options.longest, range(1, 2)),
    )


def draw_sequences(
    options: RecallOptions, count: int, least: int, most: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw sequences of ``least`` to ``most`` pairs and their targets, int64 [count, T] each."""
    symbols, width, blank = options.symbols, options.pair_width, 2 * options.symbols

    def integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, (count, *shape), generator=generator)

    absent = torch.arange(most) < most - integers(least, most + 1, 1)  # the first ones are left out
    keys = torch.rand(count, symbols, generator=generator).argsort(1)[:, :most]
    values = integers(symbols, 2 * symbols, most)
    near, far = (1, 2) if options.distance == "mixed" else (int(options.distance),) * 2
    pairs = torch.full((count, most, width), blank)
    pairs[..., 0] = keys
    pairs.scatter_(2, integers(near, far + 1, most, 1), values[..., None])
    pairs[absent] = blank
    context = torch.cat((pairs.flatten(1), torch.full((count, options.filler), blank)), 1)
    # Filler g stands before pair g; a stable sort keeps the symbols of a pair together.
    places = (torch.arange(most) + 0.5).repeat_interleave(width).expand(count, -1)
    order = torch.cat((places, integers(0, most + 1, options.filler).float()), 1).argsort(dim=1, stable=True)
    asked = torch.rand(count, most, generator=generator).masked_fill(absent, 2.0)
    asked = asked.argsort(1)[:, : options.queries]
    padding = torch.full((count, width * (options.longest - most)), blank)
    words = torch.cat((padding, context.gather(1, order), keys.gather(1, asked)), 1)
    targets = torch.full_like(words, IGNORED)
    targets[:, -options.queries :] = values.gather(1, asked) - symbols
    return words, targets


def by_distance(split: Split, symbols: int) -> dict[str, Split]:
    """The queries of a split by the distance from a key to its value, and by how far back the value stands."""
    words, targets = split.inputs, split.targets
    asked = targets != IGNORED
    # Keys of a context differ, and so the first position of a query's symbol is that of its key.
    place = torch.arange(words.shape[1])
    key = (words[:, :, None] == words[:, None, :]).long().argmax(-1)
    wanted = (targets + symbols)[:, :, None] == words[:, None, :]
    value = (wanted & (place > key[..., None])).long().argmax(-1)
    apart, back = value - key, place - value
    named = {f"value {d} behind its key": asked & (apart == d) for d in (1, 2)}
    for low in (2**power for power in range(words.shape[1].bit_length() + 1)):
        named[f"value {low} to {2 * low - 1} before the query"] = asked & (back >= low) & (back < 2 * low)
    return split.parts(named)


def recalled(words: Tensor, symbols: int) -> Tensor:
    """Value of every key that has come with its value before, :data:`IGNORED` elsewhere; int64 [count, T].

    ValueError if a key comes again before its value, or a value has no key.
    """
    targets = torch.full_like(words, IGNORED)
    for row, word in enumerate(words.tolist()):
        value_of: dict[int, int] = {}
        key = None  # whose value has not come yet
        for position, symbol in enumerate(word):
            if symbol in value_of:
                targets[row, position] = value_of[symbol]
            elif symbol < symbols:
                if key is not None:
                    got = f"none before position {position}"
                    raise ArgumentError("text", "a value behind every key", got)
                key = symbol
            elif symbol < 2 * symbols:
                if key is None:
                    got = f"none before position {position}"
                    raise ArgumentError("text", "a key before every value", got)
                value_of[key], key = symbol - symbols, None
    return targets
