"""The search for the angles of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike

from diabat.circuits import (
    AerEngine,
    Batch,
    BatchMoments,
    Engine,
    NativeEngine,
    TrotterPlan,
    plan_betas,
    reference_probabilities,
)
from diabat.circuits.schedules import FloatArray
from diabat.lab.studies.learned.problems import AnnealOptions, Instances
from diabat.lab.studies.learned.search import (
    Objective,
    canonical,
    doubled,
    learn_plan,
    ramp_start,
    stages,
    to_plan,
)

SMALL = AnnealOptions(steps=8, restarts=3, iterations=15, polish=5, strengths=(0.6,), spins=(3,), instances=8)
QUICK = replace(SMALL, steps=4, restarts=2, iterations=10, polish=0)


def objective() -> Objective:
    return Objective(SMALL.training(seed=0), NativeEngine())


class Diary:
    def __init__(self) -> None:
        self.done: list[float] = []
        self.best: list[tuple[int, float]] = []

    def watch(self, done: float, plan: TrotterPlan, loss: float) -> None:
        assert objective().loss(plan) == pytest.approx(loss, rel=1e-9)  # the plan, not the vector before it
        self.done.append(done)
        self.best.append((plan.steps, loss))


def test_steps_are_doubled_and_every_improvement_is_reported() -> None:
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


def test_a_warm_start_gets_better_from_where_it_is() -> None:
    plan, loss = learn_plan(objective(), QUICK)
    diary = Diary()
    _, better = learn_plan(objective(), replace(QUICK, restarts=1), start=plan, watch=diary.watch)
    assert better < loss
    assert diary.best[0][1] <= loss  # no ramp
    finer, _ = learn_plan(objective(), replace(QUICK, steps=8, restarts=1, iterations=5), start=plan)
    assert finer.steps == 8


def test_restarts_find_the_best_of_their_starts() -> None:
    short = replace(QUICK, steps=3, iterations=5)
    losses = [learn_plan(objective(), replace(short, restarts=count))[1] for count in (1, 2, 6)]
    assert losses[0] >= losses[1] >= losses[2]
    assert losses[0] > losses[2]


@pytest.mark.parametrize(
    ("steps", "given", "expected"),
    [(1, None, [1]), (4, None, [4]), (8, None, [4, 8]), (6, None, [3, 6]), (20, None, [5, 10, 20]),
     (16, None, [4, 8, 16]), (16, 8, [8, 16]), (8, 2, [2, 4, 8]), (8, 8, [8])],
)  # fmt: skip
def test_stages_double_up_to_the_number(steps: int, given: int | None, expected: list[int]) -> None:
    assert stages(steps, given) == expected


@pytest.mark.parametrize(("steps", "given"), [(8, 3), (6, 4), (4, 8)])
def test_a_start_of_other_length_is_refused(steps: int, given: int) -> None:
    start = TrotterPlan(*np.ones((3, given)))
    with pytest.raises(ValueError, match=rf"^start: expected {steps} steps over a power of two, got {given}"):
        learn_plan(objective(), replace(SMALL, steps=steps), start=start)


H, J = np.array([[0.7, -0.4, 0.2]]), np.array([[0, 0.5, -0.3], [0.5, 0, 0.8], [-0.3, 0.8, 0]])


def test_angles_go_to_the_kind_of_step_that_they_are_named_for() -> None:
    plan = to_plan(np.arange(6.0))
    angles = [x.tolist() for x in (plan.field_angles, plan.coupling_angles, plan.mixer_angles)]
    assert angles == [[0, 1], [2, 3], [4, 5]]


def test_ramps_look_like_an_anneal_and_follow_the_generator() -> None:
    drawn = np.stack([ramp_start(8, np.random.default_rng(seed)).reshape(3, 8) for seed in range(200)])
    b, c, a = drawn.mean(0)
    assert (np.diff(b) > 0).all()
    assert (np.diff(c) > 0).all()
    assert (np.diff(a) < 0).all()
    np.testing.assert_array_equal(ramp_start(8, np.random.default_rng(7)).reshape(3, 8), drawn[7])


def test_doubling_halves_problem_angles_and_follows_the_curve() -> None:
    b, a = np.array([1.0, 3.0]), np.array([2.0, 1.0])
    finer = doubled(np.concatenate((b, 2 * b, a))).reshape(3, 4)
    np.testing.assert_allclose(finer[0], [0.5, 0.75, 1.25, 1.5])
    np.testing.assert_allclose(finer[1], 2 * finer[0])
    np.testing.assert_allclose(finer[2], [2, 1.75, 1.25, 1])


def test_canonical_angles_give_the_same_reads() -> None:
    random = np.random.default_rng(1)
    for _ in range(5):
        b, c, a = random.normal(scale=5, size=(3, 6))
        plan = TrotterPlan(b, c, a, "kept")
        same = canonical(plan)
        np.testing.assert_allclose(
            reference_probabilities(same, H, J), reference_probabilities(plan, H, J), atol=1e-12
        )
        assert (np.abs(same.mixer_angles) <= np.pi).all()
        assert same.mixer_angles.sum() >= 0
        assert same.label == "kept"


def test_canonical_angles_stay_as_they_are() -> None:
    plan = TrotterPlan(np.ones(3), np.ones(3), np.array([np.pi, 1.0, -0.5]))
    np.testing.assert_allclose(canonical(plan).mixer_angles, plan.mixer_angles, rtol=1e-15)
    assert plan_betas(canonical(plan)) == pytest.approx(plan_betas(plan))


OPTIONS = AnnealOptions(strengths=(0.5, 1.0), spins=(3, 4), instances=3, weights=(3.0, 1.0))
PLAN = TrotterPlan(np.ones(2), np.ones(2), np.ones(2))


def instances() -> list[Instances]:
    """Two strengths, two sizes, one entry with shared couplings."""
    drawn = OPTIONS.training(seed=0)
    entry = drawn[0]
    shared = Batch(entry.batch.fields, entry.batch.couplings[0])
    return [Instances("shared", 0.5, shared, entry.probability, entry.correlation), *drawn]


@pytest.mark.parametrize("pair_weight", [0.0, 0.7])
def test_the_gradient_is_that_of_the_loss(pair_weight: float) -> None:
    objective = Objective(instances(), NativeEngine(), pair_weight=pair_weight)
    angles = np.random.default_rng(0).normal(size=9)
    steps = 1e-5 * np.eye(9)
    expected = [(objective(angles + step)[0] - objective(angles - step)[0]) / 2e-5 for step in steps]
    np.testing.assert_allclose(objective(angles)[1], expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("pair_weight", [0.0, 0.7])
def test_exact_answers_cost_nothing_and_the_j_0_answer_costs_one(pair_weight: float) -> None:
    drawn = instances()
    exact = Objective(drawn, AnswerEngine([exact_answer(e) for e in drawn]), pair_weight=pair_weight)
    assert exact.loss(PLAN) == 0
    alone = Objective(drawn, AnswerEngine([independent_answer(e) for e in drawn]), pair_weight=pair_weight)
    assert alone.loss(PLAN) == pytest.approx(1 + pair_weight, rel=1e-12)


def test_each_family_and_strength_counts_by_its_weight() -> None:
    drawn = OPTIONS.training(seed=0)
    answers = [exact_answer(e) if e.strength == 0.5 else independent_answer(e) for e in drawn]
    assert Objective(drawn, AnswerEngine(answers)).loss(PLAN) == pytest.approx(1 / 4, rel=1e-12)


def test_the_loss_is_relative_to_the_effect_of_the_couplings() -> None:
    [entry] = AnnealOptions(strengths=(0.5,), spins=(3,), instances=4).training(seed=0)
    halfway = type(exact_answer(entry))((entry.probability + entry.independent_probability) / 2)
    assert Objective([entry], AnswerEngine([halfway])).loss(PLAN) == pytest.approx(1 / 4, rel=1e-12)


def test_what_cannot_be_learned_is_refused() -> None:
    [entry] = AnnealOptions(strengths=(0.5,), spins=(3,), instances=4).training(seed=0)
    with pytest.raises(ValueError, match=r"^instances: expected at least one, got none"):
        Objective([], NativeEngine())
    with pytest.raises(ValueError, match=r"^engine: expected one with an exact gradient, got 'aer'"):
        Objective([entry], AerEngine())
    batch = Batch(entry.batch.fields, np.zeros((3, 3)))
    found: Any = independent_answer(entry)
    alone = Instances("free", 0.0, batch, *found)
    with pytest.raises(
        ValueError, match=r"^instances: expected couplings that change the marginals, got none in 'free'"
    ):
        Objective([alone], NativeEngine())


class AnswerEngine(Engine):
    """Gives the moments that it was told to give, whatever the plan."""

    name = "answers"
    max_spins = 20
    differentiable = True

    def __init__(self, answers: Sequence[BatchMoments]) -> None:
        self.answers = list(answers)

    def probabilities(self, plan: TrotterPlan, fields: ArrayLike, couplings: ArrayLike) -> FloatArray:
        raise AssertionError("only moments are asked for")

    def moments(
        self, plan: TrotterPlan, batches: Sequence[Batch], *, correlations: bool = False
    ) -> list[BatchMoments]:
        assert len(batches) == len(self.answers)
        return self.answers


def exact_answer(entry: Instances) -> BatchMoments:
    return BatchMoments(entry.probability, entry.correlation)


def independent_answer(entry: Instances) -> BatchMoments:
    m = 2 * entry.independent_probability - 1
    pairs = m[:, :, None] * m[:, None, :]
    pairs[:, range(m.shape[1]), range(m.shape[1])] = 1
    return BatchMoments(entry.independent_probability, pairs)
