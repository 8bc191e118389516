"""Moments of one query against an enumeration of its own problem."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from layers import F64, KINDS, attention, keys_of, problem_of, scores_of, tokens
from torch import Tensor

from diabat import BoltzmannAttention, UnsupportedError
from diabat.attention.correlations import query_moments, reason_without_correlations
from diabat.attention.coupled import recording
from diabat.testing import brute_force

T = 4
CASES = [kind for kind, options in KINDS.items() if options.get("mode", "h+J") not in ("softmax", "h", "J")]


def layer(window: int = T, **options: Any) -> BoltzmannAttention:
    return attention(window, std=0.7, **options)


def inputs(dtype: torch.dtype = F64) -> Tensor:
    return tokens(2, 6, dtype=dtype)


@torch.no_grad()
def enumerated(built: BoltzmannAttention, x: Tensor, i: int, head: int) -> tuple[list[int], Tensor, Tensor]:
    """Positions, <s_j> and C_jk of the coupled keys of query i of a sequence x [L, D], by enumeration."""
    keys = keys_of(built, torch.ones(len(x), dtype=torch.bool), i)
    found = brute_force(problem_of(built, scores_of(built, x[None])[0, head, i], keys, head, i))
    near = [a for a, j in enumerate(keys) if not built.relative or j > i - T]
    mean, pairs = found.magnetization[near], found.correlation[near][:, near]
    if built.mode == "J-self":  # given s_i = +1, where the law without fields is even
        mean = pairs[[keys[a] for a in near].index(i)]
    return [keys[a] for a in near], mean, pairs - mean.outer(mean)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("query", [0, 2, 5])
def test_moments_are_those_of_the_problem_of_the_query(name: str, query: int) -> None:
    built, x = layer(**KINDS[name]), inputs()
    with built.recording():
        built(x)
        found = query_moments(built, query, sequence=1)
    assert found.num_reads is None
    for head in range(2):
        positions, mean, pairs = enumerated(built, x[1], query, head)
        assert found.positions.tolist() == positions
        assert (2 * found.probability[head] - 1 - mean).abs().max() < 1e-12
        assert (found.correlations[head] - pairs).abs().max() < 1e-12


@pytest.mark.parametrize("name", ["probability", "still J-self probability", "J-self"])
def test_reads_estimate_the_correlations(name: str) -> None:
    """N = 20,000 independent reads, 6/sqrt(N): the deviation of a covariance of spins is at most 1.2/sqrt(N).

    Five deviations for at most 72 entries: alpha below 1e-4.
    """
    reads: dict[str, Any] = {"sampler": "exact", "gradient": "covariance", "num_reads": 20_000}
    exact, sampled = layer(**KINDS[name]), layer(**KINDS[name], **reads)
    with recording([exact, sampled]):
        for built in (exact, sampled):
            built(inputs())
        want, got = query_moments(exact, 5), query_moments(sampled, 5, seed=3)
        again, other = (query_moments(sampled, 5, seed=seed) for seed in (3, 4))
    assert got.num_reads == 20_000
    assert (got.correlations - want.correlations).abs().max() < 6 / 20_000**0.5
    assert want.correlations.flatten(1).abs().max() > 0.2
    assert torch.equal(got.correlations, again.correlations)
    assert not torch.equal(got.correlations, other.correlations)


def test_clamped_reads_are_those_of_the_method_of_the_layer() -> None:
    """An anneal with the own spin held at +1 has another law than reads without fields whose own spin is turned to +1.

    N = 20,000: the difference of two weights has a deviation of at most 0.0025, and the other method is 0.029 away.
    """
    built = layer(relative=True, mode="J-self", sampler="dqa", num_reads=20_000, dtype=torch.float32)
    torch.manual_seed(0)
    with built.recording():
        _, weights = built(inputs(dtype=torch.float32), need_weights=True)
        found = query_moments(built, 5, seed=1)
    alpha = found.probability / found.probability.sum(-1, keepdim=True)
    assert (weights[0, :, 5, found.positions] - alpha).abs().max() < 0.01


def test_banded_couplings_have_correlations_beyond_the_band() -> None:
    built = layer(window=6, sampler="banded", bandwidth=2)
    with built.recording():
        built(inputs())
        found = query_moments(built, 5)
    for head in range(2):
        assert (found.correlations[head] - enumerated(built, inputs()[0], 5, head)[2]).abs().max() < 1e-12
    assert found.correlations[0, 0, 5].abs() > 1e-4


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"mode": "softmax"}, "Softmax attention has no spins"),
        ({"mode": "h"}, "Mode h has no couplings"),
        ({"mode": "J"}, "Mode J is uniform attention whatever J is"),
        ({"sampler": "mean_field"}, "Sampler 'mean_field' computes marginals only"),
    ],
)
def test_layers_without_correlations_say_why(options: dict[str, Any], reason: str) -> None:
    built = layer(window=6, dtype=torch.float32, **options)
    built(inputs(dtype=torch.float32))
    assert str(reason_without_correlations(built)).startswith(reason)
    with pytest.raises(UnsupportedError, match=f"layer: expected one with correlations. {reason}"):
        query_moments(built, 0)


def test_wrong_queries_are_refused() -> None:
    built = layer(window=6)
    with pytest.raises(RuntimeError, match=r"not recorded; call the layer.*'with layer\.recording"):
        query_moments(built, 0)
    with built.recording():
        built(inputs())
        assert reason_without_correlations(built) is None
        for query in (-1, 6, 1.0):
            with pytest.raises(ValueError, match=r"query: expected a position in 0 .. 5, got"):
                query_moments(built, query)
