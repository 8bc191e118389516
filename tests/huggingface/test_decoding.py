"""Activation decoding, by hand."""

from __future__ import annotations

import pytest
import torch

from diabat.checks import ArgumentError
from diabat.huggingface.decoding import ActivationDecoding

from . import game as tiny


def test_activation_decoding_takes_the_entropy_of_middle_layers() -> None:
    model = tiny.decoder()
    prompt = {k: v for k, v in tiny.batch(3, padding=4).items() if k != "labels"}
    found = ActivationDecoding(model, prompt)
    with torch.no_grad():
        states = model(**prompt, output_hidden_states=True).hidden_states[2]  # behind block 1 of 0 .. 2
        p = model.lm_head(model.model.norm(states)).double().softmax(-1)
    by_token = -(p * p.log()).sum(-1)
    mask = prompt["attention_mask"].bool()
    wanted = torch.stack([row[seen].mean() for row, seen in zip(by_token, mask, strict=True)])
    torch.testing.assert_close(found.entropy, wanted)
    middle = float(wanted.sort().values[1:].mean())
    some = ActivationDecoding(model, prompt, threshold=middle, sharpness=0.5)
    assert some.temperature.tolist() == [0.5 if h < middle else 1.0 for h in wanted.tolist()]
    scores = torch.randn(3, 7)
    torch.testing.assert_close(some(prompt["input_ids"], scores), scores / some.temperature[:, None].float())
    # What is most probable stays so.
    assert some(prompt["input_ids"], scores).argmax(1).equal(scores.argmax(1))


def test_refusals() -> None:
    model = tiny.decoder()
    prompt = {"input_ids": torch.ones(2, 4, dtype=torch.int64)}
    with pytest.raises(ArgumentError, match=r"sharpness: expected a number in \[0, 1\), got 1.0"):
        ActivationDecoding(model, prompt, sharpness=1.0)
    with pytest.raises(ArgumentError, match=r"layers: expected layers in 0 .. 1, got \[5\]"):
        ActivationDecoding(model, prompt, layers=[5])
    with pytest.raises(ArgumentError, match="scores: expected 2 rows, got 4; use no beams"):
        ActivationDecoding(model, prompt)(prompt["input_ids"], torch.zeros(4, 3))
