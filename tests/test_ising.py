from __future__ import annotations

import itertools
import math
from typing import Any

import dimod
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import diabat
from diabat.ising import Ising, IsingError, from_bqm, from_qubo, pack_couplings, pack_three_body, to_bqm
from diabat.ising.checks import is_symmetric, is_within, plain_numbers, sum_of_squares
from diabat.testing import brute_force, state_table
from diabat.testing.problems import make_problem, with_visible

F64 = torch.float64


def symmetric(n: int, seed: int = 0) -> Tensor:
    return pack_couplings(torch.randn(n * (n - 1) // 2, generator=torch.Generator().manual_seed(seed)), n)


def energy_by_hand(ising: Ising, spins: list[int]) -> float:
    """One problem, one state, term by term."""
    seen = [j for j in range(ising.num_spins) if bool(ising.visible_mask[j])]
    terms = ((1, ising.fields), (2, ising.couplings), (3, ising.three_body))
    exponent = 0.0
    for order, values in terms:
        for spot in itertools.combinations(seen, order):
            exponent += float(values[spot]) * math.prod(spins[j] for j in spot)
    return -exponent


def test_energy_broadcasts_samples_heads_and_visibility() -> None:
    """Term by term, also where nothing is visible."""
    mask = torch.tensor([[True, True, True], [True, False, True], [False, False, False]])
    ising = with_visible(make_problem((2, 3), 3, lead="heads", seed=2, three_body=0.5), mask)
    spins = torch.randint(0, 2, (5, 2, 3, 3)) * 2 - 1
    energy = ising.energy(spins)
    assert energy.shape == (5, 2, 3)
    for read, head, row in itertools.product(range(5), range(2), range(3)):
        one = Ising(
            ising.fields[head, row],
            ising.couplings[head, 0],
            mask[row],
            ising.three_body[head, 0],
            check=False,
        )
        assert float(energy[read, head, row]) == pytest.approx(
            energy_by_hand(one, spins[read, head, row].tolist())
        )


def test_detach_cuts_every_tensor_and_keeps_the_mask() -> None:
    base = make_problem((2,), 3, three_body=0.5)
    parts = [
        t.clone().requires_grad_() for t in (base.fields, base.couplings, base.three_body) if t is not None
    ]
    ising = Ising(parts[0], parts[1], torch.tensor([True, True, False]), parts[2])
    cut = ising.detach()
    assert not any(t.requires_grad for t in (cut.fields, cut.couplings, cut.three_body) if t is not None)
    assert torch.equal(cut.visible_mask, ising.visible_mask)
    assert base.detach() is base


@given(st.integers(1, 6), st.integers(0, 2**16), st.floats(0.1, 4.0))
def test_bqm_round_trip_and_sign(n: int, seed: int, beta: float) -> None:
    """Energies agree with dimod's state by state; from_bqm folds beta into both h and J."""
    ising = make_problem((), n, seed=seed, lead="shared" if n > 1 else "none")
    labels = [f"v{j}" for j in reversed(range(n))]
    bqm = to_bqm(ising, list(labels))
    back, names = from_bqm(bqm)
    assert names == labels
    warm, _ = from_bqm(bqm, beta=beta)
    assert torch.equal(back.fields, ising.fields)
    for spins in itertools.product((-1, 1), repeat=n):
        state = torch.tensor(spins)
        energy = bqm.energy(dict(zip(labels, spins, strict=True)))
        assert float(ising.energy(state)) == pytest.approx(energy, abs=1e-12)
        assert float(warm.energy(state)) == pytest.approx(beta * energy, abs=1e-12)


AS_QUBO: dict[str, Any] = {
    "mapping": lambda Q: {(i, j): float(Q[i, j]) for i, j in np.argwhere(Q)},
    "array": lambda Q: Q,
    "tensor of float32": lambda Q: torch.from_numpy(Q).float(),
    "list": lambda Q: Q.tolist(),
    "upper triangle": lambda Q: np.triu(Q) + np.tril(Q, -1).T,
}


@pytest.mark.parametrize("form", AS_QUBO)
@given(st.integers(1, 4), st.integers(0, 2**16), st.floats(0.1, 4.0))
def test_the_energy_of_a_qubo_is_that_of_its_matrix(form: str, n: int, seed: int, beta: float) -> None:
    """xᵀ Q x + offset of all bits x, with a diagonal, both directions of a pair, and pairs of zero."""
    random = np.random.default_rng(seed)
    Q = random.integers(-4, 5, (n, n)) / 4 * (random.random((n, n)) < 0.8)
    Q[0, 0] = 1.0
    ising, labels = from_qubo(AS_QUBO[form](Q), offset=0.25, beta=beta)
    assert ising.fields.dtype == F64
    if form != "mapping":
        assert labels == list(range(n))
    for x in itertools.product((0, 1), repeat=n):
        energy = beta * (np.array(x) @ Q @ np.array(x) + 0.25)
        spins = torch.tensor([2 * x[int(str(label))] - 1 for label in labels])
        assert float(ising.energy(spins)) == pytest.approx(energy, abs=1e-12)


def test_names_of_a_qubo() -> None:
    frame = pd.DataFrame([[1.0, -2.0], [0.0, 1.0]], columns=["a", "b"])
    for Q in (frame, {("a", "a"): 1, ("a", "b"): -2, ("b", "b"): 1}):
        ising, labels = from_qubo(Q)
        assert labels == ["a", "b"]
        assert ising.fields.tolist() == [0, 0]
        assert ising.couplings.tolist() == [[0, 0.5], [0.5, 0]]


@pytest.mark.parametrize(("Q", "message"), [
    ({}, "Q: expected at least one variable, got none"),
    (np.zeros((0, 0)), "Q: expected at least one variable, got none"),
    ({(0, 1, 2): 1.0}, r"Q: expected pairs \(a, b\) as keys, got \(0, 1, 2\)"),
    ({"ab": 1.0}, r"Q: expected pairs \(a, b\) as keys, got 'ab'"),
    ({(0, 1): "x"}, r"Q\[\(0, 1\)\]: expected a finite number, got 'x'"),
    ({(0, 1): math.nan}, r"Q\[\(0, 1\)\]: expected a finite number, got nan"),
    ({(0, 1): 10**400}, r"Q\[\(0, 1\)\]: expected a finite number, got about 1e400"),
    ([[1.0, 2.0]], r"Q: expected a square matrix \[n, n\] of numbers, got torch.float64 \[1, 2\]"),
    ([[math.inf]], "Q: expected finite values, got inf"),
    (pd.DataFrame(np.eye(2), columns=["a", "a"]), "Q: expected different names of columns, got"),
    ([["x"]], "Q: expected real numbers, got an array of dtype"),
    ("x", "Q: expected a mapping or a matrix, got str"),
])  # fmt: skip
def test_what_is_no_qubo(Q: Any, message: str) -> None:
    with pytest.raises(IsingError, match=message):
        from_qubo(Q)


@pytest.mark.parametrize("vartype", ["SPIN", "BINARY"])
def test_the_offset_of_a_bqm_moves_energies_and_log_z(vartype: str) -> None:
    """Energies are those of dimod, log Z is log Σ exp(-beta E), and the offset comes back."""
    bqm = dimod.BinaryQuadraticModel({0: 1.0, 1: -2.0, 2: 0.5}, {(0, 1): 3.0, (1, 2): -1.0}, -4.0, vartype)
    ising, labels = from_bqm(bqm, beta=0.7)
    energies = []
    for spins in itertools.product((-1, 1), repeat=3):
        values = spins if vartype == "SPIN" else [(s + 1) // 2 for s in spins]
        energies.append(bqm.energy(dict(zip(labels, values, strict=True))))
        assert float(ising.energy(torch.tensor(spins))) == pytest.approx(0.7 * energies[-1], abs=1e-12)
    log_z = math.log(sum(math.exp(-0.7 * energy) for energy in energies))
    for backend in ("exact", "banded"):
        assert diabat.sampler(backend).moments(ising).log_partition == pytest.approx(log_z, abs=1e-12)
    back = to_bqm(from_bqm(bqm)[0], labels)
    assert back.offset == bqm.change_vartype("SPIN", inplace=False).offset


def test_offsets_are_broadcast_converted_and_differentiable() -> None:
    """One per problem, or one for the batch; log Z and -E have the derivative 1."""
    base = make_problem((2, 3), 4, seed=26)
    offset = torch.tensor([[1.0], [-2.0]], dtype=F64, requires_grad=True)
    ising = Ising(base.fields, base.couplings, offset=offset)
    spins = torch.ones(4)
    assert torch.allclose(ising.energy(spins), base.energy(spins) - offset)
    moved, plain = (diabat.sampler("exact").moments(x) for x in (ising, base))
    assert torch.equal(moved.probability, plain.probability)
    assert torch.allclose(moved.log_partition, plain.log_partition + offset)
    (gradient,) = torch.autograd.grad(moved.log_partition.sum(), offset)
    assert gradient.tolist() == [[3.0], [3.0]]
    for other, dtype in ((ising.detach(), F64), (ising.detach().to(torch.float32), torch.float32)):
        torch.testing.assert_close(other.offset, offset.detach().to(dtype))
    assert Ising([0.5, 1.0], offset=2).offset == 2


HIDDEN = with_visible(make_problem((), 2), torch.tensor([True, False]))


@pytest.mark.parametrize(("convert", "given", "message"), [
    (to_bqm, (make_problem((2,), 3),), r"fields: expected one problem \[n\], got a batch \[2, 3\]"),
    (to_bqm, (make_problem((), 3, three_body=1.0),), "three_body: expected None"),
    (to_bqm, (HIDDEN,), "visible: expected every spin visible, got invisible spins; drop them first"),
    (to_bqm, (make_problem((), 2).clamp([1, 0]),), r"visible: .*, got spins that clamp\(\) has fixed\."),
    (from_qubo, (dimod.BinaryQuadraticModel({0: 1.0}, {}, 2.0, "BINARY").to_qubo(),), r"Q: .* got a pair; give"),
    *((to_bqm, (make_problem((), 2), x), "labels: expected 2 different") for x in (["a"], [*"abc"], [*"aa"])),
    (from_bqm, ({"a": 1.0},), "bqm: expected a dimod.BinaryQuadraticModel, got dict; from_qubo takes"),
    (from_bqm, (dimod.ConstrainedQuadraticModel(),), "got ConstrainedQuadraticModel; use dimod.cqm_to_bqm"),
    (from_bqm, (dimod.BinaryQuadraticModel("SPIN"),), "n >= 1"),
    (from_bqm, (dimod.BinaryQuadraticModel({0: math.inf}, {}, 0.0, "SPIN"),), "fields: expected finite values"),
])  # fmt: skip
def test_models_without_a_counterpart_are_refused(convert: Any, given: tuple[Any, ...], message: str) -> None:
    with pytest.raises(IsingError, match=message):
        convert(*given)


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype", "ignore:.*quantized tensor creation")
@pytest.mark.parametrize("argument", ["fields", "couplings", "offset"])
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_and_quantised_tensors_are_refused(argument: str, layout: torch.layout) -> None:
    given: dict[str, Any] = {"fields": torch.zeros(2)}
    nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=layout)
    with pytest.raises(IsingError, match=f"{argument}: expected a dense tensor, got a nested one; pad it"):
        Ising(**given | {argument: nested})
    quantised = torch.quantize_per_tensor(torch.zeros(2, 2), 0.1, 0, torch.qint8)
    with pytest.raises(IsingError, match=rf"{argument}: .* got torch\.qint8; use \.dequantize\(\)"):
        Ising(**given | {argument: quantised})


@pytest.mark.parametrize(("j", "k"), [(3, 5), (2, 290), (290, 2), (270, 290)])
def test_large_matrices_are_checked_everywhere(j: int, k: int) -> None:
    """300 spins are checked in blocks; a difference within rounding is accepted."""
    J = symmetric(300)
    J[j, k] *= 1 + 4e-7
    Ising(torch.zeros(300), J)
    J[j, k] += 0.1
    with pytest.raises(IsingError, match=rf"expected a symmetric matrix, .* at \[{min(j, k)}, {max(j, k)}\]"):
        Ising(torch.zeros(300), J)


@pytest.mark.parametrize("order", [2, 3])
def test_all_numbers_are_compared_with_their_mirror_images(order: int) -> None:
    """Each number in turn is wrong by its last bit."""
    values = torch.randn(7, 10)
    whole = (pack_couplings if order == 2 else pack_three_body)(values, 5).numpy()
    assert is_symmetric(whole, order)
    for at in np.ndindex(whole.shape):
        kept, whole[at] = whole[at], np.nextafter(whole[at], np.float32(9))
        assert not is_symmetric(whole, order)
        whole[at] = kept


def test_the_size_of_many_numbers_is_found_wherever_the_largest_is() -> None:
    """A sum of squares in parts of 65,536 numbers, and the largest number where that exceeds the limit."""
    values = torch.ones(1 << 17)
    assert is_within(values, 1.0)
    for at in (0, 65535, 65536, -1):
        for wrong in (1.5, -1.5, math.inf, math.nan):
            spoiled = values.clone()
            spoiled[at] = wrong
            assert not is_within(spoiled, 1.4)
            assert math.isfinite(sum_of_squares(spoiled.numpy())) == math.isfinite(wrong)


@pytest.mark.parametrize(("pack", "order"), [(pack_couplings, 2), (pack_three_body, 3)])
@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("lead", [(), (2,), (2, 1)])
def test_packing_is_symmetric_complete_and_differentiable(
    pack: Any, order: int, n: int, lead: tuple[int, ...]
) -> None:
    values = torch.arange(1.0, math.comb(n, order) * math.prod(lead) + 1).reshape(*lead, -1).requires_grad_()
    packed = pack(values, n)
    assert packed.shape == (*lead, *(n,) * order)
    for number, spins in enumerate(itertools.combinations(range(n), order)):
        for place in itertools.permutations(spins):
            assert torch.equal(packed[(..., *place)], values[..., number])
    distinct = math.perm(n, order) * math.prod(lead)
    assert int((packed != 0).sum()) == distinct  # nothing on the diagonals
    packed.sum().backward()
    assert torch.equal(values.grad, torch.full_like(values, math.factorial(order)))


def at(value: float, *index: int, n: int = 3) -> Tensor:
    """Zeros [n, n] or [n, n, n] with one entry set, and nothing mirrored."""
    t = torch.zeros((n,) * len(index))
    t[index] = value
    return t


FIELDS = torch.zeros(2, 3)
NO_DATA = {"fields": FIELDS, "couplings": torch.zeros(3, 3), "visible": FIELDS[0] == 0}
BAD: list[tuple[dict[str, Any], str]] = [
    *(
        ({name: value.to("meta")}, f"{name}: expected a tensor with data, got one on the device meta")
        for name, value in (NO_DATA | {"three_body": torch.zeros(3, 3, 3)}).items()
    ),
    ({"fields": FIELDS.to_sparse()}, r"fields: expected a dense tensor, got the layout torch\.sparse_coo"),
    ({"offset": torch.zeros(3)}, r"offset: .* dimensions that broadcast to the batch \[2\], got \[3\]"),
    ({"offset": math.inf}, "offset: expected finite values, got inf"),
    ({"offset": "1"}, "offset: expected a number or a tensor, got str"),
    ({"offset": torch.zeros(2, dtype=F64)}, "offset: expected dtype torch.float32 on cpu as in fields"),
    ({"fields": 0.0}, "fields: expected a tensor, an array or a list, got float"),
    ({"fields": {"a": 1.0}}, "fields: .* got dict; diabat.ising.from_qubo and Ising.from_dict read names"),
    ({"fields": None}, "fields: expected a tensor, an array or a list, got NoneType"),
    ({"fields": FIELDS.bool()}, "fields: expected dtype float32 or float64, got torch.bool"),
    ({"fields": FIELDS.to(torch.complex64)}, "fields: expected dtype float32 or float64, got torch.complex64"),
    ({"fields": torch.tensor(1.0)}, r"fields: expected shape \[\*batch, n\].*got shape \[\]"),
    ({"fields": torch.zeros(2, 0)}, r"n >= 1 spins, got shape \[2, 0\]"),
    ({"fields": torch.zeros(0, 3)}, r"fields: expected at least one problem, got an empty batch \[0, 3\]"),
    ({"fields": at(math.nan, 1, 2)}, r"fields: expected finite values, got nan at index \(1, 2\)"),
    ({"fields": at(-math.inf, 0, 1)}, r"fields: expected finite values, got -inf at index \(0, 1\)"),
    ({"couplings": 0.5}, "couplings: expected a tensor, an array or a list, got float"),
    ({"couplings": symmetric(3).double()}, "couplings: expected dtype torch.float32 .* got torch.float64"),
    ({"couplings": symmetric(4)}, r"couplings: expected shape \[\*lead, n, n\] with n = 3, got \[4, 4\]"),
    ({"couplings": torch.zeros(3)}, r"couplings: expected shape .* got \[3\]"),
    ({"couplings": torch.zeros(3, 3, 3)}, r"couplings: .*broadcast to the batch \[2\], got \[3\]"),
    ({"couplings": torch.zeros(1, 2, 3, 3)}, r"couplings: .*broadcast to the batch \[2\], got \[1, 2\]"),
    ({"couplings": at(math.nan, 0, 1)}, r"couplings: expected finite values, got nan at index \(0, 1\)"),
    ({"couplings": at(math.inf, 2, 1)}, r"couplings: expected finite values, got inf at index \(2, 1\)"),
    (
        {"couplings": at(0.25, 0, 1)},
        r"couplings: expected a symmetric matrix, got 0\.25 at \[0, 1\] and 0 at \[1, 0\]; use \(J \+ J\.mT\) / 2",
    ),
    ({"couplings": at(0.5, 1, 1)}, "couplings: expected zero where two indices coincide, got 0.5 on the diagonal"),
    ({"three_body": at(math.nan, 0, 1, 2)}, "three_body: expected finite values, got nan"),
    ({"three_body": at(1.0, 0, 1, 2)}, "three_body: expected a symmetric tensor"),
    ({"three_body": at(1.0, 1, 1, 1)}, "three_body: expected zero where two indices coincide"),
    ({"three_body": torch.zeros(3, 3)}, r"three_body: expected shape \[\*lead, n, n, n\]"),
    ({"three_body": torch.zeros(4, 3, 3, 3)}, r"three_body: .*broadcast to the batch \[2\], got \[4\]"),
    ({"visible": True}, "visible: expected a tensor, an array or a list, got bool"),
    ({"visible": torch.ones(3)}, "visible: expected dtype bool, got torch.float32"),
    ({"visible": torch.ones(4, dtype=torch.bool)}, r"visible: .*broadcasts to \[2, 3\], got \[4\]"),
    ({"visible": torch.ones(5, 2, 3, dtype=torch.bool)}, r"visible: .*broadcasts to \[2, 3\], got \[5, 2, 3\]"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"), BAD, ids=[f"{next(iter(a))}-{i}" for i, (a, _) in enumerate(BAD)]
)
def test_invalid_problems_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(IsingError, match=message):
        Ising(**({"fields": FIELDS} | arguments))


@pytest.mark.parametrize("arguments", [a for a, _ in BAD if "fields" not in a])
def test_check_false_skips_validation(arguments: dict[str, Any]) -> None:
    assert Ising(FIELDS, **arguments, check=False).fields is FIELDS


def test_rounding_is_not_asymmetry() -> None:
    J = symmetric(3)
    J[0, 1] *= 1 + 1e-7
    assert Ising(FIELDS, J).couplings is J


@pytest.mark.parametrize("lead", [(), (1,), (3,), (2, 1), (1, 3), (2, 3), (1, 1)])
def test_leads_that_broadcast_are_accepted(lead: tuple[int, ...]) -> None:
    zeros = torch.zeros(*lead, 4, 4)
    assert Ising(torch.zeros(2, 3, 4), zeros, three_body=torch.zeros(*lead, 4, 4, 4)).couplings is zeros


def conditional(ising: Ising, spins: Tensor) -> tuple[Tensor, Tensor]:
    """P(s_j = +1 | clamped) and log Σ exp(-E) over the states that agree with ``spins``, by enumeration."""
    states = state_table(ising.num_spins)  # [2^n, n]
    table = states.reshape(len(states), *(1,) * len(ising.batch_shape), ising.num_spins)
    exponent = -ising.energy(table.expand(-1, *ising.fields.shape))  # [2^n, *batch]
    agrees = ((spins == 0) | ~ising.visible_mask | (table == spins)).all(-1)
    # Each state was counted once for each value of the invisible spins.
    copies = (~ising.visible_mask).double().sum(-1) * math.log(2)
    exponent = torch.where(agrees, exponent, -torch.inf)
    law = torch.softmax(exponent, 0)
    return torch.einsum("x...,xj->...j", law, (states > 0).to(F64)), exponent.logsumexp(0) - copies


@pytest.mark.parametrize("dtype", [torch.int8, torch.float32, torch.float64])
@pytest.mark.parametrize("three_body", [0.0, 0.5])
@pytest.mark.parametrize("lead", ["none", "shared", "heads", "per_problem"])
def test_clamped_spins_act_as_given(lead: Any, three_body: float, dtype: torch.dtype) -> None:
    ising = make_problem((2, 3), 5, lead=lead, seed=21, three_body=three_body)
    spins = torch.tensor([[1, 0, -1, 0, 0], [0, 0, 0, 0, 0], [-1, 1, 1, -1, 0]]).to(dtype)
    p, log_sum = conditional(ising, spins)
    clamped = ising.clamp(spins)
    got = brute_force(clamped)
    free = (spins == 0).expand(2, 3, 5)
    assert torch.equal(clamped.visible_mask, free)
    assert torch.allclose(got.probability, p, atol=1e-13)
    assert torch.allclose(got.log_partition, log_sum, atol=1e-12)
    assert clamped.fields.dtype == F64


@pytest.mark.parametrize("backend", ["exact", "banded", "tempering", "dqa", "refine"])
def test_answers_show_clamped_spins_at_their_values(backend: str) -> None:
    """Probabilities, correlations, reads, energies and log Z; a spin that was invisible stays so."""
    base = make_problem((2,), 5, seed=22, three_body=0.5 if backend == "exact" else 0)
    ising = with_visible(base, torch.tensor([True, True, True, True, False]))
    clamped = ising.clamp(torch.tensor([0, 1, 0, 0, 1])).clamp(
        torch.tensor([[0, 0, 0, -1, 0], [0, 0, 0, 1, 0]])
    )
    options: dict[str, Any] = {"sampler": "exact"} if backend == "refine" else {}
    sampler = diabat.sampler(backend, **options)
    found = sampler.moments(clamped, correlations=True, seed=1)
    assert found.visible.tolist() == [[True, True, True, True, False]] * 2
    assert found.probability[:, 1].tolist() == [1, 1]
    assert found.probability[:, 3].tolist() == [0, 1]
    assert torch.equal(found.correlation[:, 1], found.magnetization)
    assert torch.equal(found.correlation[:, :, 3], found.magnetization * torch.tensor([[-1], [1]]))
    if found.standard_error is not None:
        assert found.standard_error[:, [1, 3]].tolist() == [[0, 0]] * 2
    if backend == "exact":
        p, log_sum = conditional(ising, torch.tensor([[0, 1, 0, -1, 0], [0, 1, 0, 1, 0]]))
        assert torch.allclose(found.probability[:, :4], p[:, :4], atol=1e-13)
        torch.testing.assert_close(found.log_partition, log_sum, atol=1e-12, rtol=0)
    if sampler.capabilities.samples:
        drawn = sampler.sample(clamped, 50, seed=1)
        assert drawn.spins[..., 1].unique().tolist() == [1]
        assert drawn.spins[:, 0, 3].unique().tolist() == [-1]
        assert drawn.spins[:, 1, 3].unique().tolist() == [1]
        assert drawn.spins[..., 4].unique().tolist() == [-1]
        assert torch.allclose(drawn.energy, ising.energy(drawn.spins), atol=1e-12)
        averages = sampler.moments(clamped, num_reads=50, seed=1)
        assert averages.probability[:, 3].tolist() == [0, 1]
        assert averages.standard_error[:, [1, 3]].tolist() == [[0, 0]] * 2


def test_a_spin_is_clamped_once() -> None:
    """Its value may be given again, the opposite is refused."""
    clamped = make_problem((2,), 3, seed=23).clamp([1, 0, 0])
    assert clamped.clamp([1, -1, 0]).clamped is not None
    with pytest.raises(
        IsingError, match=r"spins: expected a free spin or its clamped value, got .* at \[0, 0\]"
    ):
        clamped.clamp([-1, 0, 0])


def test_energies_of_bits_are_refused() -> None:
    problem = make_problem((), 3, seed=1)
    with pytest.raises(
        IsingError, match=r"expected -1 or \+1 at visible spins, got 0.0 at \[1\]; 2 \* x - 1"
    ):
        problem.energy([1, 0, 1])
    seen = with_visible(problem, torch.tensor([True, False, True]))
    assert seen.energy([1, 0, 1]) == seen.energy([1, 1, 1])


NAMED = pd.DataFrame([[0, 1.0], [1.0, 0]], index=["a", "b"], columns=["a", "b"])


def test_labels_of_frames_must_agree() -> None:
    """They are read by position; rows that have no names, or fields without, are fine."""
    for h in ([1, 2], pd.Series([1, 2]), pd.Series([1, 2], index=["a", "b"])):
        assert (
            Ising(h, NAMED).fields.tolist()
            == Ising(h, NAMED.reset_index(drop=True)).fields.tolist()
            == [1, 2]
        )
    batch = pd.DataFrame([[1, 2]], index=["first"], columns=["a", "b"])
    assert Ising(batch, NAMED).fields.tolist() == [[1, 2]]
    assert from_qubo(NAMED.reset_index(drop=True))[1] == ["a", "b"]
    swapped = pd.Series([1, 2], index=["b", "a"])
    uses: list[Any] = [lambda: Ising(swapped, NAMED), lambda: from_qubo(NAMED.loc[["b", "a"]])]
    uses.append(lambda: from_qubo(NAMED.set_axis(["b", "c"], axis=1)))
    for use in uses:
        with pytest.raises(
            IsingError, match="expected the same labels in rows, columns and fields, in one order"
        ):
            use()


def test_clamping_an_invisible_spin_changes_nothing() -> None:
    ising = with_visible(
        make_problem((2,), 4, seed=23, three_body=0.5), torch.tensor([True, False, True, True])
    )
    one, other = ising.clamp(torch.tensor([0, 1, -1, 0])), ising.clamp(torch.tensor([0, 0, -1, 0]))
    for name in ("fields", "couplings", "visible"):
        assert torch.equal(getattr(one, name), getattr(other, name))
    p, _ = conditional(ising, torch.tensor([0, 1, -1, 0]))
    assert torch.allclose(brute_force(one).probability[:, [0, 2, 3]], p[:, [0, 2, 3]], atol=1e-13)


def test_one_problem_clamped_in_many_ways() -> None:
    ising = make_problem((), 4, seed=24)
    spins = torch.tensor([[1, 0, 0, 0], [-1, 0, 0, 0], [0, 0, 0, 1]], dtype=torch.int8)
    many = ising.clamp(spins)
    assert many.batch_shape == (3,)
    assert many.couplings is ising.couplings  # still shared
    for row, one in zip(brute_force(many).probability, spins, strict=True):
        assert torch.equal(row, brute_force(ising.clamp(one)).probability)


def test_clamping_is_differentiable() -> None:
    base = make_problem((2,), 4, seed=25, three_body=0.4)

    def fields(h: Tensor, J: Tensor, K: Tensor) -> Any:
        clamped = Ising(h, J, three_body=K, check=False).clamp(torch.tensor([1, 0, -1, 0]))
        return clamped.fields, clamped.couplings

    inputs = [t.clone().requires_grad_() for t in (base.fields, base.couplings, base.three_body)]
    assert torch.autograd.gradcheck(fields, inputs)
    h, J = fields(*inputs)
    found = torch.autograd.grad(h.sin().sum() + (J + J.mT).sin().sum(), inputs[1:])
    for gradient in found:  # of energies that are read as ½ Σ_{j≠k} J s s
        assert torch.allclose(gradient, gradient.transpose(-1, -2), atol=1e-15)
    single = make_problem((2,), 4, seed=25, three_body=0.4, dtype=torch.float32).clamp(torch.ones(4))
    assert single.fields.dtype == torch.float32


BAD_CLAMPS: list[tuple[Any, str]] = [
    ("10", r"spins: expected a tensor, an array or a list, got str"),
    (torch.tensor([1, 2, 0]), r"spins: expected -1, 0 \(free\) or \+1, got 2 at index \[1\]"),
    (torch.tensor([1.0, 0.5, 0.0]), r"spins: expected -1, 0 .* got 0.5 at index \[1\]"),
    (torch.tensor([1.0, 0.0, math.nan]), r"spins: expected -1, 0 .* got nan at index \[2\]"),
    (
        torch.tensor([True, False, True]),
        r"spins: expected integers or floats \(-1, 0, \+1\), got dtype torch.bool",
    ),
    (torch.zeros(4), r"spins: expected a shape that broadcasts against \[2, 3\], got \[4\]"),
    (torch.zeros(3).to_sparse(), "spins: expected a dense tensor"),
]


@pytest.mark.parametrize(("spins", "message"), BAD_CLAMPS)
def test_bad_spins_are_refused(spins: Any, message: str) -> None:
    with pytest.raises(IsingError, match=message):
        Ising(torch.zeros(2, 3)).clamp(spins)
    if "free" not in message and "-1, 0 ." not in message:
        with pytest.raises(IsingError, match=message):
            Ising(torch.zeros(2, 3)).energy(spins)


@pytest.mark.parametrize(("batch", "lead", "index"), [
    ((), (), [0]),
    ((3,), (), [0, 0, 0]),
    ((3,), (3,), [0, 1, 2]),
    ((2, 3), (2, 1), [0, 0, 0, 1, 1, 1]),
    ((2, 3), (3,), [0, 1, 2, 0, 1, 2]),
    ((2, 2, 2), (2, 1, 2), [0, 1, 0, 1, 2, 3, 2, 3]),
    ((0, 3), (), []),
])  # fmt: skip
def test_coupling_index(batch: tuple[int, ...], lead: tuple[int, ...], index: list[int]) -> None:
    """Each problem's J is the one that broadcasting gives it."""
    J = torch.arange(float(math.prod(lead))).reshape(*lead, 1, 1).expand(*lead, 4, 4)
    ising = Ising(torch.zeros(*batch, 4), J, check=False)
    assert ising.coupling_index().tolist() == index
    assert ising.lead == (1,) * (len(batch) - len(lead)) + lead
    assert ising.num_couplings == math.prod(lead)
    assert torch.equal(J.reshape(-1, 4, 4)[ising.coupling_index()], J.expand(*batch, 4, 4).reshape(-1, 4, 4))


def test_the_lead_is_that_of_both_interactions() -> None:
    h, J, K = torch.zeros(2, 3, 4), torch.zeros(2, 1, 4, 4), torch.zeros(3, 4, 4, 4)
    assert Ising(h, three_body=K).lead == (1, 3)
    assert Ising(h, J, three_body=K).lead == (2, 3)
    assert Ising(h, J, three_body=K).coupling_index().tolist() == [0, 1, 2, 3, 4, 5]


FAULTS = {
    "not finite": ("finite", lambda h, J, K: J.view(-1)[1].fill_(float("nan"))),
    "infinite": ("finite", lambda h, J, K: h.view(-1)[-1].fill_(float("inf"))),
    "asymmetric": ("symmetric", lambda h, J, K: J[..., 0, 1].add_(1.0)),
    "diagonal": ("zero where two indices coincide", lambda h, J, K: J[..., 1, 1].add_(0.5)),
    "asymmetric in the last index": ("symmetric", lambda h, J, K: K[..., 0, 1, 2].add_(1.0)),
    "diagonal of the last two": (
        "zero where two indices coincide",
        lambda h, J, K: [K[..., a, b, c].add_(1.0) for a, b, c in ((0, 1, 1), (1, 0, 1), (1, 1, 0))],
    ),
}


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("fault", FAULTS)
def test_few_and_many_numbers_are_checked_alike(
    monkeypatch: pytest.MonkeyPatch, fault: str, dtype: torch.dtype, many: bool
) -> None:
    """numpy checks few or contiguous numbers, torch many others, with the same sentences."""
    h = torch.randn(2, 3, dtype=dtype)
    J, K = (
        pack_couplings(torch.randn(2, 3, dtype=dtype), 3),
        pack_three_body(torch.randn(2, 1, dtype=dtype), 3),
    )
    if many:
        monkeypatch.setattr("diabat.ising.checks._FEW", 0)
        h, J, K = (t.repeat_interleave(2, -1)[..., ::2] for t in (h, J, K))
    assert (plain_numbers(J) is None) == many
    Ising(h, J, three_body=K)
    sentence, spoil = FAULTS[fault]
    spoil(h, J, K)
    with pytest.raises(IsingError, match=sentence):
        Ising(h, J, three_body=K)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_finite_numbers_whose_squares_overflow_are_accepted(dtype: torch.dtype) -> None:
    large = torch.finfo(dtype).max
    ising = Ising(
        torch.full((3,), large, dtype=dtype), pack_couplings(torch.full((3,), -large, dtype=dtype), 3)
    )
    assert ising.num_spins == 3


def test_negated_views_and_transforms_are_checked_by_torch() -> None:
    lazy = torch.complex(torch.zeros(3), torch.ones(3)).conj().imag
    assert lazy.is_neg()
    assert Ising(lazy).energy(torch.ones(3)) == 3
    J = pack_couplings(torch.ones(3), 3)
    found = torch.func.grad(lambda h: Ising(h, J).energy(torch.ones(3)))(torch.zeros(3))
    assert torch.equal(found, -torch.ones(3))


@pytest.mark.parametrize("label", [math.nan, math.inf, 2**63, -(2**63) - 1, [1]])
def test_labels_that_dimod_cannot_take_are_refused(label: Any) -> None:
    with pytest.raises(IsingError, match=r"labels: expected hashable labels, numbers among them finite"):
        to_bqm(Ising([1.0, 2.0]), ["a", label])
