"""Backend ``distributed``: chunks that keep shared couplings shared, and results that know no workers."""

from __future__ import annotations

import copy
import math
import pickle
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from problems import adjoint
from torch import Tensor

import diabat
from diabat.ising import Ising, pack_couplings, pack_three_body
from diabat.progress import stderr_console
from diabat.samplers import Samples, UnsupportedError, sampler
from diabat.samplers.capabilities import FROM_MARGINALS, FROM_READS
from diabat.samplers.diagnostics import condensed
from diabat.samplers.distributed import DistributedSampler
from diabat.samplers.seeds import child_seed
from diabat.testing import ReferenceSampler
from diabat.testing.problems import Lead, causal_problem, make_problem


class Job(NamedTuple):
    """What was sent to a worker."""

    method: str
    seed: int
    fields: np.ndarray
    couplings: np.ndarray | None
    visible: np.ndarray | None
    three_body: np.ndarray | None


class Spy(Executor):
    """Runs every job at once, sent and received as between processes, and keeps it."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        method, problem, _, seed = args[0]
        self.jobs.append(Job(method, seed, *problem))
        future: Future[Any] = Future()
        sent = pickle.loads(pickle.dumps((fn, args)))
        future.set_result(pickle.loads(pickle.dumps(sent[0](*sent[1], **kwargs))))
        return future


def random_couplings(*lead: int, n: int = 5) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    pairs = torch.randn(*lead, n * (n - 1) // 2, generator=generator, dtype=torch.float64)
    return pack_couplings(0.4 * pairs, n)


def random_triples(*lead: int, n: int = 5) -> Tensor:
    triples = torch.randn(*lead, 10, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    return pack_three_body(0.3 * triples, n)


def problems() -> dict[str, Ising]:
    """Batches [2, 3, 4] with J and K of every kind of leading dimensions."""
    fields = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    visible = torch.ones(4, 5, dtype=torch.bool).tril()
    return {
        "single": Ising(fields[0, 0, 0], random_couplings()),
        "no J": Ising(fields),
        "shared": Ising(fields, random_couplings()),
        "heads": Ising(fields, random_couplings(3, 1)),
        "heads, causal": Ising(fields, random_couplings(3, 1), visible),
        "first axis": Ising(fields, random_couplings(2, 1, 1)),
        "last axis": Ising(fields, random_couplings(4), visible),
        "first and last": Ising(fields, random_couplings(2, 1, 4)),
        "each its own": Ising(fields, random_couplings(2, 3, 4)),
        "K shared": Ising(fields, random_couplings(3, 1), None, random_triples()),
        "K per row": Ising(fields, random_couplings(3, 1), visible, random_triples(4)),
        "K only": Ising(fields, None, None, random_triples(2, 1, 1)),
    }


# Distinct J or K in a job of 10 problems at most; "each its own" has one for each problem.
SENT = {"single": 1, "shared": 1, "heads": 3, "heads, causal": 3, "first axis": 2, "K shared": 3, "K only": 2}


@pytest.mark.parametrize("chunk", [1, 4, 10])
@pytest.mark.parametrize("name", problems())
def test_moments_are_those_of_the_base_and_couplings_are_never_expanded(name: str, chunk: int) -> None:
    """A job carries no J or K twice, unless the other of them differs, and no more problems than asked for."""
    spy, ising, exact = Spy(), problems()[name], sampler("exact")
    got = DistributedSampler(exact, executor=spy, chunk=chunk).moments(ising, correlations=True)
    want = exact.moments(ising, correlations=True)
    for part in ("probability", "correlation", "log_partition", "visible"):
        torch.testing.assert_close(getattr(got, part), getattr(want, part), rtol=0, atol=1e-12)
    assert got.num_reads is None
    sizes = [job.fields[..., 0].size for job in spy.jobs]
    assert sum(sizes) == ising.num_problems
    assert max(sizes) <= chunk
    for job, size in zip(spy.jobs, sizes, strict=True):
        parts = zip(job[3::2], (2, 3), strict=True)
        lead = [1 if t is None else math.prod(t.shape[:-order]) for t, order in parts]
        assert max(lead) <= SENT.get(name, size)


@pytest.mark.parametrize(
    ("name", "chunk", "jobs"), [("shared", 4, 6), ("heads", 8, 3), ("heads", 16, 2), ("each its own", 5, 5)]
)
def test_fewer_jobs_than_problems(name: str, chunk: int, jobs: int) -> None:
    """24 problems: 6 jobs of 4 with one J; whole groups together where a chunk holds several."""
    spy = Spy()
    DistributedSampler("exact", executor=spy, chunk=chunk).moments(problems()[name])
    assert len(spy.jobs) == jobs


@pytest.fixture
def places() -> Iterator[dict[str, dict[str, Any]]]:
    """Ways to run that cost no process; those that do are in test_workers.py."""
    with ThreadPoolExecutor(3) as threads:
        yield {"here": {"workers": 0}, "threads": {"executor": threads}, "spy": {"executor": Spy()}}


@pytest.mark.parametrize("name", ["heads, causal", "each its own", "single"])
def test_reads_do_not_depend_on_where_they_are_drawn(name: str, places: dict[str, dict[str, Any]]) -> None:
    ising = problems()[name]
    drawn = [
        DistributedSampler("exact", chunk=3, **where).sample(ising, 20, seed=11) for where in places.values()
    ]
    assert all(torch.equal(drawn[0].spins, other.spins) for other in drawn[1:])
    assert all(drawn[0].info["chunk_seeds"] == other.info["chunk_seeds"] for other in drawn[1:])
    assert [samples.info["workers"] for samples in drawn] == [0, "ThreadPoolExecutor", "Spy"]


def test_every_job_has_a_seed_of_its_own_that_replays_it() -> None:
    ising, base = problems()["shared"], ReferenceSampler()
    samples = DistributedSampler(base, workers=0, chunk=10).sample(ising, 20, seed=2)
    seeds = samples.info["chunk_seeds"]
    # As numpy's SeedSequence spawns them: recorded experiments replay in later versions.
    assert seeds == [child_seed(2, number) for number in range(3)]
    for number, seed in enumerate(seeds):
        rows = slice(10 * number, min(10 * number + 10, 24))
        part = Ising(ising.fields.reshape(24, 5)[rows], ising.couplings)
        alone = base.sample(part, 20, seed=seed).spins
        assert torch.equal(samples.spins.reshape(20, 24, 5)[:, rows], alone)
    heads = problems()["heads"]  # one job for each of three heads, in their order
    samples = DistributedSampler(base, workers=0, chunk=8).sample(heads, 20, seed=2)
    for head, seed in enumerate(samples.info["chunk_seeds"]):
        part = Ising(heads.fields[:, head].reshape(8, 5), heads.couplings[head, 0])
        alone = base.sample(part, 20, seed=seed).spins
        assert torch.equal(samples.spins[:, :, head].reshape(20, 8, 5), alone)


def test_sampled_moments_are_merged() -> None:
    ising, base = problems()["heads"], ReferenceSampler(analytic=False)
    base.num_reads = 40
    distributed = DistributedSampler(base, workers=0, chunk=4)
    moments = distributed.moments(ising, correlations=True, seed=3)
    reads = distributed.sample(ising, 40, seed=3).moments(correlations=True, dtype=torch.float64)
    assert distributed.num_reads == moments.num_reads == 40
    for part in ("probability", "correlation", "standard_error"):
        torch.testing.assert_close(getattr(moments, part), getattr(reads, part), rtol=0, atol=1e-12)
    assert moments.info["seed"] == 3


LEADS: list[Lead] = ["none", "shared", "heads", "per_problem"]


@pytest.mark.parametrize("lead", LEADS)
def test_adjoint_is_that_of_the_base(lead: Lead) -> None:
    base = sampler("dqa", annealing_time_ns=1.0, steps=30)
    plain = make_problem((3, 4), 4, lead=lead, seed=6, dtype=torch.float64)
    ising = Ising(plain.fields, plain.couplings, torch.ones(4, 4, dtype=torch.bool).tril())
    v = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    want = adjoint(base, ising, v, seed=1)
    for chunk in (3, 8, 100):
        got = adjoint(DistributedSampler(base, executor=Spy(), chunk=chunk), ising, v, seed=1)
        torch.testing.assert_close(got.fields, want.fields, rtol=0, atol=1e-12)
        assert (got.couplings is None) == (lead == "none")
        if got.couplings is not None:
            assert got.couplings.shape == ising.couplings.shape
            torch.testing.assert_close(got.couplings, want.couplings, rtol=0, atol=1e-12)


def test_the_backward_pass_has_the_seeds_of_the_forward_pass() -> None:
    """Else control noise would be another one."""
    spy, ising = Spy(), problems()["heads"]
    noisy = {"annealing_time_ns": 1.0, "steps": 30, "noise": (0.05, 0.0)}
    distributed = DistributedSampler("dqa", options=noisy, executor=spy, chunk=4)
    fields = ising.fields.clone().requires_grad_()
    alpha = diabat.spin_probabilities(fields, ising.couplings, distributed, gradient="adjoint", seed=9)
    forward = [job.seed for job in spy.jobs]
    alpha.sum().backward()
    assert [job.seed for job in spy.jobs[len(forward) :]] == forward
    assert [job.method for job in spy.jobs] == ["moments"] * 6 + ["adjoint"] * 6
    spy.jobs.clear()
    distributed.sample(ising, 5, seed=9)
    assert [job.seed for job in spy.jobs] == forward


def test_capabilities_and_gradients() -> None:
    exact = sampler("exact")
    distributed = DistributedSampler(exact, workers=0)
    assert distributed.capabilities == replace(exact.capabilities, gradients=FROM_READS)
    assert DistributedSampler("mean_field", workers=0).capabilities.gradients == FROM_MARGINALS
    assert "adjoint" in DistributedSampler("dqa", workers=0).capabilities.gradients
    assert not DistributedSampler("tempering", workers=0).capabilities.edges
    assert distributed.solution(problems()["shared"]) is None
    J = random_couplings()
    gradients = []
    for backend in (exact, distributed):
        fields = problems()["shared"].fields.clone().requires_grad_()
        diabat.spin_probabilities(fields, J, backend, gradient="straight_through").sum().backward()
        gradients.append(fields.grad)
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)
    with pytest.raises(UnsupportedError, match="gradient: sampler 'distributed' supports straight_through"):
        diabat.spin_probabilities(fields, J, distributed, gradient="exact")
    anneal = DistributedSampler("refine", options={"options": {"engine": "aer"}}, workers=0)
    with pytest.raises(
        UnsupportedError, match="sampler 'distributed' with engine 'aer' supports straight_through"
    ):
        diabat.spin_probabilities(fields, J, anneal, gradient="adjoint")
    # Moments are detached rather than differentiated in part.
    assert not distributed.moments(Ising(fields, J)).probability.requires_grad


def test_a_layer_trains_and_copies_with_it() -> None:
    layer = diabat.BoltzmannAttention(8, 2, 5, sampler=DistributedSampler("exact", workers=0, chunk=7))
    x = torch.randn(2, 5, 8)
    twin = copy.deepcopy(layer)
    layer(x).sum().backward()
    assert layer.couplings.pairs.grad.abs().max() > 0
    assert torch.equal(twin(x), layer(x))


class Moody(ReferenceSampler):
    """Refuses problems whose first field is above 5."""

    name = "moody"

    def _sample(self, ising: Ising, num_reads: int, seed: int) -> Samples:
        if bool((ising.fields[..., 0] > 5).any()):
            raise ValueError("fields: expected at most 5, got more.")
        return super()._sample(ising, num_reads, seed)


@pytest.mark.parametrize("where", ["here", "threads"])
def test_an_error_of_a_chunk_is_raised_as_it_is(where: str, places: dict[str, dict[str, Any]]) -> None:
    ising = make_problem((6,), 4, seed=8)
    distributed = DistributedSampler(Moody(), chunk=2, **places[where])
    ising.fields[3, 0] = 6.0
    with pytest.raises(ValueError, match=r"fields: expected at most 5, got more\."):
        distributed.sample(ising, 3)
    ising.fields[3, 0] = 0.0
    assert distributed.sample(ising, 3).spins.shape == (3, 6, 4)


def test_limits_of_the_base_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"'distributed' accepts at most 14 visible spins, got 15\."):
        DistributedSampler(ReferenceSampler(), workers=0).moments(Ising(torch.zeros(15)))
    with pytest.raises(UnsupportedError, match="computes moments only and cannot draw samples"):
        DistributedSampler("mean_field", workers=0).sample(make_problem((2,), 3), 4)


def test_a_base_that_cannot_travel_is_named() -> None:
    stuck = ReferenceSampler()
    stuck.hook = lambda: None  # type: ignore[assignment]  # nothing can send a lambda to another process
    ising = make_problem((2,), 3)
    assert DistributedSampler(stuck, workers=0).sample(ising, 2).spins.shape == (2, 2, 3)
    with pytest.raises(ValueError, match=r"sampler: expected a backend that can be sent .*, got 'reference'"):
        DistributedSampler(stuck, executor=Spy()).sample(ising, 2)


def test_info_of_the_jobs_is_condensed() -> None:
    info = (
        DistributedSampler("dqa", options={"annealing_time_ns": 1.0, "steps": 30}, workers=0, chunk=2)
        .moments(make_problem((5,), 3))
        .info
    )
    assert (info["backend"], info["chunks"], info["workers"]) == ("distributed", 3, 0)
    assert (info["base"]["backend"], info["base"]["steps"]) == ("dqa", 30)
    assert set(info["base"]["wall_s"]) == {"min", "mean", "max"}
    assert 0 < info["busy_s"] <= info["wall_s"]
    one, two = (
        {"a": 1, "m": {"x": 1, "y": 2}, "s": "p", "b": True},
        {"a": 3, "m": {"x": 1, "y": 4}, "s": "q", "b": False},
    )
    assert condensed([one, two, two | {"only": 7}]) == {
        "a": {"min": 1, "mean": 7 / 3, "max": 3},
        "m": {"x": 1, "y": {"min": 2, "mean": 10 / 3, "max": 4}},
        "s": ["p", "q"],
        "b": {"min": False, "mean": 1 / 3, "max": True},
        "only": 7,
    }


def test_a_causal_batch_of_a_layer_is_the_same_in_one_chunk() -> None:
    ising, exact = causal_problem(5, seed=12), sampler("exact")
    one = DistributedSampler(exact, workers=0, chunk=1000).sample(ising, 30, seed=1)
    assert one.info["chunks"] == 1
    seed = one.info["chunk_seeds"][0]
    assert torch.equal(one.spins, exact.sample(ising, 30, seed=seed).spins)


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"workers": 2, "executor": Spy()}, ValueError, "workers: cannot be combined with an executor"),
    ({"executor": 3}, TypeError, "executor: expected a concurrent.futures.Executor or None, got int."),
    (
        {"sampler": "refine", "options": {"sampler": "distributed", "options": {"sampler": "exact"}}},
        ValueError,
        "sampler: expected a base without workers, got 'refine'.",
    ),
    (
        {"sampler": "tempering", "options": {"persistent": True}},
        ValueError,
        "sampler: expected a base without state between calls, got 'tempering' with persistent=True.",
    ),
    (
        {
            "sampler": "refine",
            "options": {
                "sampler": "refine",
                "options": {"sampler": "tempering", "options": {"persistent": True}},
            },
        },
        ValueError,
        "sampler: expected a base without state between calls, got 'refine' with persistent=True.",
    ),
    ({"sampler": "exat"}, ValueError, "got 'exat'. Did you mean 'exact'?"),
    ({"sampler": "exact", "options": {"max_seconds": -1}}, ValueError, "options: max_seconds: expected"),
    (
        {"sampler": "dqa", "options": {"learn_schedule": True}},
        ValueError,
        "sampler: expected a base without learnable parameters, which workers do not receive, got 'dqa' with 1.",
    ),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD, ids=[f"{i}" for i in range(len(BAD))])
def test_bad_options(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        DistributedSampler(**options)


def test_a_bar_counts_the_chunks(capsys: pytest.CaptureFixture[str]) -> None:
    stderr_console.cache_clear()  # made for the standard error of another test
    DistributedSampler("exact", workers=0, chunk=5, progress=True).moments(problems()["shared"])
    shown = capsys.readouterr()
    stderr_console.cache_clear()
    assert "exact" in shown.err
    assert "5/5" in shown.err
    assert not shown.out
