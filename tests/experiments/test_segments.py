"""Segments: their ceilings against enumeration of all hidden chains, and a training that is not done again."""

from __future__ import annotations

import math
from itertools import pairwise, product
from pathlib import Path

import pytest
import torch
from script_tables import tables
from torch import Tensor
from torch.nn.functional import linear, pad

import diabat
from diabat.attention import BoltzmannAttention
from experiments import segments as task
from experiments.rivals import Centred

LENGTH = 4


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """Sequences of 4 tokens with 3 kinds and 2 values."""
    for name, value in {"VALUES": 2, "BLANK": 6, "LENGTH": LENGTH, "MEAN": 3}.items():
        monkeypatch.setattr(task, name, value)
    return task.draw(5, torch.Generator().manual_seed(1))[0]


def path_weight(path: tuple[int, ...]) -> float:
    """P(z)."""
    return math.prod(2 / 3 if a == b else 1 / 6 for a, b in pairwise(path)) / 3


def test_bayes_is_enumeration(tiny: Tensor) -> None:
    for row, found in zip(tiny.tolist(), task.bayes(tiny), strict=True):
        q, expected = row[-1] - 7, torch.zeros(2).double()
        for values in product(range(2), repeat=3):
            for path in product(range(3), repeat=LENGTH):
                weight = path_weight(path) * path.count(q)
                for z, symbol in zip(path, row, strict=False):
                    if symbol < 6:
                        a, b = divmod(symbol, 2)
                        weight *= 0.6 if a == z else 0.2
                        weight *= 0.36 if b == values[z] else 0.64
                expected[values[q]] += weight
        torch.testing.assert_close(found, expected / expected.sum())


def test_marginals_are_enumeration_and_those_of_a_chain(tiny: Tensor) -> None:
    emitted, moves, kinds = task.two_states(tiny)
    found = task.marginals(emitted, moves, kinds)[..., 1]
    for row, marginals in zip(tiny.tolist(), found, strict=True):
        q, expected = row[-1] - 7, torch.zeros(LENGTH + 1).double()
        for path in product(range(3), repeat=LENGTH):
            weight = path_weight(path)
            for z, symbol in zip(path, row, strict=False):
                if symbol < 6:
                    right = 0.6 if z == q else 0.2
                    weight *= right if symbol // 2 == q else 1 - right
            here = [z == q for z in (*path, q)]  # the last one for the sum of all weights
            expected += weight * torch.tensor(here).double()
        torch.testing.assert_close(marginals, expected[:-1] / expected[-1])
    (stays, leaves), (ends, lasts) = moves.log().tolist()
    J = torch.full((LENGTH - 1,), (stays + lasts - leaves - ends) / 4).double()
    h = (emitted[..., 1] / emitted[..., 0]).log() / 2
    h[:, 1:] += (lasts - stays + leaves - ends) / 4
    h[:, :-1] += (lasts - stays + ends - leaves) / 4
    h[:, 0] += (kinds[1] / kinds[0]).log() / 2
    couplings = torch.diag_embed(J, 1)
    chain = diabat.Ising(h, couplings + couplings.T)
    torch.testing.assert_close(diabat.sampler("exact").differentiable_log_odds(chain).sigmoid(), found)


def test_bayes_is_calibrated_and_best(tiny: Tensor) -> None:
    # z = Σ (right - P(right)) / sqrt(Σ P (1 - P)) of N = 2,000 sequences, alpha = 1e-3.
    x, answers = task.draw(2_000, torch.Generator().manual_seed(3))
    best, chosen = task.bayes(x).max(1)
    z = ((chosen == answers).double() - best).sum() / (best * (1 - best)).sum().sqrt()
    assert z.abs() < 3.3
    right = {name: (z.argmax(1) == answers).double().mean() for name, z in task.ceilings(x)}
    assert max(right.values()) == right["Bayes"] > 0.58


def test_centred_convolutions_begin_at_their_token() -> None:
    torch.manual_seed(1)
    layer = BoltzmannAttention(8, 1, 10, mode="softmax")
    rival = Centred(layer, "k", 5, "identity")
    x = torch.randn(2, 10, 8)
    weight = rival.convolutions["k"].get_parameter("weight")[:, 0]
    keys = linear(pad(x, (0, 0, 2, 2)), layer.key.weight, layer.key.bias)
    assert (weight[:, 2] > weight[:, :2].max()).all()
    assert (weight[:, 2] > weight[:, 3:].max()).all()
    keys[:, :2] = keys[:, -2:] = 0  # nothing stands before a sequence, and nothing behind it
    expected = torch.einsum("blde,de->bld", keys.unfold(1, 5, 1), weight)
    q, found, v = layer._projected(x)
    for head, tokens in ((q, layer.query(x)), (found, expected), (v, layer.value(x))):
        torch.testing.assert_close(head[:, 0], tokens)


def test_a_training_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {
        "VALUES": 2,
        "BLANK": 6,
        "LENGTH": 20,
        "TESTED": {"validation": 50, "test": 50},
        "RATES": task.RATES[:1],
    }
    for name, value in sizes.items():
        monkeypatch.setattr(task, name, value)
    names = ("chain, gates", "softmax, keys scanned from both sides", "softmax, keys convolved, 15 around")
    words = [tmp_path, *["--steps", "2", "--seeds", "1", "--workers", "1", "--models"], *names]
    found = tables(task, *words)
    assert [len(rows) for rows in found] == [7, 3 + 2 + 2, 3]
    monkeypatch.setattr(task, "built", None)  # nothing is trained again
    assert tables(task, *words) == found
