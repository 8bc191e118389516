"""Nash weights: the residual over all scales, tasks without gradient or opposed, and an independent solver."""

from __future__ import annotations

import importlib
import importlib.util

import numpy as np
import pytest
import torch
from torch import Tensor

from diabat.attention.heads.losses import nash_weights


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
        if opposed is not None:  # 5 random vectors of 4 numbers can cancel
            assert tasks == 5
            continue
        assert (alpha > 0).all()
        assert (alpha * (rows @ rows.T @ alpha)).sub(1).abs().max() <= 1e-6
        # The norm of the step is that of √K unit vectors, whatever the losses are multiplied by.
        assert (rows.T @ alpha).norm().item() == pytest.approx(tasks**0.5, rel=1e-6)


def test_the_update_is_free_of_scale() -> None:
    rows = gradients(3, 6, 1)
    factors = torch.tensor([1e4, 1.0, 3e-5], dtype=torch.float64)[:, None]
    update = rows.T @ nash_weights(rows @ rows.T)[0]
    scaled = (rows * factors).T @ nash_weights((rows * factors) @ (rows * factors).T)[0]
    torch.testing.assert_close(update, scaled)


def test_two_tasks_in_closed_form() -> None:
    """a = 1/√(1 + c) for both, c the cosine."""
    c = -0.8
    found, _ = nash_weights(torch.tensor([[4.0, 6 * c], [6 * c, 9.0]]))
    assert found.tolist() == pytest.approx([0.5 / (1 + c) ** 0.5, 1 / 3 / (1 + c) ** 0.5])


def test_a_task_without_gradient_gets_weight_zero() -> None:
    rows = gradients(3, 6, 2)
    rows[1] = 0
    found, opposed = nash_weights(rows @ rows.T)
    assert (float(found[1]), opposed) == (0, None)
    others, _ = nash_weights(rows[[0, 2]] @ rows[[0, 2]].T)
    torch.testing.assert_close(found[[0, 2]], others)


def test_opposed_tasks_are_reported() -> None:
    rows = gradients(3, 6, 3)
    rows[2] = -2 * rows[0]
    found, opposed = nash_weights(rows @ rows.T)
    assert opposed == (0, 2)
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
