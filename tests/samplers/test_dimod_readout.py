"""Reads from sample sets: weights, labels, bits, and answers that cannot be."""

from __future__ import annotations

from typing import Any

import dimod
import numpy as np
import pytest
import torch

import diabat
from diabat.ising import Ising
from diabat.samplers.dimod import DimodSampler
from diabat.samplers.dimod.packing import Packed, expand, logical_spins
from diabat.samplers.dimod.submit import SubmissionError

from .dimod_fakes import Scripted, all_up, rows


def backend(answer: Any, *names: str, **options: Any) -> DimodSampler:
    return DimodSampler(Scripted(answer, *names), beta=1.0, **options)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_num_occurrences_is_a_weight() -> None:
    """Nine up and one down in ten reads of two rows: a peer's layer says 0 where 0.8 is right."""

    def answer(bqm: Any, keywords: dict[str, Any]) -> Any:
        return rows(bqm, [[1], [-1]], [9, 1])

    samples = backend(answer).sample(Ising(torch.zeros(1)), 10, seed=1)
    assert samples.spins.shape == (10, 1)
    assert samples.moments().magnetization.item() == pytest.approx(0.8)


def test_rows_that_count_more_than_once_come_in_random_order() -> None:
    """Histograms are sorted by energy; half of the reads must be a fair sample all the same."""
    bqm = dimod.BQM({0: 1.0}, {}, "SPIN")
    found = expand(rows(bqm, [[-1], [1]], [500, 500]), [0], rng())
    assert found.spins[:500].sum() != -500
    assert found.spins.sum() == 0
    again = expand(rows(bqm, [[-1], [1]], [500, 500]), [0], rng())
    assert (found.spins == again.spins).all()


def test_draw_order_is_kept_where_every_row_counts_once() -> None:
    bqm = dimod.BQM({0: 1.0}, {}, "SPIN")
    spins = np.array([[1], [-1], [1], [1], [-1]], dtype=np.int8)
    assert (expand(rows(bqm, spins), [0], rng()).spins == spins).all()


def test_columns_are_found_by_label() -> None:
    """The answer lists the variables backwards; spin j has field j."""

    def answer(bqm: Any, keywords: dict[str, Any]) -> Any:
        labels = list(bqm.variables)[::-1]
        spins = [[1 if label in (0, 3) else -1 for label in labels]] * keywords["num_reads"]
        found = dimod.SampleSet.from_samples_bqm((spins, labels), bqm, sort_labels=False)
        assert list(found.variables) == labels  # dimod sorts them if it may
        return found

    spins = backend(answer).sample(Ising(torch.randn(5)), 2, seed=0).spins
    assert spins.tolist() == [[1, -1, -1, 1, -1]] * 2


def test_bits_are_converted() -> None:
    def answer(bqm: Any, keywords: dict[str, Any]) -> Any:
        return rows(bqm, [[1, -1]] * keywords["num_reads"]).change_vartype("BINARY", inplace=False)

    spins = backend(answer).sample(Ising(torch.zeros(2)), 3, seed=0).spins
    assert spins.dtype == torch.int8
    assert spins.tolist() == [[1, -1]] * 3


@pytest.mark.parametrize("energy", [float("nan"), float("inf")])
def test_energies_that_are_no_numbers_are_refused(energy: float) -> None:
    def answer(bqm: Any, keywords: dict[str, Any]) -> Any:
        return dimod.SampleSet.from_samples([[1]], energy=[energy], vartype="SPIN")

    with pytest.raises(ValueError, match="answer: expected finite energies"):
        backend(answer).sample(Ising(torch.zeros(1)), 1, seed=0)


def test_a_missing_variable_is_refused() -> None:
    def answer(bqm: Any, keywords: dict[str, Any]) -> Any:
        return dimod.SampleSet.from_samples([{0: 1}], energy=[0.0], vartype="SPIN")

    with pytest.raises(ValueError, match="expected a value for every variable, got none for 1"):
        backend(answer).sample(Ising(torch.zeros(2)), 1, seed=0)


def test_short_answers_are_completed_and_long_ones_cut() -> None:
    def short(bqm: Any, keywords: dict[str, Any]) -> Any:
        return all_up(bqm, {"num_reads": min(4, keywords["num_reads"])})

    fake = Scripted(short)
    assert DimodSampler(fake, beta=1.0).sample(Ising(torch.zeros(1)), 10, seed=0).num_reads == 10
    assert [keywords["num_reads"] for _, keywords in fake.calls] == [10, 6, 2]
    long = backend(lambda bqm, keywords: all_up(bqm, {"num_reads": keywords["num_reads"] + 3}))
    assert long.sample(Ising(torch.zeros(1)), 10, seed=0).num_reads == 10


@pytest.mark.parametrize("counts", [[10**9], [2**62, 2**62]])
def test_counts_beyond_what_was_asked_for_are_refused(counts: list[int]) -> None:
    """Refused before a read is expanded."""
    many = backend(lambda bqm, keywords: rows(bqm, [[1]] * len(counts), counts))
    with pytest.raises(ValueError, match="answer: expected about the requested 10 reads, got "):
        many.sample(Ising(torch.zeros(1)), 10, seed=0)


@pytest.mark.parametrize("reads", [0, 1])
def test_too_short_answers_are_refused(reads: int) -> None:
    few = backend(lambda bqm, keywords: all_up(bqm, {"num_reads": reads}))
    with pytest.raises(SubmissionError, match="was asked for 10 reads and returned"):
        few.sample(Ising(torch.zeros(1)), 10, seed=0)


def test_one_read_has_no_covariance_and_says_so() -> None:
    """A peer returns NaN gradients there."""
    fields = torch.zeros(2, requires_grad=True)
    with pytest.raises(ValueError, match="at least 2 reads"):
        diabat.spin_probabilities(
            fields, None, backend(all_up), gradient="covariance", num_reads=1
        ).sum().backward()


def chains(*lengths: int, logical: int, gauges: Any = None) -> Packed:
    size = sum(lengths)
    nothing = np.zeros(0)
    return Packed(
        labels=np.arange(size),
        fields=np.zeros(size),
        pairs=np.zeros((0, 2), dtype=np.int64),
        couplings=nothing,
        chains=nothing,
        rows=np.zeros(logical, dtype=np.int64),
        spins=np.arange(logical),
        starts=np.cumsum([0, *lengths[:-1]]),
        gauges=gauges,
    )


def test_chains_are_read_by_majority() -> None:
    spins = np.array([[1, 1, -1, -1], [-1, 1, -1, -1]], dtype=np.int8)
    read = logical_spins(spins, chains(3, 1, logical=2), rng())
    assert read.spins.tolist() == [[1, -1], [-1, -1]]
    assert read.broken.tolist() == [0.5, 0.5]


def test_ties_are_broken_evenly() -> None:
    """N = 10,000; alpha = 1e-6 is 4.9 standard errors, 0.049."""
    spins = np.tile(np.array([1, -1], dtype=np.int8), (10_000, 1))
    assert abs(logical_spins(spins, chains(2, logical=1), rng()).spins.mean()) < 0.049


def test_a_gauge_spin_multiplies_and_an_ancilla_is_watched() -> None:
    spins = np.array([[1, -1, 1], [1, -1, -1]], dtype=np.int8)
    gauge = logical_spins(spins, chains(1, 1, 1, logical=2, gauges=np.array([2, 2])), rng())
    assert gauge.spins.tolist() == [[1, -1], [-1, 1]]
    ancilla = logical_spins(spins, chains(1, 1, 1, logical=2), rng())
    assert ancilla.spins.tolist() == [[1, -1], [1, -1]]
    assert ancilla.flipped == 0.5
