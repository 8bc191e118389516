"""The compiled sweep against one written out spin by spin, on given uniform numbers."""

from __future__ import annotations

import math
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from diabat.samplers import heat_bath as module
from diabat.samplers.heat_bath import Array, heat_bath, turning_fields


def random_groups(shape: tuple[int, int, int, int], *, seed: int, cubic: bool = False) -> tuple[Any, ...]:
    """Spins [G, m, Q, R], h [G, Q, m], symmetric J [G, m, m] and K [G, m, m, m] or None."""
    groups, m, problems, _ = shape
    rng = np.random.default_rng(seed)
    J, K = np.zeros((groups, m, m)), np.zeros((groups, m, m, m))
    for j, k in combinations(range(m), 2):
        J[:, j, k] = J[:, k, j] = 0.5 * rng.normal(size=groups)
    for j, k, n in combinations(range(m), 3):
        value = 0.4 * rng.normal(size=groups)
        for a, b, c in ((j, k, n), (j, n, k), (k, j, n), (k, n, j), (n, j, k), (n, k, j)):
            K[:, a, b, c] = value
    h = 0.6 * rng.normal(size=(groups, problems, m))
    spins = (2 * rng.integers(0, 2, shape) - 1).astype(np.int8)
    return spins, h, J, K if cubic else None


def up_probability(j: int, s: Array, h: Array, J: Array, K: Array | None) -> float:
    """P(s_j = +1 | rest) of one read s [m] by its definition, one term at a time."""
    rest = [k for k in range(len(s)) if k != j]
    f = float(h[j]) + sum(float(J[j, k] * s[k]) for k in rest)
    if K is not None:
        f += sum(float(K[j, k, n] * s[k] * s[n]) for k, n in combinations(rest, 2))
    return 1 / (1 + math.exp(-2 * f))


def swept(spins: Any, h: Array, J: Array, K: Array | None, numbers: list[Array]) -> Any:
    """Reference: plain loops, a spin is up if its uniform number is below its probability."""
    s = spins.copy()
    groups, m, problems, reads = s.shape
    for u in numbers:
        for g, q, r in np.ndindex(groups, problems, reads):
            one = s[g, :, q, r]
            for j in range(m):
                p = up_probability(j, one, h[g, q], J[g], None if K is None else K[g])
                one[j] = 1 if u[g, j, q, r] < p else -1
    return s


@pytest.mark.parametrize("cubic", [False, True])
@pytest.mark.parametrize("m", [1, 2, 4, 5, 7, 9])
def test_sweeps_are_those_of_the_definition(m: int, cubic: bool) -> None:
    """m below, at and above the four couplings of a pass; 3 x 67 lanes are more than one block."""
    spins, h, J, K = random_groups((2, m, 3, 67), seed=m, cubic=cubic)
    numbers = [np.random.default_rng(100 + i).random(spins.shape) for i in range(2)]
    want = swept(spins, h, J, K, numbers)
    queue = iter(numbers)
    heat_bath(spins, h, J, K, sweeps=2, uniforms=lambda shape: next(queue))
    assert np.array_equal(spins, want)


@pytest.mark.parametrize("cubic", [False, True])
def test_a_spin_turns_exactly_at_its_conditional_probability(cubic: bool) -> None:
    """u = p (1 - 1e-12) leaves it up, u = p (1 + 1e-12) down, whatever the states of the others."""
    m = 5
    for seed in range(20):
        start, h, J, K = random_groups((1, m, 1, 1), seed=seed, cubic=cubic)
        wanted = np.random.default_rng(seed).integers(0, 2, m)
        s, u = start[0, :, 0, 0].copy(), np.empty((1, m, 1, 1))
        for j in range(m):
            p = up_probability(j, s, h[0, 0], J[0], None if K is None else K[0])
            u[0, j] = p * (1 - 1e-12 if wanted[j] else 1 + 1e-12)
            s[j] = 2 * wanted[j] - 1
        heat_bath(start, h, J, K, sweeps=1, uniforms=partial(np.reshape, u))
        assert np.array_equal(start[0, :, 0, 0], s)


def test_turning_fields_invert_the_sigmoid() -> None:
    # Multiples of 2^-53, as generators give.
    u = np.round(np.array([2.0**-53, 1e-9, 0.1, 0.5, 0.7, 1 - 2.0**-53]) * 2**53) / 2**53
    kept = u.copy()
    f = turning_fields(u)
    assert np.array_equal(u, kept)
    # σ(2f) for f < 0 and 1 - σ(2f) for f > 0 keep their relative precision.
    low, high = np.exp(2 * f[:4]) / (1 + np.exp(2 * f[:4])), np.exp(-2 * f[4:]) / (1 + np.exp(-2 * f[4:]))
    assert np.allclose(low, u[:4], rtol=1e-13, atol=0)
    assert np.allclose(high, 1 - u[4:], rtol=1e-13, atol=0)


def test_the_number_zero_always_turns_a_spin_up() -> None:
    spins = -np.ones((1, 1, 1, 1), np.int8)
    heat_bath(spins, np.full((1, 1, 1), -400.0), None, None, sweeps=1, uniforms=np.zeros)
    assert spins.item() == 1


# Tiles cut reads, problems and groups; the last ones are smaller.
SHAPES = [(2, 3, 2, 7), (1, 3, 2, 41), (2, 3, 9, 5), (7, 3, 1, 2), (3, 20, 2, 2)]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_spin_is_in_one_tile(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TILE", 36)
    seen = np.zeros(shape, int)
    for g, q, r in module._tiles(shape):
        seen[g, :, q, r] += 1
        assert seen[g, :, q, r].size <= 36
    assert (seen == 1).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_tiles_change_no_result(shape: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same number for all updates makes the order of drawing irrelevant."""
    spins, h, J, _ = random_groups(shape, seed=1)
    want = swept(spins, h, J, None, [np.full(shape, 0.37)] * 2)
    monkeypatch.setattr(module, "_TILE", 36)
    heat_bath(spins, h, J, None, sweeps=2, uniforms=lambda part: np.full(part, 0.37))
    assert np.array_equal(spins, want)


def test_no_sweep_draws_no_number() -> None:
    def uniforms(shape: tuple[int, ...]) -> Array:
        raise AssertionError("expected no call")

    spins, h, J, K = random_groups((1, 3, 2, 4), seed=2)
    kept = spins.copy()
    heat_bath(spins, h, J, K, sweeps=0, uniforms=uniforms)
    assert np.array_equal(spins, kept)
