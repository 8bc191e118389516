"""Sampled indices of token games: gradients, padding, precision and memory; compiled code and torch agree."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from largest_tensor import LargestTensor
from layers import F64
from torch import Tensor

from diabat.attention import games
from diabat.attention.games import (
    compiled_pairs,
    order_kernel,
    pair_gradient_kernel,
    pair_kernel,
    pair_tile,
    pairs,
    predecessors,
)
from diabat.attention.warm_up import GROUPS

from .test_games import CASES, Sampled, token_vectors

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


WEIGHTINGS = ("uniform", "gibbs")
FUNCTIONS = ("identity", "tanh")


def players(batch: int, n: int) -> Tensor:
    """All in the first problem, none in the second, else about three of four."""
    there = torch.rand(batch, n, generator=torch.Generator().manual_seed(1)) < 0.75
    there[0], there[1] = True, False
    return there


def everything(sampled: Sampled, V: Tensor, there: Tensor | None, f: str, **options: Any) -> list[Tensor]:
    """Value, standard error, effective samples, and gradients in V and γ for random cotangents."""
    V = V.clone().requires_grad_()
    gamma = torch.linspace(0.5, 1, len(V), dtype=V.dtype).requires_grad_()
    estimate = sampled(games.NormGame(V, f, there), temperature=gamma, seed=3, **options)
    u = torch.randn(estimate.value.shape, generator=torch.Generator().manual_seed(2), dtype=F64).to(V)
    gradients = torch.autograd.grad((estimate.value * u).sum(), (V, gamma), allow_unused=True)
    found = [estimate.value, estimate.standard_error, estimate.effective_samples, *gradients]
    return [part.detach() for part in found if part is not None]


@pytest.mark.parametrize("n", [1, 7, 16, 41])
@pytest.mark.parametrize("f", FUNCTIONS)
@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize(("sampled", "options"), SAMPLED)
def test_compiled_code_and_torch_agree(
    sampled: Sampled, options: dict[str, Any], weighting: str, f: str, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole and partly filled vectors, several strips of columns, and players that are missing."""
    V, there = token_vectors(3, n, 5, seed=40, scale=0.4), players(3, n)
    options = {"num_samples": 6, "weighting": weighting, **options}
    compiled = everything(sampled, V, there, f, **options)
    use_tiles(monkeypatch)
    for a, b in zip(compiled, everything(sampled, V, there, f, **options), strict=True):
        finite = torch.isfinite(b)
        assert torch.equal(finite, torch.isfinite(a))
        assert float((a - b)[finite].abs().max()) < 1e-11


@pytest.mark.parametrize("exponent", [-50, 44])
def test_pairs_of_tiny_and_huge_vectors(exponent: int) -> None:
    """Powers of two scale everything without rounding: nothing overflows or vanishes on the way."""
    V = token_vectors(1, 20, 4, seed=43, dtype=torch.float32)[0]
    results = []
    for scale in (1.0, 2.0**exponent):
        leaf = (scale * V).requires_grad_()
        value = games.sample_interaction(games.NormGame(leaf), 4, seed=2).value
        (gradient,) = torch.autograd.grad(value.sum(), leaf)
        results.append((value / scale, gradient))
    torch.testing.assert_close(*results, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_threads_change_nothing(weighting: Any, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit by bit, also where several threads share a problem."""
    monkeypatch.setattr(compiled_pairs, "_PLAYERS_PER_RANGE", 20)
    V, there = token_vectors(3, 70, 4, seed=44, scale=0.3, dtype=dtype), players(3, 70)
    positions = torch.rand(3, 4, 70, generator=torch.Generator().manual_seed(3)).argsort(-1)
    results = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        found = everything(games.sample_interaction, V, there, "tanh", num_samples=4, weighting=weighting)
        gram = (V @ V.mT).requires_grad_()
        dots = predecessors.predecessor_dots(gram, positions)
        (gradient,) = torch.autograd.grad(dots, gram, positions.to(dtype))
        results.append([*found, dots, gradient])
    for other in results[1:]:
        torch.testing.assert_close(results[0], other, rtol=0, atol=0)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_cotangents_of_what_is_no_pair_do_not_matter(weighting: Any) -> None:
    """Not even NaN: on the diagonal, and of padding."""
    V, there = token_vectors(3, 20, 4, seed=48), players(3, 20)
    pair = there[:, :, None] & there[:, None, :] & ~torch.eye(20, dtype=torch.bool)
    gradients: list[Tensor] = []
    for other in (0.0, torch.nan):
        leaf = V.clone().requires_grad_()
        value = games.sample_interaction(
            games.NormGame(leaf, players=there), 4, weighting=weighting, seed=1
        ).value
        assert not value.detach()[~pair].any()
        gradients += torch.autograd.grad(value, leaf, torch.where(pair, 1.0, other).to(V))
    assert torch.equal(*gradients)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_arrays_are_linear_in_kn_plus_n_squared(weighting: Any) -> None:
    """Memory of the compiled code, backward included; K n² would be four times as much."""
    n, K = 128, 96
    V = token_vectors(1, n, 4, seed=46).requires_grad_()
    game = games.NormGame(V)
    tracemalloc.start()
    try:
        games.sample_interaction(game, K, weighting=weighting, seed=1).value.sum().backward()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert n * n < peak / 8 < K * n * n / 4


def test_every_kernel_is_compiled_ahead() -> None:
    """One version per precision and kernel; other sizes and options add none."""
    GROUPS["token games"]()
    kernels: list[Any] = [
        pair_kernel.run_means,
        pair_kernel.run_errors,
        pair_gradient_kernel.run_gradients,
        order_kernel.add_before,
    ]
    before = [list(kernel.signatures) for kernel in kernels]
    assert [len(signatures) for signatures in before] == [2] * len(kernels)
    for dtype, f, weighting, n in product((torch.float32, F64), FUNCTIONS, WEIGHTINGS, (1, 16, 19)):
        V = token_vectors(2, n, 4, seed=47, dtype=dtype)
        for sampled, options in SAMPLED:
            everything(sampled, V, None, f, num_samples=4, weighting=weighting, **options)
    assert [list(kernel.signatures) for kernel in kernels] == before


@pytest.fixture(scope="module")
def on_vectors() -> Callable[[str, Any], Any]:
    """Apply a function of vectors to numbers whose count is a multiple of 16."""
    import numba

    from diabat.compute import simd, simd_functions

    loads, stores = simd.load, simd.store

    def compiled(name: str) -> Any:
        function = getattr(simd_functions, name)

        def run(x: Any, out: Any) -> None:
            for row in range(len(x)):
                stores(out, row, function(loads(x, row)))

        return numba.njit(run)

    def apply(name: str, x: Any) -> Any:
        rows = x.reshape(-1, 64 // x.itemsize)
        out = np.empty_like(rows)
        compiled(name)(rows, out)
        return out.reshape(-1)

    return apply


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["exponential", "logarithm", "tanh", "square_root"])
def test_functions_of_vectors(on_vectors: Any, name: str, dtype: Any) -> None:
    """Within 3 roundings of numpy in a wider type, over the whole range."""
    reference = {"exponential": np.exp, "logarithm": np.log, "tanh": np.tanh, "square_root": np.sqrt}[name]
    single = dtype is np.float32
    large = 80 if single else 700
    if name == "exponential":
        x = np.concatenate([np.linspace(-large, large, 4096), np.linspace(-1e-3, 1e-3, 512)])
    elif name == "tanh":
        x = np.concatenate([np.linspace(-30, 30, 4096), np.geomspace(1e-30, 1, 512)])
    else:
        x = np.concatenate([np.geomspace(1e-30, 1e30, 4096), np.linspace(0.5, 2, 512)])
    x = x.astype(dtype)
    expected = reference(x.astype(np.longdouble))
    error = np.abs(on_vectors(name, x) - expected)
    assert (error <= 3 * np.finfo(dtype).eps * np.abs(expected)).all()
