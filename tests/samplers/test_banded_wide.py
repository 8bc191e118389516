"""float32 problems that the compiled band solves in float64: their gradient comes back in float32."""

from __future__ import annotations

import torch

from diabat.ising import Ising
from diabat.samplers.banded import BandedSampler
from diabat.samplers.exact import ExactSampler


def test_the_gradient_of_strong_fields_beside_weak_ones() -> None:
    fields = torch.tensor([[60.0, -70.0, 50.0, 0.1], [0.1, -0.2, 0.3, 0.4]])
    v = torch.tensor([[1.0, -2.0, 0.5, 3.0], [0.3, 1.0, -1.0, 2.0]])
    found = []
    for sampler in (BandedSampler(bandwidth=1, engine="native"), ExactSampler()):
        h = fields.clone().requires_grad_()
        moments = sampler.moments(Ising(h))
        found.append(torch.autograd.grad((moments.probability * v).sum(), [h])[0])
        if isinstance(sampler, BandedSampler):
            assert moments.info["arithmetic"] == "float64"
    assert found[0].dtype == torch.float32
    assert torch.allclose(found[0], found[1], rtol=1e-4, atol=1e-6)
