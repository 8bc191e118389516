"""Ensembles: sizes, scales, seeds, and the choice of recorded queries."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from diabat.ising import pack_couplings
from diabat.studies.ensembles import coupling_strength, ferromagnet, from_attention, sk


def test_sk_scales() -> None:
    # Standard deviations of N normal numbers: relative error 1/sqrt(2N), held to 5 of them (alpha 6e-7).
    weak, strong = sk([0.2, 0.8], num_spins=16, instances=50, queries=10)
    assert weak.ising.fields.shape == (50, 10, 16)
    assert weak.ising.couplings is not None
    assert strong.ising.couplings is not None
    assert weak.ising.couplings.shape == (50, 1, 16, 16)
    assert float(weak.ising.fields.std()) == pytest.approx(0.2, rel=5 / math.sqrt(2 * 8000))
    assert coupling_strength(weak.ising.couplings) == pytest.approx(0.2, rel=5 / math.sqrt(2 * 6000))
    assert torch.allclose(strong.ising.couplings, 4 * weak.ising.couplings)


def test_field_strength_and_seed() -> None:
    (a,), (b,), (c,) = sk([0.5]), sk([0.5], field_strength=0.1), sk([0.5], seed=1)
    assert torch.allclose(b.ising.fields, a.ising.fields / 5)
    assert not torch.equal(a.ising.fields, c.ising.fields)
    assert torch.equal(a.ising.fields, sk([0.5])[0].ising.fields)


def test_ferromagnet_couplings_are_g_over_n() -> None:
    (one,) = ferromagnet([0.6], num_spins=3, queries=2, dtype=torch.float32)
    assert one.ising.couplings is not None
    expected = torch.tensor([[0, 0.2, 0.2], [0.2, 0, 0.2], [0.2, 0.2, 0]])
    assert torch.allclose(one.ising.couplings, expected)
    assert one.ising.fields.dtype == torch.float32


def test_from_attention_takes_last_rows_of_some_windows() -> None:
    h = torch.arange(7 * 2 * 4 * 4, dtype=torch.float32).reshape(7, 2, 4, 4)
    J = pack_couplings(torch.randn(2, 1, 6, generator=torch.Generator().manual_seed(0)), 4)
    mask = torch.ones(4, 4, dtype=torch.bool).tril()
    ensemble = from_attention(h, J, mask, windows=3, num_rows=2, seed=5)
    ising = ensemble.ising
    assert ising.fields.shape == (3, 2, 2, 4)
    assert ising.visible is not None
    assert ising.visible.reshape(2, 4).tolist() == mask[2:].tolist()
    windows = [int(w) // 32 for w in ising.fields[:, 0, 0, 0].tolist()]
    assert windows == sorted(set(windows))
    assert torch.equal(ising.fields, h[windows][:, :, 2:])
    assert ensemble.strength == pytest.approx(coupling_strength(J))


def test_from_attention_rows_and_per_window_couplings() -> None:
    h, J = torch.randn(3, 4, 4), pack_couplings(torch.randn(3, 1, 6), 4)
    ising = from_attention(h, J, rows=[1, 3], windows=2, seed=1).ising
    assert ising.couplings is not None
    assert ising.couplings.shape == (2, 1, 4, 4)
    assert from_attention(h, J[0, 0], rows="random", num_rows=3).ising.fields.shape == (3, 3, 4)
    assert from_attention(h, None).strength == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sk([0.1], num_spins=0), "num_spins: expected an integer >= 1, got 0"),
        (lambda: sk([math.nan]), "strengths: expected finite values >= 0, got nan"),
        (lambda: from_attention(torch.zeros(4, 4), None), r"fields: expected shape .* got \[4, 4\]"),
        (lambda: from_attention(torch.zeros(1, 4, 4), None, rows=[4]), "rows: .* between 0 and 3"),
        (lambda: from_attention(torch.zeros(1, 4, 4), None, rows="first"), "'last', 'random'"),  # type: ignore[arg-type]  # on purpose or by keyword
    ],
)
def test_bad_arguments(call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("sizes", [{"queries": 10**9}, {"num_spins": 10**6, "queries": 1}])
def test_ensembles_that_fit_into_no_memory_are_refused(
    sizes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diabat.compute.memory.available_bytes", lambda: 1 << 33)
    for family in (sk, ferromagnet):
        with pytest.raises(
            ValueError, match=r"^instances: .* spins need .* GiB of memory, got 8 GiB available\.$"
        ):
            family(**sizes)
