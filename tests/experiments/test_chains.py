"""The study of chains: its sequences, its law, and a training that is not done again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from experiments import chains
from experiments.chains import PAIRS, QUERIES, SYMBOLS, draw


@pytest.mark.parametrize("gap", [0, 5, 40])
def test_values_stand_behind_their_keys(gap: int) -> None:
    found, targets = draw(50, gap, torch.Generator().manual_seed(1))
    assert found.shape == (50, PAIRS * (2 + gap) + QUERIES)
    seen = set()
    for row, answers in zip(found.tolist(), targets.tolist(), strict=True):
        text, asked = row[:-QUERIES], row[-QUERIES:]
        keys = [i for i, symbol in enumerate(text) if symbol < SYMBOLS]
        assert len({text[i] for i in keys}) == PAIRS
        values = {}
        for i in keys:
            place = next(j for j in range(i + 1, len(text)) if SYMBOLS <= text[j] < 2 * SYMBOLS)
            assert all(symbol >= 2 * SYMBOLS for symbol in text[i + 1 : place])
            seen.add(place - i - 1)
            values[text[i]] = text[place] - SYMBOLS
        assert [values[key] for key in asked] == answers
    assert min(seen) == 0
    assert gap - 2 <= max(seen) <= gap


def test_the_first_row_of_the_law() -> None:
    row = next(chains.laws())
    assert row["largest error"] < 1e-13
    assert row["of derivatives"] < 1e-13


def test_a_training_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["chain, gates", "chain, gates, q, k, v convolved, 3", "softmax, q, k, v convolved, 7"]
    command = [
        "chains",
        str(tmp_path),
        "--only",
        "gaps",
        "--steps",
        "2",
        "--seeds",
        "1",
        "--workers",
        "1",
        "--json",
    ]
    monkeypatch.setattr(sys, "argv", [*command, "--models", *names])
    chains.main()
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert [row["seeds"] for row in rows] == [1] * 6
    monkeypatch.setattr(chains, "draw", None)  # nothing is trained again
    chains.main()
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["rows"] == rows
