"""``map_samples``: many jobs, results in order, seeds by place, and failures that name the job."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import pytest
import torch

import diabat
from diabat.ising import Ising
from diabat.samplers import Samples, UnsupportedError, sampler
from diabat.samplers.executor import JobError, SampleJob, map_samples
from diabat.samplers.seeds import child_seed
from diabat.testing import ReferenceSampler, WeightedSampler
from diabat.testing.problems import make_problem


class Moody(ReferenceSampler):
    """Refuses problems whose first field is above 5."""

    name = "moody"

    def _sample(self, ising: Ising, num_reads: int, seed: int) -> Samples:
        if bool((ising.fields[..., 0] > 5).any()):
            raise ValueError("fields: expected at most 5, got more.")
        return super()._sample(ising, num_reads, seed)


@pytest.fixture
def threads() -> Iterator[Executor]:
    with ThreadPoolExecutor(2) as two:
        yield two


def jobs(count: int = 6) -> list[SampleJob]:
    """Problems of different sizes and numbers of reads; the third has a seed of its own."""
    return [
        SampleJob(make_problem((2,), 3 + i % 2, seed=i), 5 + i, seed=99 if i == 2 else None, name=f"beta {i}")
        for i in range(count)
    ]


def test_results_are_those_of_one_call_each_in_order(threads: Executor) -> None:
    base = sampler("exact")
    for where in ({"workers": 0}, {"executor": threads}):
        results = list(map_samples("exact", jobs(), seed=7, **where))
        for place, (job, got) in enumerate(zip(jobs(), results, strict=True)):
            seed = 99 if place == 2 else child_seed(7, place)
            assert got.info["seed"] == seed
            assert torch.equal(got.spins, base.sample(job.problem, job.num_reads, seed=seed).spins)
            assert torch.equal(got.visible, job.problem.visible_mask)


def test_weights_come_along() -> None:
    weighted = WeightedSampler(ReferenceSampler())
    [samples] = map_samples(weighted, jobs(1), seed=1, workers=0)
    assert samples.log_weights is not None
    want = weighted.sample(jobs(1)[0].problem, 5, seed=child_seed(1, 0)).log_weights
    assert want is not None
    assert torch.equal(samples.log_weights, want)


def test_child_seeds_are_those_of_numpy() -> None:
    import numpy as np

    tree = np.random.SeedSequence(5).spawn(3)[2]
    assert child_seed(5, 2) == int(tree.generate_state(1, np.uint64)[0]) >> 1
    assert child_seed(5, 2, 1) == int(tree.spawn(2)[1].generate_state(1, np.uint64)[0]) >> 1


@pytest.mark.parametrize("where", ["here", "threads"])
def test_progress(where: str, threads: Executor) -> None:
    told: list[tuple[int, int | None]] = []
    place: dict[str, Any] = {"workers": 0} if where == "here" else {"executor": threads}
    results = map_samples("exact", jobs(), progress=lambda done, total: told.append((done, total)), **place)
    assert len(list(results)) == 6
    assert told[-1] == (6, 6)
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    list(
        map_samples("exact", iter(jobs(2)), progress=lambda done, total: told.append((done, total)), **place)
    )
    assert told.pop() == (2, None)


def test_a_failed_job_is_named_and_nothing_that_was_done_is_lost(threads: Executor) -> None:
    work = jobs()
    work[3].problem.fields[0, 0] = 6.0
    kept: list[Samples] = []
    with pytest.raises(
        JobError, match=r"^job 3 \(beta 3\): fields: expected at most 5, got more\.$"
    ) as caught:
        kept.extend(map_samples(Moody(), work, seed=7, executor=threads))
    assert len(kept) == 3
    assert (caught.value.index, caught.value.name) == (3, "beta 3")
    assert isinstance(caught.value.__cause__, ValueError)
    # What had begun was finished: at least what the two threads did before anyone asked for a result.
    for place, samples in caught.value.finished.items():
        want = Moody().sample(work[place].problem, work[place].num_reads, seed=child_seed(7, place))
        assert torch.equal(samples.spins, want.spins)


class Everything(Executor):
    """Runs jobs when they are handed in."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        from diabat.samplers.distributed.processes import InProcess

        return InProcess().submit(fn, *args, **kwargs)


def test_results_of_later_jobs_are_in_the_error() -> None:
    work = jobs()
    work[3].problem.fields[0, 0] = 6.0
    with pytest.raises(JobError) as caught:
        list(map_samples(Moody(), work, executor=Everything()))
    assert sorted(caught.value.finished) == [4, 5]
    with pytest.raises(JobError, match=r"^job 0: fields"):
        list(map_samples(Moody(), [SampleJob(work[3].problem, 2)], workers=0))


def test_jobs_are_read_as_far_as_asked() -> None:
    taken: list[int] = []

    def stream() -> Iterator[SampleJob]:
        for place, job in enumerate(jobs()):
            taken.append(place)
            yield job

    results = map_samples("exact", stream(), executor=Everything(), ahead=2)
    assert taken == []
    next(results)
    assert taken == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"ahead": 0}, ValueError, "ahead: expected an integer >= 1, got 0."),
        ({"seed": -1}, ValueError, "seed: expected an integer between 0"),
        ({"workers": -2}, ValueError, "workers: expected an integer >= 0 or None, got -2."),
        ({"options": {"a": 1}}, TypeError, "options: sampler 'exact' has no option 'a'"),
        (
            {"sampler": "tempering", "options": {"persistent": True}},
            ValueError,
            "expected a base without state between calls",
        ),
        ({"sampler": "mean_field"}, UnsupportedError, "'mean_field' computes moments only and cannot draw"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    options = {"sampler": "exact", "jobs": jobs(1), **arguments}
    with pytest.raises(error, match=message):
        map_samples(**options)


def test_bad_jobs_are_named_by_their_place() -> None:
    good = jobs(1)
    bad: Any = (good[0].problem, 5)
    with pytest.raises(
        TypeError, match=r"jobs: expected a SampleJob with an Ising, got a tuple at place 1\."
    ):
        list(map_samples("exact", [*good, bad], workers=0))
    with pytest.raises(ValueError, match=r"jobs: place 0: num_reads: expected an integer >= 1, got 0\."):
        list(map_samples("exact", [SampleJob(good[0].problem, 0)], workers=0))
    assert diabat.samplers.executor.map_samples is map_samples
