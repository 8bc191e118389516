"""Parallel tempering."""

from __future__ import annotations

import inspect
import re

import torch

from diabat import Ising, sampler
from statements.table import DOCS, all_to_all, drawn, refused, says


@says(
    "tempering",
    'Where `info["num_replicas"]` is 1, probabilities and reads of a problem are bit for bit those of a '
    "call with `num_replicas=1` and the same seed; where it is 8, those of a call with `num_replicas=8`.",
)
@says(
    "tempering",
    "There is no log Z, and `persistent` is refused.",
    "of a plain problem is NaN on the rungs that it lacks, and its swap rates are 1.",
)
def fewer_replicas() -> None:
    J = torch.stack([all_to_all(12, 0.02), all_to_all(12, 0.5)])
    problems = Ising(0.1 * torch.randn(2, 12), J)
    auto, one, eight = (sampler("tempering", num_replicas=r) for r in ("auto", 1, 8))
    found = auto.moments(problems, seed=3)
    assert found.info["num_replicas"].tolist() == [1, 8]
    assert found.log_partition is None
    assert found.info["betas"][0, :-1].isnan().all()
    assert (found.info["swap_rates"][0] == 1).all()
    for j, backend in enumerate((one, eight)):
        assert torch.equal(found.probability[j], backend.moments(problems, seed=3).probability[j])
        reads = [each.sample(problems, 4, seed=3).spins[:, j] for each in (auto, backend)]
        assert torch.equal(*reads)
    with refused("expected an integer with persistent=True, got 'auto'"):
        sampler("tempering", num_replicas="auto", persistent=True)


@says(
    "tempering",
    "They are not reported below two thirds of the error of `num_reads` independent reads",
    "`Moments.num_reads` is `num_chains · sweeps`",
)
def errors_have_a_floor() -> None:
    found = sampler("tempering", num_chains=4, sweeps=32).moments(Ising(torch.linspace(-2, 2, 9)), seed=0)
    assert found.num_reads == 128
    p = found.smoothed_probability
    assert found.standard_error is not None
    assert torch.allclose(found.standard_error, 2 / 3 * (p * (1 - p) / 128).sqrt())  # no couplings, no spread
    assert (found.info["measured_error"] < 1e-7).all()


@says(
    "tempering",
    "A call with another batch shape, number of chains or of couplings starts at random "
    '(`info["continued"]` is false).',
)
def continued_chains() -> None:
    backend, problems = sampler("tempering", num_replicas=1, persistent=True), drawn(3)
    fewer = Ising(problems.fields[:2], problems.couplings)
    found = [
        backend.moments(one, seed=k).info["continued"] for k, one in enumerate((problems, problems, fewer))
    ]
    assert found == [False, True, False]


@says(
    "tempering",
    "With `track_lowest=True` it is the lowest of all states after a sweep, of every chain and every "
    "replica. The reads are the same as without.",
)
def lowest_states() -> None:
    problems = drawn(3, n=12, J=1.0)
    plain, tracking = (
        sampler("tempering", burn_in=8, track_lowest=track).sample(problems, 2, seed=0)
        for track in (False, True)
    )
    assert torch.equal(plain.spins, tracking.spins)
    assert (tracking.lowest().energy <= plain.lowest().energy).all()


def of_table(page: str) -> dict[str, str]:
    """Defaults by option in the table of options of a page."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8").split("\n## Options\n")[1].split("\n## ")[0]
    found: dict[str, str] = {}
    for names, defaults in re.findall(r"^\| (`[^|]*`) \| ([^|]*) \|", text, re.MULTILINE):
        options, values = re.findall(r"`(\w+)`", names), defaults.replace("`", "").strip().split(", ")
        found |= dict(zip(options, values if len(values) > 1 else values * len(options), strict=True))
    return found


@says("tempering", "| `num_replicas` | 8 | replicas R of each chain")
@says("hardware", "| `together` | 1 | problems of a submission, without `qpu` |")
def tables_of_options() -> None:
    for page, name in (("tempering", "tempering"), ("hardware", "dimod")):
        told, parameters = of_table(page), inspect.signature(type(sampler(name)).__init__).parameters
        given = {
            key: str(p.default).replace("False", "false") for key, p in parameters.items() if key != "self"
        }
        assert told == (given | {"num_replicas": "8"} if name == "tempering" else given)
    assert sampler("tempering").num_replicas == 8
