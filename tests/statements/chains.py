"""Parallel tempering."""

from __future__ import annotations

import inspect
import re

import torch

import diabat
from diabat import Ising, sampler
from statements.table import DOCS, drawn, says


@says
def errors_have_a_floor() -> None:
    """tempering: They are not reported below two thirds of the error of `num_reads` independent reads
    tempering: `Moments.num_reads` is `num_chains · sweeps`"""
    found = sampler("tempering", num_chains=4, sweeps=32).moments(Ising(torch.linspace(-2, 2, 9)), seed=0)
    assert found.num_reads == 128
    p = found.smoothed_probability
    assert found.standard_error is not None
    assert torch.allclose(found.standard_error, 2 / 3 * (p * (1 - p) / 128).sqrt())  # no couplings, no spread
    assert (found.info["measured_error"] < 1e-7).all()


@says
def continued_chains() -> None:
    """tempering: A call with another batch shape, number of chains or of couplings starts at random
    (`info["continued"]` is false)."""
    backend, problems = sampler("tempering", num_replicas=1, persistent=True), drawn(3)
    fewer = Ising(problems.fields[:2], problems.couplings)
    found = [
        backend.moments(one, seed=k).info["continued"] for k, one in enumerate((problems, problems, fewer))
    ]
    assert found == [False, True, False]


@says
def lowest_states() -> None:
    """tempering: With `track_lowest=True` it is the lowest of all states after a sweep, of every Markov chain and
    every replica. The reads are the same as without."""
    problems = drawn(3, n=12, J=1.0)
    plain, tracking = (
        sampler("tempering", burn_in=8, track_lowest=track).sample(problems, 2, seed=0)
        for track in (False, True)
    )
    assert torch.equal(plain.spins, tracking.spins)
    assert (tracking.lowest().energy <= plain.lowest().energy).all()


@says
def annealed() -> None:
    """tempering: `schedule=(1.0,)` with `method="heat_bath"` gives the reads of `num_replicas=1`.
    tempering: Units do not matter: a problem multiplied by 1,000 has the same reads up to rounding.
    tempering: `moments` are averages over `num_reads` reads. There is no log Z, and no R-hat."""
    problem = drawn(3, n=12, J=1.0)
    one = sampler("tempering", schedule=(1.0,), method="heat_bath").sample(problem, 20, seed=1)
    assert torch.equal(one.spins, sampler("tempering", num_replicas=1).sample(problem, 20, seed=1).spins)
    backend = sampler("tempering", schedule="auto", num_reads=50)
    assert problem.couplings is not None
    in_other_units = Ising(1024 * problem.fields, 1024 * problem.couplings)
    reads = backend.sample(problem, 50, seed=2)
    assert torch.equal(reads.spins, backend.sample(in_other_units, 50, seed=2).spins)
    moments = backend.moments(problem, seed=2)
    assert torch.equal(moments.probability, reads.moments(dtype=moments.probability.dtype).probability)
    assert moments.log_partition is None
    assert "rhat" not in moments.info


def of_table(page: str) -> dict[str, str]:
    """Defaults by option in the table of options of a page."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8").split("\n## Options\n")[1].split("\n## ")[0]
    found: dict[str, str] = {}
    for names, defaults in re.findall(r"^\| (`[^|]*`) \| ([^|]*) \|", text, re.MULTILINE):
        options, values = re.findall(r"`(\w+)`", names), defaults.replace("`", "").strip().split(", ")
        found |= dict(zip(options, values if len(values) > 1 else values * len(options), strict=True))
    return found


@says
def tables_of_options() -> None:
    """tempering: | `num_replicas` | 8 | replicas R of each Markov chain
    hardware: | `together` | None | problems of a submission; None is 1, or as many as a `TiledComposite` holds |"""
    for page, name in (("tempering", "tempering"), ("hardware", "dimod")):
        told, parameters = of_table(page), inspect.signature(type(sampler(name)).__init__).parameters
        given = {
            key: str(p.default).replace("False", "false") for key, p in parameters.items() if key != "self"
        }
        assert told == (given | {"num_replicas": "8"} if name == "tempering" else given)
    assert sampler("tempering").num_replicas == 8


@says
def edges_and_matrices() -> None:
    """tempering: Where sums of fields and couplings are exact in float32 (multiples of 1/64, say), every read is
    the same, bit for bit.
    tempering: so that with one replica a read is the same alone and among others."""
    n = 70
    h, values = (torch.randint(-64, 65, (n,)) / 64 for _ in range(2))
    edges = Ising(h, diabat.Edges([(j, (j + 1) % n) for j in range(n)], values))
    for replicas in (1, 3):
        backend = sampler("tempering", num_replicas=replicas, burn_in=16)
        many = backend.sample(edges, 64, seed=3).spins
        for reads in (1, 2, 17):
            assert replicas > 1 or torch.equal(backend.sample(edges, reads, seed=3).spins, many[:reads])
        assert torch.equal(backend.sample(edges.dense(), 64, seed=3).spins, many)


@says
def held_spins() -> None:
    """tempering: log Z is that of the states that agree with `spins`. Answers show held spins at their values (P
    = 0 or 1)."""
    problem = drawn(3)
    given = problem.clamp(torch.tensor([1, -1, 0, 0, 0, 0]))
    exact = sampler("exact").moments(given)
    for name in ("tempering", "mean_field", "dqa"):
        p = sampler(name).moments(given, seed=0).probability
        assert (p[:, :2] == torch.tensor([1.0, 0.0])).all()
    found = sampler("tempering").moments(given, log_partition=True, seed=0)
    assert torch.allclose(found.log_partition, exact.log_partition, atol=0.1)
    states = sampler("exact").state_probabilities(problem)[:, 1::4].sum(-1)  # spin 0 is +1 and spin 1 is -1
    assert torch.allclose(
        exact.log_partition - sampler("exact").moments(problem).log_partition, states.log(), atol=1e-5
    )


@says
def four_chains() -> None:
    """results-samplers: One chain has no R-hat.
    limitations: With four it misses a tenth to a half of the bad answers."""
    text = (DOCS / "results-samplers.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| (?:g = \d|ferromagnet)[^|]*\|[^|]*\|[^|]*\((\d+) %\) \|([^|]*)\|", text, re.MULTILINE
    )
    assert [min(int(four) for four, _ in rows), max(int(four) for four, _ in rows)] == [10, 50]
    assert not any("(" in one for _, one in rows)
