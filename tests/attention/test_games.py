"""Token games: exact indices against their definitions, the axioms and shapiq; sampled ones against exact ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from layers import F64
from scipy import stats
from torch import Tensor

from diabat.attention import games
from diabat.attention.games import draws

INDICES: dict[str, Callable[[Tensor], Tensor]] = {
    "shapley": games.shapley,
    "banzhaf": games.banzhaf,
    "shapley_interaction": games.shapley_interaction,
    "banzhaf_interaction": games.banzhaf_interaction,
}


def random_table(n: int, *batch: int, seed: int = 0) -> Tensor:
    return torch.randn(*batch, 1 << n, generator=torch.Generator().manual_seed(seed), dtype=F64)


def token_vectors(*shape: int, seed: int = 0, scale: float = 1.0, dtype: torch.dtype = F64) -> Tensor:
    """Vectors with a common part, as tokens have."""
    g = torch.Generator().manual_seed(seed)
    vectors = torch.randn(*shape, generator=g, dtype=F64) + 0.5 * torch.randn(
        shape[-1], generator=g, dtype=F64
    )
    return (scale * vectors).to(dtype)


def code(*players: int) -> int:
    return sum(1 << i for i in players)


def subsets(players: list[int]) -> list[tuple[int, ...]]:
    return [c for size in range(len(players) + 1) for c in itertools.combinations(players, size)]


def interaction(v: Tensor, B: tuple[int, ...], i: int, j: int) -> float:
    return float(v[code(*B, i, j)] - v[code(*B, i)] - v[code(*B, j)] + v[code(*B)])


def test_shapley_is_the_average_over_all_permutations() -> None:
    v = random_table(5)
    expected = np.zeros(5)
    for order in itertools.permutations(range(5)):
        for at, i in enumerate(order):
            expected[i] += float(v[code(*order[: at + 1])] - v[code(*order[:at])]) / math.factorial(5)
    assert games.shapley(v).numpy() == pytest.approx(expected, abs=1e-13)


def test_banzhaf_is_the_average_over_all_coalitions() -> None:
    v = random_table(5, seed=1)
    for i in range(5):
        contexts = subsets([p for p in range(5) if p != i])
        expected = sum(float(v[code(*B, i)] - v[code(*B)]) for B in contexts) / 16
        assert float(games.banzhaf(v)[i]) == pytest.approx(expected, abs=1e-13)


def test_interactions_are_weighted_second_differences() -> None:
    n, v = 5, random_table(5, seed=2)
    sii, bii = games.shapley_interaction(v), games.banzhaf_interaction(v)
    for i, j in itertools.permutations(range(n), 2):
        contexts = subsets([p for p in range(n) if p not in (i, j)])
        second = [interaction(v, B, i, j) for B in contexts]
        weight = [
            math.factorial(len(B)) * math.factorial(n - 2 - len(B)) / math.factorial(n - 1) for B in contexts
        ]
        assert float(sii[i, j]) == pytest.approx(float(np.dot(weight, second)), abs=1e-13)
        assert float(bii[i, j]) == pytest.approx(float(np.mean(second)), abs=1e-13)
    assert not sii.diagonal().any()
    assert not bii.diagonal().any()


@pytest.mark.parametrize("temperature", [0.4, 3.0])
@pytest.mark.parametrize("proposal", ["permutation", "bernoulli"])
def test_limit_of_the_gibbs_weights_is_the_same_for_both_proposals(temperature: float, proposal: str) -> None:
    """Σ p (e^{v/γ}/p) Δ / Σ p (e^{v/γ}/p) with each p spelled out: φ and β have one limit, for players and pairs."""
    n, v = 5, random_table(5, seed=3)

    def weighted(contexts: list[tuple[int, ...]], terms: list[float]) -> float:
        m = len(contexts).bit_length() - 1
        total = value = 0.0
        for B, term in zip(contexts, terms, strict=True):
            p = 1 / ((m + 1) * math.comb(m, len(B))) if proposal == "permutation" else 0.5**m
            w = p * (math.exp(float(v[code(*B)]) / temperature) / p)
            total, value = total + w, value + w * term
        return value / total

    for i, j in itertools.combinations(range(n), 2):
        contexts = subsets([p for p in range(n) if p != i])
        expected = weighted(contexts, [float(v[code(*B, i)] - v[code(*B)]) for B in contexts])
        assert float(games.gibbs_marginal(v, temperature)[i]) == pytest.approx(expected, abs=1e-12)
        contexts = subsets([p for p in range(n) if p not in (i, j)])
        expected = weighted(contexts, [interaction(v, B, i, j) for B in contexts])
        pairs = games.gibbs_interaction(v, temperature)
        assert float(pairs[i, j]) == float(pairs[j, i]) == pytest.approx(expected, abs=1e-12)


def test_hot_gibbs_weights_give_banzhaf() -> None:
    v = random_table(6, 2, seed=4)
    assert (games.gibbs_marginal(v, 1e9) - games.banzhaf(v)).abs().max() < 1e-8
    assert (games.gibbs_interaction(v, 1e9) - games.banzhaf_interaction(v)).abs().max() < 1e-8
    hot_and_cold = games.gibbs_marginal(v, torch.tensor([1e9, 0.5], dtype=F64))
    assert (hot_and_cold[0] - games.banzhaf(v)[0]).abs().max() < 1e-8
    assert (hot_and_cold[1] - games.gibbs_marginal(v[1], 0.5)).abs().max() < 1e-13


def test_mobius_is_the_signed_sum_over_subsets_and_its_inverse_undoes_it() -> None:
    v = random_table(4, 3, seed=7)
    m = games.mobius(v)
    for S in subsets(list(range(4))):
        expected = sum((-1) ** (len(S) - len(T)) * v[:, code(*T)] for T in subsets(list(S)))
        assert (m[:, code(*S)] - expected).abs().max() < 1e-13
    large = random_table(12, 2, seed=8)
    assert (games.inverse_mobius(games.mobius(large)) - large).abs().max() < 1e-11
    assert games.mobius(v[0, :1]).tolist() == v[0, :1].tolist()  # no players


def test_transforms_leave_their_input_alone() -> None:
    v = random_table(5, seed=9)
    kept = v.clone()
    for function in (games.mobius, games.inverse_mobius, games.k_sii, *INDICES.values()):
        function(v)
    assert torch.equal(v, kept)


@pytest.mark.parametrize("order", [1, 2, 3, 6])
def test_k_sii_distributes_the_worth_of_all(order: int) -> None:
    v = random_table(6, 2, seed=10)
    values = games.k_sii(v, order)
    assert (values.sum(-1) - v[:, -1]).abs().max() < 1e-11
    sizes = games.all_coalitions(6).sum(-1)
    assert not values[:, sizes > order].any()
    if order == 1:
        assert (values[:, [1 << i for i in range(6)]] - games.shapley(v)).abs().max() < 1e-12
    if order == 2:
        pairs = games.shapley_interaction(v)
        assert (values[:, code(1, 4)] - pairs[:, 1, 4]).abs().max() < 1e-12
        alone = games.shapley(v) - pairs.sum(-1) / 2
        assert (values[:, [1 << i for i in range(6)]] - alone).abs().max() < 1e-12
    if order == 6:  # then the values are the dividends
        assert (values - games.mobius(v)).abs().max() < 1e-10


@pytest.mark.filterwarnings("ignore")  # of the other library
def test_against_shapiq() -> None:
    shapiq = pytest.importorskip("shapiq")
    n, v = 10, random_table(10, seed=11)
    powers = 1 << np.arange(n)
    computer = shapiq.ExactComputer(lambda masks: v.numpy()[masks.astype(int) @ powers], n)

    def theirs(index: str, order: int) -> dict[tuple[int, ...], float]:
        found = computer(index, order=order)
        return {S: float(found[S]) for S in subsets(list(range(n))) if 0 < len(S) <= order}

    for index, ours in (("SV", games.shapley(v)), ("BV", games.banzhaf(v))):
        assert [theirs(index, 1)[(i,)] for i in range(n)] == pytest.approx(ours.tolist(), abs=1e-12)
    for index, pairs in (("SII", games.shapley_interaction(v)), ("BII", games.banzhaf_interaction(v))):
        for (i, j), value in ((S, x) for S, x in theirs(index, 2).items() if len(S) == 2):
            assert float(pairs[i, j]) == pytest.approx(value, abs=1e-12)
    for order in (2, 3):
        ours = games.k_sii(v, order)
        for S, value in theirs("k-SII", order).items():
            assert float(ours[code(*S)]) == pytest.approx(value, abs=1e-11)
    dividends = games.harsanyi_dividends(v)
    for S, value in theirs("Moebius", n).items():
        assert float(dividends[code(*S)]) == pytest.approx(value, abs=1e-11)


@pytest.mark.parametrize("function", [games.mobius, games.inverse_mobius, games.k_sii, *INDICES.values()])
def test_gradcheck_of_exact_tables(function: Callable[[Tensor], Tensor]) -> None:
    assert torch.autograd.gradcheck(
        function, random_table(4, 2, seed=12).requires_grad_(), eps=1e-6, atol=1e-8
    )


def test_gradcheck_of_gibbs_limits() -> None:
    temperature = torch.tensor([0.7, 1.5], dtype=F64, requires_grad=True)
    v = random_table(3, 2, seed=13).requires_grad_()
    for function in (games.gibbs_marginal, games.gibbs_interaction):
        assert torch.autograd.gradcheck(function, (v, temperature), eps=1e-6, atol=1e-8)


@pytest.mark.parametrize("f", ["identity", "relu", "tanh"])
def test_table_of_a_norm_game(f: str) -> None:
    V = token_vectors(2, 6, 3, scale=0.3)
    game = games.NormGame(V, f)
    masks = games.all_coalitions(6).to(F64)
    norms = (masks @ V).norm(dim=-1)
    expected = norms.tanh() if f == "tanh" else norms
    assert (game.table() - expected).abs().max() < 1e-14
    assert not game.table()[:, 0].any()
    assert (game.value(games.all_coalitions(6)) - expected).abs().max() < 1e-14


def test_value_table_of_a_function() -> None:
    v = random_table(5, 3, seed=15)
    powers = 1 << torch.arange(5)
    assert torch.equal(games.value_table(lambda masks: v[:, masks.long() @ powers], 5), v)
    assert torch.equal(games.FunctionGame(lambda masks: v[:, masks.long() @ powers], 5).table(), v)


Sampled = Callable[..., games.Estimate]


def shapley_pairs(game: Any, count: int, **options: Any) -> games.Estimate:
    return games.sample_interaction(game, count, index="shapley", **options)


BOTH = {"stratified": True, "antithetic": True}
CASES: dict[str, tuple[Sampled, Callable[[Tensor], Tensor], dict[str, Any]]] = {
    "shapley": (games.sample_shapley, games.shapley, {}),
    "shapley antithetic": (games.sample_shapley, games.shapley, {"antithetic": True}),
    "shapley stratified": (games.sample_shapley, games.shapley, {"stratified": True}),
    "shapley both": (games.sample_shapley, games.shapley, BOTH),
    "banzhaf": (games.sample_banzhaf, games.banzhaf, {}),
    "banzhaf antithetic": (games.sample_banzhaf, games.banzhaf, {"antithetic": True}),
    "banzhaf pairs": (games.sample_interaction, games.banzhaf_interaction, {}),
    "banzhaf pairs antithetic": (games.sample_interaction, games.banzhaf_interaction, {"antithetic": True}),
    "shapley pairs": (shapley_pairs, games.shapley_interaction, {}),
    "shapley pairs both": (shapley_pairs, games.shapley_interaction, BOTH),
}
GIBBS = {
    name: CASES[name][::2]
    for name in ("shapley", "shapley stratified", "banzhaf", "banzhaf pairs", "shapley pairs")
}


def replicas(n: int, count: int, f: str = "identity", scale: float = 1.0) -> tuple[games.NormGame, Tensor]:
    """The same game ``count`` times, each with coalitions of its own, and its table."""
    V = token_vectors(1, n, 4, seed=20, scale=scale)
    return games.NormGame(V.expand(count, n, 4), f), games.NormGame(V, f).table()


def off_diagonal(x: Tensor) -> Tensor:
    if x.ndim == 2:
        return x
    i, j = torch.triu_indices(x.shape[-1], x.shape[-1], offset=1)
    return x[..., i, j]


def demand_mean(values: Tensor, exact: Tensor, alpha: float) -> None:
    """t-test of the mean of replicas [R, m] in every entry, at alpha over all entries."""
    R = values.shape[0]
    t = (values.mean(0) - exact) / (values.std(0) / R**0.5)
    smallest = 2 * stats.t.sf(float(t.abs().max()), R - 1)
    assert smallest * t.numel() > alpha


@pytest.mark.parametrize("case", CASES)
def test_uniform_estimates_are_unbiased(case: str) -> None:
    """N = 1000 replicas of K = 4 draws; alpha = 1e-6 over all entries."""
    sampled, exact, options = CASES[case]
    game, table = replicas(6, 1000, "tanh", scale=0.3)
    values = sampled(game, 4, seed=1, diagnostics=False, **options).value
    demand_mean(off_diagonal(values), off_diagonal(exact(table)), alpha=1e-6)


@pytest.mark.parametrize("case", GIBBS)
def test_gibbs_estimates_converge_to_the_gibbs_weighted_contribution(case: str) -> None:
    """n = 6, K = 8000, 20 replicas; alpha = 1e-6 of a t-test.  φ and β have the same limit, which is neither index.

    The bias of a ratio, of order 1/K, is some twenty times below the standard error of the mean here.
    """
    sampled, options = GIBBS[case]
    game, table = replicas(6, 20)
    temperature = 0.7
    value = off_diagonal(
        sampled(
            game, 8000, weighting="gibbs", temperature=temperature, seed=3, diagnostics=False, **options
        ).value
    )
    pairs = "pairs" in case
    limit = (games.gibbs_interaction if pairs else games.gibbs_marginal)(table, temperature)
    demand_mean(value, off_diagonal(limit), alpha=1e-6)
    # The test would see the index instead of the limit.
    index = (games.shapley_interaction if pairs else games.shapley)(table)
    with pytest.raises(AssertionError):
        demand_mean(value, off_diagonal(index), alpha=1e-6)


@pytest.mark.parametrize("case", [*CASES, *(f"gibbs {name}" for name in GIBBS)])
def test_standard_errors_are_calibrated(case: str) -> None:
    """n = 6, 600 replicas: mean of ((estimate - exact)/error)² is 1 ± 0.3 (alpha < 1e-6, entries fully dependent).

    Stratified draws are more even than independent ones: there the mean may only be smaller.
    """
    if case.startswith("gibbs "):
        sampled, options = GIBBS[case.removeprefix("gibbs ")]
        options = {"weighting": "gibbs", "temperature": 1.5, **options}
    else:
        sampled, _, options = CASES[case]
    game, table = replicas(6, 600)
    estimate = sampled(game, 200, seed=4, **options)
    exact = (
        (games.gibbs_interaction if "pairs" in case else games.gibbs_marginal)(table, 1.5)
        if "weighting" in options
        else CASES[case][1](table)
    )
    z = off_diagonal(estimate.value - exact) / off_diagonal(estimate.standard_error)
    calibration = float(z.square().mean())
    assert calibration < 1.3
    assert calibration > 0.7 or options.get("stratified")


def test_effective_samples_are_those_of_the_weights() -> None:
    game, _ = replicas(6, 2)
    uniform = games.sample_shapley(game, 10, seed=5)
    assert (uniform.effective_samples - 10).abs().max() < 1e-10
    for sampled, options in GIBBS.values():
        hot, cold = (
            sampled(game, 10, weighting="gibbs", temperature=t, seed=5, **options).effective_samples
            for t in (1e9, 1e-3)
        )
        # The best context takes all; coalitions that differ in the player only share it.
        assert 1 <= float(off_diagonal(cold).mean()) < 4
        if not options and sampled is not games.sample_shapley and sampled is not shapley_pairs:
            assert float((hot - 10).abs().max()) < 1e-6


def test_a_single_draw_has_no_standard_error() -> None:
    game, _ = replicas(5, 1)
    for estimate in (games.sample_shapley(game, 1), games.sample_banzhaf(game, 2, antithetic=True)):
        assert torch.isinf(estimate.standard_error).all()
    pairs = games.sample_interaction(game, 1).standard_error
    assert torch.isinf(off_diagonal(pairs)).all()
    assert not pairs.diagonal(dim1=-2, dim2=-1).any()


@pytest.mark.parametrize("f", ["identity", "tanh"])
@pytest.mark.parametrize("weighting", ["uniform", "gibbs"])
@pytest.mark.parametrize("case", CASES)
def test_gram_arithmetic_against_norms_from_scratch(case: str, weighting: str, f: str) -> None:
    """The same coalitions, each value by a norm over the sum of vectors: value, error and effective number agree."""
    sampled, _, options = CASES[case]
    V = token_vectors(7, 3, seed=21, scale=0.4)

    def norm(masks: Tensor) -> Tensor:
        norms = (masks.to(F64) @ V).norm(dim=-1)
        return norms.tanh() if f == "tanh" else norms

    ours, scratch = (
        sampled(game, 12, weighting=weighting, temperature=0.3, seed=7, **options)
        for game in (games.NormGame(V, f), games.FunctionGame(norm, 7))
    )
    assert (ours.value - scratch.value).abs().max() < 1e-13
    for a, b in (
        (ours.standard_error, scratch.standard_error),
        (ours.effective_samples, scratch.effective_samples),
    ):
        assert (a - b).abs().max() < 1e-11


def test_function_games_share_coalitions_over_a_batch() -> None:
    """A value function of two games: N = 4000 draws, alpha = 1e-6 by the standard errors."""
    table = random_table(5, 2, seed=22)
    powers = 1 << torch.arange(5)
    game = games.FunctionGame(lambda masks: table[:, masks.long() @ powers], 5)
    for sampled, exact, options in CASES.values():
        estimate = sampled(game, 4000, seed=8, **options)
        z = off_diagonal(estimate.value - exact(table)) / off_diagonal(estimate.standard_error)
        assert float(z.abs().max()) < 5.7
        alone = sampled(games.FunctionGame(lambda m: table[0, m.long() @ powers], 5), 4000, seed=8, **options)
        assert torch.equal(alone.value, estimate.value[0])


def test_same_seed_same_coalitions() -> None:
    game, _ = replicas(6, 2)
    for sampled, _, options in CASES.values():
        first, again, other = (sampled(game, 8, seed=s, **options).value for s in (9, 9, 9 + 2**32))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)  # all bits of the seed count
        assert not torch.equal(first[0], first[1])  # two problems, two streams


@pytest.mark.parametrize("antithetic", [False, True])
def test_law_of_the_coalitions(antithetic: bool) -> None:
    """Sizes uniform on 0 .. n and predecessors of each player uniform on 0 .. n-1: N = 20000, alpha = 1e-6 each."""
    n, K = 4, 20000
    players = torch.ones(n, dtype=torch.bool)
    sized = draws.sized_coalitions(players, K, 10, antithetic=antithetic)
    half = draws.half_coalitions(players, K, 10, antithetic=antithetic)
    order = draws.permutations(players, K, 10, antithetic=antithetic)
    assert torch.equal(order.sort(-1).values, torch.arange(n).expand(K, n))
    every = 2 if antithetic else 1  # partners are not independent
    for counts in (
        torch.bincount(sized.sum(-1)[::every], minlength=n + 1),
        torch.bincount(half.long()[::every] @ (1 << torch.arange(n)), minlength=1 << n),
        *(torch.bincount(order[::every, i], minlength=n) for i in range(n)),
    ):
        assert stats.chisquare(counts.numpy()).pvalue > 1e-6
    subsets_of_two = sized[::every][sized[::every].sum(-1) == 2].long() @ (1 << torch.arange(n))
    counts = torch.bincount(subsets_of_two, minlength=1 << n)
    assert stats.chisquare(counts[counts > 0].numpy()).pvalue > 1e-6
    assert int((counts > 0).sum()) == 6
    if antithetic:
        assert torch.equal(sized[::2], ~sized[1::2])
        assert torch.equal(half[::2], ~half[1::2])
        assert torch.equal(order[::2], n - 1 - order[1::2])


def test_stratified_sizes_cover_all_sizes_evenly() -> None:
    sizes = draws.sized_coalitions(torch.ones(9, dtype=torch.bool), 20, 11, stratified=True).sum(-1)
    assert torch.bincount(sizes, minlength=10).tolist() == [2] * 10


@pytest.mark.parametrize(
    ("sampled", "exact", "option", "factor"),
    [
        (games.sample_shapley, games.shapley, "antithetic", 0.5),
        (games.sample_banzhaf, games.banzhaf, "antithetic", 0.5),
        (shapley_pairs, games.shapley_interaction, "stratified", 1.0),
    ],
)
def test_variance_reduction_is_one(sampled: Sampled, exact: Any, option: str, factor: float) -> None:
    """100 replicas at n = 10, K = 64: antithetic draws halve the error of players, stratified sizes lessen it."""
    game, table = replicas(10, 100)
    plain, reduced = (sampled(game, 64, seed=12, **{option: on}).value - exact(table) for on in (False, True))
    assert float(reduced.square().mean()) < factor * float(plain.square().mean())
