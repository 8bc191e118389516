"""What a problem may be given as: arrays, lists, other dtypes, dictionaries; and where it may go."""

from __future__ import annotations

from typing import Any

import dimod
import numpy as np
import pandas as pd
import pytest
import torch

import diabat
from diabat.ising import Ising, IsingError, from_bqm
from diabat.testing.problems import make_problem, with_visible

F32, F64 = torch.float32, torch.float64
H = [0.5, -1.0, 0.25]
J = [[0.0, 1.0, 0.0], [1.0, 0.0, -0.5], [0.0, -0.5, 0.0]]


@pytest.mark.parametrize(("fields", "dtype"), [
    (H, F32),
    (tuple(H), F32),
    ([1, 2, 3], F32),
    ([np.float64(1), np.float64(2), np.float64(3)], F32),
    (np.array(H), F64),
    (np.array(H, dtype=">f8"), F64),
    (np.array(H, dtype=np.longdouble), F64),
    (np.array(H, dtype=np.float32), F32),
    (np.array(H, dtype=np.float16), F32),
    (np.array([1, 2, 3], dtype=np.uint8), F32),
    (np.array([1, 2, 3], dtype=np.int64), F32),
    (np.array(H)[::-1], F64),
    (torch.tensor(H), F32),
    (torch.tensor(H, dtype=F64), F64),
    (torch.tensor(H, dtype=torch.float16), F32),
    (torch.tensor(H, dtype=torch.bfloat16), F32),
    (torch.tensor([1, 2, 3]), F32),
    (torch.tensor([1, 2, 3], dtype=torch.int8), F32),
])  # fmt: skip
@pytest.mark.parametrize(
    "couplings",
    [J, np.array(J), np.array(J, dtype=np.float32), torch.tensor(J).bfloat16(), (2 * torch.tensor(J)).int()],
)
def test_arrays_lists_and_other_dtypes_are_converted(fields: Any, couplings: Any, dtype: torch.dtype) -> None:
    ising = Ising(fields, couplings, [True, True, False])
    assert (ising.fields.dtype, ising.couplings.dtype, ising.visible.dtype) == (dtype, dtype, torch.bool)
    assert ising.fields.tolist() == [float(h) for h in fields]
    assert ising.couplings.tolist() == [[float(x) for x in row] for row in couplings]
    assert diabat.sampler("exact").moments(ising).probability.dtype == dtype


def test_series_and_frames_are_arrays() -> None:
    h, J = (
        pd.Series([0.5, -1.0, 0.2], index=list("abc")),
        pd.DataFrame([[0, 0.3, 0], [0.3, 0, -0.2], [0, -0.2, 0]]),
    )
    problem = Ising(h, J, visible=pd.Series([True, True, False]))
    plain = Ising(h.to_numpy(), J.to_numpy(), visible=[True, True, False])
    assert problem.fields.dtype == torch.float64
    assert torch.equal(problem.fields, plain.fields)
    assert torch.equal(problem.couplings, plain.couplings)
    assert torch.equal(problem.visible, plain.visible)


def test_states_are_tensors_arrays_lists_and_frames_alike() -> None:
    problem, rows = Ising([0.5, -1.0], [[0, 0.3], [0.3, 0]]), [[1, -1], [-1, -1], [1, 1]]
    states = torch.tensor(rows)
    for given in (rows, np.array(rows), np.array(rows, np.float32), pd.DataFrame(rows)):
        assert torch.equal(problem.energy(given), problem.energy(states))
        assert torch.equal(problem.log_prob(given, 1.0), problem.log_prob(states, 1.0))
    held = problem.clamp(pd.Series([1, 0]))
    assert torch.equal(held.fields, problem.clamp(torch.tensor([1, 0])).fields)
    with pytest.raises(IsingError, match=r"spins: expected integers or floats .* got dtype bool"):
        problem.energy([True, False])


def test_lists_follow_the_default_dtype() -> None:
    torch.set_default_dtype(F64)
    try:
        assert Ising([0.1, 0.2]).fields.tolist() == [0.1, 0.2]
    finally:
        torch.set_default_dtype(F32)


def test_arrays_are_copied_and_tensors_are_not() -> None:
    h, seen = np.array(H), np.array([True, False, True])
    frozen = np.array(J)
    frozen.flags.writeable = False
    ising = Ising(h, frozen, seen)
    h[:], seen[:] = 9, True
    assert ising.fields.tolist() == H
    assert ising.visible_mask.tolist() == [True, False, True]
    given = make_problem((2,), 3, three_body=0.5)
    again = Ising(given.fields, given.couplings, given.visible, given.three_body)
    assert (again.fields, again.couplings, again.three_body) == (
        given.fields,
        given.couplings,
        given.three_body,
    )


@pytest.mark.parametrize("sampler", ["exact", "tempering"])
def test_the_bridge_differentiates_through_the_conversion(sampler: str) -> None:
    h = torch.tensor(H, dtype=torch.bfloat16, requires_grad=True)
    alpha = diabat.spin_probabilities(h, J, sampler, seed=1)
    assert alpha.dtype == F32
    alpha.sum().backward()
    assert h.grad.dtype == torch.bfloat16
    assert bool((h.grad > 0).any())


@pytest.mark.parametrize(("arguments", "message"), [
    (([[0.1], [0.2, 0.3]],), "fields: expected nested lists of equal lengths"),
    ((["a"],), "fields: expected real numbers, got an array of dtype <U1"),
    (([None],), "fields: expected real numbers, got an array of dtype object"),
    (([10**30],), "fields: expected real numbers, got an array of dtype object"),
    ((np.array([True]),), "fields: expected real numbers, got an array of dtype bool"),
    ((np.array([1j]),), "fields: expected real numbers, got an array of dtype complex128"),
    (([torch.tensor(1.0)],), "fields: expected numbers, got a list of tensors; use torch.stack"),
    ((np.float64(0.5),), "fields: expected a tensor, an array or a list, got float64"),
    ((np.array(0.5),), r"fields: expected shape \[\*batch, n\]"),
    (([],), r"fields: expected shape \[\*batch, n\] with n >= 1"),
    (([1e300],), "fields: expected finite values, got inf"),
    ((H, [[0.0, 1.0]]), r"couplings: expected shape .* got \[1, 2\]"),
    ((H, J, [1, 1, 0]), "visible: expected dtype bool, got int64"),
    ((H, torch.tensor(J, dtype=F64)), "couplings: expected dtype torch.float32 .* got torch.float64"),
    ((np.array(H), torch.tensor(J)), "couplings: expected dtype torch.float64 .* got torch.float32"),
])  # fmt: skip
def test_invalid_problems_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(IsingError, match=message):
        Ising(*arguments)


def test_from_dict_in_the_sign_of_the_library() -> None:
    couplings: dict[tuple[Any, Any], Any] = {("b", "a"): np.float32(2), (3, "a"): -1.5}
    ising, labels = Ising.from_dict({"b": 0.5, 3: -1}, couplings)
    assert labels == ["b", 3, "a"]
    assert ising.fields.dtype == F64
    other, names = from_bqm(
        dimod.BinaryQuadraticModel.from_ising({"b": -0.5, 3: 1}, {("b", "a"): -2, (3, "a"): 1.5})
    )
    order = [names.index(label) for label in labels]
    assert torch.equal(ising.fields, other.fields[order])
    assert torch.equal(ising.couplings, other.couplings[order][:, order])
    up = diabat.sampler("exact").moments(Ising.from_dict({"a": 2.0, "b": 0.0}, {("a", "b"): 2.0})[0])
    assert bool((up.probability > 0.9).all())
    couplings = {(f"s{j}", f"s{j + 1}"): float(j) for j in range(50)}
    ising, labels = Ising.from_dict({"s0": 1.0}, couplings)
    where = [(labels[a], labels[b]) for a, b in ising.edges.index.tolist()]
    assert dict(zip(where, ising.edges.values.tolist(), strict=True)) == couplings


@pytest.mark.parametrize(("fields", "couplings", "message"), [
    ({}, {}, "fields: expected at least one spin"),
    ([1.0], {}, "fields: expected a mapping, got list"),
    ({"a": 1.0}, [1.0], "couplings: expected a mapping, got list"),
    ({"a": 1.0}, {("a", "a"): 1.0}, r"couplings: expected pairs .* got \('a', 'a'\)"),
    ({"a": 1.0}, {"ab": 1.0}, r"couplings: expected pairs .* got 'ab'"),
    ({}, {("a", "b"): 1.0, ("b", "a"): 1.0}, r"expected every pair once, got \('b', 'a'\)"),
    ({"a": "1"}, {}, r"fields\['a'\]: expected a real number, got str"),
    ({"a": torch.tensor(1.0)}, {}, r"fields\['a'\]: expected a real number, got Tensor"),
    ({"a": True}, {}, r"fields\['a'\]: expected a real number, got bool"),
    ({}, {("a", "b"): None}, r"couplings\[\('a', 'b'\)\]: expected a real number, got NoneType"),
    ({"a": float("nan")}, {}, "fields: expected finite values, got nan"),
])  # fmt: skip
def test_dictionaries_that_are_not_a_problem_are_refused(fields: Any, couplings: Any, message: str) -> None:
    with pytest.raises(IsingError, match=message):
        Ising.from_dict(fields, couplings)


def test_to_follows_torch() -> None:
    ising = with_visible(make_problem((2,), 3, three_body=0.5), torch.tensor([True, True, False]))
    assert ising.fields.dtype == F64
    ways: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((F32,), {}),
        (("cpu", F32), {}),
        ((torch.device("cpu"),), {"dtype": F32}),
        ((), {"device": "cpu", "dtype": F32}),
        ((torch.zeros(1),), {}),
    ]
    for args, keywords in ways:
        moved = ising.to(*args, **keywords)
        parts = (moved.fields, moved.couplings, moved.three_body)
        assert [t.dtype for t in parts if t is not None] == [F32] * 3
        assert torch.equal(moved.visible_mask, ising.visible_mask)
    assert Ising(torch.zeros(3, requires_grad=True)).to(F64).fields.requires_grad
    assert ising.to("cpu") is ising
    assert ising.to(F64) is ising
    meta = ising.to("meta")
    assert meta.visible is not None
    assert {t.device.type for t in (meta.fields, meta.couplings, meta.visible) if t is not None} == {"meta"}
    for wrong in (torch.float16, torch.int64):
        with pytest.raises(IsingError, match="dtype: expected float32 or float64"):
            ising.to(wrong)
