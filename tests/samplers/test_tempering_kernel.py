"""Single decisions of the compiled loops, and chains as the kernel runs them: blocks, threads, rungs."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations
from typing import Any

import numba
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from problems import ALPHA, g_test

from diabat.compute.counter_random import PURPOSE_SHIFT, UPDATE, philox, seed_key
from diabat.compute.simd import constant, load, mul, store
from diabat.compute.simd_bits import bits_less, load_words, where_bits
from diabat.ising import Ising
from diabat.samplers.tempering.kept import threshold
from diabat.samplers.tempering.simulation import Fields, Rules, Simulation
from diabat.samplers.tempering.summed import heat_bath, metropolis
from diabat.testing import brute_force_states
from diabat.testing.problems import make_problem

Array = NDArray[Any]
LOG2E = 1.4426950408889634


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]  # no stubs
def decide(use_metropolis: bool, fields: Any, scale: Any, words: Any, old: Any, new: Any, p: Any) -> None:
    for r in range(fields.shape[0]):
        f, s, w = load(fields, r), load(scale, r), load_words(words, r)
        if use_metropolis:
            a, b = metropolis(f, s, w, load(old, r))
        else:
            a, b = heat_bath(f, s, w)
        store(new, r, a)
        store(p, r, b)


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]  # no stubs
def decide_by_threshold(
    use_metropolis: bool, fields: Any, scale: Any, words: Any, spins: int, new: Any
) -> None:
    for r in range(fields.shape[0]):
        level = threshold(load_words(words, r), spins, use_metropolis)
        up = bits_less(mul(load(fields, r), load(scale, r)), level)
        one = constant(level, 1.0)
        store(new, r, where_bits(up, one, constant(one, -1.0)))


def decisions(
    fields: Array,
    words: Array,
    *,
    beta: float = 1.0,
    old: float = 1.0,
    use_metropolis: bool = False,
    by_threshold: bool = False,
) -> tuple[Array, Array]:
    """New spins and P(s = +1 | rest) of as many draws; ``by_threshold`` by thresholds, without the probability."""
    size = -(-fields.size // 16) * 16
    padded = [np.zeros(size, t) for t in (np.float32, np.uint32)]
    padded[0][: fields.size], padded[1][: fields.size] = fields, words
    f, w = (a.reshape(-1, 16) for a in padded)
    scale, before = np.full_like(f, -2 * beta * LOG2E), np.full_like(f, old)
    new, p = np.empty_like(f), np.empty_like(f)
    if by_threshold:
        decide_by_threshold(use_metropolis, f, scale, w, 0xFFFF if old > 0 else 0, new)
        return new.reshape(-1)[: fields.size], np.empty(0)
    decide(use_metropolis, f, scale, w, before, new, p)
    return new.reshape(-1)[: fields.size], p.reshape(-1)[: fields.size]


def words_below(holds: Callable[[Array], Array], fields: Array, bits: int) -> Array:
    """Number of words k < 2^bits for which a decision holds, it being monotone in k: by bisection."""
    count = np.zeros(fields.size, np.int64)
    for bit in range(bits - 1, -1, -1):
        more = count + (1 << bit)
        count = np.where(holds(more - 1), more, count)
    return count + holds(count)


FIELDS = np.concatenate((np.linspace(-9, 9, 91), [0.0, 1e-6, -1e-6, 11.0, -11.0])).astype(np.float32)


@pytest.mark.parametrize("by_threshold", [False, True])
@pytest.mark.parametrize("beta", [1.0, 0.3])
def test_heat_bath_has_the_right_probability(beta: float, by_threshold: bool) -> None:
    """Counted over all 2^32 words: right to 1e-6 of min(P, 1 - P), and to 2^-32."""

    def draw(k: Array) -> Array:
        return decisions(FIELDS, k.astype(np.uint32), beta=beta, by_threshold=by_threshold)[0]

    up = words_below(lambda k: draw(k) > 0, FIELDS, 31)
    far = words_below(lambda k: draw(k + 2**31) < 0, FIELDS, 31)
    exact = 1 / (1 + np.exp(-2 * beta * FIELDS.astype(np.float64)))
    for count, p in ((up, np.minimum(exact, 0.5)), (far, np.minimum(1 - exact, 0.5))):
        assert (np.abs(count / 2**32 - p) < 1e-6 * p + 2**-32).all()
    # Down with probability far/2^32, up otherwise, where both halves count.
    assert (np.abs((up + 2**31 - far) / 2**32 - exact) < 1e-6 * np.minimum(exact, 1 - exact) + 2**-31).all()


@pytest.mark.parametrize("by_threshold", [False, True])
@pytest.mark.parametrize("old", [-1.0, 1.0])
def test_metropolis_has_the_right_probability(old: float, by_threshold: bool) -> None:
    """As above, of the flip of a spin."""

    def flips(k: Array) -> Array:
        new, _ = decisions(
            FIELDS, k.astype(np.uint32), old=old, use_metropolis=True, by_threshold=by_threshold
        )
        return new != old

    count = words_below(flips, FIELDS, 32).clip(max=2**32)
    exact = np.minimum(1, np.exp(-2 * old * FIELDS.astype(np.float64)))
    assert (np.abs(count / 2**32 - exact) < 2e-6 * exact + 2**-32).all()


@pytest.mark.parametrize("use_metropolis", [False, True])
@pytest.mark.parametrize("old", [-1.0, 1.0])
def test_conditional_probabilities(use_metropolis: bool, old: float) -> None:
    """Relative 1e-6 on both sides, whatever the word."""
    words = np.random.default_rng(1).integers(0, 2**32, FIELDS.size, dtype=np.uint32)
    _, p = decisions(FIELDS, words, old=old, use_metropolis=use_metropolis)
    exact = 1 / (1 + np.exp(-2 * FIELDS.astype(np.float64)))
    assert (np.abs(p - exact) < 2e-6 * exact).all()


@pytest.mark.parametrize("use_metropolis", [False, True])
def test_huge_fields_decide_and_overflow_nothing(use_metropolis: bool) -> None:
    fields = np.array([30.0, -30.0, 1e30, -1e30], np.float32).repeat(1000)
    words = np.random.default_rng(2).integers(0, 2**32, fields.size, dtype=np.uint32)
    new, p = decisions(fields, words, use_metropolis=use_metropolis)
    assert np.array_equal(new, np.sign(fields))
    assert (np.abs(p - (fields > 0)) < 1e-25).all()
    assert np.isfinite(p).all()


def simulation(
    ising: Ising,
    ladder: list[float],
    *,
    chains: int,
    names: Array | None = None,
    spins: Array | None = None,
    track: bool = False,
) -> Simulation:
    """Problems [P, n] with one J."""
    count = ising.num_problems
    K = None if ising.three_body is None else ising.three_body.numpy()[None]
    return Simulation(
        ising.couplings.numpy()[None],
        K,
        ising.fields.numpy(),
        np.array([0, count]),
        np.arange(count) if names is None else names,
        chains=chains,
        betas=np.tile(ladder, (count, 1)),
        spins=spins,
        track=track,
    )


def up_probability(j: int, s: Array, h: Array, J: Array, K: Array | None) -> float:
    """P(s_j = +1 | rest) of one chain s [n] by its definition, one term at a time."""
    rest = [k for k in range(len(s)) if k != j]
    f = float(h[j]) + sum(float(J[j, k] * s[k]) for k in rest)
    if K is not None:
        f += sum(float(K[j, k, m] * s[k] * s[m]) for k, m in combinations(rest, 2))
    return 1 / (1 + math.exp(-2 * f))


def swept(spins: Array, ising: Ising, seed: int, sweeps: int) -> Array:
    """Sweeps of spins [P, C, n] by plain loops, on the random numbers that the kernel draws."""
    h, J = ising.fields.numpy(), ising.couplings.numpy()
    K = None if ising.three_body is None else ising.three_body.numpy()
    s = spins.copy()
    for sweep, p, c, j in np.ndindex(sweeps, *s.shape):
        word = int(philox([(UPDATE << PURPOSE_SHIFT) + j // 4, sweep, c, p], seed_key(seed))[j % 4])
        # The top bit says from which end of (0, 1) the uniform number is measured.
        low, u = word < 2**31, (word % 2**31 + 0.5) / 2**32
        probability = up_probability(j, s[p, c], h[p], J, K)
        s[p, c, j] = (1 if u < probability else -1) if low else (-1 if u < 1 - probability else 1)
    return s


@pytest.mark.parametrize(
    ("n", "three_body", "fields"),
    [
        *((n, K, "summed") for n in (1, 2, 4, 5, 7, 9) for K in (0.0, 0.4)),
        *((n, 0.0, "kept") for n in (1, 15, 16, 64, 65, 130)),
    ],
)
def test_sweeps_are_those_of_the_definition(n: int, three_body: float, fields: Fields) -> None:
    """n below, at and above blocks of 4, vectors of 16 and rows of 64 spins; 2 x 67 chains are three strips."""
    chains = 67 if fields == "summed" else 3
    ising = make_problem((2,), n, seed=n, fields=0.6, couplings=0.9 / n**0.5, three_body=three_body)
    start = (2 * np.random.default_rng(n).integers(0, 2, (2, chains, 1, n)) - 1).astype(np.int8)
    run = simulation(ising, [1.0], chains=chains, spins=start)
    run.run(Rules(seed=2**40 + n, fields=fields), 3)
    assert np.array_equal(run.spins()[:, :, 0], swept(start[:, :, 0], ising, 2**40 + n, 3))


LADDER = [0.1, 0.35, 0.6, 0.8, 1.0]


def rung_pvalues(ising: Ising, spins: Array) -> list[float]:
    """G-test of the states on every rung against P^β, from spins [P, C, R, n]."""
    found = []
    for r, beta in enumerate(LADDER):
        K = None if ising.three_body is None else beta * ising.three_body
        law = brute_force_states(Ising(beta * ising.fields, beta * ising.couplings, three_body=K))
        found.append(g_test(spins[:, :, r].swapaxes(0, 1), law))
    return found


@pytest.mark.parametrize(("three_body", "fields"), [(0.0, "summed"), (0.4, "summed"), (0.0, "kept")])
def test_every_rung_has_its_own_law_and_labels_matter(three_body: float, fields: Fields) -> None:
    """N = 8000 chains of 3 problems with 5 replicas, alpha = 1e-6 for each rung.

    Labels that are the inverse of the permutation of the replicas give p < 1e-12 on some rung: with five replicas after
    41 sweeps, most permutations are not their own inverse.
    """
    ising = make_problem((3,), 4, seed=1, fields=0.8, couplings=0.8, three_body=three_body)
    run = simulation(ising, LADDER, chains=8000)
    run.run(Rules(seed=3, fields=fields), 41)
    assert min(rung_pvalues(ising, run.spins())) > ALPHA
    rungs = run._rungs
    slots = np.argsort(rungs, axis=2)
    assert (rungs != slots).any(2).mean() > 0.5
    by_slot = np.take_along_axis(run.spins(), rungs[..., None], axis=2)
    mislabelled = np.take_along_axis(by_slot, rungs[..., None], axis=2)
    assert min(rung_pvalues(ising, mislabelled)) < 1e-12


def test_time_averages_are_of_the_last_rung_only() -> None:
    """The sums over sweeps are those of the spins there, chain by chain."""
    run = simulation(make_problem((2,), 5, seed=2), LADDER, chains=30)
    run.run(Rules(seed=4), 10)
    even, odd = (run.run(Rules(seed=4), 1, average=True, every=1) for _ in range(2))
    # The pair of the last rung swaps after odd sweeps: what it saw then stands, and the read is of the newcomer.
    assert np.array_equal(even.sums, even.reads[0])
    assert 0.2 < (odd.sums == odd.reads[0]).all(-1).mean() < 0.95
    alone = simulation(make_problem((2,), 5, seed=2), [1.0], chains=30)
    both = alone.run(Rules(seed=4), 48, average=True, every=1)
    assert np.array_equal(both.sums, both.reads.astype(np.float32).sum(0))


def test_exponents_are_those_of_the_spins() -> None:
    """Followed through 130 sweeps by differences, with two renewals in between; relative 1e-5."""
    ising = make_problem((2,), 6, seed=3, three_body=0.3)
    run = simulation(ising, LADDER, chains=20)
    found = run.run(Rules(seed=5), 130, exponents=True)
    spins = torch.from_numpy(run.spins()).permute(1, 2, 0, 3)  # [C, R, P, n]
    exact = -ising.energy(spins).permute(2, 0, 1).numpy()
    assert np.abs(found.exponents[-1] - exact).max() < 1e-5 * np.abs(exact).max()


def test_kept_fields_are_summed_anew() -> None:
    """-E after 2,048 sweeps of strong couplings that nearly cancel: rounding moves it by .04, and by .13 otherwise."""
    draw, n = np.random.default_rng(3), 64
    J = np.triu(draw.normal(size=(n, n)) * 0.3 + 40, 1)
    h = draw.normal(size=(1, n))
    ising = Ising(torch.from_numpy(h).float(), torch.from_numpy(J + J.T).float())
    run = simulation(ising, [0.0005, 0.001], chains=2)
    found = run.run(Rules(3, fields="kept"), 2048, exponents=True)
    spins = torch.from_numpy(run.spins()).permute(1, 2, 0, 3)
    exact = -ising.energy(spins).permute(2, 0, 1).numpy()
    assert np.abs(np.sort(found.exponents[-1]) - np.sort(exact)).max() < 0.08


def everything(run: Simulation, rules: Rules) -> list[Array]:
    run.run(rules, 7)
    found = run.run(rules, 9, average=True, exponents=True, every=3)
    return [run.spins(), found.ups, found.sums, found.rejections, found.exponents, found.reads]


@pytest.mark.parametrize("fields", ["summed", "kept"])
@pytest.mark.parametrize("ladder", [[1.0], LADDER])
def test_neither_threads_nor_blocks_nor_other_problems_change_a_bit(
    ladder: list[float], fields: Fields
) -> None:
    ising, rules = make_problem((5,), 6, seed=4), Rules(9, fields=fields)
    expected = everything(simulation(ising, ladder, chains=37), rules)
    for threads, block in ((2, None), (1, 1), (3, 5)):
        got = everything(simulation(ising, ladder, chains=37), rules._replace(threads=threads, block=block))
        assert all(np.array_equal(a, b) for a, b in zip(got, expected, strict=True))
    fourth = Ising(ising.fields[3:4], ising.couplings)
    alone = everything(simulation(fourth, ladder, chains=37, names=np.array([3])), rules)
    parts = [e[:, 3:4] if i in (4, 5) else e[3:4] for i, e in enumerate(expected)]
    assert all(np.array_equal(a, b) for a, b in zip(alone, parts, strict=True))


@pytest.mark.parametrize("method", ["heat_bath", "metropolis"])
@pytest.mark.parametrize("ladder", [[1.0], LADDER])
def test_both_kinds_of_fields_give_the_same_chains(ladder: list[float], method: Any) -> None:
    """Spins to the bit through 40 sweeps, with a renewal in between; sums of numbers to rounding."""
    ising = make_problem((2,), 70, seed=5, fields=0.6, couplings=1.5 / 70**0.5)
    found = []
    for fields in ("summed", "kept"):
        run, rules = simulation(ising, ladder, chains=9, track=True), Rules(3, method=method, fields=fields)
        run.run(rules, 5)
        sums = run.run(rules, 40, average=True, exponents=True, every=3)
        found.append(
            (run.spins(), sums.reads, sums.sums, run.lowest, sums.ups, sums.exponents, sums.rejections)
        )
    for a, b in zip(*(f[:4] for f in found), strict=True):
        assert np.array_equal(a, b)
    for a, b, tolerance in zip(*(f[4:] for f in found), (1e-4, 1e-3, 1e-3), strict=True):
        assert np.abs(a - b).max(initial=0) < tolerance


@pytest.mark.parametrize("fields", ["summed", "kept"])
def test_the_tracked_state_is_the_lowest_of_all_sweeps(fields: Fields) -> None:
    """Of every state after a sweep, chain by chain, and through a second call; the starts do not count."""
    ising = make_problem((3,), 20, seed=6, fields=0.3, couplings=0.4)
    run, rules = simulation(ising, [1.0], chains=5, track=True), Rules(4, fields=fields)
    reads = np.concatenate([run.run(rules, sweeps, every=1).reads for sweeps in (9, 70)])
    energy = ising.energy(torch.from_numpy(reads).transpose(1, 2)).transpose(1, 2)  # [t, P, C]
    tracked = ising.energy(torch.from_numpy(run.lowest).transpose(0, 1)).T
    assert torch.allclose(tracked, energy.min(0).values, atol=1e-5)
    tempered = simulation(ising, LADDER, chains=5, track=True)
    tempered.run(rules, 30)
    last = ising.energy(torch.from_numpy(tempered.spins()).permute(1, 2, 0, 3)).amin(1).T  # of all rungs
    found = ising.energy(torch.from_numpy(tempered.lowest).transpose(0, 1)).T
    assert (found <= last + 1e-5).all()


def test_the_choice_of_fields_depends_on_lanes_and_spins_only() -> None:
    """Of one J: chains times replicas times problems.

    A lane needs four spins, but 192 serve any number of lanes; three-body terms are summed.
    """
    for n, chains, ladder, problems, three_body, kept in (
        (8, 2, [1.0], 1, 0.0, True), (8, 3, [1.0], 1, 0.0, False), (8, 1, [0.5, 1.0], 1, 0.0, True),
        (8, 1, [1.0], 3, 0.0, False), (8, 1, [1.0], 1, 0.3, False), (191, 48, [1.0], 1, 0.0, False),
        (192, 99, [1.0], 1, 0.0, True),
    ):  # fmt: skip
        run = simulation(make_problem((problems,), n, seed=1, three_body=three_body), ladder, chains=chains)
        assert run._kept(Rules(1)).tolist() == [kept]


def test_more_replicas_than_lanes_of_a_strip() -> None:
    """70 replicas take two strips; the last rung has the right law: N = 4000 chains, alpha = 1e-6."""
    ising = make_problem((1,), 4, seed=5, fields=0.8, couplings=0.8)
    run = simulation(ising, np.linspace(0, 1, 70).tolist(), chains=4000)
    run.run(Rules(seed=6), 30)
    assert g_test(run.spins()[:, :, -1].swapaxes(0, 1), brute_force_states(ising)) > ALPHA


@pytest.mark.parametrize("n", [5, 63])
@pytest.mark.parametrize("fields", ["summed", "kept"])
def test_phantom_spins_change_nothing(n: int, fields: Fields) -> None:
    """Spins without field and couplings at the end, as padding adds them: not a bit of the averages."""
    ising, pad = make_problem((3,), n, seed=6, couplings=0.5), torch.nn.functional.pad
    padded = Ising(pad(ising.fields, (0, 3)), pad(ising.couplings, (0, 3, 0, 3)))
    plain, more = (simulation(problem, LADDER, chains=7) for problem in (ising, padded))
    a, b = (run.run(Rules(3, fields=fields), 20, average=True) for run in (plain, more))
    assert np.array_equal(more.spins()[..., :n], plain.spins())
    assert np.array_equal(b.ups[..., :n], a.ups)


def test_given_spins_are_where_the_chains_begin() -> None:
    """By rung; at huge fields against them nothing moves but by choice."""
    ising = Ising(torch.full((1, 3), 20.0), torch.zeros(3, 3))
    start = np.ones((1, 2, 5, 3), np.int8)
    run = simulation(ising, [1.0, 2.0, 3.0, 4.0, 5.0], chains=2, spins=start)
    assert np.array_equal(run.spins(), start)
    run.run(Rules(1), 5)
    assert np.array_equal(run.spins(), start)
    assert run.spins().base is not run._spins


def test_problems_chains_replicas_sweeps_and_calls_get_numbers_of_their_own() -> None:
    """Free spins: two states agree in half of 64 spins; never beyond 7 standard deviations."""
    free = Ising(torch.zeros(2, 64), torch.zeros(64, 64))
    tempered, plain = simulation(free, LADDER, chains=20), simulation(free, [1.0], chains=2)
    tempered.run(Rules(seed=8), 3)
    reads = np.concatenate([plain.run(Rules(seed=8), 20, every=1).reads for _ in range(2)])
    for states in (tempered.spins(), reads):
        lanes = states.reshape(-1, 64).astype(np.int64)
        assert np.abs(lanes @ lanes.T - 64 * np.eye(len(lanes), dtype=np.int64)).max() < 56
