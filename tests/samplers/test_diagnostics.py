"""What is watched in an answer, and the limits between which it is good."""

from __future__ import annotations

import copy
import math
import pickle
import re
from typing import Any

import numpy as np
import pytest
import torch

import diabat
from diabat.circuits import linear_ramp
from diabat.ising import pack_couplings
from diabat.samplers.diagnostics import (
    LAWS,
    Diagnostic,
    Info,
    Later,
    Watched,
    condensed,
    diagnostics,
    plain,
)
from diabat.samplers.registry import available_backends
from diabat.studies.ensembles import sk


def one(fact: Watched, **info: Any) -> Diagnostic:
    (found,) = diagnostics([fact], info)
    return found


BELOW, BETWEEN = Watched("x", "X", most=0.7, advice="less"), Watched("x", "X", 0.7, 1.4)


@pytest.mark.parametrize(
    ("fact", "value", "shown", "ok"),
    [
        (BELOW, 0.3, 0.3, True),
        (BELOW, 0.9, 0.9, False),
        (BELOW, torch.tensor([[0.5, 0.9], [0.7, 0.2]]), 0.9, False),
        (BELOW, np.array([0.5, 0.1]), 0.5, True),
        (BELOW, [0.5, [0.7]], 0.7, True),
        (BELOW, {"min": 0.1, "mean": 0.4, "max": 0.8}, 0.8, False),
        (BELOW, math.inf, math.inf, False),
        (BELOW, [0.5, math.nan], math.nan, False),
        (BETWEEN, [0.8, 1.35], 1.35, True),
        (BETWEEN, [0.6, 1.3], 0.6, False),
        (Watched("x", "X", pick="min"), [3, 1, 2], 1, None),
    ],
)
def test_the_worst_value_is_judged(fact: Watched, value: Any, shown: float, ok: bool | None) -> None:
    found = one(fact, x=value)
    assert found.value == pytest.approx(shown, nan_ok=True)
    assert (found.ok, found.expected) == (
        ok,
        {BELOW: "at most 0.7", BETWEEN: "at least 0.7 and at most 1.4"}.get(fact, ""),
    )


def test_what_is_not_there_is_left_out_and_facts_of_a_base_stand_below_it() -> None:
    facts = [Watched("x", "X"), Watched("a.b", "B"), Watched("rates", "rates", least=0.2)]
    assert diagnostics(facts, {"a": 1, "rates": torch.zeros(0), "y": 2}) == []
    fact = Watched("x", "X", most=1).below("base", "dqa")
    assert one(fact, base={"x": 2}) == Diagnostic("base.x", "dqa: X", 2, False, "at most 1", "")


def test_entries_are_computed_once_and_when_they_are_read() -> None:
    """Joining, and asking for names, computes nothing; copies and pickles are dictionaries of values."""
    calls: list[str] = []

    def later(name: str, value: Any) -> Later:
        return Later(lambda: calls.append(name) or value)  # type: ignore[func-returns-value]

    def made() -> Info:
        calls.clear()
        return Info({"a": 1, "b": later("b", torch.ones(2))}, {"c": later("c", 3.0)})

    info: Any = {"z": 0, "a": 5} | made() | {"d": 4}
    assert (isinstance(info, Info), list(info), len(info), calls) == (True, ["z", "a", "b", "c", "d"], 5, [])
    assert ("b" in info, "x" in info, info.get("x"), info["a"], calls) == (True, False, None, 1, [])
    assert (info["c"], info["c"], calls) == (3.0, 3.0, ["c"])
    assert info["b"] is info["b"]
    assert calls == ["c", "b"]
    with pytest.raises(KeyError):
        info["x"]
    for copied in (dict, copy.copy, copy.deepcopy, lambda i: pickle.loads(pickle.dumps(i)), lambda i: {**i}):
        found = copied(made())
        assert (type(found), list(found), calls) == (dict, ["a", "b", "c"], ["b", "c"])
        assert (found["a"], found["b"].tolist(), found["c"]) == (1, [1.0, 1.0], 3.0)
    assert repr(made()) == repr({"a": 1, "b": torch.ones(2), "c": 3.0})
    assert plain({"base": made()}) == {"base": {"a": 1, "b": [1.0, 1.0], "c": 3.0}}
    summary = {"a": 1, "c": {"min": 3.0, "mean": 4.0, "max": 5.0}}
    assert condensed([Info({"a": 1, "c": later("c", 3.0)}), {"c": 5.0}]) == summary
    (fact,) = diagnostics([Watched("base.c", "C", most=2)], {"base": made()})
    assert (fact.value, fact.ok, calls) == (3.0, False, ["c"])


def judged(name: str, ising: diabat.Ising, *, sample: bool = False, **options: Any) -> dict[str, Any]:
    backend = diabat.sampler(name, **options)
    answer: Any = backend.sample(ising, 20, seed=0) if sample else backend.moments(ising, seed=0)
    return {fact.key: fact.ok for fact in diagnostics(backend.watched, answer.info)}


@pytest.fixture
def weak() -> diabat.Ising:
    return diabat.Ising(0.2 * torch.randn(2, 6), pack_couplings(0.05 * torch.randn(15), 6))


@pytest.fixture
def cold() -> diabat.Ising:
    """Two deep modes."""
    return diabat.Ising(torch.zeros(1, 12), 3 * (torch.ones(12, 12) - torch.eye(12)))


def test_a_weak_problem_is_good_everywhere(weak: diabat.Ising) -> None:
    assert judged("mean_field", weak) == {"converged": True, "iterations": None, "residual": True}
    tempering = judged("tempering", weak)
    assert tempering.pop("effective_sample_size") is None
    assert tempering == {"rhat_max": True, "autocorrelation_time": True, "swap_rates": True}
    dqa = judged("dqa", weak, schedule="boltzmann-8")
    assert dqa == {"outside_range": True, "beta_h": None, "beta_J": None, "effective_beta": True}
    assert judged("distributed", weak, options={"schedule": "boltzmann-8"}, workers=0, chunk=1) == {
        f"base.{key}": ok for key, ok in dqa.items()
    }
    assert judged("exact", weak) == judged("banded", weak) == {}


def test_chains_in_different_modes_and_an_iteration_that_was_cut_off_are_bad(cold: diabat.Ising) -> None:
    assert judged("tempering", cold, num_replicas=1)["rhat_max"] is False
    assert judged("tempering", cold, num_replicas=2)["swap_rates"] is False
    assert judged("tempering", cold, num_replicas=2, sample=True) == {"swap_rates": False}
    found = judged("mean_field", diabat.Ising(cold.fields + 0.1, cold.couplings), max_iterations=2)
    assert (found["converged"], found["residual"]) == (False, False)


@pytest.mark.filterwarnings("ignore::diabat.circuits.OutOfRangeWarning")
def test_an_anneal_beyond_its_range_or_at_another_temperature_is_bad(cold: diabat.Ising) -> None:
    beyond = diabat.Ising(torch.full((1, 3), 8.0))
    assert judged("dqa", beyond, schedule="boltzmann-8")["outside_range"] is False
    assert judged("dqa", beyond, calibration="none")["effective_beta"] is False


def test_broken_chains_are_bad() -> None:
    backend = diabat.sampler("dimod")
    (mean, largest) = diagnostics(backend.watched, {"chain_break_fraction": {"mean": 0.3, "max": 0.9}})
    assert (mean.ok, largest.value, largest.ok) == (False, 0.9, None)


@pytest.mark.parametrize("name", available_backends())
def test_every_backend_names_its_law_and_only_exact_ones_no_error(name: str) -> None:
    backend = diabat.sampler(name)
    able = backend.capabilities
    assert able.law in LAWS
    assert (backend.expected_error is None) == able.exact


def test_the_expected_error_of_an_anneal_is_its_own_response() -> None:
    plain, learned = diabat.sampler("dqa"), diabat.sampler("dqa", schedule="boltzmann-8")
    assert plain.expected_error
    assert plain.expected_error.startswith("second-order response 0.42")
    assert learned.expected_error
    assert "response 0.96" in learned.expected_error
    assert "trained for |h| up to 2.89" in learned.expected_error
    trained = diabat.sampler("dqa", learn_schedule=True)
    assert trained.expected_error == "unknown: the angles are trained"


@pytest.mark.parametrize(
    ("name", "options"), [("dqa", {}), ("dqa", {"schedule": "boltzmann-16"}), ("mean_field", {})]
)
def test_the_expected_error_is_that_of_the_strength_of_the_problem(
    name: str, options: dict[str, str]
) -> None:
    """64 x 4 problems at strengths between the measured ones; the number is read off the sentence."""
    backend = diabat.sampler(name, **options)
    for g in (0.25, 0.8):
        case = sk([g], num_spins=7, instances=64, queries=4, seed=3)[0].ising
        said = backend.expected_error_of(case)
        assert said is not None
        (found,) = re.findall(r"about ([\d.e-]+) at the strength of this problem, g = ([\d.]+)", said)
        number, strength = map(float, found)
        exact = diabat.sampler("exact").moments(case).probability
        error = float((backend.moments(case).probability - exact).abs().mean())
        assert strength == pytest.approx(g, rel=0.1)
        assert number == pytest.approx(error, rel=0.25)


def test_no_number_is_given_for_what_was_not_measured() -> None:
    fields, J = torch.tensor([0.5, -0.4, 0.3]), pack_couplings(torch.tensor([0.3, -0.2, 0.3]), 3)
    plain, problem = diabat.sampler("dqa"), diabat.Ising(fields, J)
    edges = diabat.Ising(fields, diabat.Edges([(0, 1), (0, 2), (1, 2)], [0.3, -0.2, 0.3]))
    assert "of P about 0.036 at the strength of this problem, g = 0.47" in plain.expected_error_of(problem)
    assert plain.expected_error_of(edges) == plain.expected_error_of(problem)
    for other in (diabat.Ising(9 * fields, J), diabat.Ising(0 * fields, J), diabat.Ising(9 * fields, 9 * J)):
        assert "of P not measured for such a problem, with fields of" in plain.expected_error_of(other)
    assert "of P below 0.0021 at" in plain.expected_error_of(diabat.Ising(fields / 9, J / 9))
    ways: list[dict[str, Any]] = [
        {"schedule": linear_ramp(10.0, 12.0)}, {"field_noise": 0.01}, {"betas": (10.0, 11.0)},
        {"calibration": "none"}, {"calibration": "fitted", "calibration_strength": 1.0}, {"protocol": "standard"},
    ]  # fmt: skip
    for way in ways:
        assert "no mean error was measured" in diabat.sampler("dqa", **way).expected_error_of(problem)
    held = diabat.sampler("refine", sampler="dqa")
    assert "4 sweeps after a 5 ns anneal: mean |error| of P about 0.00034" in held.expected_error_of(problem)
