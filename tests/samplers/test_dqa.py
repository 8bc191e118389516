from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from diabat.circuits import linear_ramp, predicted_beta, reference_probabilities, schedule, to_qasm3
from diabat.ising import Ising, IsingError
from diabat.samplers import UnsupportedError
from diabat.samplers.dqa import DQASampler
from diabat.testing import brute_force, state_table
from diabat.testing.problems import causal_problem, make_problem, with_visible

from .goodness import g_test

ALPHA = 1e-6
F64 = torch.float64


def quick(**options: Any) -> DQASampler:
    """A short anneal: 2 ns need more than 46 steps."""
    return DQASampler(**({"annealing_time_ns": 2.0, "steps": 60} | options))


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
    assert moments.correlation is not None
    assert (moments.probability - p @ (s > 0).double()).abs().max() < 1e-12
    assert (moments.correlation - torch.einsum("qx,xj,xk->qjk", p, s, s)).abs().max() < 1e-12


def test_calibration_none_programs_the_numbers_as_they_are() -> None:
    plain, calibrated = quick(calibration="none"), quick()
    ising = make_problem((3,), 4, seed=3)
    assert ising.couplings is not None
    beta_h, beta_J = plain.betas
    rescaled = Ising(ising.fields / beta_h, ising.couplings / beta_J)
    assert (plain.state_probabilities(rescaled) - calibrated.state_probabilities(ising)).abs().max() < 1e-12
    assert plain.moments(ising).info["effective_beta"] == (beta_h, beta_J)
    assert calibrated.moments(ising).info["effective_beta"] == (1.0, 1.0)


@pytest.mark.parametrize("time", [2.0, 5.0])
def test_weak_problems_are_boltzmann_at_beta_one_to_first_order(time: float) -> None:
    """Errors are of second order: halving the problem quarters them."""
    sampler = DQASampler(annealing_time_ns=time)
    errors = []
    for scale in (0.04, 0.02):
        ising = make_problem((4,), 4, seed=4, fields=scale, couplings=scale)
        moments, want = sampler.moments(ising, correlations=True), brute_force(ising)
        assert moments.correlation is not None
        assert want.correlation is not None
        error = (moments.magnetization - want.magnetization).abs().max()
        pairs = (moments.correlation - want.correlation).abs().max()
        errors.append((float(error), float(pairs)))
        # One common beta would leave a first-order error of 1 - beta_h / beta_J, about 8 % of scale.
        assert max(errors[-1]) < 0.04 * scale + 6 * scale**2
    # The rest of first order is the Trotter error of the grid.
    assert errors[1][1] < 0.6 * errors[0][1]


def test_fields_and_couplings_have_betas_of_their_own() -> None:
    sampler = quick()
    assert sampler.betas == predicted_beta(schedule("Advantage2_system1"), 2.0)
    assert sampler.betas.beta_J > 1.05 * sampler.betas.beta_h


def test_invisible_spins_are_not_in_the_circuit() -> None:
    sampler, base = quick(), make_problem((2, 4), 4, lead="heads", seed=5)
    visible = torch.tensor([[True, False, True, True]])
    loud = Ising(torch.where(visible, base.fields, 9.0), base.couplings, visible)
    moments = sampler.moments(loud, correlations=True)
    keep = [0, 2, 3]
    assert base.couplings is not None
    small = Ising(base.fields[..., keep], base.couplings[..., keep, :][..., keep])
    want = sampler.moments(small, correlations=True)
    assert moments.correlation is not None
    assert want.correlation is not None
    assert (moments.probability[..., keep] - want.probability).abs().max() < 1e-12
    assert (moments.correlation[..., keep, :][..., keep] - want.correlation).abs().max() < 1e-12
    assert not moments.probability[..., 1].any()
    assert not moments.correlation[..., 1, :].any()


def test_causal_window_in_the_dtype_of_the_fields() -> None:
    ising = causal_problem(4, seed=6, dtype=torch.float32)
    moments = quick().moments(ising, correlations=True)
    assert moments.probability.dtype == torch.float32
    assert torch.equal(moments.probability > 0, ising.visible_mask)
    first = quick().moments(Ising(ising.fields[0, :1])).probability
    assert float(moments.probability[0, 0]) == pytest.approx(float(first[0]), abs=1e-6)


def test_samples_follow_the_state_probabilities() -> None:
    """G-test of all 16 states of 4 problems: N = 100,000 reads, alpha = 1e-6."""
    sampler, ising = quick(), make_problem((2, 2), 4, lead="heads", seed=7)
    samples = sampler.sample(ising, 100_000, seed=1)
    table = sampler.state_probabilities(ising).flatten(0, 1)
    assert g_test(samples.spins.flatten(1, 2), table) > ALPHA
    # The same reads do not follow the Boltzmann law, and the test sees it.
    from diabat.samplers.exact import ExactSampler

    assert (
        g_test(samples.spins.flatten(1, 2), ExactSampler().state_probabilities(ising).flatten(0, 1)) < ALPHA
    )


def test_seeds() -> None:
    sampler, ising = quick(), causal_problem(4, seed=8)
    first = sampler.sample(ising, 50, seed=3)
    assert torch.equal(sampler.sample(ising, 50, seed=3).spins, first.spins)
    assert not torch.equal(sampler.sample(ising, 50, seed=4).spins, first.spins)
    assert (first.spins[:, ~ising.visible_mask] == -1).all()


def test_sampled_moments() -> None:
    sampler, ising = quick(num_reads=200), make_problem((2,), 3, seed=9)
    moments = sampler.moments(ising, correlations=True, seed=5)
    spins = sampler.sample(ising, 200, seed=5).spins
    assert torch.allclose(moments.probability, (spins > 0).double().mean(0))
    assert (moments.num_reads, moments.info["seed"]) == (200, 5)
    assert moments.standard_error is not None
    assert moments.correlation is not None


def test_info() -> None:
    sampler = quick()
    samples = sampler.sample(make_problem((2,), 3), 4, seed=11)
    expected = {
        "backend": "dqa",
        "law": "diabatic",
        "engine": "aer",
        "schedule": "Advantage2_system1",
        "annealing_time_ns": 2.0,
        "steps": 60,
        "calibration": "predicted",
        "beta_h": sampler.betas.beta_h,
        "beta_J": sampler.betas.beta_J,
        "seed": 11,
    }
    assert {key: samples.info[key] for key in expected} == expected
    assert sampler.capabilities.law == "diabatic"


def test_circuit_of_one_problem_reproduces_the_probabilities() -> None:
    from qiskit.quantum_info import Statevector

    sampler, ising = quick(), make_problem((), 3, seed=12)
    circuit = sampler.circuit(ising)
    p = Statevector(circuit).probabilities()
    assert np.abs(p - sampler.state_probabilities(ising).numpy()).max() < 1e-10
    assert to_qasm3(circuit).startswith("OPENQASM 3")


def test_circuit_without_couplings() -> None:
    assert "rzz" not in quick().circuit(Ising(torch.tensor([0.1, 0.2]))).count_ops()


def test_schedule_from_a_csv_file(tmp_path: Path) -> None:
    ramp = linear_ramp(6.0, 1.0, 4.0)
    path = tmp_path / "ramp.csv"
    s = np.linspace(0, 1, 41)
    rows = [
        f"{x!r},{a!r},{b!r}"
        for x, a, b in zip(s.tolist(), ramp.A(s).tolist(), ramp.B(s).tolist(), strict=True)
    ]
    path.write_text("\n".join(["s,A_GHz,B_GHz", *rows]) + "\n")
    from_file, direct = quick(schedule=str(path)), quick(schedule=ramp)
    ising = make_problem((2,), 3, seed=13)
    assert from_file.moments(ising).info["schedule"] == "ramp"
    assert tuple(from_file.betas) == pytest.approx(tuple(direct.betas), rel=1e-9)
    assert (from_file.state_probabilities(ising) - direct.state_probabilities(ising)).abs().max() < 1e-9
    with pytest.raises(FileNotFoundError, match=r"none\.csv"):
        quick(schedule=str(tmp_path / "none.csv"))


def test_other_protocol_order_and_precision() -> None:
    ising = make_problem((2,), 3, seed=14)
    base = quick().state_probabilities(ising)
    assert (quick(protocol="standard").state_probabilities(ising) - base).abs().max() > 1e-4
    assert (quick(order="first").state_probabilities(ising) - base).abs().max() > 1e-4
    single = (quick(precision="single").state_probabilities(ising) - base).abs().max()
    assert 0 < single < 1e-4


UNREADABLE: Any = 3
OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"engine": "qpu"}, "engine: expected 'aer'.*, got 'qpu'"),
    ({"calibration": "fitted"}, "calibration: expected 'predicted' or 'none', got 'fitted'"),
    ({"schedule": "Advantage2_system9"}, "did you mean 'Advantage2_system"),
    ({"schedule": UNREADABLE}, "schedule: expected a name, a CSV path or an AnnealingSchedule, got 3"),
    ({"protocol": "slow"}, "protocol: expected 'fast' or 'standard', got 'slow'"),
    ({"annealing_time_ns": 0.0}, "annealing"),
    ({"annealing_time_ns": float("nan")}, "annealing"),
    ({"steps": 10}, "steps"),
    ({"order": "second"}, "order"),
    ({"precision": "half"}, "precision"),
    ({"num_reads": 0}, "num_reads: expected an integer >= 1, got 0"),
]


@pytest.mark.parametrize(
    ("options", "message"), OPTIONS, ids=[f"{next(iter(o))}-{i}" for i, (o, _) in enumerate(OPTIONS)]
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        quick(**options)


def test_problems_it_cannot_run() -> None:
    sampler = quick()
    limit = sampler.capabilities.max_spins
    assert limit is not None
    with pytest.raises(UnsupportedError, match=f"accepts at most {limit} visible spins, got {limit + 1}"):
        sampler.moments(Ising(torch.zeros(limit + 1)))
    with pytest.raises(UnsupportedError, match="three_body: sampler 'dqa' accepts fields and couplings only"):
        sampler.circuit(make_problem((), 3, three_body=1.0))
    with pytest.raises(IsingError, match=re.escape("expected one problem [n], got a batch [2, 3]")):
        sampler.circuit(make_problem((2,), 3))
    hidden = with_visible(make_problem((), 2), torch.tensor([True, False]))
    with pytest.raises(UnsupportedError, match="need every spin visible"):
        sampler.state_probabilities(hidden)
