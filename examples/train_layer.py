"""Fit one Boltzmann attention layer to a target: with exact marginals, by mean field, and on a simulated anneal.

python examples/train_layer.py
"""

from __future__ import annotations

import torch

import diabat


def fit(sampler: diabat.Sampler, steps: int, seed: int = 0) -> list[float]:
    """Train a layer to output the running mean of its input; return the loss of every step."""
    torch.manual_seed(seed)
    layer = diabat.BoltzmannAttention(embed_dim=8, num_heads=1, window=4, sampler=sampler)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        x = torch.randn(16, 4, 8)
        target = x.cumsum(1) / torch.arange(1, 5)[None, :, None]
        loss = torch.nn.functional.mse_loss(layer(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    for name, sampler, steps in (
        ("exact", diabat.sampler("exact"), 100),
        ("mean_field", diabat.sampler("mean_field"), 100),
        ("dqa", diabat.sampler("dqa", annealing_time_ns=2.0, steps=64), 20),
    ):
        losses = fit(sampler, steps)
        print(f"{name:>10}: loss {losses[0]:.3f} -> {losses[-1]:.3f} in {steps} steps")


if __name__ == "__main__":
    main()
