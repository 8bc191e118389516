from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from diabat.attention.heads.interaction.curvature import largest_curvature, measure_curvature
from diabat.attention.heads.interaction.measure import HeadInteractions
from diabat.checks import ArgumentError

from .decoders import adapted, batch, decoder


def exact_hessian(model: Any, inputs: dict[str, Tensor], key: str) -> Tensor:
    """Of the mean cross-entropy in one weight of the layout [hidden, H d], [n, n]."""
    own = dict(model.named_parameters())
    shape = own[key].shape

    def loss(flat: Tensor) -> Tensor:
        logits = functional_call(model, {key: flat.view(shape)}, (inputs["input_ids"],)).logits
        log_p = logits[:, :-1].log_softmax(-1)
        return -log_p.gather(-1, inputs["labels"][:, 1:, None]).mean()

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        found = torch.autograd.functional.hessian(loss, own[key].detach().flatten())
    assert isinstance(found, Tensor)
    return found


@pytest.mark.parametrize(("name", "peft"), [("llama", False), ("gpt2", False), ("gpt2", True)])
def test_curvature_against_the_exact_hessian(name: str, peft: bool) -> None:
    """18 pairs and blocks, 64 probes: within 5 standard errors, alpha below 1e-4."""
    model = decoder(name, num_attention_heads=4, num_key_value_heads=2, hidden_size=16)
    model = adapted(model) if peft else model
    inputs = batch(2, 6)
    key = next(
        k
        for k, _ in model.named_parameters()
        if "1." in k and ("o_proj" in k or "attn.c_proj" in k) and "lora" not in k
    )
    assert key.endswith("weight")
    model.eval()
    exact = exact_hessian(model, inputs, key)
    model.train()
    found = measure_curvature(model, inputs, 1, probes=64, tolerance=1e-8, iterations=2000)
    assert found.smoothness == pytest.approx(float(torch.linalg.eigvalsh(exact).abs().max()), rel=1e-4)
    hidden = 24 if name == "gpt2" else 16
    size = hidden // 4
    if name == "gpt2":  # [H d, hidden]
        blocks = exact.view(4, size * hidden, 4, size * hidden)
    else:
        blocks = exact.view(hidden, 4, size, hidden, 4, size).permute(1, 0, 2, 4, 3, 5)
        blocks = blocks.reshape(4, hidden * size, 4, hidden * size)
    norms = blocks.square().sum((1, 3)).sqrt()
    assert ((found.block_norms - norms) / found.block_errors).abs().max() < 5
    assert (found.block_errors / norms).max() < 0.3
    assert model.training
    assert all(p.grad is None for p in model.parameters())


def test_ratios_of_inequality_40_by_hand() -> None:
    model, inputs = decoder("gpt2"), batch(2, 6)
    found = measure_curvature(model, inputs, 0, probes=2)
    G = HeadInteractions(model, [0]).measure(inputs)[0].G
    expected = [
        float(found.block_norms[i, j] / (found.smoothness * abs(G[i, j])))
        for i in range(6)
        for j in range(i + 1, 6)
    ]
    assert found.ratios(G).tolist() == pytest.approx(expected)
    again = measure_curvature(model, inputs, 0, probes=2)
    assert torch.equal(again.block_norms, found.block_norms)


def test_power_iteration_finds_the_largest_absolute_eigenvalue() -> None:
    Q = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64))[0]
    A = Q @ torch.diag(torch.tensor([1.0, 2.0, -5.0, 3.0, 0.0, 4.0], dtype=torch.float64)) @ Q.T
    found, count = largest_curvature(lambda v: A @ v, torch.randn(6, dtype=torch.float64), tolerance=1e-10)
    assert found == pytest.approx(5, rel=1e-6)
    assert 3 < count < 200
    assert largest_curvature(lambda v: 0 * v, torch.ones(6)) == (0.0, 1)


def test_bad_input() -> None:
    A = torch.diag(torch.tensor([1.0, 0.9]))
    with pytest.raises(ArgumentError, match="iterations: expected power iteration to converge within 3"):
        largest_curvature(lambda v: A @ v, torch.tensor([1e-3, 1.0]), tolerance=1e-12, iterations=3)
    with pytest.raises(ArgumentError, match="finite Hessian-vector products"):
        largest_curvature(lambda v: v / 0, torch.ones(2))
    model = decoder("llama")
    with pytest.raises(ArgumentError, match="probes: expected an integer >= 2"):
        measure_curvature(model, batch(), 0, probes=1)
    with pytest.raises(ArgumentError, match="layers: expected a layer with attention"):
        measure_curvature(model, batch(), 7)
    with pytest.raises(ArgumentError, match="labels"):
        measure_curvature(model, {"input_ids": batch()["input_ids"]}, 0)
