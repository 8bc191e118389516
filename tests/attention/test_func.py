"""torch.func through layers and through the bridge, for every estimator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, stack_module_state, vmap

from diabat import BoltzmannAttention, sampler, spin_probabilities
from diabat.ising import pack_couplings
from diabat.samplers.capabilities import UnsupportedError

F64 = torch.float64
BRIDGES: dict[str, dict[str, Any]] = {
    "exact": {"sampler": "exact"},
    "banded": {"sampler": "banded"},
    "mean_field": {"sampler": "mean_field"},
    "straight_through": {"sampler": "dqa", "gradient": "straight_through"},
    "linear_response": {"sampler": "exact", "gradient": "linear_response"},
    "adjoint": {"sampler": "dqa", "gradient": "adjoint"},
    "covariance": {"sampler": "exact", "gradient": "covariance", "num_reads": 40, "seed": 5},
}


def alpha(name: str, h: Tensor, J: Tensor) -> Tensor:
    options = dict(BRIDGES[name])
    return spin_probabilities(h, J, options.pop("sampler"), check=False, **options)


@pytest.mark.parametrize("mapped", [(0, 0), (0, None), (None, 0)])
@pytest.mark.parametrize("name", [n for n in BRIDGES if n != "covariance"])
def test_vmap_of_gradients_equals_a_loop(name: str, mapped: tuple[int | None, int | None]) -> None:
    h, J = torch.randn(3, 2, 4, dtype=F64), pack_couplings(0.3 * torch.randn(3, 6, dtype=F64), 4)
    given = [t if d == 0 else t[0] for t, d in zip((h, J), mapped, strict=True)]
    f = grad(lambda h, J: alpha(name, h, J).square().sum(), argnums=(0, 1))
    loop = [f(*(t if d is None else t[i] for t, d in zip(given, mapped, strict=True))) for i in range(3)]
    for got, want in zip(vmap(f, in_dims=mapped)(*given), zip(*loop, strict=True), strict=True):
        assert torch.allclose(got, torch.stack(want), atol=1e-10)


def test_reads_under_vmap_are_those_of_one_larger_batch() -> None:
    h, J = torch.randn(3, 2, 4, dtype=F64), pack_couplings(0.3 * torch.randn(6, dtype=F64), 4)
    f = grad(lambda h, J: alpha("covariance", h, J).sum(), argnums=0)
    assert torch.allclose(vmap(f, in_dims=(0, None))(h, J), f(h, J), atol=1e-12)


@pytest.mark.parametrize("name", ["straight_through", "adjoint", "covariance"])
def test_jacobians_of_estimators(name: str) -> None:
    """One row at a time by torch.autograd, and all at once by vmap over cotangents."""
    h, J = torch.randn(2, 3, dtype=F64), pack_couplings(0.3 * torch.randn(3, dtype=F64), 3)
    got = jacrev(lambda h, J: alpha(name, h, J), argnums=(0, 1))(h, J)
    want: Any = torch.autograd.functional.jacobian(lambda h, J: alpha(name, h, J), (h, J))
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("name", BRIDGES)
def test_batches_of_cotangents_are_answered_or_refused(name: str) -> None:
    """torch.autograd's own vectorised Jacobian, by an older vmap: right, or one sentence."""
    h, J = torch.randn(2, 3, dtype=F64), pack_couplings(0.3 * torch.randn(3, dtype=F64), 3)

    def f(h: Tensor) -> Tensor:
        return alpha(name, h, J)

    want: Any = torch.autograd.functional.jacobian(f, h)
    if name in ("exact", "banded", "adjoint", "covariance"):
        with pytest.raises(RuntimeError, match=r"got a batch of them .*; use torch\.func\.jacrev"):
            torch.autograd.functional.jacobian(f, h, vectorize=True)
    else:
        got: Any = torch.autograd.functional.jacobian(f, h, vectorize=True)
        assert torch.allclose(got, want, atol=1e-12)


def test_a_vectorised_hessian_of_mean_field() -> None:
    h, J = torch.randn(2, 3, dtype=F64), pack_couplings(0.3 * torch.randn(3, dtype=F64), 3)
    backend = sampler("mean_field", tolerance=1e-13)

    def f(h: Tensor) -> Tensor:
        return spin_probabilities(h, J, backend, check=False).square().sum()

    got, want = (torch.autograd.functional.hessian(f, h, vectorize=v) for v in (True, False))
    assert torch.allclose(got, want, atol=1e-11)


@pytest.mark.parametrize("name", ["straight_through", "linear_response", "adjoint", "covariance"])
def test_second_derivatives_of_estimators_are_refused(name: str) -> None:
    h, J = torch.randn(2, 3, dtype=F64), torch.zeros(3, 3, dtype=F64)
    sentence = f"estimator '{name}' .* has first derivatives only, got a second"
    with pytest.raises(UnsupportedError, match=sentence):
        grad(lambda h: grad(lambda h: alpha(name, h, J).square().sum())(h).sum())(h)


@pytest.mark.parametrize("backend", ["exact", "banded", "mean_field", "dqa"])
def test_eight_models_at_once_equal_a_loop(backend: str) -> None:
    """stack_module_state, functional_call and vmap, as in torch's tutorial on ensembles."""
    # Of mean field all problems of a batch iterate until the last one is done.
    options = {"tolerance": 1e-13} if backend == "mean_field" else {}
    models = [BoltzmannAttention(8, 2, 5, sampler=sampler(backend, **options)).double() for _ in range(8)]
    for p in (p for m in models for p in m.parameters()):
        nn.init.normal_(p, std=0.3)
    parameters, buffers = stack_module_state(models)
    x = torch.randn(3, 5, 8, dtype=F64)

    def loss(p: dict[str, Tensor], b: dict[str, Tensor]) -> Tensor:
        y: Tensor = functional_call(models[0], (p, b), (x,))
        return y.square().mean()

    # A layer over an anneal draws a seed, one for all, although this one has no use for it.
    randomness = "same" if backend == "dqa" else "error"
    got = vmap(grad(loss), randomness=randomness)(parameters, buffers)
    for i, model in enumerate(models):
        model.zero_grad()
        model(x).square().mean().backward()
        for name, p in model.named_parameters():
            assert torch.allclose(got[name][i], p.grad, atol=1e-9), name


def test_a_learned_anneal_is_not_mapped() -> None:
    learned = sampler("dqa", schedule="boltzmann-4", learn_schedule=True)
    models = [BoltzmannAttention(8, 2, 5, sampler=learned, gradient="adjoint") for _ in range(2)]
    parameters, buffers = stack_module_state(models)
    x = torch.randn(3, 5, 8)
    with pytest.raises(UnsupportedError, match="vmap over parameters of the anneal is unsupported"):
        vmap(lambda p, b: functional_call(models[0], (p, b), (x,)), randomness="same")(parameters, buffers)
