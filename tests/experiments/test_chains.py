"""The study of chains: its sequences, its law, and a training that is not done again."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from script_tables import tables
from torch import Tensor

from experiments import chain_tasks as tasks
from experiments import chains
from experiments.chain_tasks import PAIRS, PLACED, QUERIES, VALUES


def drawn(draw: Any, count: int, size: int) -> tuple[Tensor, Tensor]:
    """Sequences and answers of seed 1."""
    found: tuple[Tensor, Tensor] = draw(count, size, torch.Generator().manual_seed(1))
    return found


def distances(found: Tensor, targets: Tensor, keys: int) -> set[int]:
    """Tokens between keys and their values, after a check that the values asked for are those behind the keys."""
    seen = set()
    for row, answers in zip(found.tolist(), targets.tolist(), strict=True):
        text, asked = row[:-QUERIES], row[-QUERIES:]
        places = [i for i, symbol in enumerate(text) if symbol < keys]
        assert len({text[i] for i in places}) == len(places)
        values = {}
        for i in places:
            at = next(j for j in range(i + 1, len(text)) if keys <= text[j] < keys + VALUES)
            assert all(symbol >= keys + VALUES for symbol in text[i + 1 : at])
            seen.add(at - i - 1)
            values[text[i]] = text[at] - keys
        assert [values[key] for key in asked] == answers
    return seen


@pytest.mark.parametrize("gap", [0, 5, 40])
def test_values_stand_behind_their_keys(gap: int) -> None:
    found, targets = drawn(tasks.with_gaps, 50, gap)
    assert found.shape == (50, PAIRS * (2 + gap) + QUERIES)
    seen = distances(found, targets, VALUES)
    assert min(seen) == 0
    assert gap - 2 <= max(seen) <= gap


@pytest.mark.parametrize(("pairs", "length"), PLACED)
def test_pairs_stand_anywhere(pairs: int, length: int) -> None:
    found, targets = drawn(partial(tasks.placed, pairs), 50, length)
    keys = max(VALUES, 2 * pairs)
    assert found.shape == (50, length)
    assert distances(found, targets, keys) == {0}
    assert ((found[:, :-QUERIES] < keys).sum(1) == pairs).all()
    assert len({tuple(row) for row in (found[:, :-QUERIES] < keys).tolist()}) == 50


def test_distractors_are_keys_of_no_pair() -> None:
    (found, targets), (plain, same) = (drawn(d, 50, 12) for d in (tasks.with_distractors, tasks.with_gaps))
    assert torch.equal(targets, same)
    changed = found != plain
    assert 0.4 < changed.sum() / (plain >= 2 * VALUES).sum() < 0.6
    for row, before, new in zip(found, plain, changed, strict=True):
        assert (row[new] < VALUES).all()
        assert not {*row[new].tolist()} & {*before[before < VALUES].tolist()}


@pytest.mark.parametrize("size", [3, 8, 32])
def test_a_record_holds_a_key_and_its_value_in_any_order(size: int) -> None:
    found, targets = drawn(tasks.in_records, 50, size)
    first = []
    for row, answers in zip(found.tolist(), targets.tolist(), strict=True):
        text, values = row[:-QUERIES], {}
        for start in range(0, len(text), size):
            record = text[start : start + size]
            assert record[0] == 48
            assert max(record[1:]) < 48
            [key] = [t for t in record if t < VALUES]
            [value] = [t for t in record if VALUES <= t < 2 * VALUES]
            values[key] = value - VALUES
            first.append(record.index(key) < record.index(value))
        assert [values[key] for key in row[-QUERIES:]] == answers
    assert 0.3 < sum(first) / len(first) < 0.7


def test_a_word_that_is_asked_for_was_said_by_one_of_four(monkeypatch: pytest.MonkeyPatch) -> None:
    text = [(f"speaker {k % 7}", [1 + (5 * k + j) % 90 for j in range(3 + k % 4)]) for k in range(60)]
    monkeypatch.setattr(tasks, "speeches", lambda: [text, text])
    tasks.conversations.cache_clear()
    found, targets = drawn(partial(tasks.of_speakers, 0), 200, 6)
    tasks.conversations.cache_clear()
    assert found.shape == (200, 4 * 7 + QUERIES)
    for row, answers in zip(found.tolist(), targets.tolist(), strict=True):
        said: dict[int, list[int]] = {}
        for token in row[:-QUERIES]:
            if token >= tasks.WORDS:
                said[token - tasks.WORDS] = []
            elif said:
                [*said.values()][-1].append(token)
        assert len(said) == 4
        for word, answer in zip(row[-QUERIES:], answers, strict=True):
            assert [name for name, words in said.items() if word in words] == [answer]


def test_the_second_value_stands_behind_the_first_of_its_key() -> None:
    found, targets = drawn(tasks.doubles, 100, 96)
    for row, answers in zip(found.tolist(), targets.tolist(), strict=True):
        text = row[:-QUERIES]
        for k in (0, 2):
            at = text.index(row[-QUERIES + k])
            assert text[at + 1] == row[-QUERIES + k + 1] == VALUES + answers[k]
            assert answers[k] < tasks.FIRST_VALUES
            assert text[at + 2] == VALUES + answers[k + 1]


def test_a_copy_goes_on_as_the_text_did() -> None:
    found, targets = drawn(tasks.copies, 100, 64)
    assert found.max() < tasks.LETTERS
    for row, answers in zip(found.tolist(), targets.tolist(), strict=True):
        text, copy = row[:64], [*row[64:], answers[-1]]
        assert copy[2:] == answers
        assert any(text[k : k + tasks.COPIED + 1] == copy for k in range(64 - tasks.COPIED))


def test_every_study_draws_symbols_that_its_model_has() -> None:
    for study in tasks.studies([name for name in tasks.NAMES if name != "speakers"], None):
        for step in (0, study.steps):
            found, targets = study.draw(20, study.sizes(step), torch.Generator().manual_seed(step))
            assert found.max() < study.symbols
            assert targets.max() < VALUES
            assert found.shape[1] <= study.context
        assert study.sizes(study.steps) <= max(study.tested)


@pytest.mark.slow
def test_a_training_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["chain, gates", "chain, gates, q, k, v convolved, 3", "softmax, q, k, v convolved, 7"]
    words = [tmp_path, "--steps", 2, "--seeds", 1, "--workers", 1, "--figure", tmp_path / "gaps.png"]
    words += ["--only", "gaps", "anywhere", "--recipes", "decay 0.01", "decay 30 of q, k", "--models", *names]
    monkeypatch.setattr(tasks, "PLACED", ((4, 16),))
    for module in (chains, tasks):
        monkeypatch.setattr(module, "TESTED", (0, 3))
    found = tables(chains, *words)
    assert [[row["seeds"] for row in rows] for rows in found] == [[1] * 3 * 2] * 2
    assert (tmp_path / "gaps.png").stat().st_size > 5_000
    monkeypatch.setattr(chains, "built", None)  # nothing is trained again
    assert tables(chains, *words) == found
