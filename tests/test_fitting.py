"""Fits by maximum likelihood: against enumeration, the truth, and each other."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import diabat
from diabat.checks import ArgumentError
from diabat.ising import Ising, IsingError, pack_couplings
from diabat.samplers import UnsupportedError
from diabat.samplers.state import own_copy

EXACT = diabat.sampler("exact")


def truth(n: int, scale: float = 0.3) -> Ising:
    random = torch.Generator().manual_seed(n)
    h = scale * torch.randn(n, generator=random, dtype=torch.float64)
    pairs = scale * torch.randn(n * (n - 1) // 2, generator=random, dtype=torch.float64)
    return Ising(h, pack_couplings(pairs, n))


def table(n: int, states: int, seed: int = 1) -> torch.Tensor:
    return EXACT.sample(truth(n), states, seed=seed).spins


def features(spins: torch.Tensor) -> torch.Tensor:
    s = spins.double()
    j, k = torch.triu_indices(s.shape[1], s.shape[1], 1)
    return torch.cat((s, s[:, j] * s[:, k]), 1)


@pytest.mark.parametrize("sampler", ["exact", "banded"])
def test_moments_of_the_fit_are_those_of_the_data(sampler: str) -> None:
    """At the maximum all means and products agree; log Z, errors and criteria against enumeration."""
    data = table(4, 500)
    found = diabat.fit(data, sampler=sampler, progress=False)
    states = torch.tensor(list(product((-1, 1), repeat=4)))
    exponents = features(states) @ found.parameters
    p = exponents.softmax(0)
    assert torch.allclose(p @ features(states), features(data).mean(0), atol=1e-6)
    likelihood = (features(data) @ found.parameters - exponents.logsumexp(0)).sum()
    assert found.log_likelihood == pytest.approx(float(likelihood), abs=1e-6)
    fisher = (features(states).T * p) @ features(states) - torch.outer(*[p @ features(states)] * 2)
    assert found.standard_errors is not None
    assert torch.allclose(
        found.standard_errors, (torch.linalg.inv(fisher) / 500).diagonal().sqrt(), rtol=1e-4
    )
    assert found.aic == pytest.approx(20 - 2 * float(likelihood))
    assert found.bic == pytest.approx(10 * np.log(500) - 2 * float(likelihood))
    assert (found.converged, found.log_likelihood_error) == (True, 0.0)


def test_standard_errors_cover_the_truth() -> None:
    """alpha = 1e-6 for the sum of 55 squares of 20 fits each, N = 1,000 states: chi-squared with 1,100 degrees."""
    model, total = truth(10), 0.0
    J = model.couplings
    assert J is not None
    true = torch.cat((model.fields, J[*torch.triu_indices(10, 10, 1)]))
    for seed in range(20):
        found = diabat.fit(EXACT.sample(model, 1000, seed=seed).spins, tolerance=1e-4, progress=False)
        assert found.standard_errors is not None
        total += float(((found.parameters - true) / found.standard_errors).square().sum())
    assert abs(total - 1100) < 4.9 * (2 * 1100) ** 0.5


def test_kinds_of_tables() -> None:
    spins = table(3, 200).numpy()
    frame = pd.DataFrame((spins + 1) // 2, columns=["a", "b", "c"])
    want = diabat.fit(spins, progress=False)
    given: tuple[Any, ...] = (spins.tolist(), torch.from_numpy(spins), spins > 0, spins.astype(float), frame)
    for data in given:
        assert torch.equal(diabat.fit(data, progress=False).parameters, want.parameters)
    rows = diabat.fit(frame, progress=False).to_pandas()
    assert rows["spin"].tolist() == ["a", "b", "c", "a", "a", "b"]
    assert rows["other"].tolist()[3:] == ["b", "c", "c"]
    assert np.allclose(rows["value"], want.parameters)
    assert (rows["standard_error"] > 0).all()


def test_given_pairs_and_the_penalty() -> None:
    data = table(5, 300)
    chain = diabat.fit(data, [(0, 1), (2, 1), (3, 4)], progress=False)
    assert chain.problem.edges is not None
    assert chain.problem.edges.index.tolist() == [[0, 1], [2, 1], [3, 4]]
    assert len(chain.parameters) == 8
    frame = pd.DataFrame(data.numpy(), columns=list("abcde"))
    named = diabat.fit(frame, [("a", "b"), ("c", 1), ["d", "e"]], progress=False)
    assert torch.equal(named.parameters, chain.parameters)
    with pytest.raises(IsingError, match=r"pairs: expected names of columns or numbers, got 'f'\."):
        diabat.fit(frame, [("a", "f")], progress=False)
    l2 = 0.1
    found = diabat.fit(data, l2=l2, progress=False)
    moments = EXACT.moments(found.problem, correlations=True)
    j, k = torch.triu_indices(5, 5, 1)
    assert moments.correlation is not None
    model = torch.cat((moments.magnetization, moments.correlation[j, k]))
    assert torch.allclose(
        features(data).mean(0) - model - l2 * found.parameters, torch.zeros(15).double(), atol=1e-6
    )


def test_hidden_spins_learn_parity() -> None:
    """Four spins with an even number of +1: no model without hidden spins is better than coin flips."""
    even = [s for s in product((0, 1), repeat=4) if sum(s) % 2 == 0]
    found = diabat.fit(even, hidden=4, seed=0, progress=False)
    assert found.log_likelihood is not None
    assert found.log_likelihood / 8 == pytest.approx(-np.log(8), abs=1e-3)
    assert found.labels[4:] == ["hidden 0", "hidden 1", "hidden 2", "hidden 3"]
    assert found.standard_errors is None


def test_chains_find_the_same_maximum() -> None:
    data = table(6, 1000)
    chains = diabat.sampler("tempering", num_replicas=2, num_chains=64, burn_in=4, sweeps=16, persistent=True)
    sampled, exact = (
        diabat.fit(data, sampler=chains, seed=3, progress=False),
        diabat.fit(data, progress=False),
    )
    assert exact.standard_errors is not None
    assert sampled.standard_errors is not None
    assert float(((sampled.parameters - exact.parameters) / exact.standard_errors).abs().max()) < 0.6
    assert float((sampled.standard_errors / exact.standard_errors - 1).abs().max()) < 0.2
    assert sampled.log_likelihood is not None
    assert sampled.log_likelihood_error is not None
    assert sampled.log_likelihood == pytest.approx(
        exact.log_likelihood, abs=5 * sampled.log_likelihood_error + 1
    )
    assert sampled.converged is None
    again = diabat.fit(data, sampler=own_copy(chains), seed=3, progress=False)
    assert torch.equal(again.parameters, sampled.parameters)


def dependent(names: Any) -> pd.DataFrame:
    """Columns 0 and 1 agree mostly, 2 is alone."""
    s = EXACT.sample(Ising([0, 0, 0], [[0, 1, 0], [1, 0, 0], [0, 0, 0]]), 300, seed=2).spins
    return pd.DataFrame(s.numpy(), columns=names)


MULTI = pd.MultiIndex.from_tuples([("x", 1), ("x", 2), ("y", 1)])


@pytest.mark.parametrize(
    ("names", "pairs"),
    [
        ("abc", [("a", "b")]),
        ("abc", iter([("a", "b")])),
        ("abc", np.array([["a", "b"]])),
        ("abc", pd.DataFrame([["a", "b"]])),
        ("abc", [(0, 1)]),
        ("abc", torch.tensor([[0, 1]])),
        ([2, 1, 0], [(2, 1)]),  # numbers that are names are not places
        ([2019, 2020, 2021], [(2019, 2020)]),
        (MULTI, [(("x", 1), ("x", 2))]),
    ],
)
def test_pairs_by_name_or_number(names: Any, pairs: Any) -> None:
    frame = dependent(names if isinstance(names, pd.MultiIndex) else list(names))
    found = diabat.fit(frame, pairs, progress=False)
    assert found.problem.edges is not None
    assert found.problem.edges.index.tolist() == [[0, 1]]
    assert float(found.problem.edges.values) > 0.7
    assert found.labels == list(frame.columns)


def test_hidden_spins_have_names_too() -> None:
    pairs = [("a", "hidden 0"), ("b", 3), ("hidden 0", "c")]
    found = diabat.fit(dependent(list("abc")), pairs, hidden=1, steps=3, progress=False)
    assert found.problem.edges is not None
    assert found.problem.edges.index.tolist() == [[0, 3], [1, 3], [3, 2]]


@pytest.mark.parametrize(("names", "pairs", "sentence"), [
    ("abc", [("a", "hiden")], r"expected names of columns or numbers, got 'hiden'\.$"),
    ("abc", [("a", "B")], r"got 'B'\. Did you mean 'b'\?$"),
    ("abc", [("a", ["b"])], r"got \['b'\]\.$"),
    ("aab", [("a", "b")], r"got the name of several columns, 'a'\.$"),
    ("abc", ("a", "b"), r"expected pairs of two variables, \[E, 2\], got 'a'\.$"),
    ([5, 6, 7], [(0, 1)], r"got 0\.$"),
])  # fmt: skip
def test_other_pairs_are_refused(names: Any, pairs: Any, sentence: str) -> None:
    with pytest.raises(IsingError, match=rf"^pairs: .*{sentence}"):
        diabat.fit(dependent(list(names)), pairs, progress=False)


def test_tables_of_pandas_own_dtypes() -> None:
    """Without a value that is missing they are as good as others."""
    frame = (dependent(list("abc")) + 1) // 2
    plain = diabat.fit(frame, progress=False)
    for other in (frame.convert_dtypes(), frame.assign(a=frame.a.astype(bool)), frame.astype("boolean")):
        assert torch.equal(diabat.fit(other, progress=False).parameters, plain.parameters)
    missing = frame.astype("Int64")
    missing.iloc[3, 1] = pd.NA
    for bad, got in ((missing, "<NA> in column 'b'"), (frame.assign(c="x"), "'x' in column 'c'")):
        with pytest.raises(IsingError, match=rf"^data: expected binary values, all there, got {got}\.$"):
            diabat.fit(bad, progress=False)


def test_a_maximum_at_infinity_is_told() -> None:
    """Three spins that never all agree: every pair takes its four values, and every J runs away."""
    data = np.array([s for s in product((0, 1), repeat=3) if len(set(s)) > 1]).repeat(20, 0)
    with pytest.warns(UserWarning, match=r"fit: the data leave standard errors up to \S+, .*; set l2 or"):
        assert diabat.fit(data, progress=False).converged
    assert diabat.fit(data, errors=False, progress=False).standard_errors is None
    found = diabat.fit(data, l2=0.01, progress=False).standard_errors
    assert found is not None
    assert float(found.max()) < 1


@pytest.mark.parametrize(("data", "options", "sentence"), [
    ([[0, 1], [1, 1]], {"hidden": 1}, "data: expected both values of every variable, got one of 1; set l2."),
    (torch.ones(5, 3), {}, "data: expected both values of every variable, got one of 0; set l2."),
    ([[0, 0], [1, 1]], {}, r"data: expected all four values of every coupled pair, got fewer of \[0, 1\]; set l2."),
    ([[0, 2], [1, 1]], {}, r"data: expected -1 and 1, or 0 and 1, or booleans, got \[0, 1, 2\]."),
    ([0, 1], {}, r"data: expected a table of binary values \[N, n\], got int64 of shape \[2\]."),
    (np.eye(2), {"l2": -1}, r"l2: expected a number in \[0, inf\), got -1."),
    (np.eye(2), {"hidden": -1}, "hidden: expected an integer >= 0, got -1."),
    (np.eye(2), {"rate": 0}, "rate: expected a positive finite number, got 0."),
])  # fmt: skip
def test_refusals(data: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ArgumentError, match=sentence):
        diabat.fit(data, progress=False, **options)


def test_a_backend_without_moments_of_pairs_is_refused() -> None:
    with pytest.raises(
        UnsupportedError, match="expected one that reports log Z or correlations, got 'mean_field'"
    ):
        diabat.fit(table(3, 50), sampler="mean_field", progress=False)
    with pytest.raises(IsingError, match="expected spins 0 to 2"):
        diabat.fit(table(3, 50), [(0, 3)], progress=False)
