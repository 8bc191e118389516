"""The search for the angles of a plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from diabat.circuits import NativeEngine, TrotterPlan
from diabat.studies.learned.problems import AnnealOptions
from diabat.studies.learned.search import Objective, learn_plan, stages

SMALL = AnnealOptions(
    layers=8, restarts=3, iterations=15, polish=5, strengths=(0.6,), spins=(3,), instances=8
)
QUICK = replace(SMALL, layers=4, restarts=2, iterations=10, polish=0)


def objective(shared: bool = False) -> Objective:
    return Objective(SMALL.training(seed=0), NativeEngine(), shared=shared)


class Diary:
    def __init__(self) -> None:
        self.done: list[float] = []
        self.best: list[tuple[int, float]] = []

    def watch(self, done: float, plan: TrotterPlan, loss: float) -> None:
        assert objective().loss(plan) == pytest.approx(loss, rel=1e-9)  # the plan, not the vector before it
        self.done.append(done)
        self.best.append((plan.steps, loss))


def test_layers_are_doubled_and_every_improvement_is_reported() -> None:
    diary = Diary()
    plan, loss = learn_plan(objective(), SMALL, seed=3, watch=diary.watch)
    assert plan.steps == 8
    assert loss < 0.02
    assert objective().loss(plan) == pytest.approx(loss, rel=1e-9)
    assert {steps for steps, _ in diary.best} == {4, 8}
    assert diary.best[-1] == (8, loss)
    assert (np.diff([value for _, value in diary.best]) <= 0).all()
    assert (np.diff(diary.done) >= 0).all()
    assert 0 < diary.done[0] < diary.done[-1] == 1


def test_same_seed_same_plan() -> None:
    plans = [learn_plan(objective(), QUICK, seed=seed)[0] for seed in (0, 0, 1)]
    first, again, other = (np.stack((p.field_angles, p.coupling_angles, p.mixer_angles)) for p in plans)
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)


def test_shared_plans_keep_their_angles_equal() -> None:
    plan, loss = learn_plan(objective(shared=True), replace(QUICK, iterations=30))
    np.testing.assert_array_equal(plan.field_angles, plan.coupling_angles)
    assert loss < 0.2


def test_a_warm_start_gets_better_from_where_it_is() -> None:
    plan, loss = learn_plan(objective(), QUICK)
    diary = Diary()
    _, better = learn_plan(objective(), replace(QUICK, restarts=1), start=plan, watch=diary.watch)
    assert better < loss
    assert diary.best[0][1] <= loss  # no ramp
    finer, _ = learn_plan(objective(), replace(QUICK, layers=8, restarts=1, iterations=5), start=plan)
    assert finer.steps == 8


def test_restarts_find_the_best_of_their_starts() -> None:
    short = replace(QUICK, layers=3, iterations=5)
    losses = [learn_plan(objective(), replace(short, restarts=count))[1] for count in (1, 2, 6)]
    assert losses[0] >= losses[1] >= losses[2]
    assert losses[0] > losses[2]


@pytest.mark.parametrize(
    ("layers", "given", "expected"),
    [(1, None, [1]), (4, None, [4]), (8, None, [4, 8]), (6, None, [3, 6]), (20, None, [5, 10, 20]),
     (16, None, [4, 8, 16]), (16, 8, [8, 16]), (8, 2, [2, 4, 8]), (8, 8, [8])],
)  # fmt: skip
def test_stages_double_up_to_the_layers(layers: int, given: int | None, expected: list[int]) -> None:
    assert stages(layers, given) == expected


@pytest.mark.parametrize(("layers", "given"), [(8, 3), (6, 4), (4, 8)])
def test_a_start_of_other_length_is_refused(layers: int, given: int) -> None:
    start = TrotterPlan(*np.ones((3, given)))
    with pytest.raises(
        ValueError, match=rf"^start: expected {layers} steps over a power of two, got {given}"
    ):
        learn_plan(objective(), replace(SMALL, layers=layers), start=start)
