"""Problems stronger than a learned plan was trained for are said to be so."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from diabat.circuits import OutOfRangeWarning, TrotterPlan, save_plan
from diabat.ising import Ising, pack_couplings
from diabat.samplers.dqa import DQASampler

PLAN = TrotterPlan(np.array([0.3, 0.6]), np.array([0.2, 0.5]), np.array([1.2, 0.7]), "two layers")
KEY = "outside_range"


@pytest.fixture
def path(tmp_path: Path) -> str:
    save_plan(tmp_path / "two.json", PLAN, {"trained_range": {"max_field": 2.0, "max_row_norm": 1.0}})
    return str(tmp_path / "two.json")


def problem(*fields: float, coupling: float = 0.0, visible: torch.Tensor | None = None) -> Ising:
    n = len(fields)
    J = pack_couplings(torch.tensor([coupling] + [0.0] * (n * (n - 1) // 2 - 1)), n)
    return Ising(torch.tensor(fields), J, visible)


def test_inside_there_is_no_warning(path: str) -> None:
    sampler = DQASampler(schedule=path)
    assert sampler.moments(problem(2.0, -2.0, 0.5, coupling=1.0)).info[KEY] == 0.0
    assert sampler.sample(problem(0.0, 1.0), 3, seed=1).info[KEY] == 0.0


def test_outside_is_warned_of_once_and_always_counted(path: str) -> None:
    sampler = DQASampler(schedule=path)
    with pytest.warns(
        OutOfRangeWarning, match=r"50\.0% of the spins have \|h\| above 2 or .* 'two layers'"
    ) as seen:
        moments = sampler.moments(problem(2.5, 0.0))
    assert seen[0].filename == __file__
    assert "schedule='boltzmann-16-wide'" in str(seen[0].message)
    assert moments.info[KEY] == 0.5
    # The same sampler says it no more; another one does, as does the first call of another kind.
    assert sampler.sample(problem(0.0, 0.0, 0.0, coupling=1.5), 2, seed=0).info[KEY] == pytest.approx(2 / 3)
    with pytest.warns(OutOfRangeWarning) as again:
        DQASampler(schedule=path).sample(problem(2.5, 0.0), 2, seed=0)
    assert again[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutOfRangeWarning)
        assert DQASampler(schedule=path).moments(problem(2.5)).info[KEY] == 1.0
    assert not copy.deepcopy(DQASampler(schedule=path))._warned


def test_invisible_spins_and_their_couplings_do_not_count(path: str) -> None:
    sampler, seen = DQASampler(schedule=path), torch.tensor([True, False, True])
    assert sampler.moments(problem(0.1, 9.0, 0.1, coupling=5.0, visible=seen)).info[KEY] == 0.0
    nothing = problem(9.0, 9.0, visible=torch.tensor([False, False]))
    assert sampler.moments(nothing).info[KEY] == 0.0


def test_what_is_programmed_counts(path: str) -> None:
    assert (
        DQASampler(schedule=path, betas=(2.0, 2.0)).moments(problem(3.0, 0.0, coupling=1.9)).info[KEY] == 0.0
    )


def test_plans_without_a_promise_and_schedules_say_nothing(path: str) -> None:
    strong = problem(9.0, 9.0)
    assert KEY not in DQASampler(schedule=PLAN).moments(strong).info
    assert KEY not in DQASampler(annealing_time_ns=2.0).moments(strong).info
    assert KEY not in DQASampler(schedule=path, learn_schedule=True).moments(strong).info


def test_shipped_plans_go_by_their_names() -> None:
    sampler = DQASampler(schedule="boltzmann-4")
    assert sampler.anneal.name == "boltzmann-4"
    with pytest.warns(OutOfRangeWarning, match=r"\|h\| above 2\.8 .* 'boltzmann-4' was not trained"):
        sampler.moments(problem(4.0, 0.0))
    wide = DQASampler(schedule="boltzmann-16-wide")
    assert wide.moments(problem(6.0, -6.0)).info[KEY] == 0.0
    with pytest.warns(OutOfRangeWarning, match="may be far off; use a plan learned"):
        wide.moments(problem(7.0))


def test_fields_that_no_anneal_follows_are_warned_of() -> None:
    """A field of 1e4 in place of ``visible``: the spin comes out as anything."""
    sampler = DQASampler()
    assert KEY not in sampler.moments(problem(5.0, -9.0)).info
    assert sampler.moments(problem(30.0, -9.0)).info[KEY] == 0.0
    wanted = (
        r"33\.3% of the spins are programmed with \|h\| above 3\.\d+ \(h = 4\d.* leave spins out with visible"
    )
    with pytest.warns(OutOfRangeWarning, match=wanted):
        moments = sampler.moments(problem(-1e4, 0.1, 0.1))
    assert moments.info[KEY] == pytest.approx(1 / 3)
    assert float(moments.probability[0]) > 0.03  # the truth is 0
