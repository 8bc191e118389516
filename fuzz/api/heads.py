"""Arguments of games on heads: calibrations and samples, of any value."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch

from diabat.attention.heads import Calibration, calibrate
from diabat.attention.heads.samples import Sample, read_samples
from diabat.checks import ArgumentError
from fuzz.api.values import VALUES
from fuzz.decoders import VOCABULARY, tokenizer
from fuzz.dice import Dice
from fuzz.outcome import Wrong, demand, naming


def calibration(dice: Dice) -> None:
    """One argument of a calibration: rows of the calibrated maps sum to one, or a sentence with the name."""
    given: dict[str, Any] = {
        "salient": {dice.integer(0, 3): [0, 2], 5: ()},
        "alpha": dice.pick([0.0, 0.1, 1.0, 0, 1]),
        "beta": dice.pick([0.0, 0.1, 1.0]),
        "rows": dice.pick(["running", "prompt"]),
        "redistribution": dice.pick(["proportional", "uniform"]),
    }
    name = dice.pick(list(given))
    if dice.chance(0.7):
        given[name] = _salient(dice) if name == "salient" and dice.chance(0.8) else dice.pick(VALUES)
    with naming(name):
        made = Calibration(**given)
    again = Calibration.from_dict(json.loads(json.dumps(made.as_dict())))
    demand(again == made, f"round trip: expected {made}, got {again}")
    maps, visible = _maps(dice)
    changed, _ = calibrate(maps, visible, made)
    demand(bool((changed >= 0).all()), f"maps: expected weights >= 0, got {changed.min()}")
    off = float((changed.sum(-1) - maps.sum(-1)).abs().max())
    demand(off < 1e-5, f"maps: expected rows that sum to one, off by {off}")


def _salient(dice: Dice) -> Any:
    """A mapping of something to something."""
    layers = [dice.pick([0, 1, 7, *(value for value in VALUES if _hashable(value))]) for _ in range(2)]
    heads: tuple[Callable[[], Any], ...] = (
        lambda: (),
        lambda: [dice.integer(0, 9)],
        lambda: [dice.integer(-1, 3), dice.integer(0, 3)],
        lambda: {1, 2},
        lambda: dice.pick(VALUES),
        lambda: [dice.pick(VALUES)],
    )
    return {layer: dice.pick(heads)() for layer in layers}


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _maps(dice: Dice) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal attention maps behind left padding, [2, 2, T, T], with what is visible."""
    length = dice.integer(1, 7)
    padding = torch.tensor([0, dice.integer(0, length - 1)])
    at = torch.arange(length)
    visible = (at[None, :] <= at[:, None]) & (at >= padding[:, None, None])[:, None]
    scores = dice.pick([1.0, 30.0]) * dice.normal(2, 2, length, length)
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1).nan_to_num(1 / length)
    return weights.to(dice.pick([torch.float32, torch.float64])), visible


def samples(dice: Dice) -> None:
    """A question with any keys and values: tokens, choices and label in range, or a sentence that says which."""
    given: Any = _sample(dice)
    if dice.chance(0.05):
        given = dice.pick(VALUES)
    several = dice.pick([[given], [_GOOD, given], (given,), given]) if dice.chance(0.2) else [given]
    words = tokenizer() if dice.chance(0.8) else None
    try:
        with naming("samples"):
            read = read_samples(several, words, VOCABULARY)
    except Wrong as wrong:
        # Without a tokenizer it may be what is missing.
        missing = wrong.__cause__
        if words is None and isinstance(missing, ArgumentError) and missing.argument == "tokenizer":
            raise missing from None
        raise
    for sample in read:
        _check(sample)


_GOOD = {"input_ids": [1, 2, 3], "choices": [4, 5], "answer": 5}


def _sample(dice: Dice) -> dict[str, Any]:
    text = dice.pick(["the man sleeps. Answer: ", "the man", "good ", "", "  ", "\x00", "a\nb", "\ud800"])
    ids = dice.pick(
        [[1, 2, 3], torch.tensor([4, 5]), [], [[1]], [-1], [VOCABULARY], [2**70], [True], range(3)]
    )
    choices = dice.pick(
        [["good", "bad"], [4, 5], [[4, 5], [6]], [0, 1], ["yes", "yes"], [], ["", "a"], [4, "good"], [None],
         [[]], ["good", ["bad"]], (3, 4), [torch.tensor([1]), 2], torch.tensor([1, 2])]
    )  # fmt: skip
    found: dict[str, Any] = {"prompt": text} if dice.chance(0.5) else {"input_ids": ids}
    if dice.chance(0.8):
        found |= {
            "choices": choices,
            "answer": dice.pick(["good", " bad ", 0, 1, 5, 4, [4, 5], -1, True, 2**70]),
        }
    elif dice.chance(0.3):
        found["answer"] = dice.pick([["good"], "good", [], [1], ("a", "b")])
    if dice.chance(0.4):
        found[dice.pick(["prompt", "messages", "input_ids", "choices", "answer", "other"])] = dice.pick(
            VALUES
        )
    if dice.chance(0.1) and found:
        del found[dice.pick(list(found))]
    return found


def _check(sample: Sample) -> None:
    for ids in (sample.tokens, *sample.choices):
        demand(ids.dtype == torch.int64 and ids.ndim == 1 and len(ids) > 0, f"tokens: got {ids}")
        demand(bool(((ids >= 0) & (ids < VOCABULARY)).all()), f"tokens: expected ids in range, got {ids}")
    if sample.choices:
        demand(
            isinstance(sample.answer, int) and 0 <= sample.answer < len(sample.choices),
            f"answer: expected one of the choices, got {sample.answer!r}",
        )
    else:
        demand(sample.answer is None, f"answer: expected None without choices, got {sample.answer!r}")
    demand(all(isinstance(text, str) for text in sample.texts), "answer: expected texts")
