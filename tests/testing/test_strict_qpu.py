"""The stand-in of a processor: every documented rule is broken once, and its law is what it says."""

from __future__ import annotations

from typing import Any

import dimod
import numpy as np
import pytest
import torch
from scipy import stats

from diabat.ising import Ising
from diabat.samplers.dqa import DQASampler
from diabat.testing import brute_force_states
from diabat.testing.qpu_rules import programmed
from diabat.testing.strict_qpu import StrictMockQPU

ALPHA = 1e-6
RAW = {"answer_mode": "raw"}
FAST = {"fast_anneal": True, "annealing_time": 0.005, "auto_scale": False}


def chip(**options: Any) -> Any:
    return StrictMockQPU(**{"topology_type": "zephyr", "topology_shape": [1, 4], **options})


def edge(qpu: Any) -> tuple[int, int]:
    return qpu.edgelist[0]


def triangle(qpu: Any) -> tuple[int, int, int]:
    """Three qubits that all couple to each other."""
    u, v = edge(qpu)
    return u, v, min(set(qpu.adjacency[u]) & set(qpu.adjacency[v]))


RULES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    # problem, keywords, sentence
    "h out of range": ({"h": 4.5}, {"auto_scale": False}, r"h: expected values in \[-4, 4\], got 4.5"),
    "J above the range": ({"J": 1.5}, {"auto_scale": False}, r"J: expected values in \[-2, 1\], got 1.5"),
    "J below the range": ({"J": -2.5}, {"auto_scale": False}, r"J: expected values in \[-2, 1\], got -2.5"),
    "too much on one qubit": (
        {"star": 1.0},
        {"auto_scale": False},
        r"J: expected sums over one qubit in \[-18, 15\], got",
    ),
    "h with a fast anneal": ({"h": 0.1}, FAST, "h: expected 0 with fast_anneal, got 0.1"),
    "too fast": ({}, {**FAST, "annealing_time": 0.004}, "annealing_time: expected 0.005 to 2000"),
    "fast time in ns": ({}, {**FAST, "annealing_time": 5000.0}, "annealing_time: expected 0.005 to 2000"),
    "too fast for the standard anneal": ({}, {"annealing_time": 0.005}, "annealing_time: expected 0.5 to 2000"),
    "schedule and time, fast": (
        {},
        {**FAST, "anneal_schedule": [[0, 0], [1, 1]]},
        "anneal_schedule: cannot be combined with annealing_time",
    ),
    "schedule and time": (
        {},
        {"annealing_time": 1.0, "anneal_schedule": [[0, 0], [1, 1]]},
        "anneal_schedule: cannot be combined with annealing_time",
    ),
    "pause in a fast anneal": (
        {},
        {"fast_anneal": True, "anneal_schedule": [[0, 0], [1, 0.5], [2, 0.5], [3, 1]]},
        r"anneal_schedule: expected two points \[\[0, 0\], \[t, 1\]\] with fast_anneal, got",
    ),
    "reverse fast anneal": (
        {},
        {"fast_anneal": True, "anneal_schedule": [[0, 1], [1, 1]]},
        "anneal_schedule: expected two points",
    ),
    "fast schedule too short": (
        {},
        {"fast_anneal": True, "anneal_schedule": [[0, 0], [0.001, 1]]},
        "annealing_time: expected 0.005",
    ),
    "initial state, fast": ({}, {**FAST, "initial_state": {}}, "initial_state: cannot be combined with fast_anneal"),
    "reinitialize, fast": ({}, {**FAST, "reinitialize_state": True}, "reinitialize_state: cannot be combined"),
    "h gain, fast": ({}, {**FAST, "h_gain_schedule": [[0, 0], [1, 1]]}, "h_gain_schedule: cannot be combined"),
    "time that falls": (
        {},
        {"anneal_schedule": [[0, 0], [5, 0.5], [4, 1]]},
        "anneal_schedule: expected times that rise",
    ),
    "s that falls": (
        {},
        {"anneal_schedule": [[0, 0], [5, 0.5], [6, 0.4], [9, 1]]},
        "anneal_schedule: expected s that rises",
    ),
    "s that ends below 1": ({}, {"anneal_schedule": [[0, 0], [5, 0.5]]}, "anneal_schedule: expected s in"),
    "slope": ({}, {"anneal_schedule": [[0, 0], [8, 0], [8.1, 1]]}, "anneal_schedule: expected slopes up to 2"),
    "long schedule": ({}, {"anneal_schedule": [[0, 0], [3000, 1]]}, "annealing_time: expected 0.5 to 2000"),
    "many points": (
        {},
        {"anneal_schedule": [[float(i), i / 12] for i in range(13)]},
        "anneal_schedule: expected 2 to 12 points, got 13",
    ),
    "reverse without a state": (
        {},
        {"anneal_schedule": [[0, 1], [5, 0.5], [9, 1]]},
        "initial_state: expected a state for a reverse anneal",
    ),
    "a state without a schedule": ({}, {"initial_state": {}}, "initial_state: expected an anneal_schedule"),
    "flux biases too short": (
        {},
        {"flux_biases": [0.0], "auto_scale": False},
        "flux_biases: expected 48 numbers, got 1",
    ),
    "flux biases and auto_scale": ({}, {"flux_biases": [0.0] * 48}, "flux_biases: expected auto_scale=False"),
    "flux biases NaN": ({}, {"flux_biases": [float("nan")] * 48, "auto_scale": False}, "flux_biases: expected finite"),
    "no reads": ({}, {"num_reads": 0}, r"num_reads: expected an integer in \[1, 10000\], got 0"),
    "too many reads": ({}, {"num_reads": 10_001}, "num_reads: expected an integer"),
    "too long a run": (
        {},
        {"num_reads": 10_000, "annealing_time": 1500.0},
        "num_reads: expected a run of at most 6665 reads, got 10000",
    ),
    "an unknown keyword": ({}, {"num_read": 5}, "num_read: this solver has no such parameter"),
    "an unknown answer mode": ({}, {"answer_mode": "hist"}, "answer_mode: expected 'histogram' or 'raw'"),
    "max_answers": ({}, {"num_reads": 5, "max_answers": 6}, "max_answers: expected 1 to num_reads = 5"),
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_kept(rule: str) -> None:
    problem, keywords, sentence = RULES[rule]
    qpu = chip()
    u, v = edge(qpu)
    J = {(u, v): problem.get("J", 0.0)}
    if "star" in problem:  # more than 15 couplers of +1 on one qubit of a larger chip
        qpu = chip(topology_shape=[2, 4])
        u = max(qpu.nodelist, key=lambda q: len(qpu.adjacency[q]))
        J = {(u, other): problem["star"] for other in qpu.adjacency[u]}
    with pytest.raises(ValueError, match=sentence):
        qpu.sample_ising({u: problem.get("h", 0.0)}, J, **keywords)
    assert qpu.answered == 0


@pytest.mark.parametrize("keywords", [
    FAST,
    {"fast_anneal": True, "anneal_schedule": [[0, 0], [0.01, 1]], "auto_scale": False},
    {"anneal_schedule": [[0, 0], [10, 0.5], [12, 0.5], [20, 1]]},
    {"anneal_schedule": [[0, 1], [5, 0.5], [9, 1]], "initial_state": {0: 1}},
    {"annealing_time": 20.0, "num_reads": 7},
])  # fmt: skip
def test_what_is_allowed_is_answered(keywords: dict[str, Any]) -> None:
    qpu = chip()
    found = qpu.sample_ising({}, {edge(qpu): -0.5}, **keywords)
    assert found.record.num_occurrences.sum() == keywords.get("num_reads", 1) == qpu.reads


def test_qubits_and_couplers_that_are_not_there_are_refused() -> None:
    qpu = chip(broken_nodes=[3])
    with pytest.raises(dimod.exceptions.BinaryQuadraticModelStructureError):
        qpu.sample_ising({3: 0.5}, {})


def test_histograms_are_the_default_and_raw_keeps_every_read() -> None:
    qpu = chip()
    u, v = edge(qpu)
    histogram = qpu.sample_ising({}, {(u, v): -1.0}, num_reads=100)
    assert len(histogram) <= 4
    assert histogram.record.num_occurrences.sum() == 100
    assert (np.diff(histogram.record.energy) >= 0).all()
    raw = qpu.sample_ising({}, {(u, v): -1.0}, num_reads=100, answer_mode="raw")
    assert len(raw) == 100
    assert len(qpu.sample_ising({}, {(u, v): -1.0}, num_reads=100, answer_mode="raw", max_answers=7)) == 7


def test_small_problems_are_scaled_up_unless_told_otherwise() -> None:
    """J = 0.1 becomes -2 by default: at beta = 1 the pair is then aligned in 98 % of 2000 reads, not in 55 %."""
    qpu = chip()
    u, v = edge(qpu)

    def aligned(**keywords: Any) -> float:
        found = qpu.sample_ising({}, {(u, v): -0.1}, num_reads=2000, answer_mode="raw", **keywords)
        return float((found.record.sample.prod(axis=1) > 0).mean())

    assert aligned() > 0.95
    assert 0.49 < aligned(auto_scale=False) < 0.61


def test_fields_and_couplings_are_scaled_by_one_factor() -> None:
    """0.4 and -0.1 become 4 and -1: h is at the end of its range, [-4, 4]."""
    h, J = programmed(np.array([0.4, 0.0]), np.array([[0, 1]]), np.array([-0.1]), {}, chip().properties)
    assert (*h, *J) == pytest.approx((4.0, 0.0, -1.0))


def test_answers_follow_the_boltzmann_law_of_the_programmed_values() -> None:
    """N = 20,000, alpha = 1e-6; a beta 10 % off gives p < 1e-20."""
    qpu = chip(beta=2.0)
    u, v, w = triangle(qpu)
    h, J = {u: 0.3, v: -0.5, w: 0.1}, {(u, v): 0.4, (v, w): -0.3, (u, w): 0.2}
    spins = np.concatenate(
        [
            _columns(qpu.sample_ising(h, J, num_reads=10_000, answer_mode="raw", auto_scale=False), [u, v, w])
            for _ in range(2)
        ]
    )

    def pvalue(beta: float) -> float:
        fields = -beta * torch.tensor([0.3, -0.5, 0.1], dtype=torch.float64)
        pairs = torch.tensor([[0, 0.4, 0.2], [0.4, 0, -0.3], [0.2, -0.3, 0]], dtype=torch.float64)
        law = brute_force_states(Ising(fields, -beta * pairs)).numpy()
        count = np.bincount((spins > 0) @ np.array([1, 2, 4]), minlength=8)
        return float(stats.chisquare(count, len(spins) * law).pvalue)

    assert pvalue(2.0) > ALPHA
    assert pvalue(2.2) < ALPHA


def _columns(found: Any, labels: list[int]) -> np.ndarray:
    return found.record.sample[:, [list(found.variables).index(label) for label in labels]]


def test_flux_biases_hold_qubits_against_the_sign_of_h() -> None:
    qpu = chip()
    u, v = edge(qpu)
    biases = [0.0] * 48
    biases[u], biases[v] = 0.005, -0.005
    found = qpu.sample_ising({}, {(u, v): 0.0}, flux_biases=biases, num_reads=200, **FAST)
    assert (_columns(found, [u, v]) == [1, -1]).all()


@pytest.mark.parametrize("options", [{}, {"tied_below": -1.5}])
def test_tied_chains_move_as_one(options: dict[str, float]) -> None:
    """A chain of J = -2 with a field on one end at beta = 5: P = σ(2·5·0.1), N = 4000, 4.9 standard errors."""
    qpu = chip(beta=5.0, **options)
    u, v = edge(qpu)
    found = qpu.sample_ising({u: -0.1}, {(u, v): -2.0}, num_reads=4000, auto_scale=False, answer_mode="raw")
    spins = _columns(found, [u, v])
    assert (spins[:, 0] == spins[:, 1]).all()
    p = 1 / (1 + np.exp(-1.0))
    assert abs((spins[:, 0] > 0).mean() - p) < 4.9 * np.sqrt(p * (1 - p) / 4000)


def test_same_seed_same_answers_one_after_the_other() -> None:
    def answers(seed: int) -> list[list[int]]:
        qpu = chip(seed=seed)
        J = {e: 0.1 for e in qpu.edgelist[:20]}
        return [qpu.sample_ising({}, J, answer_mode="raw").record.sample[0].tolist() for _ in range(3)]

    assert answers(1) == answers(1)
    assert answers(1) != answers(2)
    assert answers(1)[0] != answers(1)[1]


def test_failures_are_injected_and_submissions_counted() -> None:
    qpu = chip(fail_at=[2])
    pair = {edge(qpu): 0.5}
    qpu.sample_ising({}, pair)
    with pytest.raises(ConnectionError):
        qpu.sample_ising({}, pair)
    qpu.sample_ising({}, pair, num_reads=5)
    assert (qpu.calls, qpu.answered, qpu.reads) == (3, 2, 6)


def test_timing_grows_with_reads() -> None:
    qpu = chip()
    pair = {edge(qpu): 0.5}
    one, many = (qpu.sample_ising({}, pair, num_reads=n).info["timing"]["qpu_access_time"] for n in (1, 100))
    assert 15_000 < one < many < 30_000


def test_a_bad_beta_is_refused() -> None:
    with pytest.raises(ValueError, match="beta: expected a positive finite number"):
        chip(beta=0.0)


def test_options_that_it_does_not_have_are_refused() -> None:
    """Ocean's mock takes any name without a word."""
    with pytest.raises(TypeError, match="unexpected keyword argument 'law'"):
        chip(law="anneal")


def annealer(**options: Any) -> Any:
    return chip(schedule="Advantage2_system1", **options)


def test_an_anneal_follows_the_simulated_dynamics() -> None:
    """A held qubit beside a free pair, N = 10,000, alpha = 1e-6; a tenth of the time more gives p < 1e-6."""
    qpu = annealer()
    u, v, w = triangle(qpu)
    biases = [0.0] * 48
    biases[w] = -0.005
    J = {(u, v): -0.05, (u, w): 0.06, (v, w): -0.02}
    spins = _columns(qpu.sample_ising({}, J, num_reads=10_000, flux_biases=biases, **FAST, **RAW), [u, v, w])
    assert (spins[:, 2] == -1).all()
    # -J of the pair, and J times the held -1 as fields, with the sign of this package.
    problem = Ising(
        torch.tensor([0.06, -0.02], dtype=torch.float64),
        torch.tensor([[0, 0.05], [0.05, 0]], dtype=torch.float64),
    )

    def pvalue(time_ns: float) -> float:
        law = DQASampler(annealing_time_ns=time_ns, calibration="none").state_probabilities(problem).numpy()
        count = np.bincount((spins[:, :2] > 0) @ np.array([1, 2]), minlength=4)
        return float(stats.chisquare(count, len(spins) * law).pvalue)

    assert pvalue(5.0) > ALPHA
    assert pvalue(5.5) < ALPHA


def test_parts_of_an_anneal_are_independent_and_seeded() -> None:
    """Ferromagnetic pairs beside free qubits: N = 1000, |<s s'>| of others below 5 standard errors."""
    first, again, other = (annealer(seed=seed) for seed in (0, 0, 1))
    u, v = edge(first)
    x, y = next(e for e in first.edgelist if not {u, v} & set(e))
    J = {(u, v): -0.3, (x, y): -0.3}
    drawn = [
        _columns(qpu.sample_ising({}, J, num_reads=1000, **FAST, **RAW), [u, v, x, y])
        for qpu in (first, again, other)
    ]
    assert (drawn[0] == drawn[1]).all()
    assert (drawn[0] != drawn[2]).any()
    together = drawn[0].T.astype(float) @ drawn[0] / 1000
    assert min(together[0, 1], together[2, 3]) > 0.8
    assert np.abs(together[:2, 2:]).max() < 5 / 1000**0.5


@pytest.mark.parametrize(("options", "keywords", "sentence"), [
    ({}, {"annealing_time": 20.0}, "fast_anneal: expected True with a schedule"),
    ({}, {"fast_anneal": True}, "annealing_time: expected one with a schedule, got none"),
    ({}, {**FAST, "flux_biases": [1e-4] * 48}, "flux_biases: expected 0 or enough to hold a qubit with a schedule"),
    ({"schedule": "Advantage3"}, {}, "schedule: expected one of .*, got 'Advantage3'"),
    ({"tied_below": -1.5}, {}, "tied_below: expected None with a schedule"),
])  # fmt: skip
def test_what_an_anneal_refuses(options: dict[str, Any], keywords: dict[str, Any], sentence: str) -> None:
    def answer() -> None:
        qpu = chip(**{"schedule": "Advantage2_system1", **options})
        qpu.sample_ising({}, {edge(qpu): 0.1}, **keywords)

    with pytest.raises(ValueError, match=sentence):
        answer()


def test_large_parts_are_refused() -> None:
    qpu = annealer()
    with pytest.raises(ValueError, match="parts of at most 16 coupled qubits, got one of 48"):
        qpu.sample_ising({}, dict.fromkeys(qpu.edgelist, 0.1), **FAST)
