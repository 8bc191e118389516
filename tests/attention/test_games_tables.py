"""Exact indices against their definitions, the axioms, and shapiq."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from diabat.attention import games

F64 = torch.float64
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


def test_second_derivative_of_the_transform() -> None:
    v = random_table(3, seed=14).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda t: games.mobius(t).pow(3), v, eps=1e-6, atol=1e-6)


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


BAD: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: games.mobius(torch.zeros(6)), ValueError, r"table: expected shape \[..., 2\^n\], got \[6\]"),
    (lambda: games.mobius(torch.zeros(8, dtype=torch.int64)), TypeError, "table: expected a floating tensor"),
    (lambda: games.shapley([0.0, 1.0]), TypeError, "table: expected a floating tensor, got list"),
    (lambda: games.shapley(torch.zeros(1 << 21)), ValueError, "table: expected at most 20 players, got 21"),
    (lambda: games.k_sii(torch.zeros(8), 4), ValueError, "order: expected an integer in 1 .. 3, got 4"),
    (lambda: games.k_sii(torch.zeros(8), True), ValueError, "order: expected an integer in 1 .. 3, got True"),
    (lambda: games.all_coalitions(21), ValueError, "n: expected an integer in 0 .. 20, got 21"),
    (lambda: games.gibbs_marginal(torch.zeros(8), 0.0), ValueError,
     "temperature: expected a positive finite"),
    (lambda: games.gibbs_marginal(torch.zeros(8), True), ValueError,
     "temperature: expected a positive finite number, got True"),
    (lambda: games.gibbs_marginal(torch.zeros(2, 8), torch.tensor([1.0, -1.0])), ValueError,
     "temperature: expected positive finite numbers, got a smallest of -1"),
    (lambda: games.value_table(lambda m: m.sum(-1), 3), TypeError, "value: expected a function that returns"),
    (lambda: games.value_table(lambda m: m.sum().float(), 3), ValueError,
     r"value: expected values \[..., 8\] of 8 coalitions, got \[\]"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "message"), BAD)
def test_bad_tables_are_refused(call: Callable[[], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_vectors_whose_squares_overflow_are_refused(value: float) -> None:
    vectors = torch.ones(2, 3, 4)
    vectors[1, 2, 0] = value
    with pytest.raises(ValueError, match=r"^vectors: expected vectors V_i small enough to be squared"):
        games.NormGame(vectors)
    players = torch.tensor([True, True, False])
    assert games.NormGame(vectors, players=players).table().isfinite().all()
