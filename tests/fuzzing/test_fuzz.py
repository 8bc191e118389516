"""The fuzz finds what is broken, tells how every case ended, and finds nothing in a short run with fixed seeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import rigged_cases
import torch

from diabat.ising import Ising
from diabat.samplers import Moments
from diabat.samplers.exact import ExactSampler
from fuzz import campaign
from fuzz.api import analytic
from fuzz.api import cases as api
from fuzz.api.enumeration import enumerate_law, gradients
from fuzz.api.problems import Shape, parts, random_problem
from fuzz.dice import Dice
from fuzz.files import cases as files
from fuzz.files import checkpoints
from fuzz.outcome import Outcome, judge, naming
from fuzz.workers import Limits, outcomes

API_SEEDS = range(40_000_000, 40_000_150)
FILES = dict.fromkeys(files.KINDS, 25) | {checkpoints.checkpoint: 3, checkpoints.record: 3}


@pytest.mark.parametrize("start", range(0, len(API_SEEDS), 50))
def test_a_short_fuzz_of_the_api_finds_nothing(start: int) -> None:
    found = [(seed, api.run_case(seed)) for seed in API_SEEDS[start : start + 50]]
    assert [(seed, o.text) for seed, o in found if o.kind == "finding"] == []
    assert {o.kind for _, o in found} == {"answer", "sentence"}


@pytest.mark.parametrize(("kind", "count"), FILES.items(), ids=[kind.__name__ for kind in FILES])
def test_a_short_fuzz_of_files_finds_nothing(
    kind: Callable[[Dice, Path], None], count: int, tmp_path: Path
) -> None:
    for seed in range(count):
        (tmp_path / str(seed)).mkdir()
        outcome = judge("", partial(kind, Dice(seed), tmp_path / str(seed)))
        assert outcome.kind != "finding", f"seed {seed}: {outcome.text}"


@pytest.mark.parametrize("error", [1e-3, float("nan"), 1.5])
def test_a_sampler_that_errs_is_found(monkeypatch: pytest.MonkeyPatch, error: float) -> None:
    real = ExactSampler.differentiable_moments

    def wrong(self: ExactSampler, ising: Ising, correlations: bool = False, seed: int = 0) -> Moments:
        moments = real(self, ising, correlations, seed)
        return replace(moments, probability=moments.probability + error)

    monkeypatch.setattr(ExactSampler, "differentiable_moments", wrong)
    kinds = {
        judge("", lambda seed=seed: analytic.exact(Dice(seed))).kind  # type: ignore[misc]  # defaults bind the loop's values
        for seed in range(10)
    }
    assert kinds == {"finding"}


def test_every_ending_is_reported_and_the_next_case_runs() -> None:
    limits = Limits(seconds=2.0, memory_mb=1024)
    found = {seed: o for seed, o in outcomes("rigged_cases", iter(range(len(rigged_cases.WAYS))), 2, limits)}
    told = {way: found[place] for place, way in enumerate(rigged_cases.WAYS)}
    assert told["answer"].kind == told["answer again"].kind == "answer"
    assert {way for way, o in told.items() if o.kind == "finding"} == set(told) - {"answer", "answer again"}
    for way, text in {
        "wrong": "expected 0.5, got 0.7",
        "raw": "of a library",
        "crash": "SIGSEGV",
        "hang": "within 2 s",
        "memory": "MemoryError",
        "warning": "RuntimeWarning: overflow",
        "silent exit": "exit code 0",
    }.items():
        assert text in told[way].text, way


def test_a_campaign_reports_and_replays(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    endings = [Outcome("answer", "law"), Outcome("finding", "law", "P: expected 0, got 1", "law: P")]
    monkeypatch.setattr(campaign, "outcomes", lambda *_: ((7 + k, endings[k]) for k in range(2)))
    assert campaign.main("fuzz.api", ["--cases", "2"]) == 1
    shown = capsys.readouterr().out
    assert "2 cases" in shown
    assert "python -m fuzz.api --replay 8" in shown
    assert campaign.main("fuzz.api", ["--replay", str(API_SEEDS[0])]) == 0
    assert capsys.readouterr().out.startswith(("answer: ", "sentence: "))


def test_the_same_seed_is_the_same_case() -> None:
    first, second = (random_problem(Dice(5), Shape(extreme=0)) for _ in range(2))
    assert torch.equal(first.fields, second.fields)
    assert random_problem(Dice(6)).fields.shape != first.fields.shape


def test_problems_are_of_every_kind() -> None:
    problems = [random_problem(Dice(seed)) for seed in range(200)]
    assert {p.num_spins for p in problems} == set(range(1, 11))
    assert {p.fields.dtype for p in problems} == {torch.float32, torch.float64}
    assert any(not bool(p.visible_mask.any()) for p in problems)
    assert any(not p.fields.is_contiguous() for p in problems)
    assert any(p.couplings is not None and 2 < p.couplings.ndim < p.fields.ndim + 1 for p in problems)
    assert any(p.three_body is not None and p.three_body.requires_grad for p in problems)


def test_the_enumeration_agrees_with_finite_differences() -> None:
    ising = random_problem(Dice(3), Shape(spins=4, strength=1.0, extreme=0, three_body=1.0, gradients=1.0))
    assert ising.fields.dtype == torch.float64
    v, step = Dice(4).normal(*ising.fields.shape), 1e-6
    for (_, tensor), g in zip(parts(ising), gradients(enumerate_law(ising), parts(ising), v), strict=True):
        direction = torch.where(tensor != 0, g, 0.0)  # symmetric, as the gradient is
        ends = []
        for sign in (1, -1):
            with torch.no_grad():
                tensor.add_(sign * step * direction)
            ends.append(float((enumerate_law(ising).probability.detach() * v).sum()))
            with torch.no_grad():
                tensor.sub_(sign * step * direction)
        assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(float((g * direction).sum()), abs=1e-7)


def test_a_refusal_has_to_name_its_argument() -> None:
    def unnamed() -> None:
        with naming("couplings"):
            Ising(torch.zeros(0))

    def named() -> None:
        with naming("fields"):
            Ising(torch.zeros(0))

    assert judge("", unnamed).text.startswith("refusal without the name 'couplings'")
    assert judge("", named).kind == "sentence"
