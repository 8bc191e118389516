"""The problems of a trained layer are those that its weights come from."""

import pytest
import torch

import diabat
from diabat import BoltzmannAttention
from diabat.runs.studies import _layer_ensemble


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("mode", ["h+J", "J-self"])
def test_the_problems_of_a_layer_give_its_weights(mode: str, relative: bool) -> None:
    """Also where the own spin of a query is held at +1: with it free, every P would be 1/2."""
    torch.manual_seed(0)
    layer = BoltzmannAttention(8, 2, 5, mode=mode, relative=relative).double()
    assert layer.coupling_pairs is not None
    torch.nn.init.normal_(layer.coupling_pairs, std=0.7)
    _, weights = layer(torch.randn(3, 5, 8, dtype=torch.float64), None, True)
    ensemble = _layer_ensemble(layer, "layer 1")
    p = diabat.sampler("exact").moments(ensemble.ising).probability  # of the last four queries, [3, 2, 4, 5]
    if mode == "J-self":
        own = torch.full((4,), 4) if relative else torch.arange(1, 5)
        p = p.scatter(-1, own[:, None].expand(*p.shape[:-1], 1), 1.0)
    want = p / p.sum(-1, keepdim=True)
    got = weights[:, :, 1:]
    if relative:  # keys into the slots of their query
        got = torch.stack([got[:, :, i].roll(3 - i, -1) for i in range(4)], 2)
    torch.testing.assert_close(got, want, atol=1e-12, rtol=0)
