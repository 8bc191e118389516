"""Free angles of plans."""

import numpy as np
import pytest

from diabat.circuits import TrotterPlan, plan_betas, reference_probabilities
from diabat.studies.learned.search import canonical, doubled, from_plan, ramp_start, to_plan

H, J = np.array([[0.7, -0.4, 0.2]]), np.array([[0, 0.5, -0.3], [0.5, 0, 0.8], [-0.3, 0.8, 0]])


def test_angles_go_to_the_kind_of_layer_that_they_are_named_for() -> None:
    plan = to_plan(np.arange(6.0), shared=False)
    assert [x.tolist() for x in (plan.field_angles, plan.coupling_angles, plan.mixer_angles)] == [
        [0, 1],
        [2, 3],
        [4, 5],
    ]
    plan = to_plan(np.arange(4.0), shared=True)
    assert [x.tolist() for x in (plan.field_angles, plan.coupling_angles, plan.mixer_angles)] == [
        [0, 1],
        [0, 1],
        [2, 3],
    ]


@pytest.mark.parametrize("shared", [False, True])
def test_packing_and_unpacking_are_inverse(shared: bool) -> None:
    angles = np.random.default_rng(0).normal(size=8 if shared else 12)
    np.testing.assert_array_equal(from_plan(to_plan(angles, shared), shared), angles)


def test_two_kinds_of_angles_are_not_shared() -> None:
    with pytest.raises(ValueError, match=r"^shared: expected a plan with equal field and coupling angles"):
        from_plan(TrotterPlan([1.0], [2.0], [3.0]), shared=True)  # type: ignore[arg-type]  # lists


def test_ramps_look_like_an_anneal_and_follow_the_generator() -> None:
    drawn = np.stack([ramp_start(8, False, np.random.default_rng(seed)).reshape(3, 8) for seed in range(200)])
    b, c, a = drawn.mean(0)
    assert (np.diff(b) > 0).all()
    assert (np.diff(c) > 0).all()
    assert (np.diff(a) < 0).all()
    assert ramp_start(8, True, np.random.default_rng(0)).shape == (16,)
    np.testing.assert_array_equal(ramp_start(8, False, np.random.default_rng(7)).reshape(3, 8), drawn[7])


def test_doubling_halves_problem_angles_and_follows_the_curve() -> None:
    b, a = np.array([1.0, 3.0]), np.array([2.0, 1.0])
    finer = doubled(np.concatenate((b, 2 * b, a)), shared=False).reshape(3, 4)
    np.testing.assert_allclose(finer[0], [0.5, 0.75, 1.25, 1.5])
    np.testing.assert_allclose(finer[1], 2 * finer[0])
    np.testing.assert_allclose(finer[2], [2, 1.75, 1.25, 1])
    np.testing.assert_allclose(doubled(np.concatenate((b, a)), shared=True).reshape(2, 4), finer[[0, 2]])


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
