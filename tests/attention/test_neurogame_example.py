"""The worked example of arXiv:2603.18761, section 5 ("not good movie"): what follows and what does not.

Three decimals throughout.  docs/games.md has the table of all numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

import diabat
from diabat.attention import games
from diabat.attention.explanation import mean_field_residual
from diabat.attention.neurogame import PAPER_MEAN_FIELD, token_ising

F64 = torch.float64
# v of ∅, {1}, {2}, {1,2}, {3}, {1,3}, {2,3}, {1,2,3}
TABLE = torch.tensor([0, 0.2, 0.5, 1.2, 0.4, 0.8, 1.0, 1.8], dtype=F64)
SAMPLED = [{1}, {0, 2}, {1, 2}]  # C_1, C_2, C_3 with tokens from 0
ROUNDED = (0.25, 0.34, 0.41)  # the weights of the three, as the paper has them
FIELDS = torch.tensor([0.423, 0.711, 0.512], dtype=F64)
PAIRS = torch.tensor([[0, 0.466, 0.312], [0.466, 0, 0.278], [0.312, 0.278, 0]], dtype=F64)


def v(coalition: set[int]) -> float:
    return float(TABLE[sum(1 << i for i in coalition)])


def second_difference(coalition: set[int], i: int, j: int) -> float:
    B = coalition - {i, j}
    return v(B | {i, j}) - v(B | {i}) - v(B | {j}) + v(B)


def mean(weights: Sequence[float], terms: Sequence[float]) -> float:
    return sum(w * x for w, x in zip(weights, terms, strict=True))


def spins(iterations: int) -> list[float]:
    """Eq. 25 from 0, undamped."""
    h, J = token_ising(FIELDS, PAIRS, 1.0)
    m = torch.zeros(3, dtype=F64)
    for _ in range(iterations):
        m = torch.tanh(h + J @ m)
    return m.tolist()


def test_weighted_marginals_of_the_second_token() -> None:
    raw = [math.exp(v(C)) for C in SAMPLED]
    assert raw == pytest.approx([1.649, 2.226, 2.718], abs=5e-4)  # paper: 1.65, 2.23, 2.72
    assert sum(raw) == pytest.approx(6.593, abs=5e-4)  # paper: 6.60, the sum of the rounded numbers
    weights = [w / sum(raw) for w in raw]
    assert weights == pytest.approx([0.250, 0.338, 0.412], abs=5e-4)  # paper: 0.25, 0.34, 0.41
    terms = [v(C | {1}) - v(C - {1}) for C in SAMPLED]
    assert terms == pytest.approx([0.5, 1.0, 0.6])
    # With the weights as the paper rounds them 0.711; unrounded 0.710.
    assert mean(ROUNDED, terms) == pytest.approx(0.711)
    assert mean(weights, terms) == pytest.approx(0.710, abs=5e-4)
    assert mean((0.6, 0.4), (0.711, 0.711)) == pytest.approx(0.711)  # J_2, with the gate 0.6


def test_interaction_of_the_first_two_tokens() -> None:
    """The context of C_3 = {2,3} is {3}, where eq. 8 gives 0.4; the paper writes the 0.5 of the empty context."""
    terms = [second_difference(C, 0, 1) for C in SAMPLED]
    assert terms == pytest.approx([0.5, 0.4, 0.4])
    assert mean(ROUNDED, [0.5, 0.4, 0.5]) == pytest.approx(0.466)
    assert mean(ROUNDED, terms) == pytest.approx(0.425)


def test_weights_of_equation_33_belong_to_the_context() -> None:
    """Eq. 33 weighs v(C without i), and p differs for "Shapley": 0.768 and 0.727 from the same coalitions."""
    contexts = [C - {1} for C in SAMPLED]
    terms = torch.tensor([[v(B | {1}) - v(B)] for B in contexts], dtype=F64)
    half = torch.tensor([[v(B)] for B in contexts], dtype=F64)
    p = [math.factorial(len(B)) * math.factorial(2 - len(B)) / 2 for B in contexts]
    permuted = half - torch.tensor(p, dtype=F64)[:, None].log()
    banzhaf, shapley = (
        games.estimate.weighted_mean(terms, logits, unit=1, diagnostics=False).value
        for logits in (half, permuted)
    )
    assert banzhaf.item() == pytest.approx(0.768, abs=5e-4)
    assert shapley.item() == pytest.approx(0.727, abs=5e-4)


def test_exact_indices_of_the_example() -> None:
    assert games.shapley(TABLE).tolist() == pytest.approx([0.517, 0.767, 0.517], abs=5e-4)
    assert games.banzhaf(TABLE).tolist() == pytest.approx([0.525, 0.775, 0.525], abs=5e-4)
    assert games.gibbs_marginal(TABLE, 1.0).tolist() == pytest.approx([0.601, 0.815, 0.549], abs=6e-4)
    i, j = [0, 0, 1], [1, 2, 2]
    assert games.banzhaf_interaction(TABLE)[i, j].tolist() == pytest.approx([0.45, 0.15, 0.05], abs=5e-4)
    assert games.gibbs_interaction(TABLE, 1.0)[i, j].tolist() == pytest.approx(
        [0.440, 0.138, 0.045], abs=5e-4
    )


def test_first_two_mean_field_iterations() -> None:
    """The paper prints 0.400, 0.611, 0.471 and 0.693, 0.773, 0.668: three of the six are one off in the last digit."""
    assert spins(1) == pytest.approx([0.3995, 0.6113, 0.4715], abs=5e-5)
    assert spins(2) == pytest.approx([0.6937, 0.7732, 0.6677], abs=5e-5)
    assert spins(1) == pytest.approx([0.400, 0.611, 0.471], abs=6e-4)
    assert spins(2) == pytest.approx([0.693, 0.773, 0.668], abs=8e-4)
    printed = math.tanh(0.423 + 0.466 * 0.611 + 0.312 * 0.471)
    assert printed == pytest.approx(0.6935, abs=5e-5)


def test_fixed_point_and_exact_marginals() -> None:
    """The paper's "converged" 0.721, 0.798, 0.703 are neither; nor is any undamped iterate."""
    problem = diabat.Ising(*token_ising(FIELDS, PAIRS, 1.0))
    paper = [0.721, 0.798, 0.703]
    fixed = diabat.sampler("mean_field", tolerance=1e-12).moments(problem)
    assert fixed.magnetization.tolist() == pytest.approx([0.786, 0.859, 0.760], abs=5e-4)
    assert spins(5) == pytest.approx([0.784, 0.858, 0.758], abs=5e-4)
    settings = diabat.sampler("mean_field", **PAPER_MEAN_FIELD).moments(problem)
    assert settings.info["converged"]
    assert settings.magnetization.tolist() == pytest.approx([0.786, 0.859, 0.760], abs=5e-4)
    exact = diabat.sampler("exact").moments(problem).magnetization
    assert exact.tolist() == pytest.approx([0.718, 0.794, 0.709], abs=5e-4)
    for iteration in range(1, 30):
        assert spins(iteration) != pytest.approx(paper, abs=2e-2)
    assert exact.tolist() != pytest.approx(paper, abs=2e-3)


def test_four_iterations_damped_by_the_paper_s_factor_come_closest() -> None:
    """0.721, 0.808, 0.703: two of the three printed numbers, and the third but for one digit."""
    m = torch.zeros(3, dtype=F64)
    for _ in range(4):
        m = torch.lerp(m, torch.tanh(FIELDS + PAIRS @ m), 0.7)
    assert m.tolist() == pytest.approx([0.721, 0.808, 0.703], abs=5e-4)


def test_attention_weights_are_half_of_one_plus_spin() -> None:
    alphas = [(1 + m) / 2 for m in (0.721, 0.798, 0.703)]
    assert alphas == pytest.approx([0.861, 0.899, 0.852], abs=6e-4)
    problem = diabat.Ising(*token_ising(FIELDS, PAIRS, 1.0))
    weights = diabat.sampler("mean_field", tolerance=1e-12).moments(problem).probability
    assert weights.tolist() == pytest.approx([0.893, 0.929, 0.880], abs=5e-4)
    assert diabat.sampler("exact").moments(problem).probability.tolist() == pytest.approx(
        [0.859, 0.897, 0.854], abs=5e-4
    )


@pytest.mark.parametrize("temperature", [0.25, 1.0, 3.0])
def test_the_mapping_of_the_hamiltonian_by_enumeration(temperature: float) -> None:
    """P ∝ exp(-H/γ) with H of eq. 10 over s = ±1, summed state by state."""
    problem = diabat.Ising(*token_ising(FIELDS, PAIRS, temperature))
    up, total = torch.zeros(3, dtype=F64), 0.0
    for state in range(8):
        s = [1 if state >> i & 1 else -1 for i in range(3)]
        H = -sum(float(FIELDS[i]) * s[i] for i in range(3))
        H -= sum(float(PAIRS[i, j]) * s[i] * s[j] for i in range(3) for j in range(i + 1, 3))
        weight = math.exp(-H / temperature)
        total += weight
        up += weight * torch.tensor([(x + 1) / 2 for x in s], dtype=F64)
    exact = diabat.sampler("exact").moments(problem).probability
    assert (exact - up / total).abs().max() < 1e-14


def test_one_temperature_for_each_problem_of_a_batch() -> None:
    gamma = torch.tensor([0.5, 2.0], dtype=F64)
    h, J = token_ising(FIELDS.expand(2, 3), PAIRS.expand(2, 3, 3), gamma)
    for k, g in enumerate((0.5, 2.0)):
        single = token_ising(FIELDS, PAIRS, g)
        assert torch.equal(h[k], single[0])
        assert torch.equal(J[k], single[1])


def test_residual_is_that_of_the_mean_field_equations() -> None:
    h, J = token_ising(FIELDS, PAIRS, 1.0)
    visible = torch.ones(3, dtype=torch.bool)
    fixed = diabat.sampler("mean_field", tolerance=1e-12).moments(diabat.Ising(h, J)).probability
    assert float(mean_field_residual(h, J, fixed, visible)) < 1e-11
    exact = diabat.sampler("exact").moments(diabat.Ising(h, J)).probability
    assert float(mean_field_residual(h, J, exact, visible)) > 0.01
