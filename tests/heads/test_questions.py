"""What a sample says, and how its text and choices become tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tiny_decoders import VOCABULARY

from diabat.checks import ArgumentError
from diabat.heads.games.questions import digest, tokenised
from diabat.heads.games.values import value_of

from .games import bpe


def read(*given: Any, words: Any = None) -> Any:
    return tokenised(given, words, VOCABULARY)


@pytest.mark.parametrize(
    ("prompt", "choices", "kept"),
    [
        ("the man : ", ["good", "bad"], "the man :"),  # " good" is one token
        ("the man :", [" good", " bad"], "the man :"),
        ("answer\n", ["good", "bad"], "answer\n"),  # a line break stays with the prompt
        ("answer : \n", ["good", "bad"], "answer : \n"),
        ("answer\n ", ["good", "bad"], "answer\n"),
        ("answer\n", [[4, 5], "bad"], "answer\n"),
        ("the man : ", [], "the man : "),
    ],
)
def test_white_space_stays_with_the_prompt_where_it_can(prompt: str, choices: list[Any], kept: str) -> None:
    words = bpe()
    answer = {"answer": 1} if choices else {}
    (sample,) = read({"prompt": prompt, "choices": choices, **answer}, words=words)
    assert words.decode(sample.tokens) == kept
    for given, tokens in zip(choices, sample.choices, strict=True):
        if isinstance(given, str):
            whole = torch.cat((sample.tokens, tokens))
            assert whole.tolist() == words(prompt + given)["input_ids"]
        else:
            assert tokens.tolist() == given
    first = [int(tokens[0]) for tokens in sample.choices]
    assert len(set(first)) == len(first)  # what log_odds needs


@pytest.mark.parametrize(
    ("prompt", "space", "different"), [("the man :", " ", False), ("the man : ", "", True)]
)
def test_digits_follow_a_space_of_the_prompt(prompt: str, space: str, different: bool) -> None:
    """A tokenizer that writes every digit by itself gives choices " 1" and " 2" the same first token, a space."""
    from tokenizers import pre_tokenizers

    words = bpe()
    inner = words.backend_tokenizer
    inner.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), inner.pre_tokenizer])
    inner.add_tokens(["1", "2"])
    choices = [f"{space}{digit}" for digit in "12"]
    (sample,) = tokenised([{"prompt": prompt, "choices": choices, "answer": 0}], words, len(words))
    first = [int(tokens[0]) for tokens in sample.choices]
    assert (first[0] != first[1]) == different
    if different:
        value_of("log_odds").check(sample, "samples[0]")
    else:
        with pytest.raises(
            ArgumentError, match="or, for digits, a prompt that ends in a space and choices that start"
        ):
            value_of("log_odds").check(sample, "samples[0]")


def test_a_chat_is_written_by_its_template() -> None:
    words = bpe(chat=True)
    chat = [{"role": "user", "content": "the man"}]
    begun = [*chat, {"role": "assistant", "content": "a dog"}]
    asked, continued = read(
        {"messages": chat, "choices": ["good", "bad"], "answer": "bad"}, {"messages": begun}, words=words
    )
    assert words.decode(asked.tokens) == "<s>man\nthe man\nanswer\n"
    assert asked.tokens.tolist().count(words.bos_token_id) == 1
    assert [words.decode(choice) for choice in asked.choices] == ["good", "bad"]
    assert words.decode(continued.tokens) == "<s>man\nthe man\nanswer\na dog"


def test_a_counterfactual_prompt_is_read_like_the_prompt() -> None:
    words = bpe(chat=True)
    choices = {"choices": ["good", "bad"], "answer": 0}
    asked = [
        {"prompt": "the man : ", "corrupted": "man the : ", **choices},
        {
            "messages": [{"role": "user", "content": "the man"}],
            "corrupted": [{"role": "user", "content": "man the"}],
        },
    ]
    text, chat = found = tokenised(asked, words, VOCABULARY, corrupted=True)
    assert text.corrupted is not None
    assert words.decode(text.corrupted) == "man the :"  # the space goes to the choices
    assert chat.corrupted is not None
    assert words.decode(chat.corrupted) == "<s>man\nman the\nanswer\n"
    assert digest(found) != digest(read(*asked, words=words))


@pytest.mark.parametrize(("choices", "answer", "position"), [
    ([7, 9, 12], 9, 1),
    ([7, 9, 12], 2, 2),
    ([0, 1], 1, 1),
    ([[3, 4], [5]], [5], 1),
    ([[3, 4], [5]], 1, 1),
    (["good", "bad"], "bad ", 1),
    (["good", "bad"], 0, 0),
    ([torch.tensor([3, 4]), torch.tensor([5, 6])], torch.tensor([5, 6]), 1),
    ([np.array([3, 4]), np.array([5])], np.array([5]), 1),
])  # fmt: skip
def test_an_answer_is_a_choice_or_its_position(choices: Any, answer: Any, position: int) -> None:
    (sample,) = read({"input_ids": [1, 2], "choices": choices, "answer": answer}, words=bpe())
    assert sample.answer == position


def test_what_may_be_left_out() -> None:
    (plain,) = read({"input_ids": torch.tensor([1, 2, 3], dtype=torch.int32)})
    assert plain.tokens.dtype == torch.int64
    assert (plain.choices, plain.answer, plain.corrupted) == ((), None, None)


def test_a_checksum_tells_samples_apart() -> None:
    base = {"input_ids": [1, 2], "choices": [3, 4], "answer": 3}
    others = [base | {"input_ids": [1, 3]}, base | {"choices": [4, 3]}, base | {"answer": 4}]
    assert len({digest(read(sample)) for sample in (base, *others)}) == 4
    (noted,) = tokenised([base | {"note": "unread"}], None, VOCABULARY, more=True)
    assert digest(read(base)) == digest([noted])
    assert noted.given["note"] == "unread"


IDS = {"input_ids": [1]}
WRONG: dict[str, tuple[Any, str]] = {
    "no dict": ("text", "samples[0]: expected a dict, got str."),
    "nothing": ({"choices": [1]}, "samples[0]: expected one of prompt, messages and input_ids, got 'choices'."),
    "line": ({"\nprompt": "a"}, "samples[0]: expected one of prompt, messages and input_ids, got '\\nprompt'."),
    "both": ({"prompt": "a", "input_ids": [1]}, "samples[0]: expected one of prompt, messages and input_ids, got "),
    "unread": (IDS | {"pixel_values": [[0.5]]}, "samples[0]: expected keys among prompt, messages, input_ids, choices, "
               "answer, corrupted, got 'pixel_values'."),
    "mistyped": (IDS | {"choises": [3, 4], "answer": 3}, "samples[0]: expected keys among prompt, messages, input_ids, "
                 "choices, answer, corrupted, got 'choises'. Did you mean 'choices'?"),
    "no text": ({"prompt": 3}, "samples[0].prompt: expected a text, got int."),
    "no chat": ({"messages": "hello"}, "samples[0].messages: expected a list of messages, got 'hello'."),
    "no role": ({"messages": [{"content": "x"}]}, "samples[0].messages: expected role and content, got {'content': "),
    "no ids": ({"input_ids": []}, "samples[0].input_ids: expected token ids [T] with T >= 1, got [0] of "),
    "matrix": ({"input_ids": [[1]]}, "samples[0].input_ids: expected token ids [T] with T >= 1, got [1, 1] of int64."),
    "floats": ({"input_ids": [1.5]}, "samples[0].input_ids: expected token ids [T] with T >= 1, got [1] of float32."),
    "letters": ({"input_ids": "ab"}, "samples[0].input_ids: expected token ids, got 'ab'."),
    "range": ({"input_ids": [1, VOCABULARY]}, "samples[0].input_ids: expected token ids in 0 .. 47, got [1, 48]."),
    "choice range": (IDS | {"choices": [2, 99], "answer": 2}, "samples[0].choices[1]: expected token ids in 0 .. 47"),
    "choices": (IDS | {"choices": "ab", "answer": 0}, "samples[0].choices: expected a list, got str."),
    "no answer": (IDS | {"choices": [2, 3]}, "samples[0].answer: expected one of the choices [2, 3] or its position, "),
    "other": (IDS | {"choices": [12, 13], "answer": 5}, "samples[0].answer: expected one of the choices [12, 13] or "),
    "flag": (IDS | {"choices": [12, 13], "answer": True}, "samples[0].answer: expected one of the choices"),
    "two": (IDS | {"choices": [1, 0], "answer": 0}, "samples[0].answer: expected one of the choices [1, 0] or its"),
    "merged": ({"prompt": "the m", "choices": ["s", "an"], "answer": 0}, "samples[0].choices[1]: expected a choice "
               "whose tokens follow those of the text, got 'an', which merges with its end; end"),
    "surrogate": ({"prompt": "the \ud800"}, "samples[0].prompt: expected text without surrogates, got 'the \\ud800'."),
    "in a choice": (IDS | {"choices": ["a", "\ud800"], "answer": 0}, "samples[0].choices[1]: expected text without"),
    "no template": ({"messages": [{"role": "user", "content": "x"}]}, "samples[0].messages: expected a chat that the "
                    "tokenizer has a template for, got: "),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_sample_is_refused(name: str) -> None:
    sample, sentence = WRONG[name]
    with pytest.raises(ValueError, match=r"^samples") as caught:
        read(sample, words=bpe())
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize("sample", [{"prompt": "the man"}, IDS | {"choices": ["a", "b"], "answer": 0}])
def test_a_text_needs_a_tokenizer(sample: Any) -> None:
    sentence = r"^tokenizer: expected that of the model, since samples\[0\].* is a text"
    with pytest.raises(ValueError, match=sentence):
        read(sample)


def test_samples_are_a_sequence() -> None:
    for wrong in ({"input_ids": [1]}, "text", b"text", 3, torch.tensor(1), np.array(1.0)):
        with pytest.raises(ValueError, match="samples: expected a sequence of dicts"):
            tokenised(wrong, None, VOCABULARY)
    with pytest.raises(ValueError, match="samples: expected at least one, got none"):
        read()
