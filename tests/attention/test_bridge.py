"""From fields, couplings and a sampler to probabilities with a gradient: what is supported, and torch.func."""

from __future__ import annotations

import weakref
from typing import Any, get_args

import numpy as np
import pytest
import torch
from fakes import FIFOSampler, RecorderSampler
from layers import F64
from torch import Tensor
from torch.func import functional_call, grad, jacrev, stack_module_state, vmap

from diabat import BoltzmannAttention, sampler, spin_probabilities
from diabat.attention.bridge import choose_estimator
from diabat.attention.estimators import ESTIMATORS, GradientEstimator, ProblemGradient
from diabat.circuits import NativeEngine, TrotterPlan
from diabat.circuits.engines.native import engine as native_engine
from diabat.ising import Ising, pack_couplings, pack_three_body
from diabat.samplers import Sampler, UnsupportedError
from diabat.samplers.capabilities import Capabilities, Estimator
from diabat.samplers.dqa import DQASampler
from diabat.samplers.exact import ExactSampler
from diabat.samplers.mean_field import MeanFieldSampler
from diabat.testing import ReferenceSampler
from diabat.testing.problems import make_problem

PLAN = TrotterPlan(*np.random.default_rng(3).normal(size=(3, 4)))
BEST: dict[str, tuple[Sampler, str]] = {
    "exact": (ExactSampler(), "exact"),
    "mean_field": (MeanFieldSampler(), "exact"),
    "dqa": (DQASampler(annealing_time_ns=2.0, steps=60), "adjoint"),
    "dqa_reads": (DQASampler(annealing_time_ns=2.0, steps=60, num_reads=64), "adjoint"),
    "dqa_aer": (DQASampler(annealing_time_ns=2.0, steps=60, engine="aer"), "linear_response"),
    "dqa_primitive": (DQASampler(schedule=PLAN, engine="primitive", num_reads=64), "linear_response"),
    "dqa_learned": (DQASampler(schedule=PLAN, learn_schedule=True), "adjoint"),
    "reference": (ReferenceSampler(num_reads=64), "straight_through"),
}
SAMPLERS = {name: sampler for name, (sampler, _) in BEST.items()}


def problem(lead: Any = "heads", three_body: float = 0.0) -> tuple[Tensor, Tensor, Tensor | None]:
    ising = make_problem((2, 3), 4, lead=lead, seed=1, couplings=0.2, three_body=three_body)
    K = None if ising.three_body is None else ising.three_body.clone().requires_grad_()
    return ising.fields.clone().requires_grad_(), ising.couplings.clone().requires_grad_(), K


@pytest.mark.parametrize(("sampler", "best"), BEST.values(), ids=list(BEST))
def test_auto_takes_the_best_that_the_backend_supports(sampler: Sampler, best: str) -> None:
    assert choose_estimator(sampler, "auto") == best


@pytest.mark.parametrize("gradient", ["auto", "learned", "straight_through"])
def test_a_backend_declares_estimators_that_there_are(gradient: str) -> None:
    sampler = FIFOSampler([])
    sampler.capabilities = Capabilities(gradients=("learned", "straight_through"))
    h, J, _ = problem()
    with pytest.raises(
        UnsupportedError, match=r"^sampler: expected gradients among exact, .* got 'learned'\.$"
    ):
        spin_probabilities(h, J, sampler, gradient=gradient)


def test_an_estimator_is_a_row_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are those that configurations check; what a row needs is computed, and what it returns is the gradient."""
    assert get_args(Estimator) == ("exact", *ESTIMATORS)

    def even(cotangent: Tensor, spins: Tensor, response_at: Tensor | None, **wanted: Any) -> ProblemGradient:
        assert response_at is None
        assert len(spins) == 9
        return ProblemGradient(2 * cotangent, None, None)

    table: Any = ESTIMATORS
    monkeypatch.setitem(table, "even", GradientEstimator("even", even, ("spins", "response_at")))
    backend = FIFOSampler([torch.ones(9, 2, 3, 4, dtype=torch.int8)])
    backend.capabilities = Capabilities(gradients=("even",))
    h, J, _ = problem()
    spin_probabilities(h, J, backend, num_reads=9).sum().backward()
    assert torch.equal(h.grad, torch.full_like(h, 2))
    assert J.grad is None


@pytest.mark.parametrize("gradient", get_args(Estimator))
@pytest.mark.parametrize("name", SAMPLERS)
def test_support_matrix(name: str, gradient: str) -> None:
    """Every pair gives finite gradients of h and J, or a sentence with what the backend does support."""
    sampler = SAMPLERS[name]
    h, J, _ = problem()
    visible = torch.tensor([True, True, False, True])
    supported = sampler.capabilities.gradients
    if gradient not in supported:
        name = f"'{sampler.name}'{sampler.capabilities.note}"
        sentence = f"gradient: sampler {name} supports {', '.join(supported)}, got '{gradient}'"
        with pytest.raises(UnsupportedError, match=sentence):
            spin_probabilities(h, J, sampler, gradient=gradient)
        return
    alpha = spin_probabilities(h, J, sampler, gradient=gradient, visible=visible, seed=1)
    alpha.pow(2).sum().backward()
    assert alpha.shape == (2, 3, 4)
    assert alpha.dtype == F64
    assert not alpha[..., 2].any()
    for slope, like in ((h.grad, h), (J.grad, J)):
        assert slope.shape == like.shape
        assert torch.isfinite(slope).all()
        assert slope.any()
    assert not h.grad[..., 2].any()
    assert not J.grad[..., 2, :].any()


@pytest.mark.parametrize("gradient", ["straight_through", "linear_response", "covariance"])
def test_forward_is_the_samplers_own_value_smoothed(gradient: str) -> None:
    spins = torch.randint(0, 2, (9, 2, 3, 4)).to(torch.int8) * 2 - 1
    h, J, _ = problem()
    alpha = spin_probabilities(h, J, FIFOSampler([spins]), gradient=gradient, num_reads=9)
    assert torch.allclose(alpha, ((spins > 0).double().sum(0) + 0.5) / 10)


def test_analytic_values_are_not_smoothed() -> None:
    h, J, _ = problem()
    p = ExactSampler().moments(Ising(h.detach(), J.detach())).probability
    for gradient in ("exact", "straight_through", "linear_response"):
        assert torch.equal(spin_probabilities(h, J, "exact", gradient=gradient), p)


@pytest.mark.parametrize("gradient", ["straight_through", "linear_response", "covariance"])
def test_num_reads_and_seed_reach_the_sampler(gradient: str) -> None:
    recorder = RecorderSampler(ReferenceSampler())
    h, J, _ = problem()
    spin_probabilities(h, J, recorder, gradient=gradient, num_reads=37, seed=123).sum().backward()
    assert [(c.method, c.num_reads, c.seed, c.shape) for c in recorder.calls] == [
        ("sample", 37, 123, (2, 3, 4))
    ]


def test_without_num_reads_the_samplers_own_setting_counts() -> None:
    recorder = RecorderSampler(ReferenceSampler(num_reads=41))
    spin_probabilities(torch.zeros(2, 3), None, recorder, gradient="covariance")
    assert [(c.method, c.num_reads) for c in recorder.calls] == [("sample", 41)]
    recorder.calls.clear()
    spin_probabilities(torch.zeros(2, 3), None, recorder, gradient="straight_through", seed=9)
    assert [(c.method, c.seed) for c in recorder.calls] == [("moments", 9)]


@pytest.mark.parametrize("lead", [(), (1,), (2, 1), (1, 3), (2, 3), (1, 1)])
@pytest.mark.parametrize("gradient", ["exact", "straight_through", "linear_response", "covariance"])
def test_gradients_sum_over_the_broadcast_dimensions(gradient: str, lead: tuple[int, ...]) -> None:
    """J and K with a lead give the sum of the gradients of explicit per-problem J and K."""
    h = make_problem((2, 3), 4, seed=5).fields
    pairs, triples = (0.3 * torch.randn(*lead, count, dtype=F64) for count in (6, 4))
    J, K = pack_couplings(pairs, 4).requires_grad_(), pack_three_body(triples, 4).requires_grad_()
    J_each = J.detach().expand(2, 3, 4, 4).clone().requires_grad_()
    K_each = K.detach().expand(2, 3, 4, 4, 4).clone().requires_grad_()
    v = torch.randn(2, 3, 4, dtype=F64)
    options: dict[str, Any] = {"gradient": gradient, "seed": 6}
    options |= {"num_reads": 50} if gradient == "covariance" else {}
    for couplings, cubic in ((J, K), (J_each, K_each)):
        alpha = spin_probabilities(h, couplings, "exact", three_body=cubic, **options)
        (v * alpha).sum().backward()
    assert J.grad.abs().max() > 1e-3
    # The uniforms behind the reads do not depend on how J is shared, so that even sampled gradients agree.
    assert torch.allclose(J.grad, J_each.grad.sum_to_size(J.shape), atol=1e-12)
    assert torch.allclose(K.grad, K_each.grad.sum_to_size(K.shape), atol=1e-12)


@pytest.mark.parametrize("gradient", ["exact", "straight_through", "linear_response", "covariance"])
@pytest.mark.parametrize("name", ["exact", "mean_field"])
def test_gradients_of_couplings_are_symmetric(name: str, gradient: str) -> None:
    if gradient not in SAMPLERS[name].capabilities.gradients:
        pytest.skip("not supported, and refused elsewhere")
    h, J, K = problem(three_body=0.1)
    options: Any = {"num_reads": 50, "seed": 1} if gradient == "covariance" else {}
    spin_probabilities(h, J, name, gradient=gradient, three_body=K, **options).pow(2).sum().backward()
    assert (J.grad - J.grad.mT).abs().max() < 1e-14
    assert not J.grad.diagonal(dim1=-2, dim2=-1).any()
    assert (K.grad - K.grad.transpose(-1, -2)).abs().max() < 1e-14
    assert (K.grad - K.grad.transpose(-1, -3)).abs().max() < 1e-14
    assert not K.grad.diagonal(dim1=-2, dim2=-1).any()


def test_without_couplings_only_fields_are_differentiated() -> None:
    h = torch.randn(2, 3, dtype=F64, requires_grad=True)
    for gradient in ("exact", "straight_through", "linear_response", "covariance"):
        spin_probabilities(h, None, "exact", gradient=gradient, num_reads=None).sum().backward()
    assert torch.isfinite(h.grad).all()


QUICK: dict[str, Any] = {"annealing_time_ns": 2.0, "steps": 60}
ADJOINT: dict[str, DQASampler] = {
    "native": DQASampler(**QUICK),
    "torch": DQASampler(schedule=PLAN, engine="torch"),
    "plan": DQASampler(schedule=PLAN),
    "noise": DQASampler(**QUICK, noise=0.05),
}


@pytest.mark.parametrize("name", ADJOINT)
def test_adjoint_is_the_derivative_of_the_forward_pass(name: str) -> None:
    """gradcheck in float64: two heads with J of their own, causal mask, one padded key; noise of one seed."""
    visible = (
        torch.ones(3, 3, dtype=torch.bool).tril()
        & torch.tensor([[True] * 3, [False, True, True]])[:, None, None]
    )
    h = make_problem((2, 2, 3), 3, seed=1).fields.requires_grad_()
    pairs = (0.4 * torch.randn(2, 1, 3, dtype=F64)).requires_grad_()

    def alpha(h: Tensor, pairs: Tensor) -> Tensor:
        J = pack_couplings(pairs, 3)
        return spin_probabilities(h, J, ADJOINT[name], gradient="adjoint", visible=visible, seed=2)

    assert torch.autograd.gradcheck(alpha, (h, pairs), atol=1e-7, rtol=1e-6)
    # One alone gets the same derivative.
    both = torch.autograd.grad(alpha(h, pairs).pow(2).sum(), (h, pairs))
    (of_h,) = torch.autograd.grad(alpha(h, pairs.detach()).pow(2).sum(), h)
    (of_pairs,) = torch.autograd.grad(alpha(h.detach(), pairs).pow(2).sum(), pairs)
    assert torch.equal(of_h, both[0])
    assert torch.equal(of_pairs, both[1])


def test_adjoint_without_couplings() -> None:
    h = torch.randn(2, 3, dtype=F64, requires_grad=True)

    def alpha(h: Tensor) -> Tensor:
        return spin_probabilities(h, None, ADJOINT["native"], gradient="adjoint")

    assert torch.autograd.gradcheck(alpha, h, atol=1e-7)


def test_adjoint_with_reads_is_sampled_forward_and_exact_backward() -> None:
    h, J, _ = problem()
    sampler = DQASampler(**QUICK)
    v = torch.randn(2, 3, 4, dtype=F64)
    sampled = spin_probabilities(h, J, sampler, gradient="adjoint", num_reads=20, seed=5)
    spins = sampler.sample(Ising(h.detach(), J.detach()), 20, seed=5).spins
    assert torch.allclose(sampled, ((spins > 0).double().sum(0) + 0.5) / 21)
    exact = spin_probabilities(h, J, sampler, gradient="adjoint")
    assert not torch.allclose(sampled, exact, atol=1e-3)
    # A sampler that always reads does so without being asked.
    reading = spin_probabilities(h, J, SAMPLERS["dqa_reads"], gradient="adjoint", seed=5)
    assert not torch.allclose(reading, exact, atol=1e-3)
    grads = [torch.autograd.grad((v * alpha).sum(), (h, J)) for alpha in (exact, sampled, reading)]
    for got in grads[1:]:
        assert all(torch.equal(a, b) for a, b in zip(got, grads[0], strict=True))


def test_adjoint_sees_the_noise_of_the_forward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seed that the bridge draws goes to both passes: the gradient is that of the value returned."""
    sampler, seeds = ADJOINT["noise"], list[Any]()

    def record(call: Any) -> Any:
        def recorded(*args: Any, **options: Any) -> Any:
            seeds.append(options["seed"])
            return call(*args, **options)

        return recorded

    for name in ("moments", "solution"):
        monkeypatch.setattr(sampler, name, record(getattr(sampler, name)))
    h, J, _ = problem()
    for _ in range(2):
        spin_probabilities(h, J, sampler, gradient="adjoint", num_reads=9).sum().backward()
    assert seeds[0] == seeds[1] != seeds[2] == seeds[3]
    spin_probabilities(h, J, sampler, gradient="adjoint").sum().backward()
    assert len(seeds) == 5


@pytest.mark.parametrize("problems", [2, 40])
def test_the_states_of_the_forward_pass_serve_one_backward_pass(
    problems: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same numbers as without them, in any backward pass; nothing is kept without a gradient or after it."""
    kept: list[weakref.ref[Any]] = []
    sampler, run = DQASampler(**QUICK), NativeEngine.moments_and_gradient

    def watched(*args: Any, **options: Any) -> Any:
        moments, gradient = run(*args, **options)
        kept.append(weakref.ref(gradient.args[2]))
        return moments, gradient

    def step(**options: Any) -> tuple[Tensor, ...]:
        ising = make_problem((problems,), 5, seed=1)
        h, J = ising.fields.requires_grad_(), ising.couplings.requires_grad_()
        alpha = spin_probabilities(h, J, sampler, gradient="adjoint", seed=1)
        return alpha.detach(), *torch.autograd.grad(alpha.pow(2).sum(), (h, J), **options), alpha

    monkeypatch.setattr(NativeEngine, "moments_and_gradient", watched)
    *first, alpha = step()
    assert [one() for one in kept] == [None]
    assert alpha.requires_grad
    *again, alpha = step(retain_graph=True)
    assert kept[1]() is None
    ising = make_problem((problems,), 5, seed=1)
    h = ising.fields.requires_grad_()
    alpha = spin_probabilities(h, ising.couplings, sampler, gradient="adjoint", seed=1)
    assert kept[2]() is not None
    for _ in range(2):
        assert torch.equal(torch.autograd.grad(alpha.pow(2).sum(), h, retain_graph=True)[0], first[1])
    assert kept[2]() is None
    monkeypatch.setattr(native_engine, "KEPT_BYTES", 0)
    monkeypatch.setattr(NativeEngine, "moments_and_gradient", run)
    *anew, _ = step()
    for one, two, three in zip(first, again, anew, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)
    with torch.no_grad():
        spin_probabilities(h, None, sampler, gradient="adjoint", seed=1)
    assert len(kept) == 3


@pytest.mark.parametrize("gradient", ["straight_through", "linear_response"])
def test_the_response_of_an_own_law_vanishes_at_strong_fields(gradient: str) -> None:
    """It is taken at t = tanh(h + J m): an anneal answers h = -40 with P near 0.01, and trained fields ran away."""
    h = torch.tensor([[-40.0, 0.3]], dtype=F64, requires_grad=True)
    J = torch.tensor([[0.0, 0.2], [0.2, 0.0]], dtype=F64)
    alpha = spin_probabilities(h, J, DQASampler(), gradient=gradient)
    assert float(alpha[0, 0].detach()) > 5e-3
    alpha.sum().backward()
    assert abs(float(h.grad[0, 0])) < 1e-12
    local = 0.3 + 0.2 * (2 * float(alpha[0, 0].detach()) - 1)
    p = 1 / (1 + np.exp(-2 * local))
    assert float(h.grad[0, 1]) == pytest.approx(2 * p * (1 - p), rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("gradient", ["straight_through", "linear_response", "adjoint", "covariance"])
def test_autocast_changes_no_bit_of_values_and_gradients(gradient: str, dtype: torch.dtype) -> None:
    """Both passes under autocast: the response of an anneal's own law is taken at h + J m, a matrix product."""
    base = make_problem((8,), 6, seed=3, dtype=torch.float32)
    name = "exact" if gradient == "covariance" else "dqa"
    options: dict[str, Any] = {"num_reads": 20} if gradient == "covariance" else {}

    def results() -> list[Tensor]:
        h, J = base.fields.clone().requires_grad_(), base.couplings
        J = J.clone().requires_grad_()
        p = spin_probabilities(h, J, name, gradient=gradient, seed=1, **options)
        return [p.detach(), *torch.autograd.grad(p.square().sum(), (h, J))]

    want = results()
    with torch.autocast("cpu", dtype=dtype):
        got = results()
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("name", ["fields", "couplings"])
@pytest.mark.parametrize("gradient", ["exact", "straight_through", "covariance"])
def test_what_autograd_cannot_save_is_refused(gradient: str, name: str) -> None:
    """Tensors of torch.inference_mode, where something has a gradient; without gradients they are like all others."""
    with torch.inference_mode():
        made = dict(zip(("fields", "couplings"), (torch.randn(3), torch.zeros(3, 3)), strict=True))
    terms = {"fields": torch.randn(3), "couplings": torch.zeros(3, 3)}
    given = {k: made[k] if k == name else t.requires_grad_() for k, t in terms.items()}
    with pytest.raises(
        ValueError, match=f"^{name}: expected a tensor that autograd can save, got one made in torch"
    ):
        spin_probabilities(**given, sampler="exact", gradient=gradient)
    with torch.no_grad():
        spin_probabilities(**given, sampler="exact", gradient=gradient)
    spin_probabilities(**(given | {name: given[name].clone()}), sampler="exact", gradient=gradient)


def test_couplings_of_a_layer_that_autograd_cannot_save_are_refused() -> None:
    layer, x = BoltzmannAttention(4, 2, 4), torch.randn(200, 4, 4)
    with torch.inference_mode():
        layer.couplings.pairs = BoltzmannAttention(4, 2, 4).couplings.pairs
    with pytest.raises(
        ValueError, match=r"^couplings: .* got one made in torch.inference_mode; use its \.clone"
    ):
        layer(x)


FUNCTIONS: dict[str, dict[str, Any]] = {
    "exact": {"sampler": "exact"},
    "banded": {"sampler": "banded"},
    "mean_field": {"sampler": "mean_field"},
    "straight_through": {"sampler": "dqa", "gradient": "straight_through"},
    "linear_response": {"sampler": "exact", "gradient": "linear_response"},
    "adjoint": {"sampler": "dqa", "gradient": "adjoint"},
    "covariance": {"sampler": "exact", "gradient": "covariance", "num_reads": 40, "seed": 5},
}


def alpha(name: str, h: Tensor, J: Tensor) -> Tensor:
    options = dict(FUNCTIONS[name])
    return spin_probabilities(h, J, options.pop("sampler"), check=False, **options)


@pytest.mark.parametrize("mapped", [(0, 0), (0, None), (None, 0), (1, 2)])
@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n != "covariance"])
def test_vmap_of_gradients_equals_a_loop(name: str, mapped: tuple[int | None, int | None]) -> None:
    h, J = torch.randn(3, 2, 4, dtype=F64), pack_couplings(0.3 * torch.randn(3, 6, dtype=F64), 4)
    given = [t[0] if d is None else t.movedim(0, d) for t, d in zip((h, J), mapped, strict=True)]
    f = grad(lambda h, J: alpha(name, h, J).square().sum(), argnums=(0, 1))
    loop = [
        f(*(t if d is None else t.select(d, i) for t, d in zip(given, mapped, strict=True))) for i in range(3)
    ]
    for got, want in zip(vmap(f, in_dims=mapped)(*given), zip(*loop, strict=True), strict=True):
        assert torch.allclose(got, torch.stack(want), atol=1e-13 if name in ("exact", "banded") else 1e-10)


def test_reads_under_vmap_are_those_of_one_larger_batch() -> None:
    h, J = torch.randn(3, 2, 4, dtype=F64), pack_couplings(0.3 * torch.randn(6, dtype=F64), 4)
    f = grad(lambda h, J: alpha("covariance", h, J).sum(), argnums=0)
    assert torch.allclose(vmap(f, in_dims=(0, None))(h, J), f(h, J), atol=1e-12)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_jacobians(name: str) -> None:
    """All rows at once by vmap over cotangents; by torch.autograd's own, older one they are right, or one sentence."""
    h, J = torch.randn(2, 3, dtype=F64), pack_couplings(0.3 * torch.randn(3, dtype=F64), 3)

    def f(h: Tensor, J: Tensor) -> Tensor:
        return alpha(name, h, J)

    want: Any = torch.autograd.functional.jacobian(f, (h, J))
    torch.testing.assert_close(jacrev(f, argnums=(0, 1))(h, J), want, rtol=1e-5, atol=1e-12)
    if name in ("exact", "banded", "adjoint", "covariance"):
        with pytest.raises(RuntimeError, match=r"got a batch of them .*; use torch\.func\.jacrev"):
            torch.autograd.functional.jacobian(f, (h, J), vectorize=True)
    else:
        got = torch.autograd.functional.jacobian(f, (h, J), vectorize=True)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-12)


def test_a_vectorised_hessian_of_mean_field() -> None:
    h, J = torch.randn(2, 3, dtype=F64), pack_couplings(0.3 * torch.randn(3, dtype=F64), 3)
    backend = sampler("mean_field", tolerance=1e-13)

    def f(h: Tensor) -> Tensor:
        return spin_probabilities(h, J, backend, check=False).square().sum()

    got, want = (torch.autograd.functional.hessian(f, h, vectorize=v) for v in (True, False))
    assert torch.allclose(got, want, atol=1e-11)


def test_a_learned_anneal_is_not_mapped() -> None:
    learned = sampler("dqa", schedule="boltzmann-4", learn_schedule=True)
    models = [BoltzmannAttention(8, 2, 5, sampler=learned, gradient="adjoint") for _ in range(2)]
    parameters, buffers = stack_module_state(models)
    x = torch.randn(3, 5, 8)
    with pytest.raises(UnsupportedError, match="vmap over parameters of the anneal is unsupported"):
        vmap(lambda p, b: functional_call(models[0], (p, b), (x,)), randomness="same")(parameters, buffers)
