"""What layers are given instead of tokens is refused in one sentence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import diabat

LAYERS: dict[str, Any] = {
    "boltzmann": lambda: diabat.BoltzmannAttention(4, 1, 3),
    "neurogame": lambda: diabat.NeuroGameAttention(4, 1),
    "multihead": lambda: Itself(4, 1, window=3, batch_first=True),
}


class Itself(diabat.BoltzmannMultiheadAttention):
    """Attends to what it is given."""

    def forward(self, x: Any) -> Any:  # type: ignore[override]  # one argument
        return super().forward(x, x, x)[0]


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(
    ("x", "told"),
    [
        ([[[0.0] * 4] * 3], "expected a torch.Tensor, got list"),
        (torch.zeros(1, 3, 4, dtype=torch.int64), "expected a floating dtype, got torch.int64"),
        ("sparse", "expected a dense tensor, got the layout torch.sparse_coo"),
        (torch.zeros(1, 3, 4).double(), "expected dtype torch.float32 as the layer, got torch.float64"),
        (torch.zeros(1, 3, 4, device="meta"), "expected a tensor on cpu as the layer, got one on meta"),
    ],
    ids=["list", "integers", "sparse", "float64", "meta"],
)
def test_invalid_inputs_are_refused(layer: str, x: Any, told: str) -> None:
    module: nn.Module = LAYERS[layer]()
    with pytest.raises(ValueError, match=rf"^{'query' if layer == 'multihead' else 'x'}: {told}"):
        module(torch.zeros(1, 3, 4).to_sparse() if isinstance(x, str) else x)


def test_causal_is_true_or_false() -> None:
    with pytest.raises(ValueError, match="causal: expected True or False, got 'no'"):
        diabat.BoltzmannAttention(4, 1, 3, causal="no")
