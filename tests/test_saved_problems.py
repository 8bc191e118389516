"""Problems in a file of their own, and what is refused in its place."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import diabat
from diabat.files import parse_tensor_file, tensor_file
from diabat.ising import Ising, IsingError
from diabat.ising.problem_files import read_problem
from diabat.testing.problems import LEADS, make_problem

NAMES = ("fields", "matrix", "visible", "three_body", "offset", "clamped")


def same(one: Tensor | None, other: Tensor | None) -> bool:
    """Both None, or equal in dtype, shape and every bit."""
    if one is None or other is None:
        return one is other
    return one.dtype == other.dtype and one.detach().numpy().tobytes() == other.numpy().tobytes()


@st.composite
def problems(draw: st.DrawFn) -> Ising:
    batch = draw(st.sampled_from([(), (2,), (2, 3)]))
    n, lead = draw(st.integers(1, 4)), draw(st.sampled_from(LEADS))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    three_body = draw(st.sampled_from([0.0, 0.5]))
    ising = make_problem(batch, n, lead=lead if n > 1 else "none", seed=1, three_body=three_body, dtype=dtype)
    mask = draw(st.sampled_from([None, torch.tensor([True, False, True, True])[:n], ising.fields > 0]))
    offset = draw(st.sampled_from([None, ising.fields.new_tensor(0.3), ising.fields[..., 0]]))
    J: Any = ising.matrix
    if J is not None and draw(st.booleans()):
        pairs = torch.triu_indices(n, n, 1)
        J = diabat.Edges(pairs.T, J[..., pairs[0], pairs[1]])
    check = offset is None or draw(st.booleans())
    made = Ising(ising.fields, J, mask, ising.three_body, offset, check=check)
    return made.clamp(torch.tensor([1, 0, -1, 0])[:n]) if draw(st.booleans()) else made


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(problems())
def test_every_tensor_comes_back(tmp_path: Path, ising: Ising) -> None:
    ising.save(tmp_path / "p")
    back = Ising.load(str(tmp_path / "p"))
    for name in NAMES:
        assert same(getattr(ising, name), getattr(back, name)), name
    assert (ising.edges is None) is (back.edges is None)
    if ising.edges is not None and back.edges is not None:
        assert same(ising.edges.index, back.edges.index)
        assert same(ising.edges.values, back.edges.values)
    assert back.check is ising.check


def test_a_problem_in_a_graph_of_many_spins_is_saved(tmp_path: Path) -> None:
    """Whose couplings are edges, of which there are none; fields and offset share memory."""
    fields = torch.zeros(5000, requires_grad=True)
    ising = Ising(fields, offset=fields[0])
    ising.save(tmp_path / "p")
    back = Ising.load(tmp_path / "p")
    assert back.edges is not None
    assert back.edges.count == 0
    assert not back.fields.requires_grad


def test_a_saved_problem_is_sampled_as_any_file(tmp_path: Path) -> None:
    """In float64, times beta, with its labels; a batch is not."""
    ising = make_problem((), 3, seed=1, three_body=0.3, dtype=torch.float32).clamp([0, 0, 1])
    ising.save(tmp_path / "p", labels=["a", 7, "c"])
    problem, warm = read_problem(tmp_path / "p"), read_problem(tmp_path / "p", beta=0.5)
    assert problem.labels == ["a", 7, "c"]
    assert torch.equal(problem.ising.fields, ising.fields.double())
    spins = torch.tensor([[1, -1, 1], [-1, 1, 1]])
    assert warm.ising.energy(spins) == pytest.approx(ising.energy(spins) / 2)
    assert warm.energy(spins) == pytest.approx(ising.energy(spins))
    assert problem.ising.clamped is not None
    ising.save(tmp_path / "p")
    assert read_problem(tmp_path / "p").labels == [0, 1, 2]
    make_problem((2,), 3).save(tmp_path / "p")
    with pytest.raises(ValueError, match=r"p': fields: expected one problem \[n\], got a batch \[2, 3\]\.$"):
        read_problem(tmp_path / "p")


@pytest.mark.parametrize(("ising", "labels", "message"), [
    (Ising(torch.tensor([torch.nan]), check=False), None, r"fields: expected finite values, got nan"),
    (Ising(torch.zeros(2), torch.ones(2, 2), check=False), None, "couplings: expected zero where two"),
    (Ising(torch.zeros(2), offset=0.5, check=False), None, "offset: expected a tensor, .*, got float"),
    (Ising([1.0, 2.0]), ["a"], "labels: expected 2 different strings or integers, got"),
    (Ising([1.0, 2.0]), ["a", "a"], "labels: expected 2 different"),
    (Ising([1.0, 2.0]), [("a", 1), "b"], "labels: expected 2 different strings or integers"),
])  # fmt: skip
def test_what_could_not_be_loaded_is_not_saved(
    tmp_path: Path, ising: Ising, labels: Any, message: str
) -> None:
    (tmp_path / "p").write_text("older")
    with pytest.raises(IsingError, match=message):
        ising.save(tmp_path / "p", labels)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["older"]


def saved(tmp_path: Path) -> bytes:
    ising = Ising(torch.zeros(3), diabat.Edges([(0, 1)], [0.5])).clamp([0, 1, 0])
    ising.save(tmp_path / "p")
    return (tmp_path / "p").read_bytes()


def other(
    facts: Mapping[str, Any] = MappingProxyType({}), **tensors: Tensor | None
) -> Callable[[bytes], bytes]:
    """A change of tensors, None to leave one out, and of facts."""

    def changed(content: bytes) -> bytes:
        held, said = parse_tensor_file(content)
        found = {name: t for name, t in {**held, **tensors}.items() if t is not None}
        return tensor_file(found, said | dict(facts))

    return changed


class Trap:
    """What pickle would call when it reads."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise SystemExit('the content was run')",)


DAMAGE: list[tuple[Callable[[bytes], bytes], str]] = [
    (lambda content: content[:-1], "Error while deserializing"),
    (other({"check": 1}), "check: expected True or False, got 1"),
    (other({"labels": "abc"}), "labels: expected 3 different"),
    (other({"labels": [1, True, 2]}), "labels: expected 3 different"),
    (other(fields=None), "expected the entry 'fields', got none"),
    (other(values=None), "expected the entry 'values', got none"),
    (other(fields=torch.zeros(3).half()), "fields: expected dtype torch.float32 or torch.float64, got torch.float16"),
    (other(fields=torch.zeros(0)), r"fields: expected shape \[\*batch, n\]"),
    (other(index=torch.tensor([[0, 3]])), r"couplings: expected spins 0 to 2, got the edge \[0, 3\]"),
    (other(index=torch.tensor([[0, 1]]).int()), "index: expected dtype torch.int64, got torch.int32"),
    (other(matrix=torch.zeros(3, 3)), "couplings: expected a matrix or edges, got both"),
    (other(visible=torch.ones(2, dtype=torch.bool)), "visible: expected a shape that broadcasts"),
    (other(visible=torch.ones(3, dtype=torch.bool)), "clamped: .* that clamped spins are invisible"),
    (other(clamped=torch.tensor([0, 2, 0]).char()), "spins: expected -1, 0"),
    (other(clamped=torch.tensor([[0, 1, 0]]).char()), "clamped: expected the shape of fields"),
    (other(offset=torch.tensor(torch.inf)), "offset: expected finite values"),
    (other(more=torch.zeros(3)), "more: expected only tensors of fields, .*, got another"),
]  # fmt: skip


OTHERS: list[tuple[Callable[[bytes], bytes], str]] = [
    (lambda content: b"", r"not a safetensors file\.$"),
    (lambda content: pickle.dumps(Trap()), r"not a safetensors file\.$"),
    (other({"format": "diabat-samples"}), "another file: expected {'format': 'diabat-ising', .*'diabat-samples'"),
    (other({"version": 2}), "another file: .*'version': 2"),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "message"), OTHERS, ids=[m[:50] for _, m in OTHERS])
def test_a_file_of_another_kind_is_not_called_damaged(
    damage: Callable[[bytes], bytes], message: str, tmp_path: Path
) -> None:
    (tmp_path / "p").write_bytes(damage(saved(tmp_path)))
    with pytest.raises(IsingError, match=f"^Ising: {re.escape(str(tmp_path / 'p'))} is {message}"):
        Ising.load(tmp_path / "p")


@pytest.mark.parametrize(("damage", "message"), DAMAGE, ids=[m[:30] for _, m in DAMAGE])
def test_a_damaged_file_is_one_sentence(
    damage: Callable[[bytes], bytes], message: str, tmp_path: Path
) -> None:
    (tmp_path / "p").write_bytes(damage(saved(tmp_path)))
    with pytest.raises(IsingError, match=message) as caught:
        Ising.load(tmp_path / "p")
    assert str(caught.value).startswith(f"Ising: {tmp_path / 'p'} is damaged: ")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(IsingError, match=r"Ising: expected the file .*nothing, got none"):
        Ising.load(tmp_path / "nothing")
