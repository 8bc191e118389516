"""What is watched in an answer, and the limits between which it is good."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch

import diabat
from diabat.files import jsonable
from diabat.ising import pack_couplings
from diabat.samplers.diagnostics import LAWS, Diagnostic, Info, Later, Watched, condensed, diagnostics
from diabat.samplers.registry import available_backends


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
    assert jsonable({"base": made()}) == {"base": {"a": 1, "b": [1.0, 1.0], "c": 3.0}}
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
def test_every_backend_names_its_law(name: str) -> None:
    assert diabat.sampler(name).capabilities.law in LAWS
