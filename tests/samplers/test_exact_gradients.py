"""Analytic gradients three ways in float64: autograd through enumeration, central differences, and itself.

Enumeration differs by rounding (1e-10); gradcheck's central differences with step 1e-6 have an error of
about 1e-12 + eps/1e-6, far inside its tolerance of 1e-6 absolute.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from diabat.ising import Ising, pack_couplings, pack_three_body
from diabat.samplers.exact import ExactSampler, half_split, sampler
from diabat.testing.problems import Lead, make_problem

from .enumeration import naive

F64 = torch.float64
CAUSAL = torch.ones(4, 4, dtype=torch.bool).tril()
PADDED = torch.tensor([[True] * 4, [True, True, False, False], [False] * 4, [False, True, True, True]])


def leaves(ising: Ising) -> tuple[Tensor, ...]:
    return tuple(
        t.clone().requires_grad_() for t in (ising.fields, ising.couplings, ising.three_body) if t is not None
    )


def rebuilt(parts: tuple[Tensor, ...], visible: Tensor | None) -> Ising:
    return Ising(
        parts[0], parts[1] if len(parts) > 1 else None, visible, parts[2] if len(parts) > 2 else None
    )


def gradients(ising: Ising, solve: object, terms: str) -> tuple[Tensor, ...]:
    """Gradient of a fixed linear form in P and/or log Z with respect to h, J and K."""
    parts = leaves(ising)
    p, log_z = solve(rebuilt(parts, ising.visible))
    generator = torch.Generator().manual_seed(99)
    v = torch.randn(p.shape, generator=generator, dtype=F64)
    u = torch.randn(log_z.shape, generator=generator, dtype=F64)
    loss = ("P" in terms) * (v * p).sum() + ("Z" in terms) * (u * log_z).sum()
    return torch.autograd.grad(loss, parts)


def analytic(ising: Ising) -> tuple[Tensor, Tensor]:
    moments = ExactSampler().moments(ising)
    assert moments.log_partition is not None
    return moments.probability, moments.log_partition


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows or so in a tile, at these sizes."""
    monkeypatch.setattr(half_split, "_TILE_BYTES", 64)


def halved(ising: Ising) -> tuple[Tensor, Tensor]:
    """By products of halves, which few spins without three-body terms do without."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sampler, "suits_kernel", lambda *shape: False)
        return analytic(ising)


def divided(ising: Ising) -> tuple[Tensor, Tensor]:
    """By products of halves, one query after the other."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sampler, "suits_kernel", lambda *shape: False)
        moments = ExactSampler(memory_budget_mb=1e-6).moments(ising)
    assert moments.log_partition is not None
    return moments.probability, moments.log_partition


@pytest.mark.parametrize("terms", ["P", "Z", "PZ"])
@pytest.mark.parametrize("solve", [analytic, halved, divided])
@pytest.mark.parametrize("three_body", [0.0, 0.5])
@pytest.mark.parametrize("visible", [None, CAUSAL, PADDED], ids=["all", "causal", "padded"])
@pytest.mark.parametrize("lead", ["none", "shared", "heads", "per_problem"])
def test_against_autograd_through_enumeration(
    lead: Lead, visible: Tensor | None, three_body: float, solve: object, terms: str
) -> None:
    base = make_problem((2, 4), 4, lead=lead, seed=21, three_body=three_body)
    ising = Ising(base.fields, base.couplings, visible, base.three_body)
    for got, want in zip(gradients(ising, solve, terms), gradients(ising, naive, terms), strict=True):
        assert float((got - want).abs().max()) < 1e-10
        assert float(want.abs().max()) > 1e-3


@pytest.mark.parametrize("n", [1, 2, 3, 9])
@pytest.mark.parametrize("solve", [analytic, halved, divided])
def test_every_split_of_the_halves(n: int, solve: object) -> None:
    ising = make_problem((3,), n, seed=n, three_body=0.3)
    for got, want in zip(gradients(ising, solve, "PZ"), gradients(ising, naive, "PZ"), strict=True):
        assert float((got - want).abs().max()) < 1e-10


@pytest.mark.parametrize("visible", [None, CAUSAL], ids=["all", "causal"])
@pytest.mark.parametrize("solve", [analytic, halved, divided])
def test_against_central_differences(visible: Tensor | None, solve: object) -> None:
    """Through the packed parameters, which is how J and K are trained: every perturbation stays symmetric."""
    generator = torch.Generator().manual_seed(22)
    h, pairs, triples = (
        (0.5 * torch.randn(*shape, generator=generator, dtype=F64)).requires_grad_()
        for shape in ((2, 4, 4), (2, 1, 6), (2, 1, 4))
    )

    def function(h: Tensor, pairs: Tensor, triples: Tensor) -> tuple[Tensor, Tensor]:
        ising = Ising(h, pack_couplings(pairs, 4), visible, pack_three_body(triples, 4), check=False)
        return solve(ising)

    assert torch.autograd.gradcheck(function, (h, pairs, triples), eps=1e-6, atol=1e-6)


def test_gradients_are_symmetric_and_empty_on_the_diagonal() -> None:
    ising = make_problem((2, 3), 5, lead="heads", seed=23, three_body=0.3)
    _, dJ, dK = gradients(ising, analytic, "PZ")
    assert (dJ - dJ.mT).abs().max() < 1e-14
    assert not dJ.diagonal(dim1=-2, dim2=-1).any()
    for places in itertools.permutations((2, 3, 4)):
        assert (dK - dK.permute(0, 1, *places)).abs().max() < 1e-14
    for j, k in itertools.product(range(5), repeat=2):
        assert not dK[..., j, j, k].any()
        assert not dK[..., j, k, j].any()


def test_invisible_spins_get_no_gradient() -> None:
    base = make_problem((4,), 4, seed=24)
    dh, dJ = gradients(
        Ising(base.fields, base.couplings, torch.tensor([True, True, False, True])), analytic, "PZ"
    )
    assert not dh[:, 2].any()
    assert not dJ[2].any()
    assert dJ[0, 1] != 0


def test_only_what_is_asked_is_differentiated() -> None:
    """Fields alone, or couplings alone: the other input needs no gradient."""
    ising = make_problem((3,), 5, seed=25)
    want = gradients(ising, analytic, "P")
    v = torch.randn(3, 5, generator=torch.Generator().manual_seed(99), dtype=F64)
    h, J = ising.fields.clone().requires_grad_(), ising.couplings.clone().requires_grad_()
    (v * ExactSampler().moments(Ising(h, ising.couplings)).probability).sum().backward()
    (v * ExactSampler().moments(Ising(ising.fields, J)).probability).sum().backward()
    assert torch.allclose(h.grad, want[0])
    assert torch.allclose(J.grad, want[1])


def test_the_gradient_of_log_z_is_the_magnetization_and_the_correlation() -> None:
    ising = make_problem((), 5, seed=26)
    parts = leaves(ising)
    moments = ExactSampler().moments(rebuilt(parts, None), correlations=True)
    dh, dJ = torch.autograd.grad(moments.log_partition, parts)
    off_diagonal = moments.correlation - torch.eye(5, dtype=F64)
    assert torch.allclose(dh, moments.magnetization)
    assert torch.allclose(2 * dJ, off_diagonal)  # each pair stands in J twice


def test_float32_gradients_are_close_to_float64() -> None:
    ising = make_problem((6,), 10, seed=27)
    want = gradients(ising, analytic, "P")
    v = torch.randn(6, 10, generator=torch.Generator().manual_seed(99), dtype=F64).float()
    h, J = ising.fields.float().requires_grad_(), ising.couplings.float().requires_grad_()
    (v * ExactSampler().moments(Ising(h, J)).probability).sum().backward()
    for got, exact in zip((h.grad, J.grad), want, strict=True):
        assert got.dtype == torch.float32
        assert float((got - exact).abs().max()) < 2e-5 * float(exact.abs().max())


@pytest.mark.parametrize("three_body", [0.0, 0.5])
@pytest.mark.parametrize("visible", [None, CAUSAL], ids=["all", "causal"])
def test_second_derivatives_by_halves(visible: Tensor | None, three_body: float) -> None:
    """Those of the kernel are checked in test_derivatives.py.  Rounding is that of enumeration with hidden spins."""
    base = make_problem((2, 4), 4, seed=25, three_body=three_body)
    parts = leaves(base)
    generator = torch.Generator().manual_seed(1)
    found = []
    for solve in (halved, naive):
        p, log_z = solve(Ising(parts[0], parts[1], visible, parts[2] if three_body else None))
        loss = p.square().sum() + log_z.square().sum()
        first = torch.autograd.grad(loss, parts, create_graph=True)
        generator.manual_seed(1)
        along = torch.stack([(g * torch.randn(g.shape, generator=generator, dtype=F64)).sum() for g in first])
        found.append(torch.autograd.grad(along.sum(), parts))
    for got, want in zip(*found, strict=True):
        assert float((got - want).abs().max()) < 1e-7
