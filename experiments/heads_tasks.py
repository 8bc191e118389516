"""A decoder trained from scratch on two tasks, for studies of games on its heads.

    retrieval   R k1 v1 k2 v2 ... kn vn k       which value stands behind the key k?
    counting    C s1 s2 ... sm # s              how often does the symbol s occur, 0 .. 6?

Training sequences ask several questions, of lengths that are known; questions about twice as long test generalisation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.common import attend_back, fit

LAYERS, HEADS, WIDTH = 6, 8, 128
KEYS, VALUES, SYMBOLS, MOST = 16, 8, 6, 6
RETRIEVE, COUNT, HASH = 0, 1, 2
KEY, VALUE = 3, 3 + KEYS
SYMBOL = VALUE + VALUES
DIGIT = SYMBOL + SYMBOLS
VOCABULARY = DIGIT + MOST + 1

# Pairs of a retrieval, symbols of a count.
LENGTHS = {
    "known": {"retrieval": range(3, 8), "counting": range(6, 15, 2)},
    "longer": {"retrieval": range(10, 15), "counting": range(18, 29, 2)},
}
CHOICES = {"retrieval": range(VALUE, VALUE + VALUES), "counting": range(DIGIT, DIGIT + MOST + 1)}
# Pairs in a training sequence, those of the questions included; questions behind a sequence of symbols.
_PAIRS, _COUNTS, _BATCH = 12, 3, 16
_SOLVED = 0.3


@dataclass(frozen=True)
class Questions:
    """Questions of one length: tokens int64 [B, T], tokens of choices [B, C], labels as positions among them [B]."""

    tokens: Tensor
    choices: Tensor
    labels: Tensor

    def samples(self) -> list[dict[str, Any]]:
        """The questions as `HeadCoalitions` takes them."""
        return [
            {"input_ids": tokens, "choices": choices, "answer": choices[label]}
            for tokens, choices, label in zip(
                self.tokens, self.choices.tolist(), self.labels.tolist(), strict=True
            )
        ]


def retrieval(count: int, pairs: int, asked: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sequences R k v ... k v with ``asked`` keys repeated at the end, and which tokens are answers.

    Returns:
        int64 and bool, [count, 1 + 2 (pairs + asked)].
    """
    keys = torch.stack([torch.randperm(KEYS, generator=generator)[:pairs] for _ in range(count)])
    values = torch.randint(VALUES, (count, pairs), generator=generator)
    again = torch.stack([torch.randint(pairs, (asked,), generator=generator) for _ in range(count)])
    keys, values = (torch.cat((one, one.gather(1, again)), 1) for one in (keys, values))
    tokens = torch.stack((KEY + keys, VALUE + values), -1).flatten(1)
    answers = torch.zeros(count, 1 + 2 * (pairs + asked), dtype=torch.bool)
    answers[:, 2 + 2 * pairs :: 2] = True
    return torch.cat((torch.full((count, 1), RETRIEVE), tokens), 1), answers


def counting(count: int, symbols: int, asked: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sequences C s ... s # s d ... s d, and which tokens are answers.

    The first count is uniform on 0 .. 6; of the others those above 6 are not answers.

    Returns:
        int64 and bool, [count, 2 + symbols + 2 asked].
    """
    wanted = torch.randint(MOST + 1, (count, 1), generator=generator)
    order = torch.stack([torch.randperm(SYMBOLS, generator=generator) for _ in range(count)])
    drawn = order.gather(1, torch.randint(1, SYMBOLS, (count, symbols), generator=generator))
    places = torch.stack([torch.randperm(symbols, generator=generator) for _ in range(count)])
    drawn = torch.where(places < wanted, order[:, :1], drawn)
    counts = (drawn[:, None] == order[:, :asked, None]).sum(-1)
    queries = torch.stack((SYMBOL + order[:, :asked], DIGIT + counts.clamp_max(MOST)), -1).flatten(1)
    start, end = (torch.full((count, 1), token) for token in (COUNT, HASH))
    answers = torch.zeros(count, 2 + symbols + 2 * asked, dtype=torch.bool)
    answers[:, 3 + symbols :: 2] = counts <= MOST
    return torch.cat((start, SYMBOL + drawn, end, queries), 1), answers


TASKS = {"retrieval": retrieval, "counting": counting}


def questions(task: str, reach: str, count: int, seed: int) -> list[Questions]:
    """At least ``count`` questions with one asked at the end, as many of each length."""
    generator = torch.Generator().manual_seed(seed)
    lengths = LENGTHS[reach][task]
    found = []
    for length in lengths:
        tokens, _ = TASKS[task](-(-count // len(lengths)), length, 1, generator)
        choices = torch.tensor(CHOICES[task]).expand(len(tokens), -1)
        found.append(Questions(tokens[:, :-1], choices, tokens[:, -1] - CHOICES[task][0]))
    return found


def decoder() -> Any:
    """A Llama, not yet trained; half of the heads of its first layer begin by attending to the token before.

    A pair is then known at its value from the start.  Without this, retrieval takes several times as long to appear.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY, max_position_embeddings=128, initializer_range=WIDTH**-0.5, attention_bias=True,
        hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=HEADS, rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )  # fmt: skip
    model: Any = LlamaForCausalLM(config)
    attend_back(model, [1] * (HEADS // 2))
    return model


def train(seed: int, steps: int) -> Any:
    """Train on retrieval of more and more pairs, and on counting as well as soon as the most are reached."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = decoder()
    longest = {task: LENGTHS["known"][task][-1] for task in TASKS}
    most, average, both = 2, 2.0, False

    def loss(step: int) -> Tensor:
        nonlocal most, average, both
        both = both or step > steps // 2 or (most == longest["retrieval"] and average < _SOLVED)
        retrieved = total = _loss(model, "retrieval", most, generator)
        if both:
            total = total + _loss(model, "counting", longest["counting"], generator)
        average += 0.1 * (float(retrieved.detach()) - average)
        if average < _SOLVED and most < longest["retrieval"]:
            most, average = most + 1, 2 * _SOLVED
        return total

    return fit(model, lambda step: loss(step).backward(), steps, 1e-3)


def _loss(model: Any, task: str, most: int, generator: torch.Generator) -> Tensor:
    """Cross-entropy at the answers of sequences of one length up to ``most``."""
    least = min(most, LENGTHS["known"][task][0])
    length = int(torch.randint(least, most + 1, (), generator=generator))
    asked = _COUNTS if task == "counting" else _PAIRS - length
    tokens, answers = TASKS[task](_BATCH, length, asked, generator)
    logits = model(input_ids=tokens, use_cache=False).logits[:, :-1]
    return F.cross_entropy(logits[answers[:, 1:]], tokens[:, 1:][answers[:, 1:]])
