"""Gradients, padding, precision and memory of the sampled indices of token games."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from largest_tensor import LargestTensor
from torch import Tensor

from diabat.attention import games
from diabat.attention.games import pair_tile, pairs, predecessors

from .test_games_sampling import CASES
from .test_games_tables import F64, token_vectors

Sampled = Callable[..., games.Estimate]
SAMPLED: list[tuple[Sampled, dict[str, Any]]] = [
    (games.sample_shapley, {}),
    (games.sample_shapley, {"stratified": True}),
    (games.sample_banzhaf, {}),
    (games.sample_interaction, {}),
    (games.sample_interaction, {"index": "shapley", "antithetic": True}),
]


def use_tiles(monkeypatch: pytest.MonkeyPatch, elements: int = pair_tile.TILE) -> None:
    """Compute as on other devices than the CPU, in tiles of so many elements."""
    for module in (pairs, predecessors):
        monkeypatch.setattr(module, "_compiled", lambda _: False)
        monkeypatch.setattr(module, "TILE", elements)


@pytest.mark.parametrize("f", ["identity", "tanh"])
@pytest.mark.parametrize(("sampled", "options"), SAMPLED)
@pytest.mark.parametrize("weighting", ["uniform", "gibbs"])
@pytest.mark.parametrize("compiled", [True, False])
def test_gradcheck_at_fixed_coalitions(
    compiled: bool,
    weighting: str,
    sampled: Sampled,
    options: dict[str, Any],
    f: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In x, W_v and γ, with several tiles; central differences in float64 are good to about 1e-9."""
    if not compiled:
        use_tiles(monkeypatch, 64)
    g = torch.Generator().manual_seed(30)
    x = torch.randn(2, 5, 3, generator=g, dtype=F64).requires_grad_()
    W = (0.4 * torch.randn(4, 3, generator=g, dtype=F64)).requires_grad_()
    temperature = torch.tensor([0.6, 1.4], dtype=F64, requires_grad=weighting == "gibbs")
    players = torch.ones(2, 5, dtype=torch.bool)
    players[1, 2] = False

    def function(x: Tensor, W: Tensor, temperature: Tensor) -> Tensor:
        game = games.NormGame(x @ W.T, f, players)
        return sampled(
            game, 6, weighting=weighting, temperature=temperature, seed=3, diagnostics=False, **options
        ).value

    assert torch.autograd.gradcheck(function, (x, W, temperature), eps=1e-6, atol=1e-7)


@pytest.mark.parametrize("weighting", ["uniform", "gibbs"])
@pytest.mark.parametrize("index", ["banzhaf", "shapley"])
def test_tiles_change_rounding_only(index: Any, weighting: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    V = token_vectors(3, 6, 4, seed=31).requires_grad_()
    results = []
    for tile in (1, 100, 1 << 18):
        use_tiles(monkeypatch, tile)
        estimate = games.sample_interaction(
            games.NormGame(V), 8, index=index, weighting=weighting, antithetic=True, seed=4
        )
        (gradient,) = torch.autograd.grad(estimate.value.pow(2).sum(), V)
        results.append((estimate.value, estimate.standard_error, estimate.effective_samples, gradient))
    for other in results[:2]:
        torch.testing.assert_close(other, results[2], rtol=0, atol=1e-12)


def test_gradient_through_a_user_function() -> None:
    w = torch.tensor([0.3, -0.2, 0.5, 0.1], dtype=F64, requires_grad=True)

    def function(w: Tensor) -> Tensor:
        game = games.FunctionGame(lambda masks: torch.tanh(masks.to(F64) @ w), 4)
        parts = [s(game, 6, weighting="gibbs", seed=5, diagnostics=False, **o).value for s, o in SAMPLED]
        return torch.cat([part.flatten() for part in parts])

    assert torch.autograd.gradcheck(function, (w,), eps=1e-6, atol=1e-7)


@pytest.mark.parametrize("weighting", ["uniform", "gibbs"])
@pytest.mark.parametrize("case", CASES)
def test_padding_changes_nothing(case: str, weighting: str) -> None:
    """Padding at the end, in front or in between: the players keep their coalitions and their values."""
    sampled, _, options = CASES[case]
    V = token_vectors(1, 5, 3, seed=32)
    alone = sampled(games.NormGame(V), 8, weighting=weighting, seed=6, **options)
    for places in ([0, 1, 2, 3, 4], [3, 4, 5, 6, 7], [0, 2, 3, 6, 8]):
        padded, players = torch.full((1, 9, 3), 7.0, dtype=F64), torch.zeros(1, 9, dtype=torch.bool)
        padded[:, places], players[:, places] = V, True
        estimate = sampled(games.NormGame(padded, players=players), 8, weighting=weighting, seed=6, **options)
        for got, want in ((estimate.value, alone.value), (estimate.standard_error, alone.standard_error)):
            inside = got[:, places] if got.ndim == 2 else got[:, places][..., places]
            assert (inside - want).abs().max() < 1e-13
            assert got.abs().sum() - inside.abs().sum() < 1e-12  # zero elsewhere


def test_a_sequence_does_not_depend_on_its_neighbours() -> None:
    V = token_vectors(3, 6, 3, seed=33)
    for sampled, options in SAMPLED:
        together = sampled(games.NormGame(V), 8, seed=7, **options).value
        alone = sampled(games.NormGame(V[:1]), 8, seed=7, **options).value
        assert (together[:1] - alone).abs().max() < 1e-13


@pytest.mark.parametrize("weighting", ["uniform", "gibbs"])
@pytest.mark.parametrize(("sampled", "options"), SAMPLED)
def test_norms_of_zero_have_a_subgradient(sampled: Sampled, options: dict[str, Any], weighting: str) -> None:
    """Zero vectors, vectors that cancel, one player, no players: finite values and gradients, in both precisions."""
    for dtype in (torch.float32, F64):
        a = token_vectors(1, 3, seed=34, dtype=dtype)
        for V in (torch.zeros(1, 4, 3, dtype=dtype), torch.cat((a, -a, a, -a))[None], a[None]):
            for players in (None, torch.zeros(V.shape[:-1], dtype=torch.bool)):
                V = V.clone().requires_grad_()
                game = games.NormGame(V, players=players)
                estimate = sampled(game, 6, weighting=weighting, seed=8, **options)
                (gradient,) = torch.autograd.grad(estimate.value.sum() + 0 * V.sum(), V)
                assert torch.isfinite(estimate.value).all()
                assert torch.isfinite(gradient).all()
                # A rounded zero must not be taken for a small norm with a huge derivative.
                assert float(gradient.abs().max()) < 20
                if players is not None or not V.any():
                    assert not estimate.value.any()
                    assert not gradient.any()


def test_values_of_cancelling_vectors() -> None:
    a = token_vectors(1, 3, seed=35, dtype=torch.float32)
    game = games.NormGame(torch.cat((a, -a, a)))
    norm = float(a.norm())
    table = game.table()
    assert table.tolist() == pytest.approx([0, norm, norm, 0, norm, 2 * norm, 0, norm], rel=1e-6, abs=0)
    whole, single = game.toggles(torch.tensor([[True, True, False], [False, False, False]]))
    assert whole.tolist() == [0, 0]
    assert single[0].tolist() == pytest.approx([norm] * 3, rel=1e-6)


@pytest.mark.parametrize(("sampled", "options"), SAMPLED)
def test_float32_at_512_players(sampled: Sampled, options: dict[str, Any]) -> None:
    """Against float64 with the same coalitions; Gibbs weights near their degenerate end (2^-511, 255!) stay finite."""
    V = token_vectors(1, 512, 16, seed=36, scale=0.3)
    for weighting, temperature in (("uniform", 1.0), ("gibbs", 1e-2)):
        estimates = []
        for dtype in (torch.float32, F64):
            vectors = V.to(dtype).requires_grad_()
            estimate = sampled(
                games.NormGame(vectors), 4, weighting=weighting, temperature=temperature, seed=9, **options
            )
            assert estimate.value.dtype == dtype
            (gradient,) = torch.autograd.grad(estimate.value.square().sum(), vectors)
            assert torch.isfinite(gradient).all()
            assert torch.isfinite(estimate.value).all()
            estimates.append(estimate.value.detach().double())
        scale = float(estimates[1].abs().max()) + 1e-5
        # Log-weights of a few hundred, rounded, are exponents: at γ = 0.01 they are good to 1e-3 or so.
        assert float((estimates[0] - estimates[1]).abs().max()) < (1e-2 if temperature < 1 else 1e-4) * scale


def test_half_precision_is_computed_in_float32() -> None:
    V = token_vectors(1, 6, 4, seed=37).to(torch.bfloat16)
    value = games.sample_shapley(games.NormGame(V), 8, seed=1).value
    assert value.dtype == torch.float32
    assert torch.equal(value, games.sample_shapley(games.NormGame(V.float()), 8, seed=1).value)


@pytest.mark.parametrize("weighting", ["uniform", "gibbs"])
def test_memory_is_linear_in_kn_plus_n_squared(weighting: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No tensor of K n² elements exists at any time, backward included."""
    use_tiles(monkeypatch, 1 << 10)
    batch, n, K = 1, 24, 48
    V = token_vectors(batch, n, 4, seed=38).requires_grad_()
    with LargestTensor() as largest:
        game = games.NormGame(V)
        total = torch.zeros((), dtype=F64)
        for sampled, options in SAMPLED:
            total = total + sampled(game, K, weighting=weighting, seed=1, **options).value.square().sum()
        total.backward()
    assert V.grad is not None
    assert largest.numel >= batch * n * n  # it did see the tables
    assert largest.numel <= batch * (3 * K * n + 2 * n * n)  # K n² would be eight times as much
