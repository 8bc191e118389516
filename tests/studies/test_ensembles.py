"""Ensembles: sizes, scales, seeds, and the choice of recorded queries."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from diabat.ising import pack_couplings
from diabat.studies.ensembles import coupling_strength, ferromagnet, from_attention, sk


def test_sk_scales_and_seeds() -> None:
    # Standard deviations of N normal numbers: relative error 1/sqrt(2N), held to 5 of them (alpha 6e-7).
    weak, strong = sk([0.2, 0.8], num_spins=16, instances=50, queries=10)
    J, K = weak.ising.couplings, strong.ising.couplings
    assert J is not None
    assert K is not None
    assert (weak.ising.fields.shape, J.shape) == ((50, 10, 16), (50, 1, 16, 16))
    assert float(weak.ising.fields.std()) == pytest.approx(0.2, rel=5 / math.sqrt(2 * 8000))
    assert coupling_strength(J) == pytest.approx(0.2, rel=5 / math.sqrt(2 * 6000))
    assert torch.allclose(K, 4 * J)
    (again,), (other,) = (sk([0.2], num_spins=16, instances=50, queries=10, seed=seed) for seed in (0, 1))
    assert torch.equal(weak.ising.fields, again.ising.fields)
    assert not torch.equal(weak.ising.fields, other.ising.fields)


def test_ferromagnet_couplings_are_g_over_n() -> None:
    (one,) = ferromagnet([0.6], num_spins=3, queries=2)
    assert one.ising.couplings is not None
    expected = torch.tensor([[0, 0.2, 0.2], [0.2, 0, 0.2], [0.2, 0.2, 0]], dtype=torch.float64)
    assert torch.allclose(one.ising.couplings, expected)


def test_from_attention_takes_last_rows_of_some_windows() -> None:
    h = torch.arange(7 * 2 * 4 * 4, dtype=torch.float32).reshape(7, 2, 4, 4)
    J = pack_couplings(torch.randn(2, 1, 6, generator=torch.Generator().manual_seed(0)), 4)
    mask = torch.ones(4, 4, dtype=torch.bool).tril()
    ensemble = from_attention(h, J, mask, windows=3, rows=2, seed=5)
    ising = ensemble.ising
    assert ising.fields.shape == (3, 2, 2, 4)
    assert ising.visible is not None
    assert ising.visible.reshape(2, 4).tolist() == mask[2:].tolist()
    windows = [int(w) // 32 for w in ising.fields[:, 0, 0, 0].tolist()]
    assert windows == sorted(set(windows))
    assert torch.equal(ising.fields, h[windows][:, :, 2:])
    assert ensemble.strength == pytest.approx(coupling_strength(J))
    # Couplings of each window go with their window.
    own = from_attention(h[:, 0], torch.stack([J[:1, 0] * k for k in range(7)]), windows=3, seed=5)
    assert own.ising.couplings is not None
    torch.testing.assert_close(own.ising.couplings[:, 0], J[0] * torch.tensor(windows)[:, None, None])
    assert from_attention(h, None).strength == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sk([0.1], num_spins=0), "num_spins: expected an integer >= 1, got 0"),
        (lambda: sk([math.nan]), "strengths: expected finite values >= 0, got nan"),
        (lambda: from_attention(torch.zeros(4, 4), None), r"fields: expected shape .* got \[4, 4\]"),
        (lambda: from_attention(torch.zeros(1, 4, 4), None, rows=0), "rows: expected an integer >= 1"),
    ],
)
def test_bad_arguments(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("sizes", [{"queries": 10**9}, {"num_spins": 10**6, "queries": 1}])
def test_ensembles_that_fit_into_no_memory_are_refused(
    sizes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diabat.compute.memory.available_bytes", lambda: 1 << 33)
    for family in (sk, ferromagnet):
        with pytest.raises(ValueError, match=r"^instances: .* spins need .* GiB of memory, got 8 GiB"):
            family(**sizes)
