"""Second derivatives and torch.func through the moments of exact, banded and mean_field, in float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from problems import F64, causal, naive
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import diabat
from diabat import Sampler, sampler
from diabat.ising import Ising, pack_couplings, pack_three_body
from diabat.samplers.capabilities import UnsupportedError
from diabat.testing.problems import make_problem

SMOOTH: dict[str, Sampler] = {
    "exact": sampler("exact"),
    "banded": sampler("banded"),
    "mean_field": sampler("mean_field", tolerance=1e-13),
}
CAUSAL = causal(3)
GAPS = torch.tensor([[True, False, True], [False] * 3, [True, True, False]])
Moments = tuple[Tensor, ...]


def answers(
    name: str, h: Tensor, J: Tensor, visible: Tensor | None = None, K: Tensor | None = None
) -> Moments:
    m = SMOOTH[name].moments(Ising(h, J, visible, K, check=False))
    return (m.probability,) if m.log_partition is None else (m.probability, m.log_partition)


def penalty(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    """A scalar of h and J that is not linear in the probabilities."""
    return lambda h, J: answers(name, h, J)[0].square().sum()


@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("name", SMOOTH)
def test_gradgradcheck_at_every_size(name: str, n: int, own: bool) -> None:
    """Central differences of the analytic gradient; about 1e-9 apart, gradgradcheck's tolerance is 1e-5."""
    batch = (2,)
    h = make_problem(batch, n, seed=n).fields.requires_grad_()
    pairs = 0.2 * torch.randn(*(batch if own else ()), n * (n - 1) // 2, dtype=F64)

    def f(h: Tensor, pairs: Tensor) -> Moments:
        return answers(name, h, pack_couplings(pairs, n))

    assert gradgradcheck(f, (h, pairs.requires_grad_()))


@pytest.mark.parametrize("visible", [CAUSAL, GAPS], ids=["causal", "gaps"])
@pytest.mark.parametrize("name", ["exact", "mean_field"])
def test_gradgradcheck_with_masks_and_three_body_terms(name: str, visible: Tensor) -> None:
    h = make_problem((1, 3), 3, seed=3).fields.requires_grad_()
    pairs = (0.2 * torch.randn(1, 1, 3, dtype=F64)).requires_grad_()
    triple = torch.full((1,), 0.1, dtype=F64, requires_grad=True)

    def f(h: Tensor, pairs: Tensor, triple: Tensor) -> Moments:
        return answers(name, h, pack_couplings(pairs, 3), visible, pack_three_body(triple, 3))

    assert gradcheck(f, (h, pairs, triple))
    assert gradgradcheck(f, (h, pairs, triple))


@pytest.mark.parametrize("name", ["exact", "banded"])
def test_a_gradient_penalty(name: str) -> None:
    """∂/∂J of |∂(Σ P²)/∂h|², of which autograd left a part out, against autograd through enumeration."""
    found = []
    for solve in (lambda h, J: answers(name, h, J)[0], lambda h, J: naive(Ising(h, J))[0]):
        h = make_problem((5,), 3, seed=7).fields.requires_grad_()
        pairs = torch.tensor([0.3, -0.6, 0.5], dtype=F64, requires_grad=True)
        p = solve(h, pack_couplings(pairs, 3))
        (first,) = torch.autograd.grad(p.square().sum(), h, create_graph=True)
        found.append((first.detach(), *torch.autograd.grad(first.square().sum(), (h, pairs))))
    for got, want in zip(*found, strict=True):
        assert torch.allclose(got, want, atol=1e-12)
        assert want.abs().max() > 1e-3


def test_second_derivatives_of_problems_beyond_float64() -> None:
    """Exponents of thousands: finite, and the same by enumeration and by the transfer matrix."""
    found = {}
    for name in ("exact", "banded"):
        torch.manual_seed(0)
        h = (300 * torch.randn(20, 4, dtype=F64)).requires_grad_()
        pairs = (400 * torch.randn(20, 6, dtype=F64)).requires_grad_()
        p, log_z = answers(name, h, pack_couplings(pairs, 4))
        first = torch.autograd.grad(log_z.sum() + p[:, 0].sum(), (h, pairs), create_graph=True)
        found[name] = torch.autograd.grad(sum(g.square().sum() for g in first), (h, pairs))
    for a, b in zip(*found.values(), strict=True):
        assert torch.isfinite(a).all()
        assert torch.allclose(a, b, atol=1e-9)


@pytest.mark.parametrize("name", ["exact", "banded"])
def test_third_derivatives(name: str) -> None:
    """Of log Z they are third cumulants; against autograd through enumeration."""
    base = make_problem((2,), 4, seed=1)
    found = []
    for solve in (lambda i: answers(name, i.fields, i.couplings)[1], lambda i: naive(i)[1]):
        x = torch.tensor([0.5, -0.3, 0.8, 0.1], dtype=F64, requires_grad=True)
        y = solve(Ising(x * base.fields, base.couplings)).sum()
        for _ in range(3):
            (g,) = torch.autograd.grad(y, x, create_graph=True)
            y = g.square().sum()
        found.append(g.detach())
    assert torch.allclose(found[0], found[1], atol=1e-10)


@pytest.mark.parametrize("name", SMOOTH)
def test_third_derivatives_under_torch_func_are_refused(name: str) -> None:
    h, J = make_problem((2,), 3, seed=1).fields, torch.zeros(3, 3, dtype=F64)
    f: Callable[[Tensor], Tensor] = lambda x: penalty(name)(x * h, J)  # noqa: E731
    with pytest.raises(
        UnsupportedError, match=f"expected at most second derivatives through sampler '{name}'"
    ):
        torch.func.grad(torch.func.grad(torch.func.grad(f)))(torch.tensor(0.5, dtype=F64))


class Plain(type(SMOOTH["exact"])):  # type: ignore[misc]  # a class found at run time
    """Has first derivatives only."""

    smooth = False


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        (
            sampler("mean_field", max_iterations=2),
            r"expect a converged fixed point, got a residual of .* after 2 iter",
        ),
        (Plain(), "gradient: sampler 'exact' has first derivatives only"),
    ],
    ids=["unfinished", "first derivatives only"],
)
def test_second_derivatives_that_are_not_there_are_refused(backend: Sampler, message: str) -> None:
    base = make_problem((2,), 3, seed=1, couplings=2.0)
    fields = base.fields.requires_grad_()
    p = backend.moments(Ising(fields, base.couplings)).probability
    (first,) = torch.autograd.grad(p.square().sum(), fields, create_graph=True)
    with pytest.raises(UnsupportedError, match=message):
        first.sum().backward()


@pytest.mark.parametrize("name", SMOOTH)
def test_vmap_over_visibility_and_heads(name: str) -> None:
    """A mapped mask, and J [H, 1, n, n] that broadcasts against fields [H, T, n] from the right."""
    h, J = torch.randn(2, 3, 3, dtype=F64), pack_couplings(0.3 * torch.randn(2, 1, 3, dtype=F64), 3)
    masks = torch.stack((CAUSAL, GAPS))
    got = torch.func.vmap(lambda visible: answers(name, h, J, visible)[0])(masks)
    loop = torch.stack([answers(name, h, J, mask)[0] for mask in masks])
    assert torch.allclose(got, loop, atol=1e-14)


# Of torch's own decompositions for forward mode.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("name", SMOOTH)
def test_jacobians_by_forward_derivatives(name: str) -> None:
    """Those of a second order are in tests/attention/test_second_derivatives.py."""
    h, J = make_problem((2,), 3, seed=5).fields, pack_couplings(torch.tensor([0.3, -0.2, 0.4], dtype=F64), 3)
    backward, forward = (
        jac(lambda h, J: answers(name, h, J), argnums=(0, 1))(h, J)
        for jac in (torch.func.jacrev, torch.func.jacfwd)
    )
    torch.testing.assert_close(backward, forward, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", [*SMOOTH, "tempering", "dqa"])
def test_autocast_does_not_reach_in(name: str, dtype: torch.dtype) -> None:
    base = make_problem((4,), 5, seed=2, dtype=torch.float32)
    backend = SMOOTH.get(name) or sampler(name)

    def results() -> list[Tensor]:
        h = base.fields.clone().requires_grad_()
        p = backend.moments(Ising(h, base.couplings), seed=1).probability
        drawn = [backend.sample(base, 5, seed=1).spins] if backend.capabilities.samples else []
        gradient = torch.autograd.grad(p.square().sum(), h) if p.requires_grad else ()
        return [p.detach(), *drawn, *gradient]

    want = results()
    with torch.autocast("cpu", dtype=dtype):
        got = results()
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_no_probability_exceeds_one_by_rounding() -> None:
    """About one batch in forty did, and torch.bernoulli refuses it."""
    torch.manual_seed(0)
    for _ in range(100):
        h, J = 5 * torch.randn(64, 6), pack_couplings(5 * torch.randn(15), 6)
        for name in ("exact", "banded", "mean_field"):
            p = SMOOTH[name].moments(Ising(h, J)).probability
            assert float(p.max()) <= 1
            torch.bernoulli(p)


@pytest.mark.parametrize("backend_name", [*SMOOTH, "tempering", "dqa", "refine", "dimod"])
def test_values_that_are_not_finite_are_named_where_nobody_checked(backend_name: str) -> None:
    """As a layer hands them on; an invisible spin may hold what it likes."""
    backend = SMOOTH.get(backend_name) or sampler(backend_name)
    for value, name in itertools.product((float("nan"), float("inf")), ("fields", "couplings")):
        given = {"fields": torch.zeros(2, 3), "couplings": torch.zeros(3, 3)}
        given[name][1, 2] = given[name][-1, 2] = value
        with pytest.raises(
            ValueError, match=rf"{name}: expected finite values, got {value} at index \(1, 2\)"
        ):
            backend.moments(Ising(**given, check=False), seed=1)


@pytest.mark.parametrize("name", SMOOTH)
def test_numbers_beside_which_others_vanish_are_refused(name: str) -> None:
    """J = 3e38 gave NaN by transfer matrices, and 1e30 another answer by each backend; 1e9 is still right."""
    J = pack_couplings(torch.tensor([1.0, -1.0, 1.0]), 3)
    h = torch.tensor([0.4, -0.3, 0.2])
    for size in (1e30, 3e38):
        with pytest.raises(ValueError, match=r"couplings: expected numbers up to 1e\+09, so that float64"):
            SMOOTH[name].moments(Ising(h, size * J))
        with pytest.raises(ValueError, match=r"fields: expected numbers up to 1e\+09"):
            SMOOTH[name].moments(Ising(torch.tensor([size, 0.0, 0.0])))
    hidden = torch.tensor([True, True, False])
    assert SMOOTH[name].moments(Ising(torch.tensor([0.4, -0.3, 1e30]), J, hidden)).probability[2] == 0
    if (
        name != "mean_field"
    ):  # a frustrated triangle: ground states of equal energy, which the fields tell apart
        strong, weak = (SMOOTH[name].moments(Ising(h, size * J)).probability for size in (1e8, 1e2))
        assert torch.allclose(strong, weak, atol=1e-5)


@pytest.mark.parametrize("backend", ["exact", "banded", "mean_field"])
def test_couplings_that_nothing_depends_on_have_no_gradient(backend: str) -> None:
    pairs = torch.randn(6, dtype=torch.float64, requires_grad=True)
    hidden = torch.zeros(4, dtype=torch.bool)
    ising = Ising(torch.randn(3, 4, dtype=torch.float64), pack_couplings(pairs, 4), hidden)
    moments = diabat.sampler(backend).moments(ising)
    values = [v.sum() for v in (moments.probability, moments.log_partition) if v is not None]
    torch.stack([*values, (pairs**2).sum()]).sum().backward()
    assert torch.equal(pairs.grad, 2 * pairs)
