"""Decode with couplings among the last keys: the steps of one layer equal its pass over the whole sequence.

python examples/decode_tokens.py
"""

from __future__ import annotations

import torch

import diabat


def main() -> None:
    torch.manual_seed(0)
    layer = diabat.BoltzmannAttention(
        embed_dim=32, num_heads=2, window=6, relative=True, far="independent", readout="odds", rotary=True
    )
    assert layer.couplings.pairs is not None
    torch.nn.init.normal_(layer.couplings.pairs, std=0.3)
    x = torch.randn(3, 40, 32)
    with torch.no_grad():
        prompt, state = layer.prefill(x[:, :10])
        outputs = [prompt]
        for i in range(10, 40):
            y, state = layer.step(x[:, i], state)
            outputs.append(y[:, None])
        error = (torch.cat(outputs, 1) - layer(x)).abs().max().item()
    print(f"30 steps after a prompt of 10 tokens: largest difference to the full pass {error:.1e}")


if __name__ == "__main__":
    main()
