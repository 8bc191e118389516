"""What every backend inherits: answers, refusals, seeds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from fakes import FIFOSampler
from torch import Tensor

import diabat
from diabat.ising import Ising, IsingError
from diabat.samplers import Capabilities, Moments, Sampler, Samples, UnsupportedError
from diabat.samplers.seeds import draw_seed
from diabat.testing import ConformanceError, ReferenceSampler, run_check
from diabat.testing.problems import make_problem, with_visible


def reads() -> Tensor:
    """Three reads of two spins: (+,+), (+,-), (-,-)."""
    return torch.tensor([[1, 1], [1, -1], [-1, -1]], dtype=torch.int8)


SEEN = torch.tensor([True, True])


def test_averages_over_reads_by_hand() -> None:
    moments = Samples(reads(), SEEN).moments(correlations=True, dtype=torch.float64)
    assert moments.probability.tolist() == pytest.approx([2 / 3, 1 / 3])
    assert moments.magnetization.tolist() == pytest.approx([1 / 3, -1 / 3])
    assert moments.smoothed_probability.tolist() == pytest.approx([2.5 / 4, 1.5 / 4])
    assert moments.correlation.flatten().tolist() == pytest.approx([1, 1 / 3, 1 / 3, 1])
    assert moments.standard_error.tolist() == pytest.approx([(0.625 * 0.375 / 3) ** 0.5] * 2)
    assert moments.num_reads == 3
    p = torch.tensor([0.0, 0.25])
    assert torch.equal(Moments(p, SEEN).smoothed_probability, p)  # analytic
    down = Samples(-torch.ones(50, 3, dtype=torch.int8), torch.ones(3, dtype=torch.bool)).moments()
    assert not down.probability.any()
    assert torch.allclose(down.smoothed_probability, torch.tensor(0.5 / 51))


def test_invisible_spins_average_to_nothing() -> None:
    moments = Samples(reads(), torch.tensor([True, False])).moments(correlations=True)
    for name in ("probability", "smoothed_probability", "magnetization", "standard_error", "correlation"):
        assert not getattr(moments, name)[..., 1].any()
    assert not moments.correlation[1].any()


class Limited(ReferenceSampler):
    """A sampler that refuses everything it may refuse."""

    name = "limited"

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, max_spins=3, three_body=False, correlations=False)


CUBIC = make_problem((2,), 3, three_body=1.0)


@pytest.mark.parametrize(
    "call", [lambda ising: Limited().sample(ising, 2), lambda ising: Limited().moments(ising)]
)
def test_capabilities_refuse_and_allow_the_rest(call: Any) -> None:
    with pytest.raises(UnsupportedError, match="sampler 'limited' accepts at most 3 visible spins, got 4"):
        call(make_problem((2,), 4))
    with pytest.raises(UnsupportedError, match="'limited' accepts fields and couplings only; use 'exact'"):
        call(CUBIC)
    few = Ising(torch.zeros(2, 5), visible=torch.tensor([True, True, True, False, False]))
    assert call(few).visible.shape == (2, 5)
    assert call(make_problem((2, 3), 3, lead="heads")).visible.shape == (2, 3, 3)
    with pytest.raises(UnsupportedError, match="does not report pair correlations"):
        Limited().moments(few, correlations=True)


def test_seeds_come_from_the_generator_of_torch() -> None:
    """``manual_seed`` repeats them; 63 bits, so that 2,000 of them differ; analytic moments draw none."""
    ising = make_problem((2,), 3)
    for call in (
        lambda: ReferenceSampler().sample(ising, 5).info["seed"],
        lambda: ReferenceSampler().moments(ising).info["seed"],
    ):
        torch.manual_seed(4)
        first, second = call(), call()
        torch.manual_seed(4)
        assert first != second
        assert (call(), call()) == (first, second)
    torch.manual_seed(4)
    drawn = [draw_seed(None) for _ in range(2000)]
    assert len(set(drawn)) == 2000
    assert max(drawn) > 2**62
    before = torch.get_rng_state()
    diabat.sampler("exact").moments(ising)
    assert torch.equal(torch.get_rng_state(), before)


def test_averages_of_a_sampling_backend_are_those_of_its_reads_and_integers_of_numpy_are_integers() -> None:
    spins = torch.randint(0, 2, (40, 2, 3)).to(torch.int8) * 2 - 1
    moments = FIFOSampler([spins], num_reads=40).moments(make_problem((2,), 3), seed=5)
    assert torch.allclose(moments.probability, (spins > 0).double().mean(0))
    assert (moments.num_reads, moments.info["seed"], moments.info["backend"]) == (40, 5, "fifo")
    assert moments.info["wall_s"] >= 0
    ising = make_problem((2,), 3)
    want = ReferenceSampler().sample(ising, 4, seed=7)
    got = ReferenceSampler().sample(ising, np.int32(4), seed=np.uint64(7))
    assert torch.equal(got.spins, want.spins)
    assert type(got.info["seed"]) is int


@pytest.mark.parametrize("name", ["exact", "banded", "tempering", "dqa", "refine", "distributed"])
def test_moments_of_a_number_of_reads_are_averages_of_those_reads(name: str) -> None:
    options: Any = {"dqa": {"annealing_time_ns": 2.0}, "distributed": {"workers": 0}}.get(name, {})
    backend, ising = diabat.sampler(name, **options), make_problem((2,), 3, fields=0.3)
    reads = backend.sample(ising, 50, seed=8)
    found = backend.moments(ising, correlations=True, num_reads=50, seed=8)
    assert torch.allclose(found.probability, (reads.spins > 0).to(ising.fields).mean(0), atol=1e-12)
    assert found.correlation.dtype == found.probability.dtype == ising.fields.dtype
    assert found.standard_error is not None
    assert (found.num_reads, found.info["seed"], found.info["backend"]) == (50, 8, name)


@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_samples_know_their_energy_and_the_lowest_read(shape: tuple[int, ...]) -> None:
    ising = with_visible(make_problem(shape, 4, three_body=0.5), torch.tensor([True, True, False, True]))
    samples = ReferenceSampler().sample(ising, 30, seed=1)
    assert torch.equal(samples.energy, ising.energy(samples.spins))
    spins, energy = samples.lowest()
    assert spins.shape == ising.fields.shape
    assert spins.dtype == torch.int8
    assert torch.equal(energy, samples.energy.amin(0))
    assert torch.allclose(ising.energy(spins), energy)
    assert not (spins[..., 2] + 1).any()
    equal = torch.tensor([[1, -1], [-1, 1], [1, -1]], dtype=torch.int8)
    assert Samples(equal, SEEN, ising=Ising(torch.zeros(2))).lowest().spins.tolist() == [1, -1]  # the first
    with pytest.raises(ValueError, match="ising: expected the problem of the reads"):
        Samples(equal, SEEN).lowest()
    h = torch.zeros(2, 3, requires_grad=True)
    kept = ReferenceSampler().sample(Ising(h), 4).ising
    assert (kept.fields.data_ptr(), kept.fields.requires_grad) == (h.data_ptr(), False)


def test_a_backend_without_either_method_says_so() -> None:
    class Empty(Sampler):
        name = "empty"
        capabilities = Capabilities()

    with pytest.raises(UnsupportedError, match=r"sampler 'empty' cannot draw samples\."):
        Empty().moments(make_problem((), 2))


class Claiming(FIFOSampler):
    """Declares derivatives that it does not have."""

    name = "claiming"
    capabilities = Capabilities(gradients=("exact",))


def test_exact_gradients_without_derivatives_are_refused() -> None:
    ising = make_problem((), 2)
    message = (
        "gradient: 'exact' expects a diabat.samplers.AnalyticSampler, got sampler 'claiming', which is none"
    )
    for call in (
        Claiming(reads()).moments,
        lambda p: diabat.spin_probabilities(p.fields, None, Claiming(reads())),
    ):
        with pytest.raises(UnsupportedError, match=message):
            call(ising)
    with pytest.raises(ConformanceError, match="exact gradients: expected"):
        run_check("declared_capabilities", Claiming(reads()))


def test_a_declared_log_partition_must_be_an_argument() -> None:
    class Forgetful(FIFOSampler):
        capabilities = Capabilities(log_partition=True)

    with pytest.raises(ConformanceError, match="log_partition: expected an argument of _moments, got none"):
        run_check("declared_capabilities", Forgetful(reads()))


@pytest.fixture
def half_a_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diabat.compute.memory.available_bytes", lambda: 1 << 29)


class NeverAsked(FIFOSampler):
    """Answers nothing: what is refused must be refused before."""

    def _sample(self, ising: Ising, num_reads: int, seed: int) -> Samples:
        raise AssertionError("the problem has reached the backend")


@pytest.mark.usefixtures("half_a_gib")
@pytest.mark.parametrize("num_reads", [10**9, 10**12, 2**63 - 1])
def test_reads_that_fit_into_no_memory_are_refused(num_reads: int) -> None:
    ising = make_problem((2,), 4, seed=0)
    message = r"^num_reads: \d+ reads of 2 problems need .+ GiB of memory, got 0.5 GiB available\.$"
    with pytest.raises(ValueError, match=message):
        NeverAsked(reads()).sample(ising, num_reads)
    averaging = NeverAsked(reads())
    averaging.num_reads = num_reads
    with pytest.raises(ValueError, match=message):
        averaging.moments(ising)
    with pytest.raises(AssertionError, match="reached"):  # one byte per read, problem and spin
        NeverAsked(reads()).sample(ising, 2**29 // 8)


def test_tensors_without_data_are_refused() -> None:
    """An Ising that was not checked may hold one."""
    for ising in (
        Ising(torch.zeros(2, 3, device="meta"), check=False),
        Ising(torch.zeros(2, 3), torch.zeros(3, 3, device="meta"), check=False),
    ):
        for call in (NeverAsked(reads()).sample, lambda problem, _: NeverAsked(reads()).moments(problem)):
            with pytest.raises(IsingError, match="expected a tensor with data, got one on the device meta"):
                call(ising, 5)
