"""The loss of a plan, and its gradient."""

import numpy as np
import pytest
from learned_fakes import AnswerEngine, central_difference, exact_answer, independent_answer

from diabat.circuits import AerEngine, Batch, NativeEngine, TrotterPlan
from diabat.circuits.schedules import FloatArray
from diabat.studies.learned.problems import AnnealOptions, Instances
from diabat.studies.learned.search import Objective

OPTIONS = AnnealOptions(strengths=(0.5, 1.0), spins=(3, 4), instances=3, weights=(3.0, 1.0))
PLAN = TrotterPlan(np.ones(2), np.ones(2), np.ones(2))


def instances() -> list[Instances]:
    """Two strengths, two sizes, one entry with shared couplings."""
    drawn = OPTIONS.training(seed=0)
    entry = drawn[0]
    shared = Batch(entry.batch.fields, entry.batch.couplings[0])
    return [Instances("shared", 0.5, shared, entry.probability, entry.correlation), *drawn]


@pytest.mark.parametrize("pair_weight", [0.0, 0.7])
@pytest.mark.parametrize("shared", [False, True])
def test_the_gradient_is_that_of_the_loss(shared: bool, pair_weight: float) -> None:
    objective = Objective(instances(), NativeEngine(), pair_weight=pair_weight, shared=shared)
    angles = np.random.default_rng(0).normal(size=6 if shared else 9)

    def loss(x: FloatArray) -> float:
        return objective(x)[0]

    np.testing.assert_allclose(objective(angles)[1], central_difference(loss, angles), rtol=1e-6, atol=1e-8)


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
    alone = Instances("free", 0.0, batch, *vars(independent_answer(entry)).values())
    with pytest.raises(
        ValueError, match=r"^instances: expected couplings that change the marginals, got none in 'free'"
    ):
        Objective([alone], NativeEngine())
