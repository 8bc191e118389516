"""Sampled indices against exact ones: limits, rates, standard errors, and how coalitions are drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from diabat.attention import games
from diabat.attention.games import draws

from .test_games_tables import F64, random_table, token_vectors

Sampled = Callable[..., games.Estimate]


def shapley_pairs(game: Any, count: int, **options: Any) -> games.Estimate:
    return games.sample_interaction(game, count, index="shapley", **options)


CASES: dict[str, tuple[Sampled, Callable[[Tensor], Tensor], dict[str, Any]]] = {
    "shapley": (games.sample_shapley, games.shapley, {}),
    "shapley antithetic": (games.sample_shapley, games.shapley, {"antithetic": True}),
    "shapley stratified": (games.sample_shapley, games.shapley, {"stratified": True}),
    "shapley both": (games.sample_shapley, games.shapley, {"stratified": True, "antithetic": True}),
    "banzhaf": (games.sample_banzhaf, games.banzhaf, {}),
    "banzhaf antithetic": (games.sample_banzhaf, games.banzhaf, {"antithetic": True}),
    "banzhaf pairs": (games.sample_interaction, games.banzhaf_interaction, {}),
    "banzhaf pairs antithetic": (games.sample_interaction, games.banzhaf_interaction, {"antithetic": True}),
    "shapley pairs": (shapley_pairs, games.shapley_interaction, {}),
    "shapley pairs both": (
        shapley_pairs,
        games.shapley_interaction,
        {"stratified": True, "antithetic": True},
    ),
}
GIBBS: dict[str, tuple[Sampled, dict[str, Any]]] = {
    "shapley": (games.sample_shapley, {}),
    "shapley stratified": (games.sample_shapley, {"stratified": True}),
    "banzhaf": (games.sample_banzhaf, {}),
    "banzhaf pairs": (games.sample_interaction, {}),
    "shapley pairs": (shapley_pairs, {}),
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


BAD: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: games.NormGame(torch.zeros(3, 2, dtype=torch.int64)), TypeError, "vectors: expected a floating"),
    (lambda: games.NormGame(torch.zeros(3)), ValueError, r"vectors: expected shape \[\*batch, n, d\]"),
    (lambda: games.NormGame(torch.zeros(3, 2), "sin"), ValueError, "f: expected one of identity, relu, tanh"),
    (lambda: games.NormGame(torch.zeros(3, 2), players=torch.ones(4, dtype=torch.bool)), ValueError,
     r"players: expected a shape that broadcasts to \[3\], got \[4\]"),
    (lambda: games.NormGame(torch.zeros(3, 2), players=torch.ones(3)), ValueError,
     "players: expected a bool"),
    (lambda: games.NormGame(torch.zeros(21, 2)).table(), ValueError, "vectors: expected at most 20 players"),
    (lambda: games.FunctionGame(3, 2), TypeError, "value: expected a function of masks, got int"),
    (lambda: games.FunctionGame(len, 0), ValueError, "num_players: expected an integer >= 1, got 0"),
]  # fmt: skip
OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"num_samples": 0}, ValueError, "num_samples: expected an integer >= 1, got 0"),
    ({"num_samples": True}, ValueError, "num_samples: expected an integer >= 1, got True"),
    ({"num_samples": 3, "antithetic": True}, ValueError,
     "num_samples: expected an even number with antithetic"),
    ({"weighting": "gips"}, ValueError, "weighting: expected one of uniform, gibbs, got 'gips'"),
    ({"weighting": "gibbs", "temperature": -1.0}, ValueError,
     "temperature: expected a positive finite number"),
    ({"weighting": "gibbs", "temperature": float("nan")}, ValueError, "temperature: expected a positive"),
    ({"seed": -1}, ValueError, "seed: expected an integer between 0"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "message"), BAD)
def test_bad_games_are_refused(call: Callable[[], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.parametrize(("options", "kind", "message"), OPTIONS)
def test_bad_options_are_refused(options: dict[str, Any], kind: type[Exception], message: str) -> None:
    game, _ = replicas(4, 1)
    for sampled in (games.sample_shapley, games.sample_banzhaf, games.sample_interaction):
        with pytest.raises(kind, match=message):
            sampled(game, **({"num_samples": 4} | options))


def test_bad_options_of_pairs_are_refused() -> None:
    game, _ = replicas(4, 1)
    with pytest.raises(ValueError, match="index: expected one of banzhaf, shapley, got 'myerson'"):
        games.sample_interaction(game, 4, index="myerson")
    with pytest.raises(ValueError, match="stratified: expected False with index='banzhaf'"):
        games.sample_interaction(game, 4, stratified=True)
