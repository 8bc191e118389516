"""What the backend refuses before anything is submitted, in one sentence each."""

from __future__ import annotations

import sys
from typing import Any

import dimod
import pytest
import torch
from dwave.samplers import RandomSampler, SimulatedAnnealingSampler, SteepestDescentComposite

import diabat
from diabat.config import make_config
from diabat.ising import Ising
from diabat.runs import build_sampler
from diabat.samplers.dimod import DimodSampler

from .dimod_fakes import HELD, Scripted, all_up


def plain(*names: str, **properties: Any) -> Scripted:
    return Scripted(all_up, *names, **properties)


SA = "dwave.samplers:SimulatedAnnealingSampler"
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no temperature": ({"sampler": plain()}, "beta: expected the inverse temperature .* got None"),
    "an annealer at its own temperature": (
        {"sampler": SA, "beta": 1.0},
        "parameters: expected .*beta_schedule.* may otherwise choose the temperature",
    ),
    "a sampler with a beta": (
        {"sampler": plain("beta"), "beta": 1.0},
        "parameters: expected beta, .* got none; beta=1.0 keeps it at 1",
    ),
    "a schedule to another temperature": (
        {"sampler": SA, "beta": 1.0, "parameters": {"beta_range": [0.1, 5.0]}},
        "beta: expected the last inverse temperature of the schedule, 5, got",
    ),
    "beta 0": ({"sampler": plain(), "beta": 0.0}, "beta: expected a positive number"),
    "beta true": ({"sampler": plain(), "beta": True}, "beta: expected a positive number"),
    "three betas": ({"sampler": plain(), "beta": (1.0, 1.0, 1.0)}, "beta: expected a positive number"),
    "beta NaN": ({"sampler": plain(), "beta": float("nan")}, "beta: expected a positive number"),
    "predicted without a schedule": ({"sampler": plain(), "beta": "predicted"}, "beta: .*qpu.schedule"),
    "an unknown law": ({"sampler": plain(), "beta": 1.0, "law": "gibbs"}, "law: expected 'boltzmann'"),
    "a law that the scale breaks": (
        {"sampler": plain(), "beta": 1.0, "law": "boltzmann", "scale": 2.0},
        "law: 'boltzmann' cannot be combined with scale=",
    ),
    "a law that was fitted": (
        {"sampler": plain(), "beta": "estimate", "law": "boltzmann"},
        "law: 'boltzmann' cannot be combined with beta='estimate'",
    ),
    "an annealer of openjij": (
        {"sampler": plain("beta_min", "beta_max"), "beta": 1.0},
        "parameters: expected beta_max, .* got none; beta_min=1.0, beta_max=1.0 keeps it at 1",
    ),
    **{
        f"the law of {name}": (
            {"sampler": sampler, "beta": 1.0, "law": "boltzmann"},
            f"law: expected None, got 'boltzmann' for {name}, whose answers follow no Boltzmann law",
        )
        for name, sampler in {
            "TabuSampler": "dwave.samplers:TabuSampler",
            "SteepestDescentSolver": "dwave.samplers:SteepestDescentSampler",
            "TreeDecompositionSolver": "dwave.samplers:TreeDecompositionSolver",
            "RandomSampler": dimod.TrackingComposite(RandomSampler()),
            "SteepestDescentComposite": SteepestDescentComposite(plain()),
        }.items()
    },
    "scale 0": ({"sampler": plain(), "beta": 1.0, "scale": 0.0}, "scale: expected a positive number"),
    "no such scale": ({"sampler": plain(), "beta": 1.0, "scale": "auto"}, "scale: expected a positive"),
    "num_reads twice": (
        {"sampler": plain(), "beta": 1.0, "parameters": {"num_reads": 5}},
        "parameters: expected no 'num_reads'",
    ),
    "cut answers": (
        {"sampler": plain("max_answers"), "beta": 1.0, "parameters": {"max_answers": 5}},
        "parameters: expected no 'max_answers'",
    ),
    "no reads": ({"sampler": dimod.ExactSolver(), "beta": 1.0}, "accepts num_reads, got ExactSolver"),
    "auto_scale": (
        {"sampler": plain("auto_scale"), "beta": 1.0, "parameters": {"auto_scale": True}},
        "auto_scale: expected False, got True",
    ),
    "time limit without timing": (
        {"sampler": plain(), "beta": 1.0, "max_qpu_seconds": 1.0},
        "max_qpu_seconds: expected a sampler that reports its timing",
    ),
    "options of a built sampler": (
        {"sampler": plain(), "beta": 1.0, "options": {}},
        "options: cannot be combined with a sampler object",
    ),
    "a name without a colon": ({"sampler": "dimod", "beta": 1.0}, "sampler: expected .* 'module:name'"),
    "no such name": (
        {"sampler": "dimod:Nobody", "beta": 1.0},
        "sampler: expected a name in the module dimod",
    ),
    "no such module": ({"sampler": "nowhere_at_all:X", "beta": 1.0}, "a package that is not installed"),
    "parameters without a sampler": ({"parameters": HELD}, "sampler: expected .* with parameters, got None"),
    "together 0": ({"sampler": plain(), "beta": 1.0, "together": 0}, "together: expected an integer >= 1"),
    "retries -1": ({"sampler": plain(), "beta": 1.0, "retries": -1}, "retries: expected an integer >= 0"),
    "max_reads 0.5": ({"sampler": plain(), "beta": 1.0, "max_reads": 0.5}, "max_reads: expected an integer"),
    "token option": ({"sampler": SA, "options": {"token": "X"}, "beta": 1.0}, "options: expected no 'token'"),
    "token inside": (
        {"sampler": SA, "options": {"client": {"api_token": "X"}}, "beta": 1.0},
        "options: expected no 'api_token'",
    ),
    "token in a list": (
        {"sampler": SA, "options": {"clients": [{"x": 1}, {"password": "X"}]}, "beta": 1.0},
        "options: expected no 'password'",
    ),
    "token of D-Wave": (
        {"sampler": SA, "options": {"x": ["DEV-" + "0a" * 20]}, "beta": 1.0},
        "options: expected no token or password in 'x' here",
    ),
    "address with a user": (
        {"sampler": SA, "options": {"proxy": "http://me:pw@host"}, "beta": 1.0},
        "options: expected no token or password in 'proxy' here",
    ),
    "address with a token": (
        {"sampler": SA, "options": {"x": ["https://host/?token=s"]}, "beta": 1.0},
        "options: expected no token or password in 'x' here",
    ),
    "token parameter": (
        {"sampler": plain(), "parameters": {"token": 1}, "beta": 1.0},
        "parameters: expected no",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    options, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        DimodSampler(**options)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dwave.samplers", None)
    with pytest.raises(ValueError, match=r"needs the extra dwave: pip install 'diabat\[dwave\]'\.$"):
        diabat.sampler("dimod").sample(Ising(torch.zeros(1)), 1)


def test_things_that_are_no_sampler() -> None:
    for thing in (SimulatedAnnealingSampler, 5):
        other: Any = thing
        with pytest.raises(TypeError, match="sampler: expected a dimod sampler"):
            DimodSampler(other, beta=1.0)


def test_a_misspelt_parameter_is_refused_with_the_nearest() -> None:
    """dwave's annealer ignores it."""
    with pytest.raises(TypeError, match=r"no parameter 'beta_schedul'\. Did you mean 'beta_schedule'"):
        DimodSampler(SA, parameters={"beta_schedul": [1.0]}, beta=1.0)


def test_parameters_of_the_signature_are_known_too() -> None:
    class Undeclared(Scripted):
        def sample(self, bqm: Any, *, patience: int = 0, **keywords: Any) -> Any:
            return super().sample(bqm, patience=patience, **keywords)

    fake = Undeclared(all_up)
    DimodSampler(fake, beta=1.0, parameters={"patience": 3}).sample(Ising(torch.zeros(1)), 1)
    assert fake.calls[0][1]["patience"] == 3


def test_hardware_defaults_are_sent() -> None:
    """auto_scale is True and answers are histograms unless told otherwise."""
    fake = plain("auto_scale", "answer_mode")
    DimodSampler(fake, beta=1.0).sample(Ising(torch.zeros(1)), 4)
    assert fake.calls[0][1] == {"num_reads": 4, "auto_scale": False, "answer_mode": "raw"}


def test_an_optimiser_without_a_declared_law_is_taken() -> None:
    sampler = DimodSampler("dwave.samplers:TabuSampler", beta=1.0, parameters={"timeout": 1})
    assert sampler.capabilities.law == "diabatic"
    assert sampler.sample(Ising(torch.tensor([5.0, -5.0])), 2, seed=1).spins.tolist() == [[1, -1]] * 2


def test_the_default_is_an_annealer_held_at_one() -> None:
    sampler = diabat.sampler("dimod")
    assert sampler.capabilities.law == "boltzmann"
    assert DimodSampler(plain(), beta=1.0).capabilities.law == "diabatic"


def test_a_configuration_names_the_sampler() -> None:
    section = {
        "backend": "dimod",
        "sampler": "diabat.testing.strict_qpu:StrictMockQPU",
        "options": {"topology_type": "zephyr", "topology_shape": [2, 4]},
        "qpu": {"annealing_time_ns": 7},
        "beta": [2.0, 3.0],
    }
    sampler = build_sampler(make_config({"sampler": section}).sampler)
    assert isinstance(sampler, DimodSampler)
    assert type(sampler.target).__name__ == "StrictMockQPU"
    assert sampler.betas == (2.0, 3.0)
    assert sampler.qpu.parameters == {"fast_anneal": True, "annealing_time": 0.007}


def test_three_body_terms_are_refused() -> None:
    K = torch.zeros(3, 3, 3)
    with pytest.raises(ValueError, match="three_body: sampler 'dimod' accepts fields and couplings only"):
        DimodSampler(plain(), beta=1.0).sample(Ising(torch.zeros(3), three_body=K), 1)
