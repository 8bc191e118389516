from __future__ import annotations

import math
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

import diabat
from diabat.lab.tasks import IGNORED, RecallOptions

EXAMPLE = Path(__file__).parents[2] / "examples" / "recall_by_hand.py"
FORMS: list[dict[str, Any]] = [
    {},
    {"pairs": 16, "queries": 16},
    {"filler": 5, "queries": 2},
    {"distance": 2},
    {"pairs": 6, "min_pairs": 2, "distance": "mixed", "filler": 3, "queries": 2},
    {"min_pairs": 1, "test_pairs": 9},
]


def options(**given: Any) -> RecallOptions:
    return RecallOptions(**{"num_train": 300, "num_validation": 60, "num_test": 60, **given})


def read_pairs(word: list[int], symbols: int) -> dict[int, tuple[int, int]]:
    """Value and distance of every key, read symbol by symbol."""
    found: dict[int, tuple[int, int]] = {}
    key = start = -1
    for position, symbol in enumerate(word):
        if symbol < symbols:
            assert key < 0
            assert symbol not in found
            key, start = symbol, position
        elif symbol < 2 * symbols:
            found[key], key = (symbol - symbols, position - start), -1
    assert key < 0
    return found


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_queries_ask_for_the_values_of_the_pairs(form: dict[str, Any]) -> None:
    wanted = options(**form)
    task = wanted.build()
    distances = {1, 2} if wanted.distance == "mixed" else {wanted.distance}
    for name, split in task.sets.items():
        counts = (
            range(wanted.longest, wanted.longest + 1)
            if name == "test"
            else range(wanted.least, wanted.pairs + 1)
        )
        seen, found_distances = set(), set()
        for word, targets in zip(split.inputs.tolist(), split.targets.tolist(), strict=True):
            assert len(word) == task.window
            pairs = read_pairs(word[: -wanted.queries], wanted.symbols)
            asked = word[-wanted.queries :]
            assert targets == [IGNORED] * (len(word) - len(asked)) + [pairs[key][0] for key in asked]
            assert len(set(asked)) == len(asked)
            seen.add(len(pairs))
            found_distances |= {distance for _, distance in pairs.values()}
        assert (seen, found_distances) == (set(counts), distances)


def test_accuracy_by_distance_names_every_query_once() -> None:
    task = options(pairs=6, distance="mixed", filler=3, queries=2).build()
    assert task.parts is not None
    parts = task.parts(task.validation)
    words, targets = task.validation.inputs, task.validation.targets
    seen = {"behind": torch.zeros_like(targets), "before": torch.zeros_like(targets)}
    for name, part in parts.items():
        chosen = part.targets != IGNORED
        torch.testing.assert_close(part.targets[chosen], targets[chosen], rtol=0, atol=0)
        seen["behind" if "behind" in name else "before"] += chosen
        low, high = (int(found) for found in (re.findall(r"\d+", name) * 2)[:2])
        for row, query in chosen.nonzero().tolist():
            word = words[row].tolist()
            key = word.index(word[query])
            apart = read_pairs(word[:-2], 16)[word[query]][1]
            assert low <= (apart if "behind" in name else query - key - apart) <= high, name
    for count in seen.values():
        torch.testing.assert_close(count, (targets != IGNORED).long(), rtol=0, atol=0)


def test_fillers_stand_anywhere_between_pairs_and_short_sequences_begin_with_them() -> None:
    words = options(pairs=3, filler=2).build().train.inputs
    assert bool((words[:, :8] == 32).any(0).all()), "a filler at every position"
    words = options(pairs=3, min_pairs=1).build().train.inputs
    blank = words == 32
    assert bool((blank.long().cumsum(1) == blank.long() * torch.arange(1, 8))[blank].all()), "in front only"


def test_no_sequence_is_in_two_sets_and_seeds_decide() -> None:
    task, same, other = (options(pairs=2, symbols=4, seed=seed).build() for seed in (0, 0, 1))
    sets = [set(map(tuple, split.inputs.tolist())) for split in task.sets.values()]
    assert sum(map(len, sets)) == len(set.union(*sets))
    assert torch.equal(task.train.inputs, same.train.inputs)
    assert not torch.equal(task.train.inputs, other.train.inputs)


def test_too_few_sequences_to_hold_any_back() -> None:
    with pytest.raises(
        ValueError, match="symbols: expected enough of them to hold sequences back from training, got 1"
    ):
        options(pairs=1, symbols=1).build()


def test_texts() -> None:
    text = options(pairs=2, symbols=3).build().text
    assert text is not None
    words = text.encode("aC.bAab")
    assert [target for target in text.targets(words[None])[0].tolist()] == [IGNORED] * 5 + [2, 0]
    for wrong, reason in (
        ("abAa", "a value behind every key, got none before position 1"),
        ("Ab", "a key before"),
    ):
        with pytest.raises(ValueError, match=f"^text: expected {reason}"):
            text.targets(text.encode(wrong)[None])


def test_the_solution_by_hand_recalls_64_pairs() -> None:
    """With exp(4J) > P every answer is right; without couplings it is a guess among the values of the sequence."""
    by_hand = runpy.run_path(str(EXAMPLE))["recall_by_hand"]
    task = RecallOptions(pairs=64, symbols=64, queries=8, num_train=1, num_validation=1, num_test=100)
    test = task.build().test
    assert test is not None
    asked = test.targets != IGNORED
    with torch.no_grad():
        for coupling, right in ((math.log(128) / 4, 1.0), (0.0, 0.2)):
            found = by_hand(task, coupling, field=6.0)(test.inputs).argmax(-1)
            accuracy = (found == test.targets)[asked].double().mean()
            assert accuracy == 1.0 if right == 1.0 else accuracy < right


@pytest.mark.parametrize("J", [0.3, 0.8])
def test_the_contrast_is_exp_of_four_couplings(J: float) -> None:
    """P(value on) beside a key that matches, over the same beside one that does not."""
    c = J + 8.0
    problem = diabat.Ising(
        torch.tensor([[c, -c], [-c, -c]], dtype=torch.float64),
        J * torch.tensor([[0.0, 1.0], [1.0, 0.0]]).double(),
    )
    value = diabat.sampler("exact").moments(problem).probability[:, 1]
    assert value[0] / value[1] == pytest.approx(math.exp(4 * J), rel=1e-5)
