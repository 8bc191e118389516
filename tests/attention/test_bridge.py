from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
import torch
from fakes import FIFOSampler, RecorderSampler
from torch import Tensor

from diabat.attention import BoltzmannAttention, spin_probabilities
from diabat.attention.bridge import choose_estimator
from diabat.circuits import TrotterPlan
from diabat.ising import Ising, IsingError, pack_couplings, pack_three_body
from diabat.samplers import Sampler, UnsupportedError
from diabat.samplers.capabilities import Capabilities, Estimator
from diabat.samplers.dqa import DQASampler
from diabat.samplers.exact import ExactSampler
from diabat.samplers.mean_field import MeanFieldSampler
from diabat.testing import ReferenceSampler
from diabat.testing.problems import make_problem

F64 = torch.float64
PLAN = TrotterPlan(*np.random.default_rng(3).normal(size=(3, 4)))
BEST: dict[str, tuple[Sampler, str]] = {
    "exact": (ExactSampler(), "exact"),
    "mean_field": (MeanFieldSampler(), "exact"),
    "dqa": (DQASampler(annealing_time_ns=2.0, steps=60), "straight_through"),
    "dqa_reads": (DQASampler(annealing_time_ns=2.0, steps=60, num_reads=64), "straight_through"),
    "dqa_aer": (DQASampler(annealing_time_ns=2.0, steps=60, engine="aer"), "straight_through"),
    "dqa_primitive": (DQASampler(schedule=PLAN, engine="primitive", num_reads=64), "straight_through"),
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


@pytest.mark.parametrize("gradient", get_args(Estimator))
@pytest.mark.parametrize("name", SAMPLERS)
def test_support_matrix(name: str, gradient: str) -> None:
    """Every pair gives finite gradients of h and J, or a sentence with what the backend does support."""
    sampler = SAMPLERS[name]
    h, J, _ = problem()
    visible = torch.tensor([True, True, False, True])
    supported = sampler.capabilities.gradients
    if gradient not in supported:
        sentence = f"gradient: sampler '{sampler.name}' supports {', '.join(supported)}, got '{gradient}'"
        with pytest.raises(UnsupportedError, match=sentence):
            spin_probabilities(h, J, sampler, gradient=gradient)
        return
    alpha = spin_probabilities(h, J, sampler, gradient=gradient, visible=visible, seed=1)
    alpha.pow(2).sum().backward()
    assert alpha.shape == (2, 3, 4)
    assert alpha.dtype == F64
    assert not alpha[..., 2].any()
    for grad, like in ((h.grad, h), (J.grad, J)):
        assert grad.shape == like.shape
        assert torch.isfinite(grad).all()
        assert grad.any()
    assert not h.grad[..., 2].any()
    assert not J.grad[..., 2, :].any()


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"gradient": "reinforce"}, UnsupportedError,
     "gradient: expected auto, exact, straight_through, linear_response, covariance, adjoint, got 'reinforce'"),
    ({"fields": torch.tensor([float("nan")])}, IsingError, "fields: expected finite values"),
    ({"sampler": None}, TypeError, "sampler: expected a diabat Sampler or its name, got NoneType"),
    ({"gradient": "covariance", "num_reads": 1}, ValueError, "expects at least 2 reads, got 1"),
    *(
        ({"gradient": name, "num_reads": 0}, ValueError, "num_reads: expected an integer >= 1, got 0")
        for name in ("exact", "straight_through", "linear_response", "covariance")
    ),
]  # fmt: skip


@pytest.mark.parametrize(("options", "kind", "message"), REFUSED)
def test_refusals(options: dict[str, Any], kind: type[Exception], message: str) -> None:
    h = torch.zeros(2, 3, requires_grad=True)
    given: dict[str, Any] = {"fields": h, "couplings": None, "sampler": "exact"} | options
    with pytest.raises(kind, match=message):
        spin_probabilities(**given).sum().backward()


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
    "noise": DQASampler(**QUICK, field_noise=0.05, coupling_noise=0.05),
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

    for name in ("moments", "adjoint"):
        monkeypatch.setattr(sampler, name, record(getattr(sampler, name)))
    h, J, _ = problem()
    for _ in range(2):
        spin_probabilities(h, J, sampler, gradient="adjoint").sum().backward()
    assert seeds[0] == seeds[1] != seeds[2] == seeds[3]


@pytest.mark.parametrize("name", ["exact", "mean_field"])
def test_samplers_without_adjoint_say_so_themselves(name: str) -> None:
    with pytest.raises(UnsupportedError, match=f"gradient: sampler '{name}' has no adjoint gradient"):
        SAMPLERS[name].adjoint(Ising(torch.zeros(3)), torch.ones(3), seed=0)


def test_straight_through_of_an_own_law_vanishes_at_strong_fields() -> None:
    """An anneal answers h = -40 with P near 0.01, not 0: 4 P (1 - P) there made trained fields run away."""
    h = torch.tensor([[-40.0, 0.3]], dtype=F64, requires_grad=True)
    J = torch.tensor([[0.0, 0.2], [0.2, 0.0]], dtype=F64)
    alpha = spin_probabilities(h, J, DQASampler(), gradient="straight_through")
    assert float(alpha[0, 0].detach()) > 5e-3
    alpha.sum().backward()
    assert abs(float(h.grad[0, 0])) < 1e-12
    local = 0.3 + 0.2 * (2 * float(alpha[0, 0].detach()) - 1)
    p = 1 / (1 + np.exp(-2 * local))
    assert float(h.grad[0, 1]) == pytest.approx(2 * p * (1 - p), rel=1e-9)


def test_second_derivatives_are_refused_rather_than_left_out() -> None:
    h, J, _ = problem()
    alpha = spin_probabilities(h, J, SAMPLERS["dqa"], gradient="straight_through")
    (first,) = torch.autograd.grad((alpha**2).sum(), h, create_graph=True)
    sentence = "estimator 'straight_through' of sampler 'dqa' has first derivatives only"
    with pytest.raises(UnsupportedError, match=sentence):
        first.sum().backward()


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
        layer.coupling_pairs = BoltzmannAttention(4, 2, 4).coupling_pairs
    with pytest.raises(
        ValueError, match=r"^couplings: .* got one made in torch.inference_mode; use its \.clone"
    ):
        layer(x)
