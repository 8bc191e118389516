"""The study of chains: its sequences, its law, and a training that is not done again."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from experiments import chains
from experiments.chains import PAIRS, PLACED, QUERIES, VALUES, placed, with_gaps


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
    monkeypatch.setattr(chains, "PLACED", ((4, 16),))
    monkeypatch.setattr(chains, "TESTED", (0, 3))
    chains.main()
    tables = printed(capsys)
    assert [[row["seeds"] for row in rows] for rows in tables] == [[1] * 3 * len(chains.RECIPES)] * 2
    assert figure.stat().st_size > 5_000
    monkeypatch.setattr(chains, "built", None)  # nothing is trained again
    chains.main()
    assert printed(capsys) == tables
