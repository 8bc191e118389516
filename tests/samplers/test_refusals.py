"""What samplers refuse, each in one sentence that names the argument: options of every backend, and calls."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dimod
import numpy as np
import pytest
import torch
from dwave.samplers import RandomSampler, SimulatedAnnealingSampler, SteepestDescentComposite
from dwave.system import EmbeddingComposite

import diabat
from diabat.circuits import NativeEngine, TrotterPlan, builtin_plan, linear_ramp, save_plan
from diabat.ising import Ising, IsingError, pack_couplings
from diabat.samplers import UnsupportedError
from diabat.samplers.banded import BandedSampler
from diabat.samplers.dimod import DimodSampler
from diabat.samplers.dimod.submission import SubmissionError
from diabat.samplers.dimod.tiled import TiledComposite
from diabat.samplers.dqa import DQASampler
from diabat.samplers.exact import ExactSampler
from diabat.samplers.ocean import OceanSampler
from diabat.samplers.pseudolikelihood import BetaFit, fit_betas
from diabat.samplers.refine import RefineSampler
from diabat.samplers.tempering import TemperingSampler
from diabat.samplers.tempering.chain_statistics import autocorrelation_time, split_rhat
from diabat.testing import ReferenceSampler
from diabat.testing.problems import causal_problem, make_problem, with_visible
from diabat.testing.strict_qpu import StrictMockQPU

from .fakes import HELD, Scripted, all_up

INF, NAN, ARRAY = math.inf, math.nan, np.array([1.0, 2.0])
Row = tuple[str, dict[str, Any], str]


def each(backend: str, name: str, values: Any, message: str) -> list[Row]:
    """One row for each value of an option; the message goes on behind its name."""
    return [(backend, {name: value}, f"{name}: {message}") for value in values]


# Options of a backend; a message is a part of the sentence, or a regular expression.
LADDERS = [(), (0.5,), (0.5, 0.5, 1.0), (-0.1, 1.0), (0.0, 1.1), (0.0, NAN, 1.0), (True,), "1", 1.0]
OF_TEMPERING: list[Row] = [
    ("tempering", {"num_replicas": 2, "betas": (0.0, 1.0)}, "num_replicas: cannot be combined with betas"),
    *each("tempering", "betas", LADDERS, "expected up to 256 ascending numbers from 0 or more to 1.0, got"),
    *each("tempering", "schedule", ("linear", (), 1.0, (2.0, 1.0), (-1.0, 1.0), (True, 2.0), (0.1, INF), ARRAY),
          "expected 'auto' or ascending numbers from 0 or more, got"),
    ("tempering", {"schedule": (1.0,) * 9, "burn_in": 8},
     "schedule: expected at most one number for each of the 8 sweeps of burn_in, got 9."),
    *(("tempering", {"schedule": "auto"} | {k: v}, f"{k}: cannot be combined with schedule, got {v!r}.")
      for k, v in {"num_replicas": 2, "betas": (0.0, 1.0), "thin": 2, "persistent": True}.items()),
]  # fmt: skip

OF_REFINE: list[Row] = [
    ("refine", {"sampler": "mean_field"},
     "sampler: expected a backend that draws samples, got 'mean_field', which computes moments only."),
    ("refine", {"sampler": "dqa", "options": {"learn_schedule": True}},
     "sampler: expected a base without learnable parameters, because reads cannot train them, got 'dqa' with 1."),
    ("refine", {"sampler": 3}, "sampler: expected a diabat Sampler or its name, got int."),
    ("refine", {"sampler": "exat"}, "got 'exat'. Did you mean 'exact'?"),
    ("refine", {"sampler": ReferenceSampler(), "options": {"analytic": True}},
     "options: cannot be combined with a sampler object, got ['analytic']."),
    ("refine", {"options": {"anealing_time_ns": 5.0}},
     "options: sampler 'dqa' has no option 'anealing_time_ns'. Did you mean 'annealing_time_ns'?"),
    ("refine", {"sampler": "exact", "options": {"max_seconds": -1}},
     "options: max_seconds: expected a positive finite number, got -1."),
]  # fmt: skip

REGISTRY: list[Row] = [
    ("exat", {}, r"sampler: expected one of .*dqa, exact.*, got 'exat'\. Did you mean 'exact'\?"),
    ("meanfield", {}, "Did you mean 'mean_field'?"),
    ("zzzzzz", {}, r"got 'zzzzzz'\.$"),
    ("dqa", {"anealing_time_ns": 1}, r"'dqa' has no .*\. Did you mean 'annealing_time_ns'\?"),
    ("exact", {"memory_budget": 1}, "Did you mean 'memory_budget_mb'?"),
    ("exact", {"qqq": 1}, "no option 'qqq'. It accepts memory_budget_mb, max_seconds."),
]

ANNEAL: dict[str, Any] = {"annealing_time_ns": 2.0, "steps": 60}
PLAN = TrotterPlan(np.ones(2), np.ones(2), np.ones(2))
LEARNED: dict[str, Any] = {"annealing_time_ns": None, "steps": None, "schedule": PLAN}
WITH_PLAN = "cannot be combined with a plan, .* got"
TWO_BETAS = "expected two positive numbers (beta_h, beta_J), got"
DEVIATION = "expected a standard deviation >= 0 in hardware units, or two of them (fields, couplings), got"
PRECISION, DEVICE = "expected 'double' or 'single', got", "expected a torch device with float64, got"
OF_DQA: list[tuple[dict[str, Any], str]] = [
    ({"engine": "qpu"},
     "engine: expected one of native, aer, torch, primitive, an Engine or a Qiskit BaseSamplerV2, got 'qpu'"),
    ({"engine": "nativ"}, "got 'nativ'. Did you mean 'native'?"),
    ({"engine": 3}, "engine: expected one of native, .* or a Qiskit BaseSamplerV2, got 3"),
    ({"calibration": "none", "betas": (9.0, 9.0)}, "calibration: cannot be combined with betas, got 'none'"),
    *(({"betas": x}, f"betas: {TWO_BETAS} {x!r}")
      for x in ((9.0,), (9.0, 0.0), (NAN, 1.0), (INF, 1.0), ("9", 1.0), (True, 2.0), (2.0, True), 9.0)),
    *(({"noise": x}, f"noise: {DEVIATION} {x!r}")
      for x in (-0.1, True, None, (0.0, True), (0.0, INF), [NAN, 0.0], "small", (0.1,), (0.1, 0.1, 0.1))),
    ({"schedule": "Advantage2_system9"}, "got 'Advantage2_system9'. Did you mean 'Advantage2_system"),
    ({"schedule": "advantage_system4"}, "Did you mean 'Advantage_system4'"),
    ({"schedule": 3}, "schedule: expected a name, a path, an AnnealingSchedule or a TrotterPlan, got 3"),
    (LEARNED | {"steps": 60}, f"steps: {WITH_PLAN} 60"),
    (LEARNED | {"annealing_time_ns": 2.0}, f"annealing_time_ns: {WITH_PLAN} 2.0"),
    (LEARNED | {"order": "strang"}, f"order: {WITH_PLAN} 'strang'"),
    (LEARNED | {"protocol": "fast"}, f"protocol: {WITH_PLAN} 'fast'"),
    ({"protocol": "fast", "schedule": linear_ramp(6.0, 1.0)},
     "protocol: cannot be combined with a schedule object, which has a protocol, got 'fast'"),
    ({"protocol": ""}, "protocol: expected 'fast' or 'standard', got ''"),
    ({"protocol": "slow"}, "protocol: expected 'fast' or 'standard', got 'slow'"),
    ({"steps": 10}, "steps: expected at least"),
    *(({"steps": x}, f"steps: expected an integer, got {x!r}") for x in (True, 60.0, "60")),
    *(({"precision": "", "engine": x}, f"precision: {PRECISION} ''") for x in ("aer", "torch")),
    ({"engine": "primitive", "precision": "single"}, "precision: cannot be combined with this engine"),
    ({"engine": NativeEngine(), "precision": "single"}, "precision: cannot be combined with this engine"),
    ({"device": "cpu"}, "device: requires engine 'torch', got 'cpu'"),
    *(({"device": x, "engine": "torch"}, f"device: {DEVICE} '{x}'") for x in ("abacus", "")),
    ({"learn_schedule": True, "engine": "aer"}, "learn_schedule: expected engine native or torch, .* got 'aer'"),
    ({"learn_schedule": True, "engine": "primitive"}, "learn_schedule: expected engine .* got 'primitive'"),
]  # fmt: skip


def plain(*names: str, **properties: Any) -> Scripted:
    return Scripted(all_up, *names, **properties)


SA = "dwave.samplers:SimulatedAnnealingSampler"
NO_LAW: dict[str, Any] = {
    "TabuSampler": "dwave.samplers:TabuSampler",
    "SteepestDescentSolver": "dwave.samplers:SteepestDescentSampler",
    "TreeDecompositionSolver": "dwave.samplers:TreeDecompositionSolver",
    "RandomSampler": dimod.TrackingComposite(RandomSampler()),
    "SteepestDescentComposite": SteepestDescentComposite(plain()),
}
NO_TOKEN = "options: expected no token or password in"
# At beta = 1 where no other is given.
OF_DIMOD: list[tuple[dict[str, Any], str]] = [
    ({"sampler": plain(), "beta": None}, "beta: expected the inverse temperature .* got None"),
    *(({"sampler": plain(), "beta": x}, "beta: expected a positive number") for x in (0.0, True, (1.0, 1.0, 1.0), NAN)),
    ({"sampler": plain(), "beta": "predicted"}, "beta: expected a positive number, two of them or 'estimate', got"),
    # Of samplers that may choose the temperature themselves.
    ({"sampler": SA}, "parameters: expected .*beta_schedule.* may otherwise choose the temperature"),
    ({"sampler": SA, "beta": "estimate"}, "parameters: expected .*beta_schedule.* may otherwise choose"),
    ({"sampler": plain("beta")}, "parameters: expected beta, .* got none; beta=1.0 keeps it at 1"),
    ({"sampler": plain("beta_min", "beta_max")},
     "parameters: expected beta_max, .* got none; beta_min=1.0, beta_max=1.0 keeps it at 1"),
    ({"sampler": SA, "parameters": {"beta_range": [0.1, 5.0]}},
     "beta: expected the last inverse temperature of the schedule, 5, got"),
    ({"sampler": SA, "parameters": {"beta_schedule_type": "custom", "beta_schedule": [2.0] * 3}},
     "beta: expected the last inverse temperature of the schedule, 2, got"),
    # Laws that do not hold.
    ({"sampler": plain(), "law": "gibbs"}, "law: expected 'boltzmann'"),
    ({"sampler": plain(), "law": "boltzmann", "scale": 2.0}, "law: 'boltzmann' cannot be combined with scale="),
    ({"sampler": plain(), "beta": "estimate", "law": "boltzmann"},
     "law: 'boltzmann' cannot be combined with beta='estimate'"),
    *(({"sampler": sampler, "law": "boltzmann"},
     f"law: expected None, got 'boltzmann' for {name}, whose answers follow no Boltzmann law")
      for name, sampler in NO_LAW.items()),
    *(({"sampler": plain(), "scale": x}, "scale: expected a positive") for x in (0.0, "auto")),
    # Parameters that would change what is asked for.
    ({"sampler": plain(), "parameters": {"num_reads": 5}}, "parameters: expected no 'num_reads'"),
    ({"sampler": plain("max_answers"), "parameters": {"max_answers": 5}}, "parameters: expected no 'max_answers'"),
    ({"sampler": dimod.ExactSolver()}, "accepts num_reads, got ExactSolver"),
    ({"sampler": plain("auto_scale"), "parameters": {"auto_scale": True}}, "auto_scale: expected False, got True"),
    ({"sampler": plain(), "max_qpu_seconds": 1.0}, "max_qpu_seconds: expected a sampler that reports its timing"),
    ({"sampler": SA, "parameters": {"beta_schedul": [1.0]}},
     "no parameter 'beta_schedul'. Did you mean 'beta_schedule'"),
    # What is no sampler, or none that can be built.
    *(({"sampler": x}, "sampler: expected a dimod sampler") for x in (SimulatedAnnealingSampler, 5)),
    ({"sampler": plain(), "options": {}}, "options: cannot be combined with a sampler object"),
    ({"sampler": "dimod"}, "sampler: expected .* 'module:name'"),
    ({"sampler": "dimod:Nobody"}, "sampler: expected a name in the module dimod"),
    ({"sampler": "nowhere_at_all:X"}, "a package that is not installed"),
    ({"parameters": HELD, "beta": None}, "sampler: expected .* with parameters, got None"),
    # Tokens, wherever they stand.
    ({"sampler": SA, "options": {"token": "X"}}, "options: expected no 'token'"),
    ({"sampler": SA, "options": {"client": {"api_token": "X"}}}, "options: expected no 'api_token'"),
    ({"sampler": SA, "options": {"clients": [{"x": 1}, {"password": "X"}]}}, "options: expected no 'password'"),
    ({"sampler": SA, "options": {"x": ["DEV-" + "0a" * 20]}}, f"{NO_TOKEN} 'x' here"),
    ({"sampler": SA, "options": {"proxy": "http://me:pw@host"}}, f"{NO_TOKEN} 'proxy' here"),
    ({"sampler": SA, "options": {"x": ["https://host/?token=s"]}}, f"{NO_TOKEN} 'x' here"),
    ({"sampler": plain(), "parameters": {"token": 1}}, "parameters: expected no"),
]  # fmt: skip


def chip() -> Any:
    return StrictMockQPU(topology_type="zephyr", topology_shape=[2, 4], beta=10.0)


class Graph(Scripted):
    """A graph without ranges and flux biases."""

    def __init__(self) -> None:
        super().__init__(all_up)

    def to_networkx_graph(self) -> Any:
        return chip().to_networkx_graph()


# Options of tiles.
OF_TILES: list[tuple[dict[str, Any], type[Exception], str]] = [
    (
        {"child": plain()},
        ValueError,
        "child: expected a structured sampler such as DWaveSampler, got Scripted",
    ),
    ({"child": 5}, TypeError, "child: expected a dimod sampler or its name 'module:name', got a int"),
    ({"child_options": {}}, ValueError, "child_options: cannot be combined with a sampler object, got []"),
    (
        {"child": "os:system"},
        TypeError,
        "child: expected the name of a class of dimod samplers, got 'os:system'",
    ),
    ({"child": SA, "child_options": {"token": "x"}}, ValueError, "child_options: expected no 'token'"),
    (
        {"child": Graph()},
        ValueError,
        "chain_strength: expected a number for a child without a j_range, got None",
    ),
    (
        {"child": Graph(), "fields": "ancilla"},
        ValueError,
        "fields: 'ancilla' needs flux_biases, which Graph does not",
    ),
]


OF_COMPOSITES: list[tuple[dict[str, Any], str]] = [
    (
        {"anneal_schedule": [[0, 0], [1, 1]], "annealing_time": 1.0},
        "anneal_schedule: cannot be combined with",
    ),
    ({"anneal_schedule": [[0, 0], [1, 0.5], [2, 1]]}, "anneal_schedule: expected two points"),
    ({"annealing_time": 0.001}, "annealing_time: expected 0.005 to 2000 microseconds"),
    ({"auto_scale": True}, "auto_scale: expected False, got True"),
    ({"h_gain_schedule": [[0, 0]]}, "h_gain_schedule: cannot be combined with fast_anneal"),
]
OPTIONS: list[Row] = [
    *OF_TEMPERING, *OF_REFINE, *REGISTRY,
    *(("dqa", ANNEAL | options, message) for options, message in OF_DQA),
    *(("dimod", {"beta": 1.0} | options, message) for options, message in OF_DIMOD),
    *(("dimod", {"sampler": composite, "beta": 10.0, "parameters": {"fast_anneal": True, **given}}, message)
      for composite in (EmbeddingComposite(chip()), TiledComposite(chip(), 4)) for given, message in OF_COMPOSITES),
    ("dimod", {"sampler": TiledComposite(chip(), 4, fields="ancilla"), "beta": 10.0,
     "parameters": {"flux_biases": []}}, "TiledComposite has no parameter 'flux_biases'"),
    ("dimod", {"sampler": TiledComposite(chip(), 4), "beta": 10.0, "parameters": {"initial_state": {}}},
     "TiledComposite has no parameter 'initial_state'"),
    ("dimod", {"sampler": TiledComposite(chip(), 4), "beta": 10.0, "parameters": {"chain_strength": 2.0}},
     "no parameter 'chain_strength'. It is an option of TiledComposite(...)."),
    ("dimod", {"sampler": chip(), "beta": 10.0, "qpu": {}}, r"sampler 'dimod' has no option 'qpu'.*parameters=\{...\}"),
]  # fmt: skip


def refuses(message: str, error: Any, call: Callable[[], Any]) -> None:
    """The message is a part of the sentence, or a regular expression that is found in it."""
    with pytest.raises(error) as caught:
        call()
    said = str(caught.value)
    assert message in said or re.search(message, said), said


@pytest.mark.parametrize(
    ("backend", "options", "message"), OPTIONS, ids=[f"{row[0]}-{i}" for i, row in enumerate(OPTIONS)]
)
def test_bad_options(backend: str, options: dict[str, Any], message: str) -> None:
    refuses(message, (ValueError, TypeError), lambda: diabat.sampler(backend, **options))


# Values of every type: refused by the name of the option, in one line.
OF_ANY_TYPE: dict[str, list[tuple[str, Any]]] = {
    "dqa": [("engine", ARRAY), ("precision", ARRAY), ("protocol", {}), ("noise", b"bytes"), ("noise", ARRAY),
            ("noise", (0.0, ARRAY))],
    "refine": [("options", ARRAY), ("sampler", "a\nb")],
    "dimod": [("cache_dir", 1.5), ("scale", ARRAY)],
}  # fmt: skip


@pytest.mark.parametrize(
    ("backend", "name", "value"), [(b, *option) for b, options in OF_ANY_TYPE.items() for option in options]
)
def test_an_option_that_is_none_is_refused_by_name(backend: str, name: str, value: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=rf"^(.*: )?{name}: expected [^\n]*, got ") as caught:
        diabat.sampler(backend, **{name: value})
    assert "\n" not in str(caught.value)


# Calls

ONE, HALF = make_problem((), 2), Ising(torch.zeros(2, 3, dtype=torch.float16), check=False)
HIDDEN = with_visible(ONE, torch.tensor([True, False]))
PAIR = Ising(torch.zeros(2, 3, dtype=torch.float64))
CUBIC = make_problem((2,), 3, three_body=1.0)
QUICK, REFERENCE, EXACT = DQASampler(**ANNEAL), ReferenceSampler(), ExactSampler()
CHAINS = "chains: expected int8 spins of -1 and +1, [num_chains, 3, *batch, n], got"
SPINS, RATIO = torch.ones(5, 2, 3, dtype=torch.int8), torch.full((5, 2), 0.2)
FAR = Ising(torch.zeros(10), diabat.Edges([(3, 4), (9, 5), (7, 2), (2, 6), (2, 3)], [0.5] * 5))
RANGED = DimodSampler(dimod.TrackingComposite(plain(h_range=[-1.0, 1.0])), beta=1.0)
TILED = DimodSampler(TiledComposite(chip(), 3), beta=10.0, parameters={"fast_anneal": True})
ONES, FLAT = torch.ones(2, 3), Ising(torch.zeros(2, 3))
CUBIC_REFUSED = "accepts fields and couplings only"


def chains(spins: Any) -> None:
    TemperingSampler(num_replicas=3, persistent=True).chains = spins


MODEL: Any = dimod.BinaryQuadraticModel({"a": 1.0}, {}, 0.0, "SPIN")
CALLS: list[tuple[Callable[[], Any], Any, str]] = [
    # Layers under autocast build problems without a check.
    (lambda: REFERENCE.moments(HALF), ValueError, "fields: expected dtype float32 or float64, got torch.float16"),
    (lambda: REFERENCE.moments(torch.zeros(3)), ValueError, "ising: expected a diabat.Ising, got Tensor"),
    (lambda: REFERENCE.moments(MODEL), ValueError, "ising: .* got BinaryQuadraticModel; diabat.ising.from_bqm"),
    (lambda: Ising(MODEL), ValueError, "fields: .* got BinaryQuadraticModel; diabat.ising.from_bqm reads it"),
    (lambda: diabat.sampler("mean_field").moments(ONE, log_partition=True), UnsupportedError,
     "log_partition: expected a sampler that computes log Z, got 'mean_field' with its options."),
    (lambda: diabat.sampler("refine", sampler="tempering").moments(ONE, log_partition=True), UnsupportedError,
     "log_partition: expected a sampler that computes log Z, got 'refine' with its options."),
    (lambda: diabat.sampler("tempering", num_replicas=1).moments(ONE, log_partition=True), UnsupportedError,
     "log_partition: expected a sampler that computes log Z, got 'tempering' with its options."),
    (lambda: EXACT.moments(ONE, log_partition=True, num_reads=5), UnsupportedError,
     "log_partition: expected a sampler that computes log Z, got num_reads, and reads have none."),
    (lambda: diabat.sampler("mean_field").moments(ONE, num_reads=50), UnsupportedError,
     "a sampler that draws reads, got 'mean_field', which"),
    *((lambda x=x: diabat.spin_probabilities(torch.zeros(2), None, "exact", gradient=x), ValueError,
     r"gradient: expected [^\n]*, got [^\n]*$")
      for x in (ARRAY, None, "a\nb")),
    *((lambda f=f, shape=shape: f(np.zeros(shape)), ValueError,
     r"series: expected \[T, C, ...\] with T >= 4 steps, got shape")
      for f in (autocorrelation_time, split_rhat) for shape in ((3, 2), (8,))),
    # exact
    *((lambda n=n, f=f: f(Ising(torch.zeros(3, n)), num_reads=2), UnsupportedError, message)
      for f in (EXACT.sample, EXACT.moments)
      for n, message in [(60,
       r"sampler 'exact' accepts at most 37 visible spins in 3 problems within max_seconds = 600, got 60, which need "
                              r"about \d.* years; use a sampling backend or raise max_seconds\."),
                         (40, r"got 40, which need about [\d.]+ (hours|minutes);"),
                         (201, "at most 38 visible spins within max_seconds = 600, got 201; use a sampling")]),
    (lambda: ExactSampler(max_seconds=1e-6).moments(Ising(torch.zeros(2, 18))), UnsupportedError,
     "max_seconds = 1e-06"),
    (lambda: EXACT.state_probabilities(Ising(torch.zeros(21))), UnsupportedError,
     "state probabilities need at most 20 spins, got 21"),
    (lambda: EXACT.state_probabilities(HIDDEN), UnsupportedError,
     "visible: state probabilities need every spin visible"),
    # banded
    (lambda: BandedSampler().moments(make_problem((2,), 40, seed=13)), UnsupportedError,
     "a bandwidth of 39 with 40 spins in 2 problems, .* s and .* MB"),
    (lambda: BandedSampler(max_seconds=1e-6).moments(make_problem((2,), 12, seed=13)), UnsupportedError,
     "max_seconds = 1e-06"),
    (lambda: BandedSampler(memory_budget_mb=0.1).sample(make_problem((2,), 12, seed=13), 2), UnsupportedError,
     "memory_budget_mb = 0.1"),
    (lambda: BandedSampler(bandwidth=1, engine="native")._is_native(torch.device("cuda")), UnsupportedError,
     "expects a tensor on the CPU, got cuda; use engine 'torch'"),
    (lambda: BandedSampler(bandwidth=3).moments(FAR), UnsupportedError,
     r"bandwidth = 3, got a coupling of spins 2 and 6\.$"),
    (lambda: BandedSampler().moments(Ising(torch.zeros(100_000), diabat.Edges([(0, 99_999)], [1.0]))), UnsupportedError,
     "got a bandwidth of 99999 with 100000 spins"),
    # tempering, refine
    (lambda: chains([1]), ValueError, f"{CHAINS} list."),
    (lambda: chains(torch.ones(2, 3, 4)), ValueError, f"{CHAINS} torch.float32 of shape [2, 3, 4]."),
    (lambda: chains(torch.ones(2, 2, 4, dtype=torch.int8)), ValueError, f"{CHAINS} torch.int8 of shape [2, 2, 4]."),
    (lambda: chains(torch.zeros(2, 3, 4, dtype=torch.int8)), ValueError, f"{CHAINS} other values."),
    (lambda: TemperingSampler().sample(Ising(PAIR.fields[0], three_body=1e30 * CUBIC.three_body), 2), UnsupportedError,
     "three_body: .* expected values up to 1e"),
    (lambda: RefineSampler("dqa").moments(CUBIC), UnsupportedError, f"three_body: sampler 'refine' {CUBIC_REFUSED}"),
    (lambda: RefineSampler(REFERENCE).moments(Ising(torch.zeros(15))), UnsupportedError,
     "sampler 'refine' accepts at most 14 visible spins, got 15."),
    # dqa
    (lambda: DQASampler(**ANNEAL, engine="primitive").state_probabilities(ONE), UnsupportedError,
     "engine: 'primitive' draws reads only, not state probabilities"),
    (lambda: QUICK.moments(Ising(torch.zeros(27))), UnsupportedError, "accepts at most 26 visible spins, got 27"),
    (lambda: QUICK.state_probabilities(Ising(torch.zeros(1, 24).expand(2**13, 24))), ValueError,
     r"probabilities of all states need 1\.02e\+03 GiB of memory, got .* available"),
    (lambda: QUICK.state_probabilities(HIDDEN), UnsupportedError, "need every spin visible"),
    (lambda: QUICK.circuit(CUBIC), UnsupportedError, f"three_body: sampler 'dqa' {CUBIC_REFUSED}"),
    (lambda: QUICK.circuit(make_problem((2,), 3)), IsingError, "got a batch [2, 3]; use circuits or pub"),
    (lambda: QUICK.circuit(PAIR), IsingError, "expected one problem [n], got a batch [2, 3]"),
    (lambda: QUICK.circuit(torch.zeros(3)), TypeError, "ising: expected a diabat.Ising, got Tensor"),
    (lambda: QUICK.circuits(PAIR, labels=["a", "b"]), IsingError, "labels: expected 3 labels, one per spin, got 2"),
    (lambda: QUICK.pub(PAIR, 0), ValueError, "num_reads: expected an integer >= 1, got 0"),
    (lambda: QUICK.pub(causal_problem(3, seed=7)), IsingError,
     "visible: expected the same visible spins in every problem"),
    # dimod
    (lambda: DimodSampler(plain(), beta=1.0).sample(CUBIC, 1), ValueError,
     f"three_body: sampler 'dimod' {CUBIC_REFUSED}"),
    (lambda: DimodSampler(plain(), beta=1.0, scale="fit").sample(ONE, 1), ValueError,
     "scale: 'fit' needs a sampler that reports"),
    (lambda: RANGED.sample(Ising(torch.tensor([2.0])), 1), ValueError,
     "h_range"),
    (lambda: DimodSampler(plain(), beta="estimate").sample(PAIR, 5), ValueError,
     "beta: expected answers that some positive temperature explains"),
    (lambda: DimodSampler(chip(), beta=10.0).sample(make_problem((1,), 4), 1), SubmissionError,
     "StrictMockQPU failed: BinaryQuadraticModelStructureError: .*; put a TiledComposite or an EmbeddingComposite"),
    (lambda: TILED.sample(make_problem((1,), 3, seed=1), 5), ValueError,
     "fields: expected 0 with fast_anneal, which has no h, got other values; use TiledComposite(..., fields='anc"),
    (lambda: DimodSampler(TiledComposite(chip(), 3), beta=10.0).sample(make_problem((1,), 4), 1), UnsupportedError,
     "accepts at most 3 visible spins, got 4"),
    (lambda: DimodSampler(TiledComposite(chip(), 40), beta=10.0).sample(make_problem((1,), 40), 1), UnsupportedError,
     "spins: expected tiles that fit on the chip, got 40 spins"),
    (lambda: TiledComposite(chip(), 4).sample(dimod.BQM({v: 0.1 for v in range(500)}, {}, "SPIN")), ValueError,
     "bqm: expected parts that fit into the "),
    # a backend as a dimod sampler
    (lambda: OceanSampler("mean_field"), ValueError, "expected a backend that draws samples, got 'mean_field'"),
    (lambda: OceanSampler("exat"), ValueError, "Did you mean 'exact'?"),
    (lambda: OceanSampler("exact", max_second=1.0), TypeError, "options: sampler 'exact' has no option 'max_second'"),
    (lambda: OceanSampler(3), TypeError, "sampler: expected a diabat Sampler or its name, got int"),
    *((lambda x=x: OceanSampler("exact").sample(x), TypeError, f"a dimod.BinaryQuadraticModel, got {type(x).__name__}")
      for x in ({"a": 1.0}, dimod.ConstrainedQuadraticModel(), None)),
    (lambda: OceanSampler("exact").sample(dimod.BQM({}, {"ab": INF}, 0.0, "SPIN")), IsingError,
     "couplings: expected finite values"),
    (lambda: OceanSampler(REFERENCE).sample(dimod.BQM({i: 1.0 for i in range(15)}, {}, 0.0, "SPIN")), UnsupportedError,
     "accepts at most 14 visible spins, got 15."),
    # fits of temperatures
    (lambda: fit_betas(PAIR, torch.ones(5, 3, 3), RATIO), ValueError, r"spins: expected shape .*, got \[5, 3, 3\]"),
    (lambda: fit_betas(PAIR, SPINS, torch.full((5,), 0.2)), ValueError, "weights: expected shape [5, 2], got [5]"),
    (lambda: fit_betas(PAIR, SPINS[:0], torch.ones(0, 2)), ValueError, r"spins: expected shape .*, got \[0, 2, 3\]"),
    (lambda: fit_betas(PAIR, torch.zeros(5, 2, 3)), IsingError,
     r"spins: expected -1 or \+1 at visible spins, got 0.0 at \[0, 0, 0\]; 2 \* x - 1 makes spins of 0 and 1"),
    (lambda: BetaFit(1.0, 0.1).interval("field", level=95), ValueError,
     "level: expected a number between 0 and 1, got 95"),
    (lambda: BetaFit(1.0, 0.1).interval("fields"), ValueError,
     "term: expected 'field', 'coupling' or 'three_body', got 'fields'"),
    # log-probabilities
    (lambda: FLAT.log_prob(ONES, None), IsingError,
     "log_partition: expected log Z, as 'exact', 'banded' and, on request, 'tempering' compute it, got None"),
    (lambda: FLAT.log_prob(ONES, torch.zeros(3)), IsingError,
     "log_partition: expected leading dimensions that broadcast to the batch [2]"),
    (lambda: FLAT.log_prob(ONES, torch.zeros(2).double()), IsingError,
     "log_partition: expected dtype torch.float32 on cpu as in fields"),
    (lambda: FLAT.log_prob(0 * ONES, 0.0), IsingError,
     "spins: expected -1 or +1 at visible spins, got 0.0 at [0, 0]; 2 * x - 1 makes"),
    (lambda: FLAT.log_prob(torch.tensor([1.0, 0.5, -1]), 0.0), IsingError,
     r"spins: expected -1 or \+1 .* got 0.5 at \[0, 1\]\."),
    (lambda: FLAT.log_prob("111", 0.0), IsingError, "spins: expected a tensor, an array or a list, got str"),
    (lambda: Ising(torch.zeros(2, 3, requires_grad=True)).log_prob(ONES, -3 * math.log(2)), IsingError,
     "log_partition: expected a gradient as in fields, got none"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), CALLS, ids=range(len(CALLS)))
def test_bad_calls(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    refuses(message, error, call)


@pytest.mark.parametrize(("options", "error", "message"), OF_TILES, ids=range(len(OF_TILES)))
def test_bad_options_of_tiles(options: dict[str, Any], error: type[Exception], message: str) -> None:
    refuses(message, error, lambda: TiledComposite(**{"child": chip(), "spins": 4, **options}))


def test_a_plan_with_a_bad_range_is_named(tmp_path: Path) -> None:
    plan, metadata = builtin_plan("boltzmann-4")
    path = tmp_path / "mine.json"
    save_plan(path, plan, {**metadata, "trained_range": 3})
    refuses(
        r"mine\.json: trained_range: expected .*, got 3\.$",
        ValueError,
        lambda: diabat.sampler("dqa", schedule=str(path)),
    )


@pytest.mark.parametrize(
    ("h", "coupling", "message"),
    [
        (3.0, 0.0, r"fields: .*h_range \[-2, 2\], got a value -3; program smaller values"),
        (0.0, 2.5, r"couplings: .*extended_j_range \[-2, 1\], got a value -2.5"),
        (0.0, -1.2, r"couplings: .*extended_j_range \[-2, 1\], got a value 1.2"),
        (0.0, -0.9, r"couplings: .*per_qubit_coupling_range \[-5, 0.7\], got a sum over one qubit"),
    ],
)
def test_values_out_of_range_are_refused_before_submission(h: float, coupling: float, message: str) -> None:
    fake = plain(h_range=[-2.0, 2.0], extended_j_range=[-2.0, 1.0], per_qubit_coupling_range=[-5.0, 0.7])
    ising = Ising(torch.tensor([h, 0.0]), pack_couplings(torch.tensor([coupling]), 2))
    refuses(message, ValueError, lambda: DimodSampler(fake, beta=1.0).sample(ising, 1))
    assert not fake.calls
