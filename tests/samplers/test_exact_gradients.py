"""Analytic gradients of exact and banded in float64, against autograd through enumeration and each other."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import product
from typing import Any

import pytest
import torch
from exact_forms import solved_by_operators
from problems import F64, PATTERNS, band, banded_problem, causal, gradients, gradients_of_each, naive, solved
from torch import Tensor

from diabat.ising import Ising, pack_couplings
from diabat.samplers import UnsupportedError
from diabat.samplers.banded import BandedSampler
from diabat.samplers.exact import ExactSampler
from diabat.testing.problems import LEADS, Lead, make_problem

Solve = Callable[[Ising], tuple[Tensor, Tensor]]
analytic = solved(ExactSampler())


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rows of 8 in a tile, at 6 spins: the last tile has fewer."""
    monkeypatch.setattr("diabat.samplers.exact.halves._TILE_BYTES", 3 * 64)


by_halves = partial(solved_by_operators, halves=True)
EXACT: dict[str, Solve] = {
    "kernel": analytic,
    "softmax": solved_by_operators,
    "halved": by_halves,
    "divided": partial(by_halves, memory_budget_mb=1e-6),  # one query after the other
    "device": partial(solved_by_operators, device=True),
    "device, halved": partial(by_halves, device=True),
}
BANDED: dict[str, Solve] = {
    "native": solved(BandedSampler(bandwidth=2, engine="native")),
    "torch": solved(BandedSampler(bandwidth=2, engine="torch")),
}
FORMS = ("P", "Z", "PZ")


def in_band(found: tuple[Tensor, ...], width: int) -> tuple[Tensor, ...]:
    """What is a parameter: entries of J outside the band have a derivative too, but no gradient."""
    return found[0], *(J * band(J.shape[-1], width) for J in found[1:])


def assert_close(got: Any, want: Any, tolerance: float = 1e-10) -> None:
    for one, other in zip(got, want, strict=True):
        assert float((one - other).abs().max()) < tolerance


@cache
def masked(
    lead: Lead, pattern: str, three_body: float, width: int | None
) -> tuple[Ising, list[tuple[Tensor, ...]]]:
    """A problem, in a band if asked, and its gradients in P, in log Z, and in both, by enumeration."""
    ising = make_problem((2, 6), 6, lead=lead, seed=21, three_body=three_body)
    ising = Ising(ising.fields, ising.couplings, PATTERNS[pattern], ising.three_body)
    if width is not None:
        ising = banded_problem((2, 6), 6, width, lead=lead, seed=21, visible=PATTERNS[pattern])
    want = gradients_of_each(ising, naive, *FORMS)
    assert pattern == "nothing" or all(float(form[0].abs().max()) > 1e-3 for form in want)
    return ising, want if width is None else [in_band(form, width) for form in want]


@pytest.mark.parametrize(
    ("lead", "pattern", "name"),
    [
        (lead, pattern, name)
        for (i, lead), (j, pattern) in product(enumerate(LEADS), enumerate(PATTERNS))
        for name in [*EXACT, *BANDED]
        if not ("halved" in name or name == "divided") or (i + j) % len(LEADS) == 0
    ],
)
def test_against_autograd_through_enumeration(lead: Lead, pattern: str, name: str) -> None:
    """P, log Z, and both, with three-body terms and without.

    How a batch becomes groups does not depend on how a group is solved: halves take each pattern with one of the leads.
    """
    for three_body in (0.0, 0.5) if name in EXACT else (0.0,):
        ising, want = masked(lead, pattern, three_body, 2 if name in BANDED else None)
        for got, expected in zip(gradients_of_each(ising, (EXACT | BANDED)[name], *FORMS), want, strict=True):
            assert_close(got, expected)


@pytest.mark.parametrize("n", [1, 2, 3, 9])
@pytest.mark.parametrize("name", EXACT)
def test_every_split_of_the_halves(n: int, name: str) -> None:
    ising = make_problem((3,), n, seed=n, three_body=0.3)
    assert_close(gradients(ising, EXACT[name]), gradients(ising, naive))


@pytest.mark.parametrize("width", range(1, 9))
@pytest.mark.parametrize("engine", ["native", "torch"])
def test_every_bandwidth_against_the_exact_backend(engine: Any, width: int) -> None:
    for n in (1, 3, 10):
        ising = banded_problem((20,), n, width, seed=n)
        got = gradients(ising, solved(BandedSampler(bandwidth=width, engine=engine)))
        assert_close(got, in_band(gradients(ising, analytic), width))


@pytest.mark.parametrize("name", ["kernel", "native"])
def test_invisible_spins_get_no_gradient(name: str) -> None:
    """Nor do couplings outside a band, also where invisible spins between them bring two spins closer."""
    ising = banded_problem((4,), 6, 2, seed=27, visible=torch.tensor([True, True, False, False, True, True]))
    dh, dJ = gradients(ising, (EXACT | BANDED)[name])
    assert not dh[:, 2:4].any()
    assert not dJ[2:4].any()
    assert dJ[0, 1] != 0
    assert (dJ[1, 4] != 0) == (name == "kernel")
    assert torch.allclose(dJ, dJ.T, atol=1e-14)


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


@pytest.mark.parametrize(
    ("solve", "ising"),
    [
        (analytic, make_problem((6,), 10, seed=27)),
        (solved(BandedSampler(bandwidth=4)), banded_problem((5,), 300, 4, seed=25, couplings=0.4)),
    ],
    ids=["exact", "banded"],
)
def test_float32_gradients_are_close_to_float64(solve: Solve, ising: Ising) -> None:
    single = gradients(ising.to(torch.float32), solve, "P")
    for got, exact in zip(single, gradients(ising, solve, "P"), strict=True):
        assert got.dtype == torch.float32
        assert float((got - exact).abs().max()) < 2e-5 * float(exact.abs().max())


@pytest.mark.parametrize("three_body", [0.0, 0.5])
@pytest.mark.parametrize("visible", [None, causal(4)], ids=["all", "causal"])
@pytest.mark.parametrize("name", [name for name in EXACT if name != "kernel"])
def test_second_derivatives_by_operators(name: str, visible: Tensor | None, three_body: float) -> None:
    """Those of the kernel are checked in test_derivatives.py.  Rounding is that of enumeration with hidden spins."""
    base = make_problem((2, 4), 4, seed=25, three_body=three_body)
    parts = [
        t.clone().requires_grad_() for t in (base.fields, base.couplings, base.three_body) if t is not None
    ]
    generator = torch.Generator().manual_seed(1)
    found = []
    for solve in (EXACT[name], naive):
        p, log_z = solve(Ising(parts[0], parts[1], visible, parts[2] if three_body else None))
        loss = p.square().sum() + log_z.square().sum()
        first = torch.autograd.grad(loss, parts, create_graph=True)
        generator.manual_seed(1)
        along = torch.stack([(g * torch.randn(g.shape, generator=generator, dtype=F64)).sum() for g in first])
        found.append(torch.autograd.grad(along.sum(), parts))
    assert_close(found[0], found[1], 1e-9)


# Of banded alone


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_strong_problems(engine: Any) -> None:
    """Couplings of 20 in logarithms: the exact backend's gradient, and no NaN."""
    signs = banded_problem((16,), 10, 4, seed=23)
    ising = Ising(signs.fields, 20 * signs.couplings.sign())
    got = gradients(ising, solved(BandedSampler(bandwidth=4, engine=engine)))
    assert_close(got, in_band(gradients(ising, analytic), 4), 1e-9)


def test_segments_and_lanes_of_a_causal_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """n = 29 in segments of a few spins, all prefixes of one J; the torch engine has neither segments nor lanes."""
    monkeypatch.setattr("diabat.samplers.banded.compiled._SEGMENT_BYTES", 1 << 12)
    ising = banded_problem((7, 29), 29, 3, seed=24, visible=causal(29))
    native, by_torch = (
        BandedSampler(bandwidth=3, engine="native"),
        BandedSampler(bandwidth=3, engine="torch"),
    )
    assert_close(gradients(ising, solved(native)), gradients(ising, solved(by_torch)), 1e-11)


def test_without_a_bandwidth_every_differentiated_coupling_is_a_parameter() -> None:
    """J starts at zero in training, where a band read off J would leave it there."""
    ising = banded_problem((4,), 6, 2, seed=28)
    zero = Ising(ising.fields, torch.zeros_like(ising.couplings))
    assert_close(gradients(zero, solved(BandedSampler())), gradients(zero, analytic), 1e-12)
    long = torch.zeros(40, 40, dtype=F64, requires_grad=True)
    with pytest.raises(UnsupportedError, match="give a smaller bandwidth"):
        BandedSampler().moments(Ising(torch.zeros(40, dtype=F64), long))


def test_the_gradient_of_strong_fields_beside_weak_ones() -> None:
    """In float32, which compiled code solves in float64: the gradient comes back in float32."""
    fields = torch.tensor([[60.0, -70.0, 50.0, 0.1], [0.1, -0.2, 0.3, 0.4]])
    v = torch.tensor([[1.0, -2.0, 0.5, 3.0], [0.3, 1.0, -1.0, 2.0]])
    found = []
    for backend in (BandedSampler(bandwidth=1, engine="native"), ExactSampler()):
        h = fields.clone().requires_grad_()
        moments = backend.moments(Ising(h))
        found.append(torch.autograd.grad((moments.probability * v).sum(), [h])[0])
        if isinstance(backend, BandedSampler):
            assert moments.info["arithmetic"] == "float64"
    assert found[0].dtype == torch.float32
    assert torch.allclose(found[0], found[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("strength", [5.0, 40.0, 400.0])
def test_the_gradient_of_a_batch_that_is_strong_as_a_whole(strength: float) -> None:
    """17 spins, J constant: at 40 no problem is in the range of float32, and at 400 none in that of float64."""
    random = torch.Generator().manual_seed(17)
    J = strength / 4 * pack_couplings(torch.randn(136, generator=random), 17)
    h = strength * torch.randn(7, 17, generator=random)
    v = torch.randn(7, 17, generator=random)
    found = []
    for fields, couplings, solve in ((h, J, analytic), (h.double(), J.double(), naive)):
        given = fields.clone().requires_grad_()
        p, _ = solve(Ising(given, couplings))
        found.append(torch.autograd.grad((p * v).sum(), [given])[0])
    assert torch.allclose(found[0].double(), found[1], rtol=1e-4, atol=1e-6)
