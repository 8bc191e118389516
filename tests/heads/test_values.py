"""Values against what the model says by itself."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tiny_decoders import GROUPS, VOCABULARY, decoder
from torch import Tensor

from diabat.attention.heads import AnswerF1, HeadCoalitions
from diabat.attention.heads.values import f1, log_odds

from .games import bpe

ALL = torch.ones(1, GROUPS, dtype=torch.bool)


@pytest.fixture(scope="module")
def llama() -> Any:
    return decoder("llama")


def log_probabilities(built: Any, tokens: list[int]) -> Tensor:
    with torch.no_grad():
        z = built.eval()(input_ids=torch.tensor([tokens])).logits[0].double()
    return torch.log_softmax(z, -1)


def test_log_odds_stay_finite_where_the_probability_rounds_to_one() -> None:
    z = torch.tensor([[60.0, 0.0, 1.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    p = torch.softmax(z.float(), -1)[0, 0]
    assert float(p) == 1  # log p/(1-p) is infinite
    expected = [60 - math.log(1 + math.e), -math.log(2)]
    assert log_odds(z, 0).tolist() == pytest.approx(expected, abs=1e-12)
    p2 = torch.softmax(z, -1)[1, 0]
    assert float(log_odds(z, 0)[1]) == pytest.approx(float((p2 / (1 - p2)).log()))


def test_option_values_sum_over_all_tokens_of_an_option(llama: Any) -> None:
    sample = {"input_ids": [5, 6, 7, 8], "choices": [[3, 4], [3, 9, 2], [11]], "answer": 1}
    scores = []
    for option in ([3, 4], [3, 9, 2], [11]):
        logp = log_probabilities(llama, [5, 6, 7, 8, *option])
        scores.append(sum(float(logp[3 + t, token]) for t, token in enumerate(option)))
    likelihood = HeadCoalitions(llama, [sample], layer=1, value="option_log_likelihood")
    assert float(likelihood.value(ALL)) == pytest.approx(scores[1], abs=1e-5)
    odds = HeadCoalitions(llama, [sample], layer=1, value="option_log_odds")
    expected = scores[1] - math.log(math.exp(scores[0]) + math.exp(scores[2]))
    assert float(odds.value(ALL)) == pytest.approx(expected, abs=1e-5)


def test_single_tokens_have_the_same_log_odds_either_way(llama: Any) -> None:
    sample = {"input_ids": [5, 6, 7, 8], "choices": [3, 4, 11], "answer": 1}
    longer = sample | {"choices": [[3, 4], [4, 2], [11]]}  # log_odds looks at their first tokens
    first, options, single = (
        HeadCoalitions(llama, [given], layer=1, value=value).table()
        for given, value in ((sample, "log_odds"), (sample, "option_log_odds"), (longer, "log_odds"))
    )
    torch.testing.assert_close(first, options, rtol=0, atol=5e-6)
    assert torch.equal(first, single)


def test_perplexity_is_that_of_the_text(llama: Any) -> None:
    tokens = [5, 6, 7, 8, 9, 3]
    logp = log_probabilities(llama, tokens)
    expected = sum(float(logp[t, token]) for t, token in enumerate(tokens[1:])) / 5
    game = HeadCoalitions(llama, [{"input_ids": tokens}], layer=1, value="perplexity")
    assert float(game.value(ALL)) == pytest.approx(expected, abs=1e-6)
    with torch.no_grad():
        loss = llama(input_ids=torch.tensor([tokens]), labels=torch.tensor([tokens])).loss
    assert float(game.value(ALL)) == pytest.approx(-float(loss), abs=1e-6)


def test_a_function_gets_all_logits_and_the_sample_as_given(llama: Any) -> None:
    def value(z: Tensor, sample: Any) -> Tensor:
        assert z.shape[1:] == (4, VOCABULARY)
        return z[:, -1, sample["wanted"]]

    game = HeadCoalitions(llama, [{"input_ids": [5, 6, 7, 8], "wanted": 9}], layer=1, value=value)
    with torch.no_grad():
        expected = llama.eval()(input_ids=torch.tensor([[5, 6, 7, 8]])).logits[0, -1, 9]
    assert float(game.value(ALL)) == pytest.approx(float(expected), abs=1e-5)


def test_f1_of_a_game(llama: Any) -> None:
    words = bpe()
    with torch.no_grad():
        prompt = torch.tensor([[5, 6, 7]])
        own = llama.eval().generate(
            input_ids=prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=4, do_sample=False,
            pad_token_id=0,
        )  # fmt: skip
    text = words.decode(own[0, 3:], skip_special_tokens=True)
    sample = {"input_ids": [5, 6, 7], "answer": ["something else", text]}
    game = HeadCoalitions(llama, [sample], layer=1, value=AnswerF1(words, 4))
    assert float(game.value(ALL)) == 1


@pytest.mark.parametrize(
    ("text", "answer", "expected"),
    [
        ("The cat.", "cat", 1.0),
        ("a black cat", "the cat", 2 / 3),
        ("dog", "cat", 0.0),
        ("the", "", 1.0),
        ("", "cat", 0.0),
        ("cat cat", "cat", 2 / 3),
        ("cat\nand more", "cat", 1.0),
    ],
)
def test_f1_of_words(text: str, answer: str, expected: float) -> None:
    assert f1(text, answer) == pytest.approx(expected)
