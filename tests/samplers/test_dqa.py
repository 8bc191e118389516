"""Backend ``dqa``: what is simulated, engines, schedules, precision, and the range of a plan."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from problems import ALPHA, F64, causal, g_test

from diabat.circuits import (
    NativeEngine,
    OutOfRangeWarning,
    PrimitiveEngine,
    TrotterPlan,
    linear_ramp,
    plan_betas,
    predicted_beta,
    reference_probabilities,
    save_plan,
    schedule,
    to_qasm3,
    trotter_plan,
)
from diabat.ising import Ising, pack_couplings
from diabat.samplers import UnsupportedError
from diabat.samplers.dqa import DQASampler
from diabat.testing import brute_force, brute_force_states, state_table
from diabat.testing.problems import causal_problem, make_problem, with_visible

from .fakes import RecordingEngine, quick


@pytest.mark.parametrize("lead", ["none", "shared", "heads"])
def test_state_probabilities_are_those_of_the_reference_simulation(lead: Any) -> None:
    """Programmed with h / beta_h and J / beta_J."""
    sampler, ising = quick(), make_problem((2, 3), 4, lead=lead, seed=1)
    p = sampler.state_probabilities(ising)
    assert p.shape == (2, 3, 16)
    assert p.dtype == F64
    J = torch.zeros(4, 4, dtype=F64) if ising.couplings is None else ising.couplings
    J = J.expand(2, 1, 4, 4) / sampler.betas.beta_J
    for head in range(2):
        h = ising.fields[head] / sampler.betas.beta_h
        want = reference_probabilities(sampler.plan, h.numpy(), J[head, 0].numpy())
        assert np.abs(p[head].numpy() - want).max() < 1e-10


def test_moments_are_sums_over_the_states() -> None:
    sampler, ising = quick(), make_problem((3,), 4, seed=2)
    moments = sampler.moments(ising, correlations=True)
    p, s = sampler.state_probabilities(ising), state_table(4)
    assert moments.num_reads is None
    assert moments.standard_error is None
    assert (moments.probability - p @ (s > 0).double()).abs().max() < 1e-12
    assert (moments.correlation - torch.einsum("qx,xj,xk->qjk", p, s, s)).abs().max() < 1e-12


@pytest.mark.parametrize("lead", ["none", "shared", "heads", "per_problem"])
def test_all_engines_give_the_same_moments(lead: Any) -> None:
    """To 1e-10 in double precision; reads of the primitive within 6 standard errors at N = 2000 (alpha < 1e-6)."""
    ising = make_problem((2, 2), 4, lead=lead, seed=1)
    visible = torch.tensor([[True, True, False, True], [True, True, True, True]])
    ising = with_visible(ising, visible)
    want = quick().moments(ising, correlations=True)
    for engine, tolerance in (("aer", 1e-10), ("torch", 1e-10)):
        got = quick(engine=engine).moments(ising, correlations=True)
        assert got.info["engine"] == engine
        assert got.num_reads is None
        assert (got.probability - want.probability).abs().max() < tolerance
        assert (got.correlation - want.correlation).abs().max() < tolerance
    for engine in ("native", "torch"):
        single = quick(engine=engine, precision="single").moments(ising).probability
        assert 1e-10 < float((single - want.probability).abs().max()) < 1e-5
    if lead in ("heads", "none"):
        got = quick(engine="primitive", num_reads=2000).moments(ising, seed=1)
        assert (got.num_reads, got.info["engine"]) == (2000, "primitive")
        error = (got.probability - want.probability).abs()
        assert bool((error <= 6 * got.standard_error).all())
        wrong = quick().moments(Ising(-ising.fields, ising.couplings, visible)).probability
        assert bool(((got.probability - wrong).abs() > 6 * got.standard_error).any())


def test_an_engine_of_ones_own_is_used() -> None:
    engine = RecordingEngine()
    sampler, ising = quick(engine=engine), make_problem((3,), 4, seed=2)
    assert sampler.engine is engine
    assert sampler.capabilities.max_spins == 12
    assert torch.equal(sampler.moments(ising).probability, quick().moments(ising).probability)
    (batch,) = engine.taken()
    assert np.abs(batch.fields - ising.fields.numpy() / sampler.betas.beta_h).max() < 1e-15
    assert np.abs(batch.couplings - ising.couplings.numpy() / sampler.betas.beta_J).max() < 1e-15


def test_problems_of_a_causal_window_go_in_one_call_without_padding() -> None:
    """Position i of each head is a problem of i + 1 spins; each head has its own J."""
    engine, base = RecordingEngine(), make_problem((5, 2, 4), 4, lead="heads", seed=3)
    quick(engine=engine).moments(with_visible(base, causal(4)))
    assert len(engine.plans) == 1
    shapes = sorted(batch.fields.shape for batch in engine.taken())
    assert shapes == sorted((5, n) for n in (1, 2, 3, 4) for _ in range(2))


def test_padding_masks_of_every_sequence() -> None:
    """Each problem as if its padding were not there; a query that sees nothing gets zeros."""
    sampler, base = quick(), make_problem((3, 2, 4), 4, lead="heads", seed=5)
    padding = torch.tensor([[False, False, False, True], [False, True, False, True], [True] * 4])
    visible = torch.ones(4, 4, dtype=torch.bool).tril() & ~padding[:, None, None, :]
    ising = Ising(base.fields, base.couplings, visible)
    moments, seen = sampler.moments(ising, correlations=True), ising.visible_mask
    assert torch.equal(moments.probability > 0, seen)
    assert not moments.correlation[2].any()
    for b, h, i in ((0, 0, 3), (1, 1, 3), (1, 0, 0), (0, 1, 2)):
        keep = seen[b, h, i].nonzero()[:, 0]
        J = base.couplings[h, 0][keep][:, keep]
        want = sampler.moments(Ising(base.fields[b, h, i, keep], J)).probability
        assert (moments.probability[b, h, i, keep] - want).abs().max() < 1e-12
    reads = sampler.sample(ising, 3, seed=1).spins
    assert (reads[:, ~seen] == -1).all()


def test_a_learned_plan_samples_at_beta_one(tmp_path: Path) -> None:
    """Given as a plan or a saved file: h and J are programmed as they are, and there is no annealing time."""
    b, c, a = np.random.default_rng(1).normal(size=(3, 4))
    plan = TrotterPlan(b, c, a, "mine")
    path = tmp_path / "mine.json"
    save_plan(path, plan)
    ising = make_problem((3,), 4, seed=3)
    want = reference_probabilities(plan, ising.fields.numpy(), ising.couplings.numpy())
    for given in (plan, str(path)):
        sampler = DQASampler(schedule=given)
        assert np.abs(sampler.state_probabilities(ising).numpy() - want).max() < 1e-12
        info = sampler.moments(ising).info
        assert (info["calibration"], info["programmed_with"]) == ("none", (1.0, 1.0))
        assert (info["schedule"], info["annealing_time_ns"], info["steps"]) == ("mine", None, 4)
        assert (info["beta_h"], info["beta_J"]) == tuple(plan_betas(plan))
    # Calibrated on request.
    calibrated = DQASampler(schedule=plan, calibration="predicted")
    assert calibrated.betas == plan_betas(plan)
    with pytest.raises(FileNotFoundError, match=r"none\.json"):
        DQASampler(schedule=str(tmp_path / "none.json"))


def test_the_default_engine_is_native_on_the_threads_of_torch() -> None:
    engine = quick().engine
    assert isinstance(engine, NativeEngine)
    assert callable(engine.threads)
    torch.set_num_threads(2)
    assert engine.threads() == 2
    ising = causal_problem(5, seed=1)
    two = quick().sample(ising, 20, seed=1).spins
    torch.set_num_threads(1)
    assert torch.equal(quick().sample(ising, 20, seed=1).spins, two)


def test_estimators_follow_from_the_engine() -> None:
    for engine in ("native", "torch", "aer", "primitive"):
        own = ("adjoint",) if engine in ("native", "torch") else ()
        others = ("linear_response", "straight_through", "covariance")
        assert quick(engine=engine).capabilities.gradients == (*own, *others)
    assert quick(learn_schedule=True).capabilities.gradients == ("adjoint",)


def test_engines_that_know_reads_only() -> None:
    sampler, ising = quick(engine=PrimitiveEngine(max_spins=5), num_reads=16), make_problem((2,), 3, seed=9)
    assert sampler.moments(ising, seed=1).num_reads == 16
    assert quick(engine="primitive").moments(ising, seed=1).num_reads == 1000
    with pytest.raises(UnsupportedError, match="accepts at most 5 visible spins, got 6"):
        sampler.moments(Ising(torch.zeros(6)))


@pytest.mark.parametrize("time", [2.0, 5.0])
def test_weak_problems_are_boltzmann_at_beta_one_to_first_order(time: float) -> None:
    """Errors are of second order: halving the problem quarters them."""
    sampler = DQASampler(annealing_time_ns=time)
    errors = []
    for scale in (0.04, 0.02):
        ising = make_problem((4,), 4, seed=4, fields=scale, couplings=scale)
        moments, want = sampler.moments(ising, correlations=True), brute_force(ising)
        error = (moments.magnetization - want.magnetization).abs().max()
        pairs = (moments.correlation - want.correlation).abs().max()
        errors.append((float(error), float(pairs)))
        # One common beta would leave a first-order error of 1 - beta_h / beta_J, about 8 % of scale.
        assert max(errors[-1]) < 0.04 * scale + 6 * scale**2
    # The rest of first order is the Trotter error of the grid.
    assert errors[1][1] < 0.6 * errors[0][1]


def test_samples_follow_the_state_probabilities() -> None:
    """G-test of all 16 states of 4 problems: N = 100,000 reads, which do not follow the Boltzmann law."""
    sampler, ising = quick(), make_problem((2, 2), 4, lead="heads", seed=7)
    spins = sampler.sample(ising, 100_000, seed=1).spins.flatten(1, 2)
    assert g_test(spins, sampler.state_probabilities(ising).flatten(0, 1)) > ALPHA
    assert g_test(spins, brute_force_states(ising).flatten(0, 1)) < ALPHA


def test_averages_of_reads() -> None:
    sampler, ising = quick(num_reads=200), make_problem((2,), 3, seed=9)
    moments = sampler.moments(ising, correlations=True, seed=5)
    spins = sampler.sample(ising, 200, seed=5).spins
    assert torch.allclose(moments.probability, (spins > 0).double().mean(0))
    assert (moments.num_reads, moments.info["seed"]) == (200, 5)
    assert moments.standard_error is not None
    assert moments.correlation is not None


def test_info() -> None:
    sampler = quick()
    info = sampler.sample(make_problem((2,), 3), 4, seed=11).info
    expected: dict[str, Any] = {
        "backend": "dqa",
        "law": "diabatic",
        "engine": "native",
        "schedule": "Advantage2_system1",
    }
    expected |= {"annealing_time_ns": 2.0, "steps": 60, "calibration": "predicted", "seed": 11}
    betas = tuple(sampler.betas)
    expected |= {
        "beta_h": betas[0],
        "beta_J": betas[1],
        "programmed_with": betas,
        "effective_beta": (1.0, 1.0),
    }
    assert {key: info[key] for key in expected} == expected
    assert sampler.capabilities.law == "diabatic"


def test_circuit_of_one_problem_reproduces_the_probabilities() -> None:
    from qiskit.quantum_info import Statevector

    sampler, ising = quick(), make_problem((), 3, seed=12)
    circuit = sampler.circuit(ising)
    p = Statevector(circuit).probabilities()
    assert np.abs(p - sampler.state_probabilities(ising).numpy()).max() < 1e-10
    assert to_qasm3(circuit).startswith("OPENQASM 3")
    assert "rzz" not in sampler.circuit(Ising(torch.tensor([0.1, 0.2]))).count_ops()


S = np.linspace(0, 1, 41).tolist()


def test_schedule_from_a_csv_file(tmp_path: Path) -> None:
    """A protocol chooses from a file of several."""
    ramp, path, both = linear_ramp(6.0, 1.0, 4.0), tmp_path / "ramp.csv", tmp_path / "both.csv"
    path.write_text(
        "\n".join(["s,A_GHz,B_GHz", *(f"{s!r},{float(ramp.A(s))!r},{float(ramp.B(s))!r}" for s in S)]) + "\n"
    )
    from_file, direct = quick(schedule=str(path)), quick(schedule=ramp)
    ising = make_problem((2,), 3, seed=13)
    assert from_file.moments(ising).info["schedule"] == "ramp"
    assert tuple(from_file.betas) == pytest.approx(tuple(direct.betas), rel=1e-9)
    assert (from_file.state_probabilities(ising) - direct.state_probabilities(ising)).abs().max() < 1e-9
    lines = [f"{p},{s!r},{6 * (1 - s)!r},{x * s!r}" for p, x in (("fast", 1.0), ("standard", 2.0)) for s in S]
    both.write_text("\n".join(["protocol,s,A_GHz,B_GHz", *lines]) + "\n")
    fast, standard = (quick(schedule=str(both), protocol=word) for word in ("fast", "standard"))
    assert tuple(standard.betas) == pytest.approx([2 * beta for beta in fast.betas], rel=1e-9)
    with pytest.raises(
        ValueError, match="expected one protocol, got fast, standard; choose one with protocol="
    ):
        quick(schedule=str(both))
    with pytest.raises(ValueError, match="expected one protocol 'fast', got no such column"):
        quick(schedule=str(path), protocol="fast")
    with pytest.raises(FileNotFoundError, match=r"none\.csv"):
        quick(schedule=str(tmp_path / "none.csv"))


def test_other_protocol_order_and_precision() -> None:
    ising = make_problem((2,), 3, seed=14)
    base = quick().state_probabilities(ising)
    assert (quick(protocol="standard").state_probabilities(ising) - base).abs().max() > 1e-4
    assert (quick(order="first").state_probabilities(ising) - base).abs().max() > 1e-4
    single = (quick(precision="single").state_probabilities(ising) - base).abs().max()
    assert 0 < single < 1e-4


def test_the_default_grid_errs_no_more_than_equal_steps_and_has_fewer() -> None:
    """Mean total variation distance to the converged anneal, over 32 problems of four spins at g = 0.5."""
    anneal, random = schedule("Advantage2_system1"), np.random.default_rng(3)
    betas = predicted_beta(anneal, 5.0)
    adaptive, uniform = DQASampler().plan, trotter_plan("Advantage2_system1", 5.0)
    assert "adaptive" in adaptive.label
    assert "adaptive" not in DQASampler(order="first").plan.label
    assert adaptive.steps <= 0.75 * uniform.steps
    plans = {"adaptive": adaptive, "uniform": uniform}
    exact = trotter_plan(anneal, 5.0, 3200)
    errors: dict[str, list[float]] = {"adaptive": [], "uniform": []}
    for _ in range(4):
        upper = np.triu(random.normal(size=(4, 4)), 1) / 4 / betas.beta_J
        fields = 0.5 * random.normal(size=(8, 4)) / betas.beta_h
        true = reference_probabilities(exact, fields, upper + upper.T)
        for name, plan in plans.items():
            law = reference_probabilities(plan, fields, upper + upper.T)
            errors[name].extend(np.abs(law - true).sum(1) / 2)
    assert 1e-5 < np.mean(errors["adaptive"]) < np.mean(errors["uniform"]) < 1e-3


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_the_precision_follows_the_fields(engine: Any) -> None:
    ising = make_problem((3,), 4, seed=15)
    narrow, sampler = ising.to(torch.float32), quick(engine=engine)
    double, single = (sampler.moments(problem) for problem in (ising, narrow))
    assert (double.info["precision"], single.info["precision"]) == ("double", "single")
    assert double.probability.dtype == F64
    assert 0 < (single.probability - double.probability).abs().max() < 1e-5
    assert sampler.sample(narrow, 5, seed=1).info["precision"] == "single"
    for chosen in ("single", "double"):
        given = quick(engine=engine, precision=chosen)
        assert {given.moments(problem).info["precision"] for problem in (ising, narrow)} == {chosen}


def test_phases_that_single_precision_does_not_resolve_are_run_in_double() -> None:
    strong = Ising(torch.tensor([1e6, 0.5]), torch.tensor([[0.0, 0.1], [0.1, 0.0]]))
    with pytest.warns(OutOfRangeWarning):
        assert quick().moments(strong).info["precision"] == "double"
    with pytest.raises(ValueError, match="the limit of single precision"):
        quick(precision="single").moments(strong)


PLAN = TrotterPlan(np.array([0.3, 0.6]), np.array([0.2, 0.5]), np.array([1.2, 0.7]), "two layers")
KEY = "outside_range"


@pytest.fixture
def trained_plan(tmp_path: Path) -> str:
    save_plan(tmp_path / "two.json", PLAN, {"trained_range": {"max_field": 2.0, "max_row_norm": 1.0}})
    return str(tmp_path / "two.json")


def fields_of(*fields: float, coupling: float = 0.0, visible: torch.Tensor | None = None) -> Ising:
    n = len(fields)
    J = pack_couplings(torch.tensor([coupling] + [0.0] * (n * (n - 1) // 2 - 1)), n)
    return Ising(torch.tensor(fields), J, visible)


HIDING = torch.tensor([True, False, True])
QUIET: list[tuple[dict[str, Any], Ising, float | None]] = [
    ({}, fields_of(2.0, -2.0, 0.5, coupling=1.0), 0.0),
    # Invisible spins and their couplings do not count.
    ({}, fields_of(0.1, 9.0, 0.1, coupling=5.0, visible=HIDING), 0.0),
    ({}, fields_of(9.0, 9.0, visible=torch.tensor([False, False])), 0.0),
    ({"betas": (2.0, 2.0)}, fields_of(3.0, 0.0, coupling=1.9), 0.0),  # what is programmed counts
    ({"schedule": "boltzmann-16-wide"}, fields_of(6.0, -6.0), 0.0),
    # Plans without a promise and schedules say nothing.
    ({"schedule": PLAN}, fields_of(9.0, 9.0), None),
    ({"schedule": "Advantage2_system1", "annealing_time_ns": 2.0}, fields_of(9.0, 9.0), None),
    ({"learn_schedule": True}, fields_of(9.0, 9.0), None),
]


@pytest.mark.parametrize(("options", "ising", "outside"), QUIET)
def test_inside_there_is_no_warning(
    trained_plan: str, options: dict[str, Any], ising: Ising, outside: float | None
) -> None:
    sampler = DQASampler(**({"schedule": trained_plan} | options))
    assert sampler.moments(ising).info.get(KEY) == outside
    assert sampler.sample(ising, 3, seed=1).info.get(KEY) == outside


def test_outside_is_warned_of_once_and_always_counted(trained_plan: str) -> None:
    sampler = DQASampler(schedule=trained_plan)
    sampler.circuit(fields_of(2.5, 0.0))  # is not checked
    with pytest.warns(
        OutOfRangeWarning, match=r"50\.0% of the spins have \|h\| above 2 or .* 'two layers'"
    ) as seen:
        moments = sampler.moments(fields_of(2.5, 0.0))
    assert seen[0].filename == __file__
    assert "schedule='boltzmann-16-wide'" in str(seen[0].message)
    assert moments.info[KEY] == 0.5
    # The same sampler says it no more; another one does, as does the first call of another kind.
    assert sampler.sample(fields_of(0.0, 0.0, 0.0, coupling=1.5), 2, seed=0).info[KEY] == pytest.approx(2 / 3)
    with pytest.warns(OutOfRangeWarning) as again:
        DQASampler(schedule=trained_plan).sample(fields_of(2.5, 0.0), 2, seed=0)
    assert again[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutOfRangeWarning)
        assert DQASampler(schedule=trained_plan).moments(fields_of(2.5)).info[KEY] == 1.0
    assert not copy.deepcopy(DQASampler(schedule=trained_plan))._warned


def test_shipped_plans_go_by_their_names() -> None:
    sampler = DQASampler(schedule="boltzmann-4")
    assert sampler.anneal.name == "boltzmann-4"
    with pytest.warns(OutOfRangeWarning, match=r"\|h\| above 2\.8 .* 'boltzmann-4' was not trained"):
        sampler.moments(fields_of(4.0, 0.0))
    with pytest.warns(OutOfRangeWarning, match="may be far off; use a plan learned"):
        DQASampler(schedule="boltzmann-16-wide").moments(fields_of(7.0))


def test_fields_that_no_anneal_follows_are_warned_of() -> None:
    """A field of 1e4 in place of ``visible``: the spin comes out as anything."""
    sampler = DQASampler()
    assert KEY not in sampler.moments(fields_of(5.0, -9.0)).info
    assert sampler.moments(fields_of(30.0, -9.0)).info[KEY] == 0.0
    wanted = (
        r"33\.3% of the spins are programmed with \|h\| above 3\.\d+ \(h = 4\d.* leave spins out with visible"
    )
    with pytest.warns(OutOfRangeWarning, match=wanted):
        moments = sampler.moments(fields_of(-1e4, 0.1, 0.1))
    assert moments.info[KEY] == pytest.approx(1 / 3)
    assert float(moments.probability[0]) > 0.03  # the truth is 0
