"""The built-in schedules: inverse temperatures, second-order response and error."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.dqa_fidelity.core import (
    LEARNED,
    Job,
    Row,
    Section,
    anneal,
    law_of,
    response_of,
    sk_in_words,
    sk_problems,
)
from diabat.circuits import available_schedules, builtin_plan, plan_betas, second_order_response
from diabat.circuits.schedules import PROTOCOLS

RESPONSE_TIMES_NS = (2.0, 5.0, 10.0, 20.0)
STRENGTH = 0.6


def section() -> Section:
    pairs = [(name, protocol) for protocol in PROTOCOLS for name in available_schedules()]
    jobs = [Job(f"{name}, {protocol}", partial(_rows, name, protocol)) for name, protocol in pairs]
    words = f"{sk_in_words('n = 6, g = 0.6')}; 5 ns, predicted betas, default steps"
    return Section(words, [*jobs, *(Job(name, partial(_plan, name)) for name in LEARNED)])


def _rows(name: str, protocol: str) -> Iterator[tuple[str, Row]]:
    sampler = anneal(schedule=name, protocol=protocol)
    problems = sk_problems(6, STRENGTH)
    law, betas = law_of(sampler, problems.ising), sampler.betas
    place: Row = {"schedule": name, "protocol": protocol}
    yield (
        "Built-in schedules at 5 ns",
        place | {
            "steps": sampler.plan.steps, "beta_h": betas.beta_h, "beta_J": betas.beta_J,
            "|ΔP|": problems.error(law), "capture": 1 - problems.error(law) / problems.independent_error,
            "TV": problems.distance(law),
        },
    )  # fmt: skip
    row = dict(place)
    for time in RESPONSE_TIMES_NS:
        response = response_of(name, protocol, time)
        row[f"{time:g} ns"] = f"{response.c_hJ:.3f} / {response.c_JJ:.3f}"
    yield "c_hJ / c_JJ (Boltzmann: 1 / 1)", row


def _plan(name: str) -> Iterator[tuple[str, Row]]:
    plan = builtin_plan(name)[0]
    response, betas = second_order_response(plan), plan_betas(plan)
    yield (
        "Learned plans to second order (Boltzmann: 1 throughout)",
        {"plan": name, **betas._asdict(), "c_hJ": response.c_hJ, "c_JJ": response.c_JJ},
    )
