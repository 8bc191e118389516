"""Ranges of work, the threads that take them, and their memory."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from diabat.compute import threads
from diabat.compute.scratch import VECTOR_BYTES, Scratch, aligned_rows, lanes_of
from diabat.compute.threads import equal_ranges, ranges_of_equal_work, run_parts


def covered(ranges: list[slice]) -> list[int]:
    assert all(part.stop > part.start for part in ranges)
    return [i for part in ranges for i in range(part.start, part.stop)]


@pytest.mark.parametrize("count", [1, 2, 7, 64])
@pytest.mark.parametrize("parts", [1, 2, 3, 100])
def test_equal_ranges_cover_everything_once(count: int, parts: int) -> None:
    found = equal_ranges(count, parts)
    assert covered(found) == list(range(count))
    assert len(found) == min(parts, count)
    sizes = [part.stop - part.start for part in found]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("parts", [1, 2, 3, 100])
def test_ranges_of_equal_work_cover_everything_once(parts: int) -> None:
    work = np.random.default_rng(1).integers(1, 100, 40)
    found = ranges_of_equal_work(work, parts)
    assert covered(found) == list(range(40))
    assert len(found) <= parts
    loads = [work[part].sum() for part in found]
    assert parts > 3 or max(loads) < work.sum() / parts + 2 * work.max()


def test_one_large_item_leaves_no_range_empty() -> None:
    assert ranges_of_equal_work(np.array([1.0, 100.0, 1.0]), 4) == [slice(0, 1), slice(1, 3)]


def test_the_calling_thread_takes_the_first_part_and_all_memory() -> None:
    here, taken, ran = threading.get_ident(), [], {}

    def scratch(part: int) -> int:
        taken.append(threading.get_ident())
        return 10 * part

    def call(part: int, memory: int) -> None:
        ran[part] = memory, threading.get_ident()

    run_parts(range(4), scratch, call)
    assert taken == [here] * 4
    assert {part: memory for part, (memory, _) in ran.items()} == {0: 0, 1: 10, 2: 20, 3: 30}
    assert ran[0][1] == here
    assert here not in {ident for part, (_, ident) in ran.items() if part}


@pytest.mark.parametrize("bad", [0, 2])
def test_an_error_is_raised_after_all_parts_have_ended(bad: int) -> None:
    done: list[int] = []

    def call(part: int, memory: None) -> None:
        if part == bad:
            raise ArithmeticError(str(part))
        threading.Event().wait(0.02)
        done.append(part)

    with pytest.raises(ArithmeticError, match=str(bad)):
        run_parts(range(4), lambda part: None, call)
    assert sorted(done) == [part for part in range(4) if part != bad]


def test_many_callers_at_once_share_the_threads() -> None:
    """More parts at a time than there are threads: they wait for one another, and none for ever."""

    def total(count: int) -> int:
        sums = np.zeros(count, np.int64)

        def call(part: int, memory: None) -> None:
            sums[part] = part

        run_parts(range(count), lambda part: None, call)
        return int(sums.sum())

    with ThreadPoolExecutor(16) as callers:
        assert list(callers.map(total, [100] * 32)) == [4950] * 32


def _doubled(connection: Any, call: Callable[[], int]) -> None:
    connection.send(call())


def _parts_done() -> int:
    done: list[int] = []
    run_parts(range(3), lambda part: None, lambda part, memory: done.append(part))
    return len(done)


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_starts_threads_of_its_own() -> None:
    assert _parts_done() == 3
    assert threads._pool.cache_info().currsize == 1
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=_doubled, args=(there, _parts_done))
    child.start()
    assert here.poll(30)
    assert here.recv() == 3
    child.join()


@pytest.mark.parametrize(("dtype", "lanes"), [(np.float32, 16), (np.uint32, 16), (np.float64, 8)])
def test_arrays_start_on_cache_lines_and_do_not_overlap(dtype: Any, lanes: int) -> None:
    assert lanes_of(dtype) == lanes
    memory = Scratch(11, cleared=True)
    arrays = [memory.take(dtype, 2, 3, lanes), memory.take(dtype, 5, lanes)]
    assert all((array == 0).all() for array in arrays)
    for number, array in enumerate([*arrays, aligned_rows(3, dtype)]):
        assert array.ctypes.data % VECTOR_BYTES == 0
        assert array.flags.c_contiguous
        array[...] = number
    assert [set(array.ravel()) for array in arrays] == [{0}, {1}]
    with pytest.raises(TypeError, match="buffer is too small"):
        memory.take(dtype, 1, lanes)
