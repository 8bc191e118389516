"""Far keys by fused kernels of torch: sums and derivatives of whole matrices, in any graph; nothing is read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from layers import F64
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import diabat
from diabat.attention import WindowCouplings
from diabat.attention.flash import mean_and_mass
from diabat.attention.streaming import FarKeys, far_sums

# Queries, keys, and the number of far keys of the first query.
RULES = {
    "square": (9, 9, 1),
    "some without": (9, 9, -3),
    "chunk": (4, 9, 4),
    "one query": (1, 9, 5),
    "none": (4, 4, -4),
}
PARTS = ("all", "no y", "no x", "some y", "small y")


def whole(q: Tensor, k: Tensor, v: Tensor, far: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
    s = (scale * q @ k.mT).masked_fill(~far, torch.finfo(q.dtype).min)
    return s.softmax(-1) @ v, s.logsumexp(-1)


def cotangents(y: Tensor, seen: Tensor, part: str) -> tuple[Tensor, Tensor]:
    """Of y and of x, 0 at queries without far keys."""
    g = torch.Generator().manual_seed(5)
    of_y, of_x = (
        torch.randn(y.shape, generator=g, dtype=F64),
        torch.randn(y.shape[:-1], generator=g, dtype=F64),
    )
    of_y[:, :, ::2] *= part not in ("no y", "some y")
    of_y[:, :, 1::2] *= part != "no y"
    of_y *= 1e-30 if part == "small y" else 1
    of_x *= part != "no x"
    return of_y * seen[..., None], of_x * seen


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("sizes", "scale"), [((3, 5), 0.4), ((5, 3), -0.7), ((4, 4), 0.0)])
def test_sums_and_derivatives_are_those_of_whole_matrices(
    name: str, padded: bool, sizes: tuple[int, int], scale: float
) -> None:
    """To 1e-13 of the largest, in float64; also where cotangents of one result are 0, or small beside the others."""
    (queries, keys, first), g = RULES[name], torch.Generator().manual_seed(1)
    shapes = ((2, 4, queries, sizes[0]), (2, 2, keys, sizes[0]), (2, 2, keys, sizes[1]))
    leaves = q, k, v = [torch.randn(shape, generator=g, dtype=F64, requires_grad=True) for shape in shapes]
    far = torch.arange(keys) < (first + torch.arange(queries))[:, None]
    visible = None
    if padded:
        visible = torch.ones(2, 1, 1, keys, dtype=torch.bool)
        visible[0, ..., :2], visible[1, ..., 3] = False, False
        far = far & visible
    seen = far.any(-1).expand(2, 4, queries)
    results = [far_sums(q, k, v, FarKeys(first, visible), odds=True, scale=scale), whole(q, k, v, far, scale)]
    (y, x), (mean, mass) = results
    assert (x[~seen] == torch.finfo(F64).min).all()
    torch.testing.assert_close((y[seen], x[seen]), (mean[seen], mass[seen]), rtol=0, atol=1e-13)
    if not seen.any():
        return
    for part in PARTS:
        given = cotangents(y, seen, part)
        found = [torch.autograd.grad(result, leaves, given, retain_graph=True) for result in results]
        for got, want in zip(*found, strict=True):
            assert (got - want).abs().max() <= 1e-13 * want.abs().max().clamp_min(
                0 if part == "small y" else 1
            )


@pytest.mark.parametrize("strength", [1.0, 1e-12])
def test_derivatives_in_float32(strength: float) -> None:
    """To its rounding, also those by values where cotangents of y are small beside those of the mass."""
    g = torch.Generator().manual_seed(2)
    leaves = [torch.randn(1, 2, 40, 8, generator=g, dtype=F64) for _ in range(3)]
    of_y, of_x = (
        torch.randn(1, 2, 40, 8, generator=g, dtype=F64),
        torch.randn(1, 2, 40, generator=g, dtype=F64),
    )
    of_y *= strength
    found = []
    for dtype in (torch.float32, F64):
        q, k, v = terms = [t.to(dtype).requires_grad_() for t in leaves]
        results = mean_and_mass(q, k, v, None, causal=True, scale=0.3)
        found.append(torch.autograd.grad(results, terms, (of_y.to(dtype), of_x.to(dtype))))
    for got, want in zip(*found, strict=True):
        assert (got - want).abs().max() < 1e-6 * want.abs().max()


def leaves_on(device: str, dtype: torch.dtype, length: int = 300) -> list[Tensor]:
    shapes = ((2, 4, length, 6), (2, 2, length, 6), (2, 2, length, 6))
    return [torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for shape in shapes]


def loss(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None) -> Tensor:
    y, x = far_sums(q, k, v, FarKeys(-7, visible), odds=True, scale=0.3)
    return y.sin().sum() + x.clamp(-10, 10).cos().sum()


class Kernels(TorchDispatchMode):
    """The fused kernels that are called, with the dtype of their queries."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, torch.dtype]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().removeprefix("aten::_scaled_dot_product_")
        if name != func.name():
            self.found.append((name, args[0].dtype))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_kernels_of_a_gpu_take_half_precision_as_it_is(padded: bool, dtype: torch.dtype) -> None:
    """On the device meta, whose tensors have no numbers to be read: one kernel forward and one backward."""
    q, k, v = terms = leaves_on("meta", dtype)
    visible = torch.ones(2, 1, 1, 300, dtype=torch.bool, device="meta") if padded else None
    with Kernels() as kernels:
        slopes = torch.autograd.grad(loss(q, k, v, visible), terms)
    kind = "efficient_attention" if padded or dtype == torch.float32 else "flash_attention"
    assert kernels.found == [(kind, dtype), (f"{kind}_backward", dtype)]
    assert [(t.shape, t.dtype) for t in slopes] == [(t.shape, dtype) for t in terms]
    if padded == (dtype == torch.float16):  # each dtype, and padding, in a graph
        torch._dynamo.reset()
        compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
        again = torch.autograd.grad(compiled(q, k, v, visible), terms)
        assert [t.shape for t in again] == [t.shape for t in terms]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_cpu_computes_half_precision_in_float32(dtype: torch.dtype) -> None:
    q, k, v = (t.detach() for t in leaves_on("cpu", dtype, 20))
    found = far_sums(q, k, v, FarKeys(-2), odds=True)
    want = far_sums(q.float(), k.float(), v.float(), FarKeys(-2), odds=True)
    assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))


def test_a_layer_hands_half_precision_on() -> None:
    """To the kernel of the keys before its windows, which themselves are computed in float32."""
    q, k, v = leaves_on("meta", torch.bfloat16, 30)
    couplings = WindowCouplings(4, 4, terms="").to("meta")
    with Kernels() as kernels:
        out = diabat.boltzmann_attention(
            q, k, v, couplings, is_causal=True, far="independent", enable_gqa=True
        )
    assert kernels.found == [("flash_attention", torch.bfloat16)]
    assert isinstance(out, Tensor)
    assert out.dtype == torch.bfloat16
