"""Tables that calls share: what is kept, for whom, and how much of it."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch._subclasses import FakeTensorMode

import diabat
from diabat.samplers import kept


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> kept.Store:
    own = kept.Store(100)
    monkeypatch.setattr(kept, "_STORE", own)
    return own


def test_results_are_kept_within_the_limit(store: kept.Store) -> None:
    calls: list[int] = []

    @kept.kept(lambda size: size)
    def table(size: int) -> list[int]:
        calls.append(size)
        return [size]

    assert table(40) is table(40)
    assert table(30) is not table(40)
    table(40), table(45)  # 115 bytes with that of 30, which was not used for longest
    assert (store.held, calls) == (85, [40, 30, 45])
    table(30)
    assert calls[-1] == 30
    table(51), table(51)
    assert calls[-2:] == [51, 51]  # more than half of the limit


@pytest.mark.parametrize("backend", ["exact", "banded", "mean_field"])
@pytest.mark.parametrize("cubic", [False, True])
def test_a_pass_in_inference_mode_spoils_no_training(
    store: kept.Store, monkeypatch: pytest.MonkeyPatch, backend: str, cubic: bool
) -> None:
    store.limit = 1 << 20
    options = {} if cubic else {"readout": "odds"}
    mode = "h+J+K" if cubic else "h+J"
    if cubic and backend == "banded":
        pytest.skip("no three-body terms")
    torch.manual_seed(0)
    layer, x = diabat.BoltzmannAttention(8, 1, 5, mode=mode, sampler=backend, **options), torch.randn(2, 5, 8)

    def gradients() -> list[torch.Tensor]:
        made = deepcopy(layer)
        leaves = [*made.parameters()]
        return list(torch.autograd.grad(made(x).square().sum(), leaves, materialize_grads=True))

    with torch.inference_mode():
        layer(x)
    found = gradients()
    monkeypatch.setattr(kept, "_STORE", kept.Store(1 << 20))
    assert all(torch.equal(a, b) for a, b in zip(found, gradients(), strict=True))


def test_tensors_of_a_graph_or_a_mode_are_not_kept(store: kept.Store) -> None:
    @kept.kept(lambda: 8)
    def table() -> torch.Tensor:
        return torch.zeros(1)

    with FakeTensorMode():
        table()
    torch.func.grad(lambda x: (x * table()).sum())(torch.ones(1))
    torch.compile(lambda x: x * table(), backend="eager", fullgraph=True)(torch.ones(1))
    assert store.held == 0
    table()
    assert store.held == 8


def test_many_batch_sizes_need_the_memory_of_a_few(store: kept.Store) -> None:
    store.limit = 1 << 16
    for size in range(100, 200):
        diabat.sampler("exact").moments(diabat.Ising(torch.randn(size, 4)))
    assert 1 << 13 < store.held <= 1 << 16
