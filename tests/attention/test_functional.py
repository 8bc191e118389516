"""``boltzmann_attention``: torch's own without couplings, an enumeration of every query with them, and the layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from layers import F64, tokens
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close

import diabat
from diabat.attention import WindowCouplings, boltzmann_attention
from diabat.attention.head_axis import merged_heads

# What torch says of itself where it has no forward derivative or batching rule.
pytestmark = [
    pytest.mark.filterwarnings("ignore:is_causal:UserWarning"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:There is a performance drop because we have not yet implemented"),
]
H, E = 2, 3
ours: Any = boltzmann_attention
theirs: Any = F.scaled_dot_product_attention


def windows(size: int, *, heads: int = H, std: float = 0.0, **options: Any) -> WindowCouplings:
    made = WindowCouplings(heads, size, dtype=F64, **options)
    for i, parameter in enumerate(made.parameters()):
        parameter.data = std * noise(*parameter.shape, seed=10 + i)
    return made


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


# Couplings that are 0, over S keys in which all are seen, by what is asked for beside them: the function of torch.
Form = Callable[..., tuple[Any, dict[str, Any]]]
ZERO: dict[str, Form] = {
    "no couplings": lambda keys, **_: (None, {}),
    "far keys": lambda keys, **sizes: (windows(3, **sizes), {"far": "independent"}),
    "window": lambda keys, **sizes: (windows(max(keys, 1), **sizes), {}),
    "positions": lambda keys, **sizes: (windows(max(keys, 1), relative=False, **sizes), {}),
}

# Leading dimensions of queries; L and S; the shape of a mask; other arguments.
CASES: dict[str, tuple[tuple[int, ...], int, int, tuple[int, ...] | None, dict[str, Any]]] = {
    "no mask": ((3, H), 4, 5, None, {}),
    "one sequence": ((), 4, 5, (4, 5), {}),
    "one batch": ((H,), 4, 5, (4, 5), {}),
    "causal": ((3, H), 5, 5, None, {"is_causal": True}),
    "causal, fewer queries": ((3, H), 3, 5, None, {"is_causal": True}),
    "causal, more queries": ((3, H), 6, 4, None, {"is_causal": True}),
    "mask of queries": ((3, H), 4, 5, (4, 5), {}),
    "mask of keys": ((3, H), 4, 5, (1, 5), {}),
    "mask of one column": ((3, H), 4, 5, (4, 1), {}),
    "mask of heads": ((3, H), 4, 5, (H, 4, 5), {}),
    "mask of sequences": ((3, H), 4, 5, (3, 1, 4, 5), {}),
    "padding": ((3, H), 4, 5, (3, 1, 1, 5), {}),
    "whole mask": ((3, H), 4, 5, (3, H, 4, 5), {}),
    "five dimensions": ((2, 3, H), 4, 5, None, {}),
    "five dimensions, whole mask": ((2, 3, H), 4, 5, (2, 3, H, 4, 5), {}),
    "five dimensions, mask of some": ((2, 3, H), 4, 5, (3, 1, 4, 5), {}),
    "five dimensions, mask of others": ((2, 3, H), 4, 5, (2, 1, H, 1, 5), {}),
    "one query": ((3, H), 1, 5, (3, 1, 1, 5), {}),
    "one key": ((3, H), 4, 1, None, {}),
    "scale": ((3, H), 4, 5, (4, 5), {"scale": 0.3}),
    "groups": ((3, 4), 4, 5, (4, 5), {"enable_gqa": True}),
    "groups, causal": ((3, 4), 5, 5, None, {"enable_gqa": True, "is_causal": True}),
}


def inputs(name: str, *, of_values: int = E) -> tuple[list[Tensor], Tensor | None, dict[str, Any]]:
    """Queries, keys and values; a mask that adds to scores, with one query that sees nothing; other arguments."""
    lead, L, S, shape, options = CASES[name]
    less = (*lead[:-1], 2) if "enable_gqa" in options else lead
    given = [
        noise(*at, size, features, seed=i).requires_grad_()
        for i, (at, size, features) in enumerate(((lead, L, E), (less, S, E), (less, S, of_values)))
    ]
    if shape is None:
        return given, None, options
    mask = noise(*shape, seed=5)
    mask = mask.masked_fill(mask > 0.7, -torch.inf)
    if L > 1 and mask.shape[-2:] == (L, S):
        mask[..., 1, :] = -torch.inf
    return given, mask, options


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name in CASES for kind in ("bool", "float") if CASES[name][3] or kind == "bool"],
)
@pytest.mark.parametrize("form", ZERO)
def test_without_couplings_it_is_that_of_torch(form: str, name: str, kind: str) -> None:
    """Outputs, weights and derivatives, also by what is added to scores."""
    given, mask, options = inputs(name, of_values=4)
    if mask is not None:
        mask = mask > -torch.inf if kind == "bool" else mask.requires_grad_()
    q, _, v = given
    leaves = [*given, mask] if kind == "float" else given
    couplings, law = ZERO[form](v.shape[-2], heads=q.shape[-3] if q.ndim > 2 else 1)
    identity = torch.eye(v.shape[-2], dtype=F64).expand(*v.shape[:-1], -1)
    expected = theirs(*given, mask, **options)
    expected_weights = theirs(*given[:2], identity, mask, **options)
    g = torch.randn_like(expected)
    slopes = torch.autograd.grad(expected, leaves, g)
    for shown in (False, True):
        found = ours(*given, couplings, mask, **options, **law, need_weights=shown)
        if shown:
            found, weights = found
            assert_close(weights, expected_weights, rtol=0, atol=1e-12)
        assert_close(found, expected, rtol=0, atol=1e-12)
        for one, other in zip(torch.autograd.grad(found, leaves, g), slopes, strict=True):
            assert_close(one, other.nan_to_num(0.0), rtol=0, atol=1e-11)


@pytest.mark.parametrize("size", [5, 11, 14])
@pytest.mark.parametrize(("dtype", "tolerance"), [(F64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize("far", ["none", "independent"])
@pytest.mark.parametrize("scale", [1 / 16, 16.0])
def test_scores_of_any_size_without_couplings_are_softmax(
    scale: float, far: str, dtype: torch.dtype, tolerance: float, size: int
) -> None:
    """Up to 1 and 240; windows of 5, 11 and 14 spins are summed in different ways."""
    q, k, v = ((8 * noise(3, 1, 20, 4, seed=i)).round() / 8 for i in range(3))  # products are exact
    terms = [t.to(dtype).requires_grad_() for t in (q, k, v)]
    couplings = windows(size, heads=1).to(dtype)
    seen = torch.ones(20, 20, dtype=torch.bool).tril()
    found, want = (
        (out, *torch.autograd.grad(out.sin().sum(), terms, retain_graph=True))
        for out in (
            ours(*terms, couplings, is_causal=True, far=far, scale=scale),
            theirs(*terms, seen.triu(1 - size) if far == "none" else seen, scale=scale),
        )
    )
    assert_close(found[0], want[0], rtol=0, atol=tolerance)
    for one, other in zip(found[1:], want[1:], strict=True):
        assert (one - other).abs().max() < 300 * tolerance * (1 + other.abs().max())
    assert torch.autograd.grad(found[0].sum(), couplings.pairs)[0].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", ZERO)
def test_half_precision_is_computed_in_float32(form: str, dtype: torch.dtype) -> None:
    given, mask, _ = inputs("mask of queries")
    given = [t.detach().to(dtype) for t in given]
    couplings, law = ZERO[form](5)
    found = ours(*given, couplings, mask.to(dtype), **law, need_weights=True)
    expected = theirs(*(t.double() for t in given), mask.to(dtype).double())
    assert [t.dtype for t in found] == [dtype] * 2
    assert_close(found[0], expected.to(dtype))
    weights = theirs(*(t.double() for t in given[:2]), torch.eye(5, dtype=F64), mask.to(dtype).double())
    assert_close(found[1], weights.to(dtype))
    with torch.autocast("cpu", dtype):
        autocast = ours(*(t.float() for t in given), couplings, mask.float(), **law)
    assert_close(autocast.to(dtype), expected.to(dtype), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("form", ZERO)
def test_layouts_in_memory_change_nothing(form: str) -> None:
    q, k, v = (noise(3, 6, 4 * H, seed=i).unflatten(-1, (H, 4)).transpose(1, 2) for i in range(3))
    couplings, law = ZERO[form](6)
    for given in ((q, k, v), (q.mT.contiguous().mT, k[:1].expand(3, -1, -1, -1), v[..., ::2])):
        found = ours(*given, couplings, is_causal=True, **law)
        packed = [t.contiguous() for t in given]
        assert_close(found, ours(*packed, couplings, is_causal=True, **law), rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    "sizes", [(2, H, 0, 5), (2, H, 4, 0), (0, H, 4, 5), (2, 0, 4, 5), (2, H, 0, 0)], ids=str
)
@pytest.mark.parametrize("form", ZERO)
def test_sizes_of_zero(form: str, sizes: tuple[int, ...]) -> None:
    batch, heads, L, S = sizes
    q, k, v = (torch.zeros(batch, heads, n, E, dtype=F64, requires_grad=True) for n in (L, S, S))
    couplings, law = ZERO[form](S) if heads else (None, {})
    for shown in (False, True):
        found = ours(q, k, v, couplings, **law, need_weights=shown)
        if shown:
            assert found[1].shape == (batch, heads, L, S)
            found = found[0]
        assert_close(found, torch.zeros(batch, heads, L, E, dtype=F64))
        found.sum().backward()


@pytest.mark.parametrize("shown", [False, True])
@pytest.mark.parametrize("form", ZERO)
def test_dropout_is_that_of_single_weights(form: str, shown: bool) -> None:
    """Of 6 x 20,000 weights 0.3 are dropped and others grow, independently: 6 standard errors."""
    torch.manual_seed(2)
    q, k, v = noise(1, H, 10_000, 4), noise(1, H, 6, 4), torch.eye(6, dtype=F64).repeat(1, H, 1, 1)
    q.requires_grad_()
    v.requires_grad_()
    couplings, law = ZERO[form](6)
    given = partial(ours, q, k, v, couplings, **law, need_weights=shown)
    found = given(dropout_p=0.3)
    if shown:
        assert_close(*found)
        found = found[0]
    expected = theirs(q, k, v)
    assert_close(
        found, torch.where(found == 0, 0, expected / 0.7), rtol=1e-7, atol=1e-12
    )  # factors are float32
    dropped = (found == 0).double().flatten(0, 2)
    assert (dropped.mean(0) - 0.3).abs().max() < 6 * (0.21 / 20_000) ** 0.5
    assert (dropped.T.corrcoef() - torch.eye(6)).abs().max() < 6 / 20_000**0.5
    # The backward pass drops the same ones; values of one weight each tell which.
    g = torch.randn_like(found)
    of_q, of_v = torch.autograd.grad(found, (q, v), g)
    assert_close(of_q, torch.autograd.grad(expected, q, g * (found != 0) / 0.7)[0], rtol=1e-6, atol=1e-9)
    assert_close(of_v, found.mT @ g)
    everything = given(dropout_p=1.0)
    assert not (everything[0] if shown else everything).any()


MASKS: dict[str, dict[str, Any]] = {
    "all keys": {},
    "causal": {"is_causal": True},
    "padding": {"attn_mask": torch.tensor([[True] * 5, [False, False, True, True, True]])[:, None, None]},
    "holes": {"attn_mask": noise(2, H, 4, 5, seed=7) > -0.3},
    "added": {"attn_mask": noise(4, 5, seed=8).masked_fill(noise(4, 5, seed=9) > 0.5, -torch.inf)},
    "nothing": {"attn_mask": (noise(4, 5, seed=7) > 0).index_fill(0, torch.tensor([0, 2]), False)},
}


def seen_by(is_causal: bool = False, attn_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Visible keys and what is added to scores, [2, H, 4, 5]."""
    mask = torch.ones(4, 5, dtype=torch.bool).tril() if is_causal else torch.tensor(True)
    mask = mask if attn_mask is None else attn_mask
    added = torch.zeros(()) if mask.dtype == torch.bool else mask.masked_fill(mask == -torch.inf, 0)
    seen = mask if mask.dtype == torch.bool else mask > -torch.inf
    return seen.expand(2, H, 4, 5), added.to(F64).expand(2, H, 4, 5)


@pytest.mark.parametrize("mask", MASKS)
@torch.no_grad()
def test_a_value_that_is_nan_reaches_the_queries_that_see_it(mask: str) -> None:
    """Where values are mixed by weights of all keys."""
    q, k, v = (noise(2, H, n, E, seed=i) for i, n in enumerate((4, 5, 5)))
    lost, (seen, _) = v.clone(), seen_by(**MASKS[mask])
    lost[1, 0, 3] = torch.nan
    found, _ = ours(q, k, lost, **MASKS[mask], need_weights=True)
    expected = ours(q, k, v, **MASKS[mask], need_weights=True)[0]
    expected[1, 0, seen[1, 0, :, 3]] = torch.nan
    assert_close(found, expected, rtol=0, atol=1e-12, equal_nan=True)


def test_softmax_behind_a_mask_has_one_derivative() -> None:
    """The one of a backward pass of its own, of a graph of it, and forward; also of a query that sees no key."""
    q, k, v = leaves = [noise(2, H, 4, E, seed=i).requires_grad_() for i in range(3)]
    seen = noise(2, 1, 4, 4, seed=5) > 0
    seen[0, 0, 1] = False
    expected = torch.autograd.grad(theirs(q, k, v, seen).sin().sum(), leaves)
    along = tuple(noise(*t.shape, seed=20 + i) for i, t in enumerate(leaves))
    found = torch.autograd.grad(ours(q, k, v, None, seen).sin().sum(), leaves, create_graph=True)
    assert_close(found, expected, rtol=0, atol=1e-12)
    with sdpa_kernel(SDPBackend.MATH):
        assert torch.autograd.gradgradcheck(lambda *t: ours(*t, None, seen), leaves, fast_mode=True)
    given = tuple(t.detach() for t in leaves)
    tangent: Tensor = torch.func.jvp(lambda *t: ours(*t, None, seen).sin().sum(), given, along)[1]
    total = sum((a * b).sum() for a, b in zip(along, expected, strict=True))
    assert_close(tangent, total, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    "name", ["no couplings", "positions", pytest.param("far keys", marks=pytest.mark.slow)]
)
def test_it_compiles_to_one_graph(name: str) -> None:
    """Also where the length is free, from the second one on."""
    torch._dynamo.reset()
    couplings, law = {
        "no couplings": (None, {}),
        "positions": (windows(6, std=0.6, relative=False), {}),
        "far keys": (windows(3, std=0.6), {"far": "independent"}),
    }[name]

    def function(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return ours(q, k, v, couplings, is_causal=True, **law)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for length in (4, 6):
        found = []
        for call in (compiled, function):
            leaves = [noise(2, H, length, E, seed=i).requires_grad_() for i in range(3)]
            out = call(*leaves)
            found.append((out, *torch.autograd.grad(out.sin().sum(), leaves)))
        assert_close(*found, rtol=0, atol=1e-11)


def test_multihead_attention_is_projections_around_it() -> None:
    torch.manual_seed(1)
    layer = diabat.BoltzmannMultiheadAttention(8, 2, batch_first=True, dtype=F64, window=7, coupling_init=0.4)
    x, y = tokens(2, 5), tokens(2, 7, seed=3)
    mask = noise(5, 7) > 0.8
    out, weights = layer(x, y, y, attn_mask=mask, average_attn_weights=False)
    found = ours(*layer._projected(x, y, y), layer.couplings, ~mask, need_weights=True)
    assert_close(layer.out_proj(merged_heads(found[0])), out, rtol=0, atol=1e-12)
    assert_close(found[1], weights, rtol=0, atol=1e-12)


@pytest.mark.parametrize("sampler", ["mean_field", "tempering", "dqa"])
def test_other_backends(sampler: str) -> None:
    """A seed decides on the reads, and derivatives are finite."""
    couplings = windows(3, std=0.6)
    q, k, v = (noise(2, H, 4, E, seed=i).requires_grad_() for i in range(3))
    draws = sampler == "tempering"
    options: dict[str, Any] = {"sampler": sampler, "num_reads": 20 if draws else None, "is_causal": True}
    found = [ours(q, k, v, couplings, **options, seed=seed) for seed in (1, 1, 2)]
    first, again, other = found
    assert isinstance(first, Tensor)
    assert isinstance(other, Tensor)
    assert_close(first, again, rtol=0, atol=0)
    assert torch.equal(first, other) != draws
    slopes = torch.autograd.grad(first.sum(), [q, k, v, *couplings.parameters()])
    assert all(bool(t.isfinite().all()) and bool(t.any()) for t in slopes)


def test_samplers_are_bound_once() -> None:
    """Equal options have one backend: no plan, warm start or check is made again for every call."""
    from diabat.attention import functional

    q, before = noise(1, H, 4, E), len(functional._NAMES)
    for couplings, sampler in product((windows(3), windows(3)), (None, "exact")):
        ours(q, q, q, couplings, sampler=sampler, num_reads=7, gradient="covariance")
    assert len(functional._NAMES) == before + 1
    for _ in range(65):
        ours(q, q, q, windows(3), sampler=diabat.sampler("mean_field"))
    assert len(functional._NAMES) <= 64


def test_a_causal_query_of_a_cache_is_warned_of() -> None:
    """It would see the first key only; the mask of the warning gives the row of the whole sequence."""
    q, couplings = noise(1, 1, 5, E, seed=3), WindowCouplings(1, 3, init=0.4)
    layer = diabat.BoltzmannMultiheadAttention(4, 2, window=5)
    x = torch.zeros(5, 1, 4)
    for call in (
        lambda: ours(q[:, :, 3:], q, q, couplings, is_causal=True),
        lambda: layer(x[3:], x, x, is_causal=True),
    ):
        with pytest.warns(
            UserWarning, match=r"^is_causal: .* attn_mask=torch\.ones\(L, S, .*\.tril\(S - L\)"
        ):
            call()
    mask = torch.ones(2, 5, dtype=torch.bool).tril(5 - 2)
    whole = ours(q, q, q, couplings, is_causal=True)
    assert_close(ours(q[:, :, 3:], q, q, couplings, mask), whole[:, :, 3:])


def log_weights(scores: Tensor, size: int, couplings: WindowCouplings | None, far: str) -> Tensor:
    """Logarithms of weights of probabilities of one query, [S], by sums over states of logarithms."""
    near = scores[-size:]
    spins = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=F64)] * size).reshape(-1, size)
    exponents = spins @ near
    if couplings is not None:
        J, K = couplings.matrix(size), couplings.three_body(size)
        exponents = exponents + 0.5 * ((spins @ J[0, 0]) * spins).sum(-1)
        if K is not None:
            exponents = exponents + torch.einsum("sj,sk,sl,jkl->s", spins, spins, spins, K[0, 0]) / 6
    up = torch.stack([exponents[spins[:, j] > 0].logsumexp(0) for j in range(size)]) - exponents.logsumexp(0)
    before = F.logsigmoid(2 * scores[:-size]) if far == "independent" else scores[:0]
    return torch.cat((before, up)).log_softmax(-1)


SMALL: dict[str, tuple[Callable[[], WindowCouplings | None], dict[str, Any]]] = {
    "no couplings": (lambda: None, {}),
    "exact": (lambda: windows(3, heads=1, std=0.4), {"far": "none"}),
    "banded": (lambda: windows(3, heads=1, std=0.4, bandwidth=1), {"far": "none", "sampler": "banded"}),
    "far keys": (lambda: windows(3, heads=1, std=0.4), {"far": "independent"}),
    "no J": (lambda: windows(3, heads=1), {"far": "independent", "sampler": "mean_field"}),
    "K": (lambda: windows(3, heads=1, std=0.3, terms="J+K"), {"far": "none"}),
}


@pytest.mark.parametrize("shown", [True, False])
@pytest.mark.parametrize("size", [30.0, 250.0])
@pytest.mark.parametrize("name", SMALL)
def test_weights_of_probabilities_below_the_range_of_numbers(name: str, size: float, shown: bool) -> None:
    """Every P of the query may underflow in float32, and in float64; weights and two derivatives keep their digits."""
    make, law = SMALL[name]
    coupled = make()
    far, window = law.get("far", "none"), 3 if coupled is not None else 5
    below = torch.tensor([-0.5, 0.0, -1.0, -0.25, -1.5], dtype=F64)

    def mixed(shift: Tensor, dtype: torch.dtype) -> Tensor:
        k = (shift - size)[None, None, :, None].to(dtype)
        one, v = torch.ones(1, 1, 1, 1, dtype=dtype), torch.eye(5, dtype=dtype)[None, None]
        found = ours(one, k, v, coupled, **law, readout="probability", scale=1.0, need_weights=shown)
        return (found[1] if shown else found[0]).flatten().double()

    expected = torch.zeros(5, dtype=F64)
    expected[-window if far == "none" else 0 :] = log_weights(below - size, window, coupled, far).exp()
    for dtype, atol in ((torch.float32, 3e-5), (F64, 1e-11)):
        assert_close(mixed(below, dtype), expected, rtol=0, atol=atol)
        with torch.no_grad():  # one compiled call where it serves
            assert_close(mixed(below, dtype), expected, rtol=0, atol=atol)
    if shown:
        return
    given = partial(mixed, dtype=F64), below.requires_grad_()
    assert torch.autograd.gradcheck(*given, fast_mode=True)
    assert torch.autograd.gradgradcheck(*given, fast_mode=True)
