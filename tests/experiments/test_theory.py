"""``experiments.theory`` and ``experiments.curvature``: closed forms against autograd, sampling and exact Hessians."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from experiments.curvature import measure, output_weight, slices, theorem_2_1
from experiments.theory import decoupled_heads, fit_hallucination, games, random_game


def decoder() -> Any:
    """A Llama of random weights in float64, and a batch."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=12, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=16, bos_token_id=0, eos_token_id=1, pad_token_id=None,
        initializer_range=0.2,
    )  # fmt: skip
    return LlamaForCausalLM(config).double().eval()


def batch() -> dict[str, Tensor]:
    tokens = torch.randint(12, (2, 6), generator=torch.Generator().manual_seed(0))
    return {"input_ids": tokens, "labels": tokens}


def test_two_decoupled_heads_violate_theorem_2_2() -> None:
    game = decoupled_heads()
    assert game.gamma == pytest.approx(0, abs=1e-12)  # far below α/L: the condition holds
    assert game.stated == pytest.approx(1)
    assert game.price == pytest.approx(0.34 / 0.09)
    assert game.price <= game.bound == pytest.approx(1 + 0.5 * 2 * 2 / (2 * 0.09))
    assert decoupled_heads(2.0, 0.5, 0.25).price == pytest.approx(1 + (0.5 / 1.5) ** 2 * 4 / 0.5)


def test_random_games_violate_the_theorem_and_never_the_bound() -> None:
    """The counts that a longer implementation gave for these games."""
    columns = ("games", "admissible", "violate 2.2", "violate the bound")
    _, admitted, coupled, every = games(150)
    assert [admitted[key] for key in columns] == [150, 53, 51, 0]
    assert [coupled[key] for key in columns] == [118, 38, 36, 0]
    assert every["violate the bound"] == 0


@pytest.mark.parametrize("seed", range(4))
def test_a_game_against_samples_and_autograd(seed: int) -> None:
    """200,000 samples, within 5 standard errors (alpha below 1e-5)."""
    game = random_game(seed)
    heads, out, size = game.targets.shape
    g = torch.Generator().manual_seed(seed)
    h = torch.randn(200_000, heads * size, generator=g, dtype=torch.float64)
    h = (h @ torch.linalg.cholesky(game.moments).T).unflatten(1, (heads, size))
    noise = math.sqrt(game.noise) * torch.randn(len(h), out, generator=g, dtype=torch.float64)
    W = torch.randn(game.targets.shape, generator=g, dtype=torch.float64)
    e = torch.einsum("hod,nhd->no", W - game.targets, h) - noise
    losses = 0.5 * e.square().sum(1)
    assert abs(float(game.distortion(W) - losses.mean())) < 5 * float(losses.std()) / len(h) ** 0.5
    rows = torch.einsum("hod,no->hnd", W, e).flatten(1)
    rho = torch.nn.functional.normalize(rows, dim=1)
    omega = torch.nn.functional.normalize(W.flatten(1), dim=1)
    torch.testing.assert_close(game.G(W), (omega @ omega.T) * (rho @ rho.T), rtol=0, atol=0.02)
    hessian: Any = torch.autograd.functional.hessian(game.distortion, W)
    torch.testing.assert_close(game.block_norms, hessian.square().sum((1, 2, 4, 5)).sqrt())
    leaf = game.equilibrium.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(game.potential(leaf), leaf)
    assert float(gradient.norm()) < 1e-10


@pytest.mark.parametrize("c", [0.8, 0.3, -2.0, 0.0])
def test_exact_data_give_c_back(c: float) -> None:
    gamma = torch.linspace(0.2, 1.1, 12, dtype=torch.float64)
    found = fit_hallucination(gamma, 2 - 0.7 / (1 - c * gamma) if c else 0.5 + 3 * gamma)
    assert found["c"] == pytest.approx(c, rel=5e-3, abs=2e-3)
    assert found["R²"] == pytest.approx(1, abs=1e-6)
    assert found["from"] <= c <= found["to"]
    assert (found["from"] <= 0 <= found["to"]) == (c == 0)


def test_the_interval_ends_where_the_likelihood_has_fallen_by_half_of_chi_square() -> None:
    gamma = torch.linspace(0.2, 1.1, 30, dtype=torch.float64)
    noise = 0.05 * torch.randn(30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    excess = 2 - 0.7 / (1 - 0.6 * gamma) + noise
    found = fit_hallucination(gamma, excess)

    def squares(c: float) -> float:
        X = torch.stack((torch.ones(30, dtype=torch.float64), gamma / (1 - c * gamma)), 1)
        return float((excess - X @ torch.linalg.lstsq(X, excess).solution).square().sum())

    for end in ("from", "to"):
        fallen = 30 * math.log(squares(found[end]) / squares(found["c"]))
        assert fallen == pytest.approx(
            3.841, abs=0.05
        )  # 95 %, one degree of freedom; ends are points of a grid
    total = float((excess - excess.mean()).square().sum())
    assert found["R²"] == pytest.approx(1 - squares(found["c"]) / total)


def test_theorem_2_1_holds_on_a_decoder() -> None:
    assert theorem_2_1(decoder(), batch(), 1) < 1e-6  # norms are computed in float32


def test_curvature_against_the_exact_hessian() -> None:
    """16 blocks, 64 probes: within 5 standard errors, alpha below 1e-4."""
    model = decoder()
    weight = output_weight(model, 1)

    def loss(flat: Tensor) -> Tensor:
        new = {"model.layers.1.self_attn.o_proj.weight": flat.view(weight.shape)}
        found: Tensor = torch.func.functional_call(model, new, kwargs=batch()).loss
        return found

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        exact: Any = torch.autograd.functional.hessian(loss, weight.detach().flatten())
    L, norms, errors = measure(model, batch(), 1, probes=64, tolerance=1e-8)
    assert pytest.approx(float(torch.linalg.eigvalsh(exact).abs().max()), rel=1e-4) == L
    head = slices(model, torch.arange(weight.numel()).view(weight.shape)).flatten(1)  # entries of each head
    blocks = torch.stack([torch.stack([exact[i][:, j].norm() for j in head]) for i in head])
    assert float(((norms - blocks) / errors).abs().max()) < 5
    assert float((errors / blocks).max()) < 0.3
