"""Bracket matching: at each closing bracket, name the position of its opening bracket.

The paper (boltzmann attention, sec. 4.3) says: Dyck-1 words of length T interleaved with random filler
tokens, a vocabulary of 12, the loss on closing brackets only.  It leaves open how many pairs a sequence has
and how many sequences there are.  We draw 1 .. (T - 1) // 2 pairs, which always leaves a filler (the paper's
figure 5 shows seven pairs at T = 16), and 5,000 + 1,000 sequences.  With them the difficulty comes out as
published if dropout acts on the attention weights too: softmax reaches 92.4 % at T = 12 (paper 93.4 ± 0.7);
without attention dropout it solves T = 12 completely, from 2,000 sequences on.
"""

from __future__ import annotations

import string
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from diabat.checks import ArgumentError, keep_count
from diabat.compute.memory import require_memory
from diabat.lab.tasks.base import IGNORED, Split, Task, TaskOptions, TextForm

OPEN, CLOSE, FIRST_FILLER = 0, 1, 2
CHARACTERS = f"(){string.ascii_letters}{string.digits}"
"""Characters of the symbols in texts: the brackets, then the fillers."""
_MAX_DRAWS = 200


@dataclass(frozen=True)
class BracketOptions(TaskOptions):
    """Options of the bracket matching task.

    The number of pairs of a sequence is uniform in 1 .. (T - 1) // 2, so that a sequence always has a
    filler; given that number, positions and nesting are uniform over all possibilities, and fillers are
    independent.

    Attributes:
        name: Name of the task.
        window: Length T >= 4 of a sequence.
        vocab_size: Number of symbols including the two brackets, at least 3.
        num_train: Training sequences.
        num_validation: Validation sequences.
        seed: Seed of the data, independent of the seed of the training.
    """

    name: Literal["brackets"] = field(default="brackets", kw_only=True)
    window: int = 8
    vocab_size: int = 12
    num_train: int = 5_000
    num_validation: int = 1_000
    seed: int = 0

    def __post_init__(self) -> None:
        limits = {"window": 4, "vocab_size": 3, "num_train": 1, "num_validation": 1, "seed": 0}
        for name, least in limits.items():
            keep_count(self, name, least=least)

    def build(self) -> Task:
        """Build the task: T classes (positions), accuracy over closing brackets.

        A tenth of all possible sequences, chosen by a hash, is reserved for validation: no validation sequence is ever
        trained on.  The same options give the same tensors.  ValueError if there are too few sequences to hold any
        back, or memory does not hold them.
        """
        train, validation = (Split(words, matching_positions(words)) for words in _draw_sets(self))
        text = None  # of larger vocabularies than there are characters
        if self.vocab_size <= len(CHARACTERS):
            places = tuple(str(place) for place in range(self.window))
            text = TextForm(CHARACTERS[: self.vocab_size], places, matched)
        sizes = (self.window, self.vocab_size, self.window)
        return Task(self.name, *sizes, "accuracy", train, validation, text=text)


def _draw_sets(options: BracketOptions) -> tuple[Tensor, Tensor]:
    """Words for training and for validation."""
    generator = torch.Generator().manual_seed(options.seed)
    wanted = (options.num_train, options.num_validation)
    # Drawing takes the most: random orders, words, and where they are kept.
    needed = 40 * sum(wanted) * options.window
    require_memory(needed, f"{sum(wanted)} sequences of window = {options.window}", "num_train")
    train = validation = torch.empty(0, options.window, dtype=torch.int64)
    for _ in range(_MAX_DRAWS):
        words = draw_words(sum(wanted), options.window, options.vocab_size, generator)
        reserved = hash_of_ten(words, options.seed) == 0
        train = torch.cat((train, words[~reserved]))[: wanted[0]]
        validation = torch.cat((validation, words[reserved]))[: wanted[1]]
        if (len(train), len(validation)) == wanted:
            return train, validation
    expected = f"enough symbols to hold {options.num_validation} sequences back from training"
    got = f"at window = {options.window}, got {options.vocab_size}."
    raise ArgumentError("vocab_size", f"expected {expected} {got}")


def draw_words(count: int, window: int, vocab_size: int, generator: torch.Generator) -> Tensor:
    """Draw Dyck-1 words with fillers, int64 [count, window].

    With r brackets to come at depth d, a bracket opens with probability (r - d)(d + 2) / (2 r (d + 1)), the
    ratio of two ballot numbers, which makes all nestings of the same number of pairs equally likely.
    """
    pairs = torch.randint(1, (window - 1) // 2 + 1, (count,), generator=generator)
    # The first 2k positions of a random order are bracket positions.
    order = torch.rand(count, window, generator=generator).argsort(1)
    is_bracket = torch.zeros(count, window, dtype=torch.bool)
    is_bracket.scatter_(1, order, torch.arange(window) < 2 * pairs[:, None])
    words = torch.randint(FIRST_FILLER, vocab_size, (count, window), generator=generator)
    uniform = torch.rand(window, count, generator=generator)
    remaining, depth = 2 * pairs, torch.zeros_like(pairs)
    for position in range(window):
        here = is_bracket[:, position]
        chance = (remaining - depth) * (depth + 2) / (2 * remaining.clamp(min=1) * (depth + 1))
        opens = uniform[position] < chance
        words[:, position] = torch.where(here, torch.where(opens, OPEN, CLOSE), words[:, position])
        depth += here * torch.where(opens, 1, -1)
        remaining -= here.long()
    return words


def matching_positions(words: Tensor) -> Tensor:
    """Position of the opening bracket at each closing one, :data:`IGNORED` elsewhere; int64 [count, T]."""
    count, window = words.shape
    targets = torch.full_like(words, IGNORED)
    stack = torch.zeros(count, window + 1, dtype=torch.int64)  # open positions, the innermost at depth - 1
    depth = torch.zeros(count, 1, dtype=torch.int64)
    for position in range(window):
        opens, closes = words[:, position] == OPEN, words[:, position] == CLOSE
        stack.scatter_(1, depth, torch.where(opens[:, None], position, stack.gather(1, depth)))
        top = stack.gather(1, (depth - 1).clamp(min=0))[:, 0]
        targets[closes, position] = top[closes]
        depth += (opens.long() - closes.long())[:, None]
    return targets


def matched(words: Tensor) -> Tensor:
    """As :func:`matching_positions`, for words of any origin: ValueError if a closing bracket has no opening one."""
    depth = ((words == OPEN).long() - (words == CLOSE).long()).cumsum(1)
    if bool((depth < 0).any()):
        got = f"a closing one at position {int((depth < 0).any(0).nonzero()[0])} without"
        raise ArgumentError("text", "an opening bracket before each closing one", got)
    return matching_positions(words)


def hash_of_ten(words: Tensor, seed: int) -> Tensor:
    """A hash of each word in 0 .. 9, int64 [count]: sets that take different ones have no word in common."""
    key = torch.full((len(words),), seed)
    for symbol in words.unbind(1):
        # Knuth's multiplicative congruence; int64 wraps around, and the high bits are the well-mixed ones.
        key = (key + symbol + 1) * 6364136223846793005 + 1442695040888963407
    return (key >> 33) % 10
