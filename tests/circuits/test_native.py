"""The native engine: lanes, threads, draws, memory, compilation.  Its numbers: test_engines.py."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from diabat.circuits import Batch, NativeEngine, TrotterPlan, draw_spins, reference_probabilities, spin_table
from diabat.circuits.engines.native import adjoint as native_adjoint
from diabat.circuits.engines.native import kernel as native_kernel
from diabat.compute import memory
from diabat.compute.scratch import aligned_rows

from .conftest import ANGLES, KINDS, make_batch, random_plan, random_problem, turning

PRECISIONS = ("double", "single")


def mixed_batches() -> list[Batch]:
    """Sizes 1 to 9, shared and own couplings, blocks that are full and not, and none at all."""
    sizes = ((1, 2), (3, 0), (4, 17), (7, 9), (9, 3), (4, 1), (7, 33))
    return [make_batch(n, problems, KINDS[k % 2], seed=k) for k, (n, problems) in enumerate(sizes)]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_batches_of_several_sizes_equal_separate_calls_bit_for_bit(precision: Any) -> None:
    plan, engine, batches = turning(5, 1, seed=6), NativeEngine(precision), mixed_batches()
    together = engine.moments(plan, batches, correlations=True)
    assert [m.probability.shape for m in together] == [b.fields.shape for b in batches]
    for batch, moments in zip(batches, together, strict=True):
        (alone,) = engine.moments(plan, [batch], correlations=True)
        assert moments.correlation.shape == (*batch.fields.shape, batch.num_spins)
        assert (moments.probability == alone.probability).all()
        assert (moments.correlation == alone.correlation).all()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [3, 4, 5, 8, 10])
def test_a_problem_does_not_depend_on_the_batch_around_it(n: int, kind: str, precision: Any) -> None:
    engine, plan, batch = NativeEngine(precision), turning(5, 0, seed=6), make_batch(n, 35, kind, seed=n)
    (whole,) = engine.moments(plan, [batch], correlations=True)
    table = engine.probabilities(plan, batch.fields, batch.couplings)
    random = np.random.default_rng(2)
    for rows in (random.permutation(35), np.array([34]), np.array([7, 3, 20]), np.arange(17, 35)):
        part = Batch(batch.fields[rows], batch.couplings if batch.shared else batch.couplings[rows])
        (moments,) = engine.moments(plan, [part], correlations=True)
        assert (moments.probability == whole.probability[rows]).all()
        assert (moments.correlation == whole.correlation[rows]).all()
        assert (engine.probabilities(plan, part.fields, part.couplings) == table[rows]).all()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("n", [5, 6, 7, 8, 9, 10, 13])
def test_few_problems_give_the_same_states_and_reads_as_many(n: int, precision: Any) -> None:
    """The states of few problems fill the lanes; any number of problems gives the same bits, and so the same reads."""
    engine, plan = NativeEngine(precision), turning(5, 1, seed=6)
    fields, couplings = random_problem(n, 16, seed=5)
    table = engine.probabilities(plan, fields, couplings)
    uniforms = np.random.default_rng(1).random((16, 50))
    for count in range(1, 17):
        batch = Batch(fields[:count], couplings)
        assert (engine.probabilities(plan, batch.fields, couplings) == table[:count]).all()

        class Fixed:
            def random(self, shape: tuple[int, ...]) -> Any:
                return uniforms[: shape[0]]

        numbers: Any = Fixed()  # in place of a generator: the same numbers for both
        (reads,) = engine.sample(plan, [batch], 50, numbers)
        (all_reads,) = engine.sample(plan, [Batch(fields, couplings)], 50, numbers)
        assert (reads == all_reads[:, :count]).all()


def test_threads_do_not_change_a_bit() -> None:
    plan, batches, results = turning(5, 1, seed=6), mixed_batches(), []
    for threads in (1, 2, 3, 64):
        engine = NativeEngine(threads=threads)
        moments = engine.moments(plan, batches, correlations=True)
        gradient = engine.gradient(plan, batches, [np.cos(b.fields) for b in batches])
        results.append(
            [
                *(array for m in moments for array in (m.probability, m.correlation)),
                *engine.sample(plan, batches, 20, np.random.default_rng(8)),
                *(array for g in gradient.batches for array in (g.fields, g.couplings)),
                *(getattr(gradient, key) for key in ANGLES),
                *(engine.probabilities(plan, b.fields, b.couplings) for b in batches),
            ]
        )
    for other in results[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_threads_are_used_and_a_function_is_asked_at_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    original = native_kernel.run_plan

    def watched(*arguments: Any) -> None:
        seen.append(threading.get_ident())
        original(*arguments)

    monkeypatch.setattr(native_kernel, "run_plan", watched)
    batch, wanted = Batch(*random_problem(6, 80, seed=1)), [2]
    engine = NativeEngine(threads=lambda: wanted[0])
    for count in (2, 1, 3):
        seen.clear()
        wanted[0] = count
        engine.moments(random_plan(2, seed=1), [batch])
        assert len(seen) == count
        # The calling thread takes the first part, others the rest.
        assert seen.count(threading.get_ident()) == 1


def test_no_batches_at_all() -> None:
    engine, plan = NativeEngine(), random_plan(3, seed=1)
    assert engine.moments(plan, [], correlations=True) == []
    assert engine.sample(plan, [], 5, np.random.default_rng(1)) == []
    for gradient in (engine.gradient(plan, [], []), engine.gradient(plan, [], [], [])):
        assert gradient.batches == []
        assert (gradient.field_angles == np.zeros(3)).all()


def test_inputs_are_left_alone_and_results_are_fresh() -> None:
    engine, plan, batch = NativeEngine(), random_plan(3, seed=1), Batch(*random_problem(3, 2, seed=1))
    before = batch.fields.copy(), batch.couplings.copy()
    first = engine.moments(plan, [batch])[0].probability
    kept = first.copy()
    first[:] = 7
    assert (engine.moments(plan, [batch])[0].probability == kept).all()
    assert (batch.fields == before[0]).all()
    assert (batch.couplings == before[1]).all()


@pytest.mark.parametrize("parity", [0, 1])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_reads_equal_inversion_of_the_probabilities_draw_for_draw(precision: Any, parity: int) -> None:
    """The generator is used batch by batch; in single precision a read in 10^4 lies within rounding of an edge."""
    plan, engine, batches = turning(5, parity, seed=6), NativeEngine(precision), mixed_batches()
    reads = engine.sample(plan, batches, 101, np.random.default_rng(9))
    random = np.random.default_rng(9)
    for batch, spins in zip(batches, reads, strict=True):
        table = engine.probabilities(plan, batch.fields, batch.couplings)
        want = draw_spins(table, random.random((batch.num_problems, 101)))
        assert spins.shape == want.shape
        differ = (spins != want).any(-1).sum()
        assert differ <= (0 if precision == "double" else 2)


@pytest.mark.parametrize("n", [1, 3])
def test_reads_at_the_edges_of_the_table(n: int) -> None:
    """The state is one basis state: uniform numbers next to 0 and 1 read it as well."""
    plan = TrotterPlan(np.array([1.0]), np.array([0.0]), np.array([np.pi / 2]))
    states = np.array([1.0, -1.0, 1.0])[:n]

    class Edges(np.random.Generator):
        def random(self, *_: Any, **__: Any) -> Any:
            return np.array([[1e-9, 0.5, np.nextafter(1.0, 0.0)]])

    batch = Batch(np.pi / 2 * states[None], np.zeros((n, n)))
    (spins,) = NativeEngine().sample(plan, [batch], 3, Edges(np.random.PCG64(0)))
    assert (spins == states).all()


def test_what_does_not_fit_into_memory_is_refused_with_amounts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tables of 2^23 rows of 64 bytes and a phase table, on each thread that has a block."""
    monkeypatch.setattr(memory, "available_bytes", lambda: 1 << 27)
    plan, n, one = random_plan(2, seed=1), 23, NativeEngine()
    batch = Batch(np.zeros((9, n)), np.zeros((n, n)))
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: one.moments(plan, [batch]), "1 thread need 1.25"),
        (lambda: NativeEngine(threads=2).moments(plan, [batch]), "2 threads need 2.5"),
        (lambda: one.moments(plan, [batch], correlations=True), "1 thread need 2.25"),
        (lambda: one.gradient(plan, [batch], [batch.fields]), "1 thread need 3.75"),
        # The table of states itself counts as well: 2^23 numbers of one block of lanes.
        (lambda: one.probabilities(plan, batch.fields[:1], batch.couplings), "1 thread need 1.75"),
    ]
    for call, needs in calls:
        with pytest.raises(
            ValueError, match=f"^fields: 23 spins on {needs} GiB of memory, got 0.125 GiB available"
        ):
            call()


def test_small_problems_do_not_ask_about_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def nothing_left() -> int:
        asked.append(1)
        return 0

    monkeypatch.setattr(memory, "available_bytes", nothing_left)
    plan, batch = random_plan(2, seed=1), Batch(*random_problem(8, 3, seed=1))
    (found,) = NativeEngine().moments(plan, [batch])
    want = reference_probabilities(plan, batch.fields, batch.couplings) @ (spin_table(8) > 0)
    assert np.abs(found.probability - want).max() < 1e-12
    assert not asked


def all_kernels(engine: NativeEngine, n: int, own: bool, parity: int) -> None:
    fields, couplings = random_problem(n, 3, seed=1)
    batch = Batch(fields, np.stack([couplings] * 3) if own else couplings)
    plan = turning(5, parity, seed=6)
    engine.moments(plan, [batch])
    engine.moments(plan, [batch], correlations=True)
    engine.sample(plan, [batch], 5, np.random.default_rng(1))
    engine.gradient(plan, [batch], [batch.fields], angles=False)
    engine.gradient(plan, [batch], [batch.fields], [np.zeros((3, n, n))])
    engine.probabilities(plan, batch.fields, batch.couplings)


def test_nothing_is_compiled_for_a_second_engine() -> None:
    """One compiled version of every kernel for each precision serves all sizes, couplings and plans."""
    kernels: list[Any] = [native_kernel.run_plan, native_adjoint.run_gradient]
    for precision in PRECISIONS:
        all_kernels(NativeEngine(precision), 3, False, 0)
    before = [list(k.signatures) for k in kernels]
    assert [len(signatures) for signatures in before] == [2] * 2
    for n, own, parity in ((1, False, 1), (2, True, 0), (8, False, 0), (9, True, 1)):
        for precision in PRECISIONS:
            all_kernels(NativeEngine(precision, threads=2), n, own, parity)
    assert [list(k.signatures) for k in kernels] == before


def test_a_second_process_reads_the_compiled_code_from_disk() -> None:
    code = """
import numpy as np
from diabat.circuits import Batch, NativeEngine, TrotterPlan
from diabat.circuits.engines.native.kernel import run_plan
plan = TrotterPlan(np.ones(2), np.ones(2), np.ones(2))
NativeEngine().moments(plan, [Batch(np.zeros((1, 3)), np.zeros((3, 3)))])
print(sum(run_plan.stats.cache_hits.values()), sum(run_plan.stats.cache_misses.values()))
"""
    NativeEngine().moments(random_plan(2, seed=1), [Batch(*random_problem(3, 1, seed=1))])  # compiled by now
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["1", "0"]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("own", [False, True])
def test_kernels_stay_within_their_scratch(
    own: bool, precision: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard rows before and behind either buffer of scratch are left as they were, all sizes of groups."""
    runs = 0

    def guarded(kernel: Any, place: int) -> Any:
        def run(*arguments: Any) -> None:
            nonlocal runs
            work, small = arguments[place : place + 2]
            rows, more = len(work), len(small)
            room = aligned_rows(rows + more + 96, work.dtype)
            room[:] = 7
            guards = room[:32], room[32 + rows : 64 + rows], room[64 + rows + more :]
            scratch = room[32 : 32 + rows], room[64 + rows : 64 + rows + more]
            kernel(*arguments[:place], *scratch, *arguments[place + 2 :])
            assert all((guard == 7).all() for guard in guards)
            runs += 1

        return run

    for module, name in ((native_kernel, "run_plan"), (native_adjoint, "run_gradient")):
        monkeypatch.setattr(module, name, guarded(getattr(module, name), 6))
    sizes = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12)
    for n in sizes:
        all_kernels(NativeEngine(precision), n, own, 0)
    assert runs == 6 * len(sizes)


def test_states_are_in_order() -> None:
    """A plan that reads 1 out of n spins up: bit j of the state index is spin j."""
    plan = TrotterPlan(np.array([1.0]), np.array([0.0]), np.array([np.pi / 2]))
    for j, state in enumerate(spin_table(3)[[1, 2, 4]]):
        table = NativeEngine().probabilities(plan, np.pi / 2 * state[None].astype(float), np.zeros((3, 3)))
        assert table[0, 1 << j] == pytest.approx(1, abs=1e-14)


@pytest.mark.parametrize(("precision", "most"), [("single", 8.4e3), ("double", 4.5e12)])
def test_phases_beyond_the_precision_are_refused(precision: Any, most: float) -> None:
    """Just within, the probabilities are still those of the reference to the rounding of the phases."""
    plan, J = TrotterPlan(np.array([0.5]), np.array([0.1]), np.array([0.7])), np.zeros((2, 2))
    engine, h = NativeEngine(precision), np.array([[1.9 * most, 0.3]])
    found, wanted = engine.probabilities(plan, h, J), reference_probabilities(plan, h, J)
    np.testing.assert_allclose(found, wanted, atol=2e-3)
    message = rf"fields: expected fields and couplings that rotate .*, the limit of {precision} precision"
    for strong, coupled in ((2.1 * most, 0.0), (1e300, 0.0), (0.0, 21 * most)):
        batch = Batch(np.array([[strong, 0.3]]), np.array([[0, coupled], [coupled, 0]]))
        with pytest.raises(ValueError, match=message):
            engine.moments(plan, [batch])
    silent = TrotterPlan(np.ones(1), np.zeros(1), np.ones(1))  # 0 times the infinite sum of a row
    with pytest.raises(ValueError, match=message), np.errstate(over="ignore", invalid="ignore"):
        engine.moments(silent, [Batch(np.zeros((1, 3)), 1.7e308 * (1 - np.eye(3)))])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8])
def test_marginals_have_the_same_bits_with_pairs_and_beside_other_batches(precision: Any, n: int) -> None:
    plan, engine = random_plan(3, seed=2), NativeEngine(precision)
    for count in (1, 2, 3, 8, 9, 16):
        fields, couplings = random_problem(n, count, seed=n)
        own = np.repeat(couplings[None], count, axis=0)
        [few] = engine.moments(plan, [Batch(fields, couplings)])
        [with_pairs] = engine.moments(plan, [Batch(fields, couplings)], correlations=True)
        assert np.array_equal(few.probability, with_pairs.probability)
        several = engine.moments(plan, [Batch(fields, couplings), Batch(fields[:1], own[:1])])
        assert np.array_equal(few.probability, several[0].probability)


def test_too_large_phases_are_refused_by_exact_sums_not_by_bounds() -> None:
    """The bound of a batch of many weak fields is above the limit, the largest phase is not."""
    engine, plan = NativeEngine("single"), TrotterPlan(np.ones(1), np.ones(1), np.ones(1))
    fields = np.full((900, 8), 300.0)
    assert Batch(fields, np.zeros((8, 8))).bounds.field > 8388
    engine.moments(plan, [Batch(fields, np.zeros((8, 8)))])
    with pytest.raises(ValueError, match=r"rotate a spin by at most 8e\+03 rad"):
        engine.moments(plan, [Batch(np.full((1, 8), 9000.0), np.zeros((8, 8)))])
