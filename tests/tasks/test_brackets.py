from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from diabat.lab.tasks import IGNORED, BracketOptions
from diabat.lab.tasks.brackets import CLOSE, OPEN, draw_words, matching_positions


def stack_matches(word: list[int]) -> list[int]:
    """The targets by the textbook algorithm; fails on a word that is not balanced."""
    stack: list[int] = []
    targets = []
    for position, symbol in enumerate(word):
        if symbol == OPEN:
            stack.append(position)
        targets.append(stack.pop() if symbol == CLOSE else IGNORED)
    assert not stack
    return targets


@pytest.mark.parametrize("window", [4, 5, 8, 12, 16, 30])
def test_words_are_balanced_and_targets_are_the_matches(window: int) -> None:
    task = BracketOptions(window=window, num_train=400, num_validation=50).build()
    for split in (task.train, task.validation):
        for word, targets in zip(split.inputs.tolist(), split.targets.tolist(), strict=True):
            assert stack_matches(word) == targets
            assert all(0 <= symbol < 12 for symbol in word)
            assert 1 <= word.count(OPEN) <= (window - 1) // 2


def test_shapes_and_facts() -> None:
    task = BracketOptions(window=6, num_train=70, num_validation=30).build()
    assert (task.name, task.vocab_size, task.num_classes, task.metric) == ("brackets", 12, 6, "accuracy")
    assert task.train.inputs.shape == task.train.targets.shape == (70, 6)
    assert task.validation.inputs.shape == (30, 6)


@pytest.mark.parametrize("window", [4, 8])
def test_no_validation_word_is_trained_on(window: int) -> None:
    task = BracketOptions(window=window).build()
    train = set(map(tuple, task.train.inputs.tolist()))
    assert not train & set(map(tuple, task.validation.inputs.tolist()))


def test_same_seed_same_data() -> None:
    a, b = (BracketOptions(seed=5, num_train=50, num_validation=20).build() for _ in range(2))
    c = BracketOptions(seed=6, num_train=50, num_validation=20).build()
    assert torch.equal(a.train.inputs, b.train.inputs)
    assert torch.equal(a.validation.targets, b.validation.targets)
    assert not torch.equal(a.train.inputs, c.train.inputs)


def test_numbers_of_pairs_and_nestings_are_uniform() -> None:
    """Two chi-square tests at alpha = 1e-4 each with a fixed seed, N = 30,000 words.

    A nesting twice as likely as another would give a chi-square of some hundreds: power 1 to all digits.
    """
    words = draw_words(30_000, 8, 12, torch.Generator().manual_seed(1)).tolist()
    pairs = Counter(word.count(OPEN) for word in words)
    assert set(pairs) == {1, 2, 3}
    assert _chi_square(list(pairs.values())) < 18.4  # 2 degrees of freedom
    nestings = Counter(tuple(s for s in word if s < 2) for word in words if word.count(OPEN) == 3)
    assert len(nestings) == 5
    assert _chi_square(list(nestings.values())) < 23.5  # 4 degrees of freedom


def test_positions_and_fillers_are_uniform() -> None:
    """Chi-square tests at alpha = 1e-4 with a fixed seed, N = 30,000 words."""
    words = draw_words(30_000, 6, 12, torch.Generator().manual_seed(2))
    fillers = torch.bincount(words[words > CLOSE])[2:]
    assert len(fillers) == 10
    assert _chi_square(fillers.tolist()) < 33.7  # 9 degrees of freedom
    single = words[(words == OPEN).sum(1) == 1]
    places = Counter((single < 2).int().mul(2 ** torch.arange(6)).sum(1).tolist())
    assert len(places) == math.comb(6, 2)
    assert _chi_square(list(places.values())) < 42.6  # 14 degrees of freedom


def _chi_square(counts: list[int]) -> float:
    expected = sum(counts) / len(counts)
    return sum((count - expected) ** 2 / expected for count in counts)


def test_matching_positions_of_a_known_word() -> None:
    # ( a ( ) ( ( ) ) ) b
    word = torch.tensor([[0, 5, 0, 1, 0, 0, 1, 1, 1, 7]])
    assert matching_positions(word).tolist() == [
        [IGNORED, IGNORED, IGNORED, 2, IGNORED, IGNORED, 5, 4, 0, IGNORED]
    ]


def test_a_vocabulary_without_room_for_validation_is_refused() -> None:
    # One filler and window 4 leave six words; with this seed none of them is reserved.
    with pytest.raises(ValueError, match=r"vocab_size: expected enough symbols .* window = 4, got 3"):
        BracketOptions(window=4, vocab_size=3, seed=1).build()


@pytest.mark.parametrize(
    "changes",
    [{"window": 10**6}, {"num_train": 10**9}, {"num_validation": 10**18}],
    ids=lambda c: next(iter(c)),
)
def test_more_sequences_than_memory_holds_are_refused(
    changes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diabat.compute.memory.available_bytes", lambda: 1 << 33)
    with pytest.raises(
        ValueError, match=r"^num_train: \d+ sequences of window = \d+ need .* got 8 GiB available\.$"
    ):
        BracketOptions(**changes).build()  # type: ignore[arg-type]  # by keyword


def test_texts_are_words_with_letters_as_fillers() -> None:
    form = BracketOptions(num_train=1, num_validation=1).build().text
    assert form is not None
    assert form.characters == "()abcdefghij"
    symbols = form.encode("(a(j))")
    assert symbols.tolist() == [OPEN, 2, OPEN, 11, CLOSE, CLOSE]
    assert form.targets(symbols[None]).tolist() == [[IGNORED] * 4 + [2, 0]]
    assert form.targets(form.encode("((")[None]).tolist() == [[IGNORED] * 2]  # the beginning of a word
    assert form.classes == tuple("01234567")
    with pytest.raises(ValueError, match=r"text: expected an opening bracket .* at position 2 without"):
        form.targets(form.encode("())(")[None])
    with pytest.raises(ValueError, match=r"text: expected the characters .* got 'k' at position 1"):
        form.encode("(k)")
    with pytest.raises(ValueError, match="text: expected at least one character, got an empty text"):
        form.encode("")
    assert BracketOptions(vocab_size=65, num_train=1, num_validation=1).build().text is None
