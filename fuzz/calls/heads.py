"""Arguments of games on heads: calibrations and samples, of any value."""

from __future__ import annotations

import json
from typing import Any

import torch
from hypothesis import strategies as st

from diabat.attention.heads import Calibration, calibrate
from diabat.attention.heads.samples import Sample, read_samples
from fuzz.calls.laws import close
from fuzz.calls.mistakes import VALUES
from fuzz.decoders import VOCABULARY, tokenizer
from fuzz.problems import SEEDS, mostly, normal, one_in
from fuzz.properties import demand, holds, naming

_HEADS = st.lists(st.integers(-1, 9) | VALUES, max_size=3) | st.just({1, 2}) | VALUES
_LAYERS = st.integers(0, 7) | st.sampled_from(["", "x", None, 0.5, (0,), 10**30])
_SETTINGS = {
    "salient": st.just({0: [0, 2], 5: ()}),
    "alpha": st.sampled_from([0.1, 0.0, 1.0, 0, 1]),
    "beta": st.sampled_from([0.1, 0.0, 1.0]),
    "rows": st.sampled_from(["running", "prompt"]),
    "redistribution": st.sampled_from(["proportional", "uniform"]),
}


@holds
def calibration(draw: st.DrawFn) -> None:
    """A calibration equals what is read from its dictionary, and rows of calibrated maps sum to what they did."""
    settings: dict[str, Any] = draw(st.fixed_dictionaries(_SETTINGS))
    name = draw(st.sampled_from([*_SETTINGS]))
    if draw(st.booleans()):
        salient = st.dictionaries(_LAYERS, _HEADS, max_size=2) if name == "salient" else VALUES
        settings[name] = draw(salient | VALUES)
    with naming(name):
        made = Calibration(**settings)
    again = Calibration.from_dict(json.loads(json.dumps(made.as_dict())))
    demand(again == made, f"round trip: expected {made}, got {again}")
    length, sharpness = draw(st.integers(1, 7)), draw(st.sampled_from([1.0, 30.0]))
    at, padding = torch.arange(length), torch.tensor([0, draw(st.integers(0, length - 1))])
    visible = (at[None, :] <= at[:, None]) & (at >= padding[:, None, None])[:, None]
    scores = sharpness * normal(draw(SEEDS), 2, 2, length, length)
    maps = scores.masked_fill(~visible, -torch.inf).softmax(-1).nan_to_num(1 / length)
    found, _ = calibrate(maps, visible, made)
    demand(bool((found >= 0).all()), f"maps: expected weights >= 0, got {found.min()}")
    close(found.sum(-1), maps.sum(-1), 1e-5, "sums of rows")


_TEXTS = st.sampled_from(["the man sleeps. Answer: ", "the man", "good ", "", "  ", "\x00", "a\nb", "\ud800"])
_IDS = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=4)
_ODD_IDS = st.sampled_from([torch.tensor([4, 5]), [], [[1]], [-1], [VOCABULARY], [2**70], [True], range(3)])
_CHOICES = st.lists(st.sampled_from(["good", "bad", "", 4, 5, [4, 5], [6], [], None, ["a"]]), max_size=3)
_ANSWERS = st.sampled_from([5, "good", " bad ", 0, 1, 4, [4, 5], -1, True, 2**70, ["good"], [], ("a", "b")])
_KEYS = st.sampled_from(["prompt", "messages", "input_ids", "choices", "answer", "other"])
_GOOD = {"input_ids": [1, 2, 3], "choices": [4, 5], "answer": 5}


@holds
def samples(draw: st.DrawFn) -> None:
    """A question with any keys and values: tokens, choices and answer in range, or a sentence that says which."""
    given: Any = {"prompt": draw(_TEXTS)}
    if draw(st.booleans()):
        given = {"input_ids": draw(mostly(_IDS, _ODD_IDS))}
    if draw(st.booleans()):
        given |= {"choices": draw(mostly(st.just([4, 5]), _CHOICES, 2)), "answer": draw(_ANSWERS)}
    if draw(one_in(3)):
        given[draw(_KEYS)] = draw(VALUES)
    if draw(one_in(20)):
        given = draw(VALUES)
    words = tokenizer() if draw(st.booleans()) else None
    with naming("samples" if words else ""):  # without a tokenizer it may be what is missing
        read = read_samples([_GOOD, given] if draw(one_in(5)) else [given], words, VOCABULARY)
    for sample in read:
        _in_range(sample)


def _in_range(sample: Sample) -> None:
    for ids in (sample.tokens, *sample.choices):
        demand(ids.dtype == torch.int64 and ids.ndim == 1 and len(ids) > 0, f"tokens: got {ids}")
        demand(bool(((ids >= 0) & (ids < VOCABULARY)).all()), f"tokens: expected ids in range, got {ids}")
    places = range(len(sample.choices)) if sample.choices else [None]
    demand(sample.answer in places, f"answer: expected one of {places}, got {sample.answer!r}")
    demand(all(isinstance(text, str) for text in sample.texts), "answer: expected texts")
