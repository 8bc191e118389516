"""Compiled sums over pairs and permutations: the same in torch, from vectors, in closed form, on several threads."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from diabat.attention import games
from diabat.attention.games import (
    compiled_pairs,
    order_kernel,
    pair_gradient_kernel,
    pair_kernel,
    predecessors,
)
from diabat.attention.warm_up import GROUPS

from .test_games_gradients import SAMPLED, Sampled, use_tiles
from .test_games_tables import F64, token_vectors

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
