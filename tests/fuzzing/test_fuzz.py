"""The fuzz finds what is broken, tells how every run ended, and finds nothing in a short run with fixed seeds."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import strategies as st

import fuzz.__main__ as campaign
from diabat.ising import Ising, IsingError
from diabat.samplers import Moments
from diabat.samplers.exact import ExactSampler
from fuzz.problems import problems
from fuzz.properties import PROPERTIES, Outcome, demand, judge, naming, run

campaign.load()
NAMES = tuple(PROPERTIES)
SLOW = {"checkpoint", "record"}


@pytest.mark.parametrize("name", NAMES)
def test_a_short_fuzz_finds_nothing(name: str) -> None:
    outcome = run(name, 40, examples=5 if name in SLOW else 25)
    assert outcome.finding == ""
    assert outcome.answers + outcome.sentences > 2  # a strategy that fails ends after one


@pytest.mark.parametrize("error", [1e-3, float("nan"), 1.5])
def test_a_sampler_that_errs_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch, error: float) -> None:
    real = ExactSampler.differentiable_moments

    def wrong(self: ExactSampler, ising: Ising, correlations: bool = False, seed: int = 0) -> Moments:
        moments = real(self, ising, correlations, seed)
        return replace(moments, probability=moments.probability + error)

    monkeypatch.setattr(ExactSampler, "differentiable_moments", wrong)
    finding = run("exact", 0).finding
    assert finding.startswith("Wrong: ")
    assert "Draw 1: Ising(fields=tensor(" in finding


def _raise_from_outside(draw: st.DrawFn) -> None:
    raise IsingError("not raised by diabat, though of its type.")


def _sleep(draw: st.DrawFn) -> None:
    time.sleep(60)


ENDINGS: dict[str, tuple[Callable[[st.DrawFn], object], str]] = {
    "answer": (lambda draw: None, ""),
    "wrong": (lambda draw: demand(draw(st.integers()) < 7, "P: expected 0.5, got 0.7"), "Draw 1: 7"),
    "raw": (_raise_from_outside, "got one of a library"),
    "warning": (lambda draw: np.float64(1e308) * 10, "RuntimeWarning: overflow"),
    "crash": (lambda draw: os.kill(os.getpid(), signal.SIGSEGV), "Segmentation fault"),
    "exit": (lambda draw: os._exit(3), "exit code 3"),
    "hang": (_sleep, "in _sleep"),
    "memory": (lambda draw: np.ones(2**30), "MemoryError"),
}


def test_every_ending_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, (check, _) in ENDINGS.items():
        monkeypatch.setitem(PROPERTIES, name, check)
    found = {o.name: o for o in campaign.outcomes([*ENDINGS], 7, 0.0, 2, limit=2.0, memory_mb=1024)}
    for name, (_, text) in ENDINGS.items():
        assert text in found[name].finding, name
        assert bool(found[name].finding) == (name != "answer")
        assert found[name].seed == 7


def test_a_campaign_reports_and_replays(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    endings = [Outcome("exact", 3, 1), Outcome("banded", 2, 0, "P: expected 0, got 1", 8)]
    monkeypatch.setattr(campaign, "outcomes", lambda *_: iter(endings))
    assert campaign.main(["--only", "exact", "fuzz.files"]) == 1
    assert "python -m fuzz --replay banded --seed 8" in capsys.readouterr().out
    assert campaign.main(["--replay", "options"]) == 0
    assert "50" in capsys.readouterr().out


def test_problems_are_of_every_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Ising] = []
    monkeypatch.setitem(PROPERTIES, "collect", lambda draw: drawn.append(draw(problems())))
    for seed in range(4):
        run("collect", seed)
    assert {p.num_spins for p in drawn} == set(range(1, 11))
    assert any(not bool(p.visible_mask.any()) for p in drawn)
    assert any(not p.fields.is_contiguous() for p in drawn)
    assert any(p.edges is not None for p in drawn)
    assert any(p.offset is not None for p in drawn)
    assert any(p.couplings is not None and 2 < p.couplings.ndim < p.fields.ndim + 1 for p in drawn)
    assert any(p.three_body is not None and p.three_body.requires_grad for p in drawn)


def test_a_refusal_has_to_name_its_argument() -> None:
    def refused(word: str) -> None:
        with naming(word):
            Ising([])

    assert judge(lambda: refused("fields")) == "sentence"
    with pytest.raises(AssertionError, match="refusal without the name 'couplings'"):
        judge(lambda: refused("couplings"))
