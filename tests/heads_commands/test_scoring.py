"""Scores of the plain model, batched, against one pass per question."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from diabat.attention.heads import Calibration, HeadCoalitions
from diabat.attention.heads.values import exact_match
from diabat.checks import ArgumentError
from diabat.huggingface import disable_gac, enable_gac
from diabat.huggingface.batches import Batches
from diabat.huggingface.gac import enabled_calibration
from diabat.runs.heads.evaluation.scoring import Scorer
from diabat.runs.heads.evaluation.states import State
from diabat.runs.heads.questions.sets import QuestionSet

from .tiny import decoder, films, options, tokenizer

CALIBRATION = Calibration({1: [0, 1], 2: []}, alpha=0.08)
OFF, ON = State("off", None), State("calibrated", CALIBRATION)
ANSWERS = [{"text": film["text"].strip(), "answers": ["good film", "Paris"]} for film in films(7)]


@pytest.fixture(scope="module")
def model() -> Any:
    return decoder()


def scorer(model: Any, samples: list[dict[str, Any]], value: str, **changes: Any) -> Scorer:
    given: dict[str, Any] = {"tokenizer": tokenizer(), "batch_size": 4, "folder": None} | changes
    return Scorer(Batches(model), QuestionSet("mine", value, tuple(samples), {}), value, **given)


def choice_scores(model: Any, sample: dict[str, Any], *, whole: bool) -> torch.Tensor:
    """Scores of the choices by one pass each: the logit of the first token, or the log-likelihood of all."""
    encode = tokenizer()
    prompt = encode(sample["text"])["input_ids"]
    found = []
    for choice in sample["choices"]:
        tokens = encode(choice)["input_ids"]
        with torch.no_grad():
            logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1].double()
        found.append(
            sum(logits.log_softmax(-1)[k, token] for k, token in enumerate(tokens))
            if whole
            else logits[0, tokens[0]]
        )
    return torch.stack(found)


@pytest.mark.parametrize("state", [OFF, ON], ids=lambda state: state.name)
@pytest.mark.parametrize(("value", "make"), [("log_odds", films), ("option_log_odds", options)])
def test_scores_are_those_of_one_pass_per_choice(model: Any, state: State, value: str, make: Any) -> None:
    samples = make(9)
    found = scorer(model, samples, value).scores(state)
    if state.calibration is not None:
        enable_gac(model, state.calibration)
    try:
        expected = [choice_scores(model, sample, whole=value == "option_log_odds") for sample in samples]
    finally:
        disable_gac(model)
    right = [sample["choices"].index(sample["label"]) for sample in samples]
    odds = [
        float(z[y] - torch.logsumexp(z[[k for k in range(3) if k != y]], 0))
        for z, y in zip(expected, right, strict=True)
    ]
    hits = [float(int(z.argmax()) == y) for z, y in zip(expected, right, strict=True)]
    np.testing.assert_allclose(found[:, 0], odds, rtol=0, atol=1e-5)
    assert found[:, 1].tolist() == hits
    assert 0 < sum(hits) < 9


@pytest.mark.parametrize("state", [OFF, ON], ids=lambda state: state.name)
@pytest.mark.parametrize("value", ["log_odds", "option_log_likelihood", "perplexity", "f1"])
def test_batches_give_what_one_at_a_time_gives(model: Any, state: State, value: str) -> None:
    samples = ANSWERS if value == "f1" else films(7)
    alone = scorer(model, samples, value, batch_size=1).scores(state)
    for size in (3, 16):
        np.testing.assert_allclose(
            scorer(model, samples, value, batch_size=size).scores(state), alone, atol=1e-5
        )


@pytest.mark.parametrize(
    "value", ["log_odds", "option_log_odds", "option_log_likelihood", "perplexity", "f1"]
)
def test_v_is_that_of_the_full_coalition_of_the_game(model: Any, value: str) -> None:
    samples = ANSWERS if value == "f1" else options(5) if value.startswith("option") else films(5)
    game = HeadCoalitions(model, samples, layer=1, value=value, tokenizer=tokenizer())
    full = game.sample_values(torch.ones(1, 4, dtype=torch.bool))[:, 0]
    np.testing.assert_allclose(scorer(model, samples, value).scores(OFF)[:, 0], full, atol=1e-5)


def test_answers_match_exactly_or_in_part(model: Any) -> None:
    found = scorer(model, ANSWERS, "f1").scores(OFF)
    assert found.shape == (7, 2)
    assert (found[:, 1] <= found[:, 0]).all()
    assert exact_match(" The Good film!\nmore", "good film") == 1
    assert exact_match("good good film", "good film") == 0


def test_the_model_is_left_in_the_state_in_which_it_was(model: Any) -> None:
    mine = Calibration({0: []})
    enable_gac(model, mine)
    try:
        scorer(model, films(3), "log_odds").scores(OFF)
        assert enabled_calibration(model) == mine
    finally:
        disable_gac(model)
    before = model.config._attn_implementation
    scorer(model, films(3), "log_odds").scores(ON)
    assert enabled_calibration(model) is None
    assert model.config._attn_implementation == before


def test_whole_prompts_refuse_likelihoods_of_several_tokens(model: Any) -> None:
    prompt = State("calibrated", Calibration({1: []}, rows="prompt"))
    with pytest.raises(
        ArgumentError, match=r"calibration: expected rows='running' for option_log_odds of several"
    ):
        scorer(model, options(3), "option_log_odds").check(prompt)
    first, whole = (scorer(model, films(5), value) for value in ("log_odds", "option_log_odds"))
    for each in (first, whole):
        each.check(prompt)
    # Choices of one token: a likelihood is the logit up to a constant, and no choice sees itself.
    np.testing.assert_allclose(first.scores(prompt), whole.scores(prompt), atol=1e-5)


def test_padding_that_changes_the_logits_is_refused(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = model.forward

    def without_mask(attention_mask: Any = None, position_ids: Any = None, **named: Any) -> Any:
        return forward(**named)

    monkeypatch.setattr(model, "forward", without_mask)
    with pytest.raises(
        ArgumentError, match="batch_size: expected 1 for LlamaForCausalLM, got more: padding changes"
    ):
        scorer(model, films(4), "log_odds").scores(OFF)
    scorer(model, films(4), "log_odds", batch_size=1).scores(OFF)


def test_a_model_without_positions_gets_batches_of_one_length(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = scorer(model, films(12), "log_odds").scores(ON)
    forward, shapes = model.forward, []

    def no_positions(attention_mask: Any = None, **named: Any) -> Any:
        assert bool(attention_mask.all())
        shapes.append(len(attention_mask))
        return forward(attention_mask=attention_mask, **named)

    monkeypatch.setattr(model, "forward", no_positions)
    found = scorer(model, films(12), "log_odds", batch_size=12).scores(ON)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert sum(shapes) == 12
    assert max(shapes) > 1


def test_finished_scores_are_kept(model: Any, tmp_path: Path) -> None:
    class StoppedError(Exception):
        pass

    def stop(_: int) -> None:
        counted.append(1)
        if len(counted) == 6:
            raise StoppedError

    counted: list[int] = []
    samples = films(10)
    expected = scorer(model, samples, "log_odds").scores(ON)
    with pytest.raises(StoppedError):
        scorer(model, samples, "log_odds", folder=tmp_path).scores(ON, stop)
    again = scorer(model, samples, "log_odds", folder=tmp_path)
    assert again.missing(ON) == 4
    assert again.missing(OFF) == 10
    np.testing.assert_allclose(again.scores(ON), expected, atol=1e-5)
    assert scorer(model, samples, "log_odds", folder=tmp_path).missing(ON) == 0
    # Another name of the same calibration, and another calibration.
    assert again.missing(State("again", CALIBRATION)) == 0
    assert again.missing(State("calibrated", Calibration({1: [0, 1], 2: []}, alpha=0.09))) == 10
    with pytest.raises(
        ArgumentError, match=r"store: expected values of the same kind, got .* of other samples"
    ):
        scorer(model, films(10, seed=1), "log_odds", folder=tmp_path)
    with pytest.raises(
        ArgumentError, match=r"store: expected values of the same kind, got .* of other model"
    ):
        scorer(decoder(1), samples, "log_odds", folder=tmp_path)


def test_questions_that_do_not_suit_the_value(model: Any) -> None:
    with pytest.raises(ArgumentError, match=r"mine\.samples\[0\]\.choices: .* \(--value option_log_odds\)"):
        scorer(model, options(2), "log_odds")
    with pytest.raises(
        ArgumentError, match=r"tokenizer: expected that of the model, since samples\[0\] is a text"
    ):
        scorer(model, films(2), "log_odds", tokenizer=None)
    ids = [{"input_ids": [4, 5, 6], "choices": [7, 8], "label": 7}]
    assert scorer(model, ids, "log_odds", tokenizer=None).scores(OFF).shape == (1, 2)
