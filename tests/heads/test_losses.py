"""Losses on heads by hand and by gradcheck, and Nash weights over all scales, against an independent solver."""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from diabat.heads.lora.losses import (
    cross_head_barlow_twins,
    disagreement,
    log_det_barrier,
    nash_weights,
    negative_entropy,
    pair_weights,
)


def coupling(heads: int = 4, seed: int = 0) -> Tensor:
    """A positive semi-definite matrix with a unit diagonal, of low rank."""
    vectors = torch.randn(heads, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    unit = vectors / vectors.norm(dim=1, keepdim=True)
    return unit @ unit.T


def outputs(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def naive_barlow_twins(values: Tensor, weights: Tensor, mask: Tensor, target: float) -> float:
    """Eq. 29-32 in loops."""
    tokens = values[mask]
    count, heads, size = tokens.shape
    z = (tokens - tokens.mean(0)) / (tokens.std(0, correction=0) + 1e-5)
    terms = []
    for i in range(heads):
        for j in range(i + 1, heads):
            c = sum(torch.outer(z[n, i], z[n, j]) for n in range(count)) / count
            terms.append(float(weights[i, j] * ((c - target * torch.eye(size)) ** 2).sum()))
    return sum(terms) / len(terms)


def test_log_det_barrier_keeps_the_gradient_of_a_singular_matrix() -> None:
    """Two heads that are copies: d/dG = -(G + εI)⁻¹, whose largest eigenvalue is 1/ε; a clamp at ε has 0 there."""
    g = torch.ones(2, 2, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(log_det_barrier(g), g)
    wanted = -torch.linalg.inv(torch.ones(2, 2).double() + 0.01 * torch.eye(2).double())
    torch.testing.assert_close(gradient, wanted)
    assert torch.linalg.eigvalsh(gradient).min() == pytest.approx(-100)


def test_log_det_barrier_gradient() -> None:
    g = coupling().requires_grad_()
    symmetric: Callable[[Tensor], Tensor] = lambda m: log_det_barrier((m + m.T) / 2)  # noqa: E731
    assert torch.autograd.gradcheck(symmetric, g)
    assert log_det_barrier(torch.ones(2, 2)).dtype == torch.float64
    factor = torch.linalg.slogdet(coupling() + 0.01 * torch.eye(4).double())
    assert log_det_barrier(g).item() == pytest.approx(-factor.logabsdet.item(), abs=1e-10)


@pytest.mark.parametrize("target", ["identity", "zero"])
def test_barlow_twins_agrees_with_loops_and_has_a_gradient(target: str) -> None:
    values, weights = outputs(2, 5, 3, 2), pair_weights(coupling(3))
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[0, :2] = False
    wanted = naive_barlow_twins(values, weights, mask, float(target == "identity"))
    found = cross_head_barlow_twins(values, weights, mask, target)
    assert found.item() == pytest.approx(wanted, rel=1e-9)
    values.requires_grad_()
    assert torch.autograd.gradcheck(lambda v: cross_head_barlow_twins(v, weights, mask, target), values)


def test_padding_has_no_influence_and_no_gradient() -> None:
    values = outputs(2, 6, 3, 2)
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[:, :2] = False
    other = torch.where(mask[..., None, None], values, torch.full_like(values, 1e3)).requires_grad_()
    for loss in (cross_head_barlow_twins(other, None, mask), disagreement(other, mask)):
        (gradient,) = torch.autograd.grad(loss, other)
        assert not gradient[~mask].any()
        assert gradient[mask].any()
    assert cross_head_barlow_twins(values, None, mask) == cross_head_barlow_twins(other, None, mask)


def test_a_feature_without_variance_gives_no_nan() -> None:
    values = outputs(1, 8, 2, 3)
    values[..., 0] = 1.0
    values.requires_grad_()
    loss = cross_head_barlow_twins(values)
    (gradient,) = torch.autograd.grad(loss, values)
    assert torch.isfinite(loss)
    assert torch.isfinite(gradient).all()


def test_weights_by_hand() -> None:
    g = torch.tensor([[1.0, 0.25], [0.25, 1.0]], requires_grad=True)
    soft = math.log1p(math.exp(-15.99 * 0.25))
    assert pair_weights(g)[0, 1].item() == pytest.approx(0.929 + 0.071 * soft, abs=1e-6)
    soft = math.log1p(math.exp(15.99 * (0.25 - 0.1)))
    inverse = pair_weights(g, "inverse", threshold=0.1)
    assert inverse[0, 1].item() == pytest.approx(0.929 + 0.071 * soft, abs=1e-6)
    assert not inverse.requires_grad
    assert pair_weights(g, "uniform").eq(1).all()
    # The spread that the adaptive weights have on [0, 1].
    ends = pair_weights(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))[0]
    assert ends.tolist() == pytest.approx([0.9782, 0.929], abs=1e-4)


def test_baselines_by_hand() -> None:
    values = torch.tensor([[[[3.0, 0.0], [0.0, 2.0]], [[1.0, 0.0], [5.0, 0.0]]]])
    # Orthogonal heads give 2/4, equal directions 4/4.
    assert disagreement(values).item() == pytest.approx((0.5 + 1) / 2)
    logits = torch.tensor([[[0.0, 0.0], [math.log(3), 0.0]]])
    wanted = 0.75 * math.log(0.75) + 0.25 * math.log(0.25)
    assert negative_entropy(logits).item() == pytest.approx((wanted - math.log(2)) / 2)
    assert torch.autograd.gradcheck(disagreement, outputs(1, 3, 2, 2).requires_grad_())
    assert torch.autograd.gradcheck(negative_entropy, outputs(1, 3, 4).requires_grad_())


def gradients(tasks: int, size: int, seed: int, scale: float = 0.0) -> Tensor:
    """Random task gradients [K, P] with norms of e^±scale."""
    g = torch.Generator().manual_seed(seed)
    sizes = ((2 * torch.rand(tasks, generator=g, dtype=torch.float64) - 1) * scale).exp()
    return torch.randn(tasks, size, generator=g, dtype=torch.float64) * sizes[:, None]


@pytest.mark.parametrize("scale", [0.0, 3.0, 10.0])
@pytest.mark.parametrize("tasks", [1, 2, 3, 5])
def test_residual_over_scales(tasks: int, scale: float) -> None:
    for seed in range(50):
        rows = gradients(tasks, 4, seed, scale)
        alpha, opposed = nash_weights(rows @ rows.T)
        if opposed:  # 5 random vectors of 4 numbers can cancel
            assert tasks == 5
            continue
        assert (alpha > 0).all()
        assert (alpha * (rows @ rows.T @ alpha)).sub(1).abs().max() <= 1e-6
        # The norm of the step is that of √K unit vectors, whatever the losses are multiplied by.
        assert (rows.T @ alpha).norm().item() == pytest.approx(tasks**0.5, rel=1e-6)


def test_a_task_without_gradient_gets_weight_zero() -> None:
    rows = gradients(3, 6, 2)
    rows[1] = 0
    found, opposed = nash_weights(rows @ rows.T)
    assert (float(found[1]), opposed) == (0, False)
    others, _ = nash_weights(rows[[0, 2]] @ rows[[0, 2]].T)
    torch.testing.assert_close(found[[0, 2]], others)


def test_opposed_tasks_are_reported() -> None:
    rows = gradients(3, 6, 3)
    rows[2] = -2 * rows[0]
    found, opposed = nash_weights(rows @ rows.T)
    assert opposed
    assert found.tolist() == pytest.approx([1 / rows[0].norm().item(), 0, 0])


@pytest.mark.skipif(importlib.util.find_spec("torchjd") is None, reason="needs torchjd")
def test_an_independent_solver_agrees() -> None:
    solver = importlib.import_module("torchjd.aggregation").FairGradWeighting(1.0)
    for seed in range(20):
        rows = gradients(3, 6, seed, 10.0)
        norms = rows.norm(dim=1)
        cosines = (rows / norms[:, None]) @ (rows / norms[:, None]).T
        np.testing.assert_allclose(
            (nash_weights(rows @ rows.T)[0] * norms).numpy(), solver(cosines).numpy(), rtol=1e-5
        )
