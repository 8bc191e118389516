"""Gradients three ways in float64: autograd through enumeration and the exact backend, central differences, and itself.

The first two differ by rounding (1e-10); gradcheck's central differences with step 1e-6 have an error of about
1e-12 + eps/1e-6, far inside its tolerance of 1e-6 absolute.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from diabat.ising import Ising, pack_couplings, pair_indices
from diabat.samplers import Sampler, UnsupportedError
from diabat.samplers.banded import BandedSampler
from diabat.samplers.exact import ExactSampler
from diabat.testing.problems import Lead

from .banded_problems import PATTERNS, band, banded_problem
from .enumeration import naive
from .test_banded import ENGINES, Engine

F64 = torch.float64


def gradients(ising: Ising, sampler: Sampler | None, terms: str = "PZ") -> list[Tensor]:
    """Gradient of a fixed linear form in P and/or log Z with respect to h and J; no sampler means enumeration."""
    parts = [t.clone().requires_grad_() for t in (ising.fields, ising.couplings) if t is not None]
    problem = Ising(parts[0], parts[1] if len(parts) > 1 else None, ising.visible)
    if sampler is None:
        p, log_z = naive(problem)
    else:
        moments = sampler.moments(problem)
        assert moments.log_partition is not None
        p, log_z = moments.probability, moments.log_partition
    generator = torch.Generator().manual_seed(99)
    v = torch.randn(p.shape, generator=generator, dtype=F64).to(p)
    u = torch.randn(log_z.shape, generator=generator, dtype=F64).to(p)
    loss = ("P" in terms) * (v * p).sum() + ("Z" in terms) * (u * log_z).sum()
    return list(torch.autograd.grad(loss, parts))


def in_band(found: list[Tensor], n: int, width: int) -> list[Tensor]:
    """What is a parameter: entries of J outside the band have a derivative too, but no gradient."""
    return [found[0], *(J * band(n, width) for J in found[1:])]


@pytest.mark.parametrize("terms", ["P", "Z", "PZ"])
@pytest.mark.parametrize("lead", ["none", "shared", "heads", "per_problem"])
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("engine", ENGINES)
def test_against_autograd_through_enumeration(engine: Engine, pattern: str, lead: Lead, terms: str) -> None:
    ising = banded_problem((2, 6), 6, 2, lead=lead, seed=21, visible=PATTERNS[pattern])
    got = gradients(ising, BandedSampler(bandwidth=2, engine=engine), terms)
    want = in_band(gradients(ising, None, terms), 6, 2)
    for g, w in zip(got, want, strict=True):
        assert float((g - w).abs().max()) < 1e-10


@pytest.mark.parametrize("width", range(1, 9))
@pytest.mark.parametrize("engine", ENGINES)
def test_every_bandwidth_against_the_exact_backend(engine: Engine, width: int) -> None:
    for n in (1, 3, 10):
        ising = banded_problem((20,), n, width, seed=n)
        got = gradients(ising, BandedSampler(bandwidth=width, engine=engine))
        for g, w in zip(got, in_band(gradients(ising, ExactSampler()), n, width), strict=True):
            assert float((g - w).abs().max()) < 1e-10


@pytest.mark.parametrize("pattern", ["causal", "ragged"])
@pytest.mark.parametrize("engine", ENGINES)
def test_against_central_differences(engine: Engine, pattern: str) -> None:
    """Through the packed parameters, which is how J is trained: every perturbation stays symmetric and in the band."""
    generator = torch.Generator().manual_seed(22)
    pairs = len(pair_indices(6, 2)[0])
    h, J = (
        (0.5 * torch.randn(*shape, generator=generator, dtype=F64)).requires_grad_()
        for shape in ((1, 6, 6), (1, 1, pairs))
    )

    def function(h: Tensor, J: Tensor) -> tuple[Tensor, Tensor]:
        ising = Ising(h, pack_couplings(J, 6, 2), PATTERNS[pattern], check=False)
        moments = BandedSampler(bandwidth=2, engine=engine).moments(ising)
        assert moments.log_partition is not None
        return moments.probability, moments.log_partition

    assert torch.autograd.gradcheck(function, (h, J), eps=1e-6, atol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_strong_problems(engine: Engine) -> None:
    """Couplings of 20 in logarithms: the exact backend's gradient, and no NaN."""
    signs = banded_problem((16,), 10, 4, seed=23)
    ising = Ising(signs.fields, 20 * signs.couplings.sign())
    got = gradients(ising, BandedSampler(bandwidth=4, engine=engine))
    for g, w in zip(got, in_band(gradients(ising, ExactSampler()), 10, 4), strict=True):
        assert float((g - w).abs().max()) < 1e-9


def test_segments_and_lanes_of_a_causal_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """n = 29 in segments of a few spins, all prefixes of one J; the torch engine has neither segments nor lanes."""
    monkeypatch.setattr("diabat.samplers.banded.native._SEGMENT_BYTES", 1 << 12)
    causal = torch.ones(29, 29, dtype=torch.bool).tril()
    ising = banded_problem((7, 29), 29, 3, seed=24, visible=causal)
    got, want = (gradients(ising, BandedSampler(bandwidth=3, engine=e)) for e in ENGINES)
    for g, w in zip(got, want, strict=True):
        assert float((g - w).abs().max()) < 1e-11


def test_float32_at_hundreds_of_spins() -> None:
    ising = banded_problem((5,), 300, 4, seed=25, couplings=0.4)
    want = gradients(ising, BandedSampler(bandwidth=4), "P")
    single = Ising(ising.fields.float(), ising.couplings.float())
    for got, exact in zip(gradients(single, BandedSampler(bandwidth=4), "P"), want, strict=True):
        assert got.dtype == torch.float32
        assert float((got - exact).abs().max()) < 2e-5 * float(exact.abs().max())


def test_the_gradient_of_log_z_is_the_magnetization_and_the_correlation() -> None:
    ising = banded_problem((), 9, 3, seed=26)
    h, J = (t.clone().requires_grad_() for t in (ising.fields, ising.couplings) if t is not None)
    moments = BandedSampler(bandwidth=3).moments(Ising(h, J), correlations=True)
    dh, dJ = torch.autograd.grad(moments.log_partition, (h, J))
    assert torch.allclose(dh, moments.magnetization)
    assert torch.allclose(2 * dJ, moments.correlation * band(9, 3))  # each pair stands in J twice


def test_couplings_outside_the_band_get_no_gradient() -> None:
    """Also where invisible spins between them bring two spins closer."""
    ising = banded_problem((4,), 6, 2, seed=27, visible=torch.tensor([True, True, False, False, True, True]))
    dh, dJ = gradients(ising, BandedSampler(bandwidth=2))
    assert not dJ[band(6, 2) == 0].any()
    assert dJ[0, 1] != 0
    assert not dh[:, 2:4].any()
    assert torch.equal(dJ, dJ.T)


def test_without_a_bandwidth_every_differentiated_coupling_is_a_parameter() -> None:
    """J starts at zero in training, where a band read off J would leave it there."""
    ising = banded_problem((4,), 6, 2, seed=28)
    zero = Ising(ising.fields, torch.zeros_like(ising.couplings))
    for g, w in zip(gradients(zero, BandedSampler()), gradients(zero, ExactSampler()), strict=True):
        assert float((g - w).abs().max()) < 1e-12
    long = torch.zeros(40, 40, dtype=F64, requires_grad=True)
    with pytest.raises(UnsupportedError, match="give a smaller bandwidth"):
        BandedSampler().moments(Ising(torch.zeros(40, dtype=F64), long))


def test_the_gradient_of_strong_fields_beside_weak_ones() -> None:
    """In float32, which compiled code solves in float64: the gradient comes back in float32."""
    fields = torch.tensor([[60.0, -70.0, 50.0, 0.1], [0.1, -0.2, 0.3, 0.4]])
    v = torch.tensor([[1.0, -2.0, 0.5, 3.0], [0.3, 1.0, -1.0, 2.0]])
    found = []
    for sampler in (BandedSampler(bandwidth=1, engine="native"), ExactSampler()):
        h = fields.clone().requires_grad_()
        moments = sampler.moments(Ising(h))
        found.append(torch.autograd.grad((moments.probability * v).sum(), [h])[0])
        if isinstance(sampler, BandedSampler):
            assert moments.info["arithmetic"] == "float64"
    assert found[0].dtype == torch.float32
    assert torch.allclose(found[0], found[1], rtol=1e-4, atol=1e-6)
