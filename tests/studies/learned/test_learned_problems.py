"""Options, training and held-out problems of a learned anneal."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from diabat.circuits import Batch
from diabat.ising import Ising
from diabat.studies.ensembles import Ensemble, from_attention
from diabat.studies.learned.problems import (
    AnnealOptions,
    Instances,
    random_problems,
    split_windows,
    wide_problems,
    with_moments,
)


def enumerated(h: np.ndarray, J: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """P(s = +1) and <s s'> of one problem, state by state."""
    states = np.array(list(itertools.product((-1, 1), repeat=len(h))))
    weights = np.exp([s @ h + s @ J @ s / 2 for s in states])
    weights /= weights.sum()
    return weights @ (states > 0), np.einsum("x,xj,xk->jk", weights, states, states)


def assert_exact(entry: Instances) -> None:
    J = np.broadcast_to(entry.batch.couplings, (*entry.batch.fields.shape, entry.batch.num_spins))
    for q, h in enumerate(entry.batch.fields):
        probability, correlation = enumerated(h, J[q])
        np.testing.assert_allclose(entry.probability[q], probability, atol=1e-12)
        np.testing.assert_allclose(entry.correlation[q], correlation, atol=1e-12)


def attention(windows: int = 4, length: int = 5) -> Ensemble:
    torch.manual_seed(3)
    J = torch.randn(length, length, dtype=torch.float64)
    J = (J + J.T) / 4
    J.fill_diagonal_(0)
    fields = torch.randn(windows, 2, length, length, dtype=torch.float64)
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    return from_attention(fields, J, causal, rows=3)


def test_training_problems_have_exact_moments_own_couplings_and_weights() -> None:
    options = AnnealOptions(
        strengths=(0.5, 1.0), weights=(2.0, 3.0), spins=(3, 4), instances=5, wide_fields=6.0, wide_weight=7.0
    )
    found = options.training(seed=1)
    assert [(e.batch.num_spins, e.strength, e.weight) for e in found] == [
        *((3, 0.5, 2), (3, 1.0, 3), (4, 0.5, 2), (4, 1.0, 3)),
        *((3, 0.5, 7), (4, 0.5, 7)),
    ]
    for entry in found:
        assert entry.batch.couplings.shape == (5, entry.batch.num_spins, entry.batch.num_spins)
        assert_exact(entry)
    judging = AnnealOptions(held_out=2, wide_fields=6.0).judging(seed=1)
    assert [(e.name, e.strength, e.ising.num_spins) for e in judging] == [
        *(("SK", g, n) for n in (6, 8, 10) for g in (0.3, 0.6, 1.0)),
        *(("|h| < 6", 0.5, n) for n in (6, 8, 10)),
    ]


def test_held_out_problems_are_never_those_of_training() -> None:
    for draw in (
        lambda **kw: random_problems((1.0,), (4,), 6, **kw),
        lambda **kw: wide_problems(6.0, (4,), 6, **kw),
    ):
        drawn = [
            draw(seed=seed, held_out=held_out)[0].ising.fields.view(-1, 4)
            for held_out in (False, True)
            for seed in (0, 1)
        ]
        assert len({tuple(row.tolist()) for fields in drawn for row in fields}) == 24
        assert torch.equal(draw(seed=0)[0].ising.fields.view(-1, 4), drawn[0])


def test_wide_problems_are_uniform() -> None:
    (found,) = wide_problems(6.0, (4,), 500, seed=3)
    fields, J = found.ising.fields, found.ising.couplings
    assert J is not None
    assert 5.9 < float(fields.abs().max()) < 6.0
    # 2000 uniform fields: the standard error of the share inside |h| < 3 is 0.011; 5 of them.
    assert abs(float((fields.abs() < 3).double().mean()) - 0.5) < 0.056
    assert abs(float(J[:, 0, 0, 1].square().mean().sqrt()) - 0.25) < 5 * 0.25 / 1000**0.5


def test_the_j_0_answer_is_that_of_the_fields_alone_without_overflow() -> None:
    nothing = np.zeros((2, 2))
    fields = np.array([[0.3, -2.0], [0.0, 5.0], [400.0, -400.0]])
    entry = Instances("x", 1.0, Batch(fields, nothing), np.zeros((3, 2)), np.zeros((3, 2, 2)))
    found = entry.independent_probability
    for row, h in zip(found[:2], fields, strict=False):
        np.testing.assert_allclose(row, enumerated(h, nothing)[0], rtol=1e-12)
    np.testing.assert_allclose(found[2], [1, np.exp(-800)])


def test_recorded_attention_omits_invisible_spins() -> None:
    ensemble = attention()
    found = with_moments(ensemble, weight=0.5)
    assert [(e.batch.num_spins, e.batch.num_problems) for e in found] == [(3, 8), (4, 8), (5, 8)]
    for entry in found:
        assert entry.batch.shared  # one J: not repeated
        assert (entry.name, entry.strength, entry.weight) == (ensemble.name, ensemble.strength, 0.5)
        assert_exact(entry)
    np.testing.assert_allclose(
        np.sort(found[0].batch.fields.ravel()), np.sort(ensemble.ising.fields[..., 0, :3].numpy().ravel())
    )


def test_windows_are_divided_without_overlap() -> None:
    ensemble = attention(windows=5)
    parts = [half.ising.fields for half in split_windows(ensemble)]
    assert [len(part) for part in parts] == [3, 2]
    assert torch.equal(torch.cat(parts), ensemble.ising.fields[[0, 2, 4, 1, 3]])


def test_couplings_of_each_window_go_with_their_window() -> None:
    J = torch.zeros(2, 3, 3, dtype=torch.float64)
    J[1, 0, 1] = J[1, 1, 0] = 0.8
    halves = split_windows(Ensemble("x", 1.0, Ising(torch.zeros(2, 3, dtype=torch.float64), J)))
    found = [half.ising.couplings for half in halves]
    assert found[0] is not None
    assert found[1] is not None
    assert not found[0].any()
    assert found[1][0, 0, 1] == 0.8


def test_problems_that_no_plan_can_run_are_refused() -> None:
    fields = torch.zeros(1, 3, dtype=torch.float64)
    cubic = Ising(fields, three_body=torch.zeros(3, 3, 3, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"^ensemble: expected only fields and couplings, got three-body"):
        with_moments(Ensemble("x", 1.0, cubic))
    large = Ising(torch.zeros(1, 17, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"^ensemble: expected at most 16 visible spins, got 17 in 'x'"):
        with_moments(Ensemble("x", 1.0, large))
    with pytest.raises(ValueError, match=r"^ensemble: expected at least two windows to divide, got 1"):
        split_windows(Ensemble("x", 1.0, cubic))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": True}, "layers: expected an integer >= 1, got True"),
        ({"polish": -1}, "polish: expected an integer >= 0, got -1"),
        ({"strengths": ()}, "strengths: expected at least one, got none"),
        ({"strengths": (float("inf"), 1.0)}, "strengths: expected a finite number > 0, got inf"),
        ({"spins": (4, 1)}, "spins: expected an integer >= 2, got 1"),
        ({"spins": ()}, "spins: expected at least one, got none"),
        ({"weights": (0.0,) * 4}, r"weights: expected 4 numbers, .*, got \[0\.0, 0\.0, 0\.0, 0\.0\]"),
    ],
)
def test_bad_options_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        AnnealOptions(**change)
