"""The study of chains: its sequences, its law, and a training that is not done again."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from experiments import chain_tasks, chains
from experiments.chain_tasks import (
    COPIED,
    FIRST_VALUES,
    LETTERS,
    PAIRS,
    PLACED,
    QUERIES,
    SPEAKERS,
    VALUES,
    WORDS,
    copies,
    doubles,
    in_records,
    of_speakers,
    placed,
    studies,
    with_distractors,
    with_gaps,
)


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
    found, targets = with_gaps(50, gap, torch.Generator().manual_seed(1))
    assert found.shape == (50, PAIRS * (2 + gap) + QUERIES)
    seen = distances(found, targets, VALUES)
    assert min(seen) == 0
    assert gap - 2 <= max(seen) <= gap


@pytest.mark.parametrize(("pairs", "length"), PLACED)
def test_pairs_stand_anywhere(pairs: int, length: int) -> None:
    found, targets = placed(pairs, 50, length, torch.Generator().manual_seed(1))
    keys = max(VALUES, 2 * pairs)
    assert found.shape == (50, length)
    assert distances(found, targets, keys) == {0}
    assert ((found[:, :-QUERIES] < keys).sum(1) == pairs).all()
    assert len({tuple(row) for row in (found[:, :-QUERIES] < keys).tolist()}) == 50


def test_distractors_are_keys_of_no_pair() -> None:
    found, targets = with_distractors(50, 12, torch.Generator().manual_seed(1))
    plain, same = with_gaps(50, 12, torch.Generator().manual_seed(1))
    assert torch.equal(targets, same)
    changed = found != plain
    assert 0.4 < changed.sum() / (plain >= 2 * VALUES).sum() < 0.6
    for row, before, new in zip(found, plain, changed, strict=True):
        assert (row[new] < VALUES).all()
        assert not {*row[new].tolist()} & {*before[before < VALUES].tolist()}


@pytest.mark.parametrize("size", [3, 8, 32])
def test_a_record_holds_a_key_and_its_value_in_any_order(size: int) -> None:
    found, targets = in_records(50, size, torch.Generator().manual_seed(1))
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
    monkeypatch.setattr(chain_tasks, "speeches", lambda: [text, text])
    chain_tasks.conversations.cache_clear()
    found, targets = of_speakers(0, 200, 6, torch.Generator().manual_seed(1))
    chain_tasks.conversations.cache_clear()
    assert found.shape == (200, SPEAKERS * 7 + QUERIES)
    for row, answers in zip(found.tolist(), targets.tolist(), strict=True):
        said: dict[int, list[int]] = {}
        for token in row[:-QUERIES]:
            if token >= WORDS:
                said[token - WORDS] = []
            elif said:
                [*said.values()][-1].append(token)
        assert len(said) == SPEAKERS
        for word, answer in zip(row[-QUERIES:], answers, strict=True):
            assert [name for name, words in said.items() if word in words] == [answer]


def test_the_second_value_stands_behind_the_first_of_its_key() -> None:
    found, targets = doubles(100, 96, torch.Generator().manual_seed(1))
    for row, answers in zip(found.tolist(), targets.tolist(), strict=True):
        text = row[:-QUERIES]
        for k in (0, 2):
            at = text.index(row[-QUERIES + k])
            assert text[at + 1] == row[-QUERIES + k + 1] == VALUES + answers[k]
            assert answers[k] < FIRST_VALUES
            assert text[at + 2] == VALUES + answers[k + 1]


def test_a_copy_goes_on_as_the_text_did() -> None:
    found, targets = copies(100, 64, torch.Generator().manual_seed(1))
    assert found.max() < LETTERS
    for row, answers in zip(found.tolist(), targets.tolist(), strict=True):
        text, copy = row[:64], [*row[64:], answers[-1]]
        assert copy[2:] == answers
        assert any(text[k : k + COPIED + 1] == copy for k in range(64 - COPIED))


def test_every_study_draws_symbols_that_its_model_has() -> None:
    for study in studies([name for name in chain_tasks.NAMES if name != "speakers"], None):
        for step in (0, study.steps):
            found, targets = study.draw(20, study.sizes(step), torch.Generator().manual_seed(step))
            assert found.max() < study.symbols
            assert targets.max() < VALUES
            assert found.shape[1] <= study.context
        assert study.sizes(study.steps) <= max(study.tested)


def test_the_first_row_of_the_law() -> None:
    row = next(chains.laws())
    assert row["largest error"] < 1e-13
    assert row["of derivatives"] < 1e-13


def printed(capsys: pytest.CaptureFixture[str]) -> list[Any]:
    """The rows of all tables."""
    lines = capsys.readouterr().out.splitlines()
    return [json.loads(line)["rows"] for line in lines if line.startswith("{")]


def test_a_training_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["chain, gates", "chain, gates, q, k, v convolved, 3", "softmax, q, k, v convolved, 7"]
    command = f"chains {tmp_path} --only gaps anywhere --steps 2 --seeds 1 --workers 1 --json".split()
    figure = tmp_path / "gaps.png"
    monkeypatch.setattr(sys, "argv", [*command, "--models", *names, "--figure", str(figure)])
    monkeypatch.setattr(chain_tasks, "PLACED", ((4, 16),))
    for module in (chains, chain_tasks):
        monkeypatch.setattr(module, "TESTED", (0, 3))
    chains.main()
    tables = printed(capsys)
    assert [[row["seeds"] for row in rows] for rows in tables] == [[1] * 3 * len(chains.RECIPES)] * 2
    assert figure.stat().st_size > 5_000
    monkeypatch.setattr(chains, "built", None)  # nothing is trained again
    chains.main()
    assert printed(capsys) == tables
