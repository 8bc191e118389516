"""Nash weights: the residual over all scales, tasks without gradient or opposed, and an independent solver."""

from __future__ import annotations

import importlib
import importlib.util

import numpy as np
import pytest
import torch
from torch import Tensor

from diabat.attention.heads.balancing import RunningScale, nash_weights, three_phases
from diabat.checks import ArgumentError


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
        found = nash_weights(rows @ rows.T)
        if found.opposed is not None:  # 5 random vectors of 4 numbers can cancel
            assert tasks == 5
            continue
        alpha = found.weights
        assert (alpha > 0).all()
        assert (alpha * (rows @ rows.T @ alpha)).sub(1).abs().max() <= 1e-6
        assert found.residual <= 1e-6
        assert found.steps <= 60
        # The norm of the step is that of √K unit vectors, whatever the losses are multiplied by.
        assert (rows.T @ alpha).norm().item() == pytest.approx(tasks**0.5, rel=1e-6)


def test_the_update_is_free_of_scale() -> None:
    rows = gradients(3, 6, 1)
    factors = torch.tensor([1e4, 1.0, 3e-5], dtype=torch.float64)[:, None]
    update = rows.T @ nash_weights(rows @ rows.T).weights
    scaled = (rows * factors).T @ nash_weights((rows * factors) @ (rows * factors).T).weights
    torch.testing.assert_close(update, scaled)


def test_two_tasks_in_closed_form() -> None:
    """a = 1/√(1 + c) for both, c the cosine."""
    c = -0.8
    found = nash_weights(torch.tensor([[4.0, 6 * c], [6 * c, 9.0]]))
    assert found.weights.tolist() == pytest.approx([0.5 / (1 + c) ** 0.5, 1 / 3 / (1 + c) ** 0.5])


def test_a_task_without_gradient_gets_weight_zero() -> None:
    rows = gradients(3, 6, 2)
    rows[1] = 0
    found = nash_weights(rows @ rows.T)
    assert found.weights[1] == 0
    others = nash_weights(rows[[0, 2]] @ rows[[0, 2]].T)
    torch.testing.assert_close(found.weights[[0, 2]], others.weights)


def test_opposed_tasks_are_reported() -> None:
    rows = gradients(3, 6, 3)
    rows[2] = -2 * rows[0]
    found = nash_weights(rows @ rows.T)
    assert found.opposed == (0, 2)
    assert found.residual == float("inf")
    assert found.weights.tolist() == pytest.approx([1 / rows[0].norm().item(), 0, 0])


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (torch.zeros(2, 2), "expected a task with a gradient, got zero for all"),
        (torch.tensor([[1.0, float("nan")], [float("nan"), 1.0]]), "expected finite gradients of every task"),
        (torch.ones(2, 3), r"expected \[K, K\] with K >= 1, got \[2, 3\]"),
    ],
)
def test_refusals(matrix: Tensor, message: str) -> None:
    with pytest.raises(ArgumentError, match=f"gramian: {message}"):
        nash_weights(matrix)


@pytest.mark.skipif(importlib.util.find_spec("torchjd") is None, reason="needs torchjd")
def test_an_independent_solver_agrees() -> None:
    solver = importlib.import_module("torchjd.aggregation").FairGradWeighting(1.0)
    for seed in range(20):
        rows = gradients(3, 6, seed, 10.0)
        norms = rows.norm(dim=1)
        cosines = (rows / norms[:, None]) @ (rows / norms[:, None]).T
        np.testing.assert_allclose(
            (nash_weights(rows @ rows.T).weights * norms).numpy(), solver(cosines).numpy(), rtol=1e-5
        )


def test_three_phases_by_hand() -> None:
    assert [three_phases(x) for x in (0.0, 0.01, 0.02, 0.5, 0.879, 1.0)] == [0.0, 0.5, 1.0, 1.0, 1.0, 0.0]
    assert three_phases(0.9395) == pytest.approx(0.5)
    assert three_phases(0.0, warmup=0.0) == 1.0
    with pytest.raises(ArgumentError, match=r"warmup: expected at most cooldown = 0.5, got 0.6"):
        three_phases(0.5, 0.6, 0.5)
    with pytest.raises(ArgumentError, match=r"progress: expected a number in 0 .. 1, got 1.5"):
        three_phases(1.5)


def test_running_scale_by_hand() -> None:
    scale = RunningScale()
    assert scale.factor(10.0) == pytest.approx(20 / 19)  # ema_1 = 0.1 · 10 + 0.9 · 20
    scale.finish()
    assert scale.ema == pytest.approx(19)
    first = scale.factor(4.0)
    assert first == pytest.approx(20 / (0.4 + 0.9 * 19))
    assert scale.factor(6.0) == pytest.approx(20 / (0.5 + 0.9 * 19))  # the mean of two micro-batches
    scale.finish()
    assert scale.ema == pytest.approx(0.5 + 0.9 * 19)
    scale.finish()  # a step without a loss changes nothing
    assert scale.ema == pytest.approx(0.5 + 0.9 * 19)
