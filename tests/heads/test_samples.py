"""What a sample says, and what is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from diabat.attention.heads.samples import digest, read_samples

from .tiny_models import VOCABULARY, tokenizer


def read(*given: Any, words: Any = None) -> Any:
    return read_samples(given, words, VOCABULARY)


def test_choices_are_tokenised_behind_the_text() -> None:
    """White space at the end of the text goes to the choice."""
    words = tokenizer()
    spaced, bare = read(
        {"text": "the man : ", "choices": ["good", "bad"], "label": "bad"},
        {"text": "the man :", "choices": [" good", " bad"], "label": "bad"},
        words=words,
    )
    assert torch.equal(spaced.tokens, bare.tokens)
    for ours, theirs in zip(spaced.choices, bare.choices, strict=True):
        assert torch.equal(ours, theirs)
    whole = torch.cat((spaced.tokens, spaced.choices[0]))
    assert words.decode(whole) == "the man : good"
    assert spaced.label == bare.label == 1


@pytest.mark.parametrize(
    ("choices", "label", "position"),
    [
        ([7, 9, 12], 9, 1),
        ([7, 9, 12], 2, 2),
        ([1, 0], 0, None),
        ([0, 1], 1, 1),
        ([[3, 4], [5]], [5], 1),
        ([[3, 4], [5]], 1, 1),
        (["good", "bad"], "bad ", 1),
        (["good", "bad"], 0, 0),
        ([torch.tensor([3, 4]), torch.tensor([5, 6])], torch.tensor([5, 6]), 1),
        ([np.array([3, 4]), np.array([5])], np.array([5]), 1),
    ],
)
def test_a_label_is_a_choice_or_its_position(choices: Any, label: Any, position: int | None) -> None:
    sample = {"input_ids": [1, 2], "choices": choices, "label": label}
    if position is None:
        with pytest.raises(
            ValueError, match=r"label: expected a label that means one choice, got 0, which is"
        ):
            read(sample)
    else:
        assert read(sample, words=tokenizer())[0].label == position


def test_input_ids_may_be_a_tensor() -> None:
    (sample,) = read({"input_ids": torch.tensor([1, 2, 3], dtype=torch.int32)})
    assert sample.tokens.dtype == torch.int64
    assert sample.label is None
    assert sample.choices == ()


def test_a_checksum_tells_samples_apart() -> None:
    base = {"input_ids": [1, 2], "choices": [3, 4], "label": 3}
    others = [base | {"input_ids": [1, 3]}, base | {"choices": [4, 3]}, base | {"label": 4}]
    marks = {digest(read(sample)) for sample in (base, *others)}
    assert len(marks) == 4
    assert digest(read(base)) == digest(read(base | {"note": "unread"}))


@pytest.mark.parametrize(
    ("sample", "sentence"),
    [
        ("text", r"samples\[0\]: expected a dict, got str"),
        ({"choices": [1]}, r"samples\[0\]: expected either 'text' or 'input_ids', got choices"),
        ({"text": "a", "input_ids": [1]}, r"samples\[0\]: expected either 'text' or 'input_ids'"),
        (
            {"text": "the man"},
            r"tokenizer: expected that of the model, since samples\[0\] is a text, got None",
        ),
        ({"input_ids": []}, r"samples\[0\].input_ids: expected token ids \[T\] with T >= 1"),
        ({"input_ids": [[1]]}, r"samples\[0\].input_ids: expected token ids \[T\]"),
        ({"input_ids": [1.5]}, r"samples\[0\].input_ids: expected token ids \[T\] .* float32"),
        ({"input_ids": "ab"}, r"samples\[0\].input_ids: expected token ids, got 'ab'"),
        ({"input_ids": [1, 40]}, r"samples\[0\].input_ids: expected token ids in 0 .. 39"),
        (
            {"input_ids": [1], "choices": [2, 41], "label": 2},
            r"samples\[0\].choices\[1\]: expected token ids in 0",
        ),
        ({"input_ids": [1], "choices": "ab", "label": 0}, r"samples\[0\].choices: expected a list, got str"),
        ({"input_ids": [1], "choices": ["a", "b"], "label": 0}, "tokenizer: expected that of the model"),
        (
            {"input_ids": [1], "choices": [2, 3]},
            r"samples\[0\].label: expected one of the choices or its position",
        ),
        (
            {"input_ids": [1], "choices": [12, 13], "label": 5},
            r"samples\[0\].label: expected one of the choices \[12, 13\] or its position, got 5",
        ),
        (
            {"input_ids": [1], "choices": [12, 13], "label": True},
            r"samples\[0\].label: expected one of the choices",
        ),
        ({"input_ids": [1], "answers": [1]}, r"samples\[0\].answers: expected a list of texts"),
    ],
)
def test_what_is_no_sample_is_refused(sample: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read(sample)


def test_a_choice_that_merges_with_the_text_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"choices\[1\]: expected a choice whose tokens follow .* end the text with"
    ):
        read({"text": "the m", "choices": ["s", "an"], "label": 0}, words=tokenizer())


@pytest.mark.parametrize(
    ("sample", "where"),
    [
        ({"text": "the \ud800"}, "text"),
        ({"text": "the", "choices": ["good", "\ud800"], "label": 0}, r"choices\[1\]"),
        ({"input_ids": [1], "choices": ["good", "\ud800"], "label": 0}, r"choices\[1\]"),
    ],
)
def test_text_that_no_tokenizer_takes_is_refused(sample: Any, where: str) -> None:
    sentence = rf"samples\[0\]\.{where}: expected text without surrogates, got '.*\\ud800'"
    with pytest.raises(ValueError, match=sentence):
        read(sample, words=tokenizer())


def test_samples_are_a_sequence() -> None:
    for wrong in ({"input_ids": [1]}, "text", b"text", 3, torch.tensor(1), np.array(1.0)):
        with pytest.raises(ValueError, match="samples: expected a sequence of dicts"):
            read_samples(wrong, None, VOCABULARY)  # type: ignore[arg-type]
