import itertools

import numpy as np
import pytest
import torch

from diabat.circuits import Batch
from diabat.ising import Ising
from diabat.studies.fidelity import Ensemble, from_attention
from diabat.studies.learned import (
    Instances,
    held_out_instances,
    random_instances,
    recorded_instances,
    split_windows,
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
    return from_attention(fields, J, causal, num_rows=3)


def test_random_instances_have_exact_moments_and_own_couplings() -> None:
    found = random_instances((0.5, 1.0), (3, 4), 5, seed=1, weights=(2, 3))
    assert [(e.batch.num_spins, e.strength, e.weight) for e in found] == [
        (3, 0.5, 2),
        (3, 1.0, 3),
        (4, 0.5, 2),
        (4, 1.0, 3),
    ]
    for entry in found:
        assert entry.batch.couplings.shape == (5, entry.batch.num_spins, entry.batch.num_spins)
        assert_exact(entry)


def test_fields_and_couplings_have_the_stated_deviations() -> None:
    # 1500 x 6 fields, 1500 x 15 couplings: three deviations of the estimate are 2.3 and 1.5 %.
    [entry] = random_instances((0.7,), (6,), 1500, seed=2)
    pairs = entry.batch.couplings[:, *np.triu_indices(6, 1)]
    assert entry.batch.fields.std() == pytest.approx(0.7, rel=0.023)
    assert pairs.std() == pytest.approx(0.7 / np.sqrt(6), rel=0.015)


def test_the_j_0_answer_is_that_of_the_fields_alone_without_overflow() -> None:
    nothing = np.zeros((2, 2))
    fields = np.array([[0.3, -2.0], [0.0, 5.0], [400.0, -400.0]])
    entry = Instances("x", 1.0, Batch(fields, nothing), np.zeros((3, 2)), np.zeros((3, 2, 2)))
    found = entry.independent_probability
    for row, h in zip(found[:2], fields, strict=False):
        np.testing.assert_allclose(row, enumerated(h, nothing)[0], rtol=1e-12)
    np.testing.assert_allclose(found[2], [1, np.exp(-800)])


def test_held_out_instances_are_never_those_of_training() -> None:
    draws = [
        draw((1.0,), (4,), 6, seed=seed)[0].batch.fields
        for draw in (random_instances, held_out_instances)
        for seed in (0, 1)
    ]
    assert len({row.tobytes() for fields in draws for row in fields}) == 24
    np.testing.assert_array_equal(random_instances((1.0,), (4,), 6, seed=0)[0].batch.fields, draws[0])


def test_recorded_attention_omits_invisible_spins() -> None:
    ensemble = attention()
    found = recorded_instances(ensemble, weight=0.5)
    assert [(e.batch.num_spins, e.batch.num_problems) for e in found] == [(3, 8), (4, 8), (5, 8)]
    for entry in found:
        assert entry.batch.shared  # one J: not repeated
        assert entry.weight == 0.5
        assert (entry.name, entry.strength) == (ensemble.name, ensemble.strength)
        assert_exact(entry)
    np.testing.assert_allclose(
        np.sort(found[0].batch.fields.ravel()), np.sort(ensemble.ising.fields[..., 0, :3].numpy().ravel())
    )


def test_windows_are_divided_without_overlap() -> None:
    ensemble = attention(windows=5)
    halves = split_windows(ensemble)
    assert [half.ising.batch_shape[0] for half in halves] == [3, 2]
    parts = [half.ising.fields for half in halves]
    assert torch.equal(
        torch.cat(parts).flatten(1).sum(1).sort()[0], ensemble.ising.fields.flatten(1).sum(1).sort()[0]
    )
    for half in halves:
        for entry in recorded_instances(half):
            assert_exact(entry)


def test_couplings_of_each_window_go_with_their_window() -> None:
    fields = torch.zeros(2, 3, dtype=torch.float64)
    J = torch.zeros(2, 3, 3, dtype=torch.float64)
    J[1, 0, 1] = J[1, 1, 0] = 0.8
    first, second = split_windows(Ensemble("x", 1.0, Ising(fields, J)))
    assert not first.ising.couplings.any()  # type: ignore[union-attr]  # not None: J was given
    assert second.ising.couplings[0, 0, 1] == 0.8  # type: ignore[index]  # as above


def test_problems_that_no_plan_can_run_are_refused() -> None:
    fields = torch.zeros(1, 3, dtype=torch.float64)
    cubic = Ising(fields, three_body=torch.zeros(3, 3, 3, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"^ensemble: expected only fields and couplings, got three-body"):
        recorded_instances(Ensemble("x", 1.0, cubic))
    large = Ising(torch.zeros(1, 17, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"^ensemble: expected at most 16 visible spins, got 17 in 'x'"):
        recorded_instances(Ensemble("x", 1.0, large))
    with pytest.raises(ValueError, match=r"^ensemble: expected at least two windows to divide, got 1"):
        split_windows(Ensemble("x", 1.0, cubic))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"strengths": ()}, r"^strengths: expected at least one, got none"),
        ({"strengths": (1.0, 0.0)}, r"^strengths: expected finite numbers > 0, got 0.0"),
        ({"strengths": (float("inf"), 1.0)}, r"^strengths: expected finite numbers > 0, got inf"),
        ({"num_spins": (4, 1)}, r"^num_spins: expected integers from 2 to 16, got 1"),
        ({"num_spins": (17,)}, r"^num_spins: expected integers from 2 to 16, got 17"),
        ({"instances": 0}, r"^instances: expected an integer >= 1, got 0"),
        ({"weights": (1.0,)}, r"^weights: expected 2, one for each strength, got 1"),
        ({"weights": (1.0, -1.0)}, r"^weights: expected finite numbers >= 0, got -1.0"),
        ({"weights": (0.0, 0.0)}, r"^weights: expected one above 0, got only zeros"),
    ],
)
def test_bad_ensembles_are_refused(change: dict[str, object], message: str) -> None:
    options = {"strengths": (0.5, 1.0), "num_spins": (4,), "instances": 2, "seed": 0} | change
    with pytest.raises(ValueError, match=message):
        random_instances(**options)  # type: ignore[arg-type]  # bad on purpose
