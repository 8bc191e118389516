"""One rule for float masks, wherever they are given, and windows behind padding on the right."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

import diabat
from diabat.attention import WindowCouplings, boltzmann_attention
from diabat.attention.visible import Visible, read_mask, visible_in

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
H, S, E = 2, 6, 3
# Of a mask that is float32 or float64, and what hides a key in it: numbers of its own dtype, or of one before a cast.
HIDING = [
    *((F32, low) for low in (-math.inf, *(torch.finfo(kind).min for kind in (F16, BF16, F32)))),
    *((F64, low) for low in (-math.inf, *(torch.finfo(kind).min for kind in (F16, BF16, F32, F64)))),
]
SEEN = torch.rand(S, S, generator=torch.Generator().manual_seed(2)) < 0.6
SEEN[3], SEEN[:, 0] = False, True
SEEN[3, 0] = False


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def function(mask: Tensor, couplings: WindowCouplings | None = None, **options: Any) -> Tensor:
    q, k, v = (noise(2, H, S, E, seed=i) for i in range(3))
    found = boltzmann_attention(q, k, v, couplings, mask, **options)
    assert isinstance(found, Tensor)
    return found


def drop_in(mask: Tensor, *, padding: bool = False, **options: Any) -> Tensor:
    """As the function takes it, bool, True where a key is visible."""
    torch.manual_seed(3)
    layer = diabat.BoltzmannMultiheadAttention(8, H, batch_first=True, window=S, coupling_init=0.4, **options)
    x, hidden = noise(2, S, 8), ~mask if mask.dtype == torch.bool else mask
    given = {"key_padding_mask": hidden[:2]} if padding else {"attn_mask": hidden}
    return layer(x, x, x, **given)[0]


def converted(mask: Tensor, *, layers: bool = True) -> Tensor:
    """An attention module of a converted model, with couplings or as one that stays softmax."""
    pytest.importorskip("transformers", reason="the extra 'hf' is not installed")
    from diabat.huggingface.boltzmann import BoltzmannHeads, BoltzmannOptions
    from diabat.huggingface.boltzmann.layer import boltzmann_attention as attend

    module = torch.nn.Module()
    module.config = type("Config", (), {"boltzmann": {}})()
    if layers:
        heads = BoltzmannHeads(H, BoltzmannOptions(3))
        torch.nn.init.constant_(heads.couplings.pairs, 0.6)
        module.add_module("boltzmann", heads)
    q, k, v = (noise(2, H, S, E, seed=i) for i in range(3))
    return attend(module, q, k, v, mask[None, None])[0]


def ablated(mask: Tensor) -> Tensor:
    pytest.importorskip("transformers", reason="the extra 'hf' is not installed")
    from diabat.heads.games.ablation import mean_of_visible

    return mean_of_visible(noise(2, H, S, E), noise(2, H, S, E, seed=1), mask[None, None])


WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "function": function,
    "function, probability": lambda mask: function(mask, readout="probability"),
    "function, window": lambda mask: function(mask, WindowCouplings(H, 3, init=0.6)),
    "function, far keys": lambda mask: function(mask, WindowCouplings(H, 2, init=0.6), far="independent"),
    "function, positions": lambda mask: function(
        mask, WindowCouplings(H, S, init=0.6, relative=False), readout="probability"
    ),
    "drop-in": drop_in,
    "drop-in, padding": lambda mask: drop_in(mask, padding=True),
    "drop-in, softmax": lambda mask: drop_in(mask, mode="softmax"),
    "drop-in, no fields": lambda mask: drop_in(mask, mode="J", readout="odds"),
    "converted": converted,
    "converted, softmax": lambda mask: converted(mask, layers=False),
    "ablated heads": ablated,
}


@pytest.mark.parametrize(("dtype", "low"), HIDING)
@pytest.mark.parametrize("way", WAYS)
@torch.no_grad()
def test_lowest_numbers_hide_as_bool_does(way: str, dtype: torch.dtype, low: float) -> None:
    mask = torch.zeros(S, S, dtype=dtype).masked_fill(~SEEN, low)
    assert torch.equal(WAYS[way](mask), WAYS[way](SEEN))


@pytest.mark.parametrize("way", [way for way in WAYS if way != "ablated heads"])
@torch.no_grad()
def test_other_numbers_are_added_and_great_ones_named_once(way: str) -> None:
    small = torch.where(SEEN, noise(S, S, seed=7), -0.5)
    assert not torch.allclose(WAYS[way](small), WAYS[way](torch.zeros(S, S)))
    for low, text in ((-2e4, "-20000"), (-1e9, "-1e+09")):
        with pytest.warns(
            UserWarning, match=rf"^\w+_mask: {text.replace('+', '.')} is added to scores"
        ) as seen:
            found = WAYS[way](torch.zeros(S, S).masked_fill(~SEEN, low))
        assert len(seen) == 1
        assert bool(found.isfinite().all())


def test_masks_of_half_precision() -> None:
    for kind in (F16, BF16):
        for low in (-math.inf, torch.finfo(F16).min, torch.finfo(kind).min):
            mask = torch.tensor([0.5, low, -6e4 if kind == F16 else -7e4], dtype=F32).to(kind)
            assert visible_in(mask).tolist() == [True, False, True]


def test_only_these_numbers_hide_a_key() -> None:
    near = [-65503.0, -65505.0, -3.39e38, -3.395e38, -1e38, -1e4, math.nan, math.inf, 0.0]
    for numbers in (near, [*near[:5], 0.0], [-math.inf, *near], [-65504.0, -65505.0], [-math.inf, -65504.0]):
        hidden = [number in (-math.inf, -65504.0) for number in numbers]
        assert visible_in(torch.tensor(numbers)).tolist() == [not hide for hide in hidden]
        traced = torch.func.vmap(visible_in)(torch.tensor(numbers))
        assert traced.tolist() == [not hide for hide in hidden]
    wide = torch.tensor([-1e300, torch.finfo(F64).min, torch.finfo(F32).min], dtype=F64)
    assert visible_in(wide).tolist() == [True, False, False]


def test_a_mask_that_adds_nothing_is_bool() -> None:
    """Also where it is learned it is not, and a NaN is reported."""
    zero = torch.zeros(2, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_mask("mask", zero)[1] is None
        for mask in (zero.clone().requires_grad_(), zero + math.nan, zero + 1e-30, zero - 1e4):
            assert read_mask("mask", mask)[1] is not None


def test_the_dtype_of_a_mask_is_free() -> None:
    """Numbers are added in that of the scores."""
    mask = noise(S, S, seed=7).masked_fill(~SEEN, -math.inf)
    for way in ("function", "function, probability", "function, window", "function, far keys", "drop-in"):
        with torch.no_grad():
            assert_close(WAYS[way](mask.double()), WAYS[way](mask), rtol=0, atol=1e-6)


# Padding on the right.

LENGTHS = torch.tensor([5, 9, 3, 0, 1])
PADDED = torch.ones(9, 9, dtype=torch.bool).tril() & (torch.arange(9) < LENGTHS[:, None, None])
PADDED = PADDED[:, None]


def test_padding_on_the_right_is_still_a_rule() -> None:
    """One pass of compiled code, without a search for windows."""
    visible = Visible.of(PADDED)
    assert visible.is_rule
    assert (visible.ends[LENGTHS > 0] == LENGTHS[LENGTHS > 0] - 1).all()
    ours, row_by_row = (
        visible.windows(3, PADDED.device, far=False),
        Visible(9, 9, mask=PADDED).windows(3, PADDED.device, far=False),
    )
    assert ours.starts is not None
    assert row_by_row.starts is None
    assert torch.equal(ours.filled, row_by_row.filled)
    assert torch.equal(ours.at[ours.filled], row_by_row.at[ours.filled])


@pytest.mark.parametrize("shown", [False, True])
@pytest.mark.parametrize("scale", [0.0, -0.8, 2])
def test_a_scale_is_any_number_as_in_torch(scale: float, shown: bool) -> None:
    q, k, v = leaves = [noise(2, H, S, E, seed=i).double().requires_grad_() for i in range(3)]
    causal = torch.ones(S, S, dtype=torch.bool).tril()
    # With is_causal torch itself finds NaN here.
    cases: list[tuple[dict[str, Any], Tensor | None]] = [
        ({"is_causal": True}, causal),
        ({"attn_mask": SEEN}, SEEN),
        ({}, None),
    ]
    for given, mask in cases:
        found = boltzmann_attention(q, k, v, **given, scale=scale, need_weights=shown)
        both = found[0] if shown else found, F.scaled_dot_product_attention(q, k, v, mask, scale=scale)
        assert_close(*both, rtol=0, atol=1e-12)
        assert_close(*(torch.autograd.grad(y.sin().sum(), leaves) for y in both), rtol=0, atol=1e-12)


@pytest.mark.parametrize("queries", [S, 1])
@pytest.mark.parametrize("law", [{}, {"far": "independent"}, {"readout": "probability"}, {"softcap": 1.5}])
@torch.no_grad()
def test_a_scale_with_couplings_is_a_factor_of_the_queries(law: dict[str, Any], queries: int) -> None:
    q, k, v = (noise(2, H, n, E, seed=i) for i, n in enumerate((queries, S, S)))
    mask = {"is_causal": True} if queries == S else {}
    for scale in (0.0, -0.8):
        given = {"couplings": WindowCouplings(H, 3, init=0.5), **mask, **law}
        ours = boltzmann_attention(q, k, v, **given, scale=scale)
        assert_close(ours, boltzmann_attention(q * scale, k, v, **given, scale=1.0), rtol=0, atol=1e-6)
