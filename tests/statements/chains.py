"""Parallel tempering."""

from __future__ import annotations

import inspect
import re

import torch

from diabat import Ising, sampler
from statements.table import DOCS, drawn, says


@says
def annealed() -> None:
    """tempering: Units do not matter: a problem multiplied by 1,000 has the same reads up to rounding."""
    problem = drawn(3, n=12, J=1.0)
    backend = sampler("tempering", schedule="auto")
    assert problem.couplings is not None
    in_other_units = Ising(1024 * problem.fields, 1024 * problem.couplings)
    reads = backend.sample(problem, 50, seed=2)
    assert torch.equal(reads.spins, backend.sample(in_other_units, 50, seed=2).spins)


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
def four_chains() -> None:
    """results-samplers: One chain has no R-hat.
    limitations: With four it misses a tenth to a half of the bad answers."""
    text = (DOCS / "results-samplers.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| (?:g = \d|ferromagnet)[^|]*\|[^|]*\|[^|]*\((\d+) %\) \|([^|]*)\|", text, re.MULTILINE
    )
    assert [min(int(four) for four, _ in rows), max(int(four) for four, _ in rows)] == [10, 50]
    assert not any("(" in one for _, one in rows)
