from __future__ import annotations

from typing import Any

import pytest
import torch

import diabat
from diabat.attention import CouplingInit
from diabat.config import make_config
from diabat.ising import pair_indices


def pairs_of(**options: Any) -> torch.Tensor:
    torch.manual_seed(3)
    layer = diabat.BoltzmannAttention(8, 2, 12, coupling_init=CouplingInit(**options), bandwidth=4)
    return layer.coupling_pairs.detach()


def test_couplings_begin_where_they_are_told() -> None:
    near = torch.tensor([k - j for j, k in zip(*pair_indices(12, 4), strict=True)]) <= 2
    J = pairs_of(mean=0.5, std=0.1, distance=2)
    assert bool((J[:, ~near] == 0).all())
    # 2 x 21 draws: six standard errors of mean and standard deviation
    assert J[:, near].mean().item() == pytest.approx(0.5, abs=6 * 0.1 / 42**0.5)
    assert J[:, near].std().item() == pytest.approx(0.1, rel=6 / 84**0.5)
    assert torch.equal(J, pairs_of(mean=0.5, std=0.1, distance=2)), "torch's seed decides"
    assert bool((pairs_of(mean=-0.25) == -0.25).all())


def test_multihead_attention_and_models_take_it_and_softmax_leaves_it_unused() -> None:
    start = CouplingInit(mean=0.5, distance=1)
    layer = diabat.BoltzmannMultiheadAttention(8, 2, window=4, coupling_init=start)
    wanted = torch.tensor([0.5, 0.0, 0.0, 0.5, 0.0, 0.5])  # (0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)
    assert torch.equal(layer.coupling_pairs.detach(), wanted.expand(2, -1))
    model = {"name": "transformer", "coupling_init": {"mean": 0.5, "distance": 1}}
    config = make_config({"task": {"name": "brackets"}, "model": model})
    assert config.model.coupling_init == start  # type: ignore[attr-defined]  # a transformer
    assert diabat.BoltzmannAttention(8, 2, 4, mode="softmax", coupling_init=start).coupling_pairs is None


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"mean": float("nan")}, "mean: expected a number in"),
        ({"std": -1.0}, "std: expected a number in"),
        ({"distance": 0}, "distance: expected an integer >= 1 or None, got 0"),
    ],
    ids=str,
)
def test_what_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        CouplingInit(**given)
