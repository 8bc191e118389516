import numpy as np
import pytest

from diabat.circuits import NativeEngine, TrotterPlan
from diabat.studies.learned import Objective, Search, Watcher, learn_plan, random_instances

SMALL = Search(layers=8, restarts=3, iterations=15, polish=5, seed=3)


def objective(shared: bool = False) -> Objective:
    return Objective(random_instances((0.6,), (3,), 8, seed=0), NativeEngine(), shared=shared)


class Diary(Watcher):
    def __init__(self) -> None:
        self.done: list[float] = []
        self.better: list[tuple[int, float]] = []

    def advanced(self, done: float, loss: float) -> None:
        self.done.append(done)
        assert loss == self.better[-1][1]

    def improved(self, plan: TrotterPlan, loss: float) -> None:
        assert objective().loss(plan) == pytest.approx(loss, rel=1e-9)  # the plan, not the vector before it
        self.better.append((plan.steps, loss))


def test_layers_are_doubled_and_every_improvement_is_reported() -> None:
    diary = Diary()
    plan, loss = learn_plan(objective(), SMALL, watcher=diary)
    assert plan.steps == 8
    assert loss < 0.02
    assert objective().loss(plan) == pytest.approx(loss, rel=1e-9)
    assert {steps for steps, _ in diary.better} == {4, 8}
    assert diary.better[-1] == (8, loss)
    losses = [value for _, value in diary.better]
    assert (np.diff(losses) < 0).all()
    assert (np.diff(diary.done) >= 0).all()
    assert 0 < diary.done[0] < diary.done[-1] == 1


def test_same_seed_same_plan() -> None:
    plans = [learn_plan(objective(), Search(4, 2, 10, 0, seed))[0] for seed in (0, 0, 1)]
    first, again, other = (np.stack((p.field_angles, p.coupling_angles, p.mixer_angles)) for p in plans)
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)


def test_shared_plans_keep_their_angles_equal() -> None:
    plan, loss = learn_plan(objective(shared=True), Search(4, 2, 30, 0))
    np.testing.assert_array_equal(plan.field_angles, plan.coupling_angles)
    assert loss < 0.2


def test_a_warm_start_gets_better_from_where_it_is() -> None:
    plan, loss = learn_plan(objective(), Search(4, 2, 10, 0))
    diary = Diary()
    _, better = learn_plan(objective(), Search(4, 1, 10, 0), start=plan, watcher=diary)
    assert better < loss
    assert diary.better[0][1] <= loss  # no ramp
    finer, _ = learn_plan(objective(), Search(8, 1, 5, 0), start=plan)
    assert finer.steps == 8


def test_restarts_find_the_best_of_their_starts() -> None:
    losses = [learn_plan(objective(), Search(3, restarts, 5, 0))[1] for restarts in (1, 2, 6)]
    assert losses[0] >= losses[1] >= losses[2]
    assert losses[0] > losses[2]


@pytest.mark.parametrize(
    ("layers", "given", "stages"),
    [(1, None, [1]), (4, None, [4]), (8, None, [4, 8]), (6, None, [3, 6]), (20, None, [5, 10, 20]),
     (16, None, [4, 8, 16]), (16, 8, [8, 16]), (8, 2, [2, 4, 8]), (8, 8, [8])],
)  # fmt: skip
def test_stages_double_up_to_the_layers(layers: int, given: int | None, stages: list[int]) -> None:
    assert Search(layers).stages(given) == stages


@pytest.mark.parametrize(("layers", "given"), [(8, 3), (6, 4), (4, 8)])
def test_a_start_of_other_length_is_refused(layers: int, given: int) -> None:
    start = TrotterPlan(*np.ones((3, given)))
    with pytest.raises(
        ValueError, match=rf"^start: expected {layers} steps over a power of two, got {given}"
    ):
        learn_plan(objective(), Search(layers), start=start)


@pytest.mark.parametrize("name", ["layers", "restarts", "iterations", "polish", "seed"])
def test_bad_numbers_are_refused(name: str) -> None:
    least = 0 if name in ("polish", "seed") else 1
    with pytest.raises(ValueError, match=rf"^{name}: expected an integer >= {least}, got {least - 1}"):
        Search(**{name: least - 1})
    with pytest.raises(ValueError, match=rf"^{name}: expected an integer"):
        Search(**{name: True})
