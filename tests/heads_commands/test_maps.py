from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from diabat.attention.heads import Calibration, calibrate
from diabat.checks import ArgumentError
from diabat.huggingface.gac import enabled_calibration
from diabat.runs.heads.evaluation.maps import attention_maps, draw_maps
from diabat.runs.heads.questions.sets import QuestionSet

from .tiny import decoder, films, tokenizer

CALIBRATION = Calibration({1: [0, 1], 2: []}, alpha=0.05)
QUESTIONS = QuestionSet("mine", "log_odds", tuple(films(2)), {})


@pytest.fixture(scope="module")
def model() -> Any:
    return decoder()


def test_maps_are_those_of_eager_attention_and_their_calibration(model: Any) -> None:
    tokens = torch.tensor([4, 5, 6, 7, 8, 9, 10])
    before, after = attention_maps(model, CALIBRATION, tokens, 1)
    model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            plain = model(tokens[None], output_attentions=True).attentions[1][0]
    finally:
        model.set_attn_implementation("sdpa")
    np.testing.assert_allclose(before, plain, atol=1e-6)
    visible = torch.ones(1, 1, 7, 7, dtype=torch.bool).tril()
    expected = calibrate(plain[None], visible, CALIBRATION)[0][0]
    expected[[0, 1]] = plain[[0, 1]]  # salient
    np.testing.assert_allclose(after, expected, atol=1e-6)
    assert np.abs(after - before).max() > 0.05
    # Layer 2 receives other states from layer 1.
    before, after = attention_maps(model, CALIBRATION, tokens, 2)
    assert np.abs(after.sum(-1) - 1).max() < 1e-6
    assert enabled_calibration(model) is None


@pytest.mark.parametrize("words", [True, False])
def test_the_figure_is_written(model: Any, tmp_path: Path, words: bool) -> None:
    path = tmp_path / "maps.png"
    questions = QuestionSet("ids", "log_odds", ({"input_ids": [4, 5, 6]},), {})
    draw_maps(model, tokenizer() if words else None, QUESTIONS if words else questions, CALIBRATION, path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_what_is_not_there_is_refused(model: Any, tmp_path: Path) -> None:
    path = tmp_path / "maps.png"
    with pytest.raises(
        ArgumentError, match="calibration: expected one for maps before and after it, got none"
    ):
        draw_maps(model, tokenizer(), QUESTIONS, None, path)
    with pytest.raises(ArgumentError, match="layer: expected one of 0, 1, 2, got 9"):
        draw_maps(model, tokenizer(), QUESTIONS, CALIBRATION, path, layer=9)
    with pytest.raises(ArgumentError, match="head: expected at most 7 in layer 1, got 8"):
        draw_maps(model, tokenizer(), QUESTIONS, CALIBRATION, path, head=8)
    with pytest.raises(ArgumentError, match="sample: expected at most 1, got 2"):
        draw_maps(model, tokenizer(), QUESTIONS, CALIBRATION, path, sample=2)
    assert not path.exists()
