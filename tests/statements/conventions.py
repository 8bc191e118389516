"""Conventions."""

from __future__ import annotations

import inspect
import math
import re
from typing import Any

import pytest
import torch
from rounding import assert_same_sums
from torch import Tensor, nn

import diabat
from diabat import Ising, sampler
from diabat.attention.coupled import SELF_MODES
from diabat.ising import pack_three_body, triple_indices
from statements.table import F64, ROWS, drawn, refused, says


@says
def modes() -> None:
    """conventions: - `mode` names the terms of the exponent: `h`, `J`, `h+J` (the default), `h+K`, `J+K`,
    `h+J+K` or `K`. Two more are `softmax`, which uses no sampler, and `J-self`,"""
    sentence = next(one for page, one, check in ROWS if check is modes)
    assert set(re.findall(r"`([^`]+)`", sentence)) - {"mode"} == set(SELF_MODES)
    for mode in SELF_MODES:
        layer = diabat.BoltzmannAttention(4, 1, 3, mode=mode, readout="probability")
        assert layer(torch.randn(1, 3, 4)).shape == (1, 3, 4)
    assert diabat.BoltzmannAttention(4, 1, 3).mode == "h+J"


@says
def against_torch() -> None:
    """conventions: | no visible key | The query gets weight 0 everywhere; torch returns NaN. |
    conventions: | `is_causal=True` | Works without a mask. |
    conventions: | `mode="softmax"` | torch's own attention, up to rounding. |
    conventions: With `readout="probability"` scores are fields, and it changes the odds of a spin by $e^{2m}$. -inf and
    the lowest number of its dtype, or of one that it was [cast from](attention.md#masks), hide a key. |
    conventions: With one visible position the normalised weight is exactly 1; with none every weight is 0.
    """
    ours = diabat.BoltzmannMultiheadAttention(8, 2, batch_first=True, window=5, sampler="exact").eval()
    x, nothing = torch.randn(2, 5, 8), torch.ones(2, 5, dtype=torch.bool)
    assert (ours(x, x, x, key_padding_mask=nothing)[1] == 0).all()
    causal = ours(x, x, x, is_causal=True)[1]
    assert torch.equal(causal, causal.tril())
    assert (causal[:, 0, 0] == 1).all()
    plain = diabat.BoltzmannMultiheadAttention(8, 2, batch_first=True, window=5, mode="softmax").eval()
    torchs = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    plain.load_state_dict(torchs.state_dict(), strict=False)
    for one, other in zip(plain(x, x, x), torchs(x, x, x), strict=True):
        assert_same_sums(one, other)
    # One key beside one query: the mask moves its odds, seen through a second key that stays.
    options: dict[str, Any] = {"batch_first": True, "window": 2, "readout": "probability", "bias": False}
    free = diabat.BoltzmannMultiheadAttention(4, 1, mode="h", **options).double().eval()
    nn.init.zeros_(free.in_proj_weight)  # fields 0: odds 1
    z, mask = torch.randn(1, 2, 4, dtype=F64), torch.zeros(2, 2, dtype=F64)
    for m, alpha in (
        (-0.7, 1 / (1 + math.exp(1.4))),
        *((low, 0.0) for low in (-math.inf, torch.finfo(F64).min, torch.finfo(torch.float16).min)),
    ):
        mask[:, 0] = m
        weights = free(z, z, z, attn_mask=mask)[1][0, 0]
        assert weights.tolist() == pytest.approx([alpha / (alpha + 0.5), 0.5 / (alpha + 0.5)])


@says
def float_masks() -> None:
    """conventions: A mask m is added to the scores, also in modes without h. With `readout="odds"` it multiplies a
    weight by $e^m$ at J = 0, as in torch.
    conventions: | -1e4 or -1e9 in a float mask | They hide no key: its spin is pinned to -1 and still acts on coupled
    keys. Use bool or -inf. One below -1e4 gets a warning. |
    attention: - A number below -1e4 that hides no key gets a warning that names it. Its spin still acts on coupled
    keys.
    conventions: - `key_padding_mask` is bool, and True hides a key. Only `BoltzmannMultiheadAttention` takes float
    masks too."""
    torchs, x = nn.MultiheadAttention(8, 2, batch_first=True, dtype=F64), torch.randn(2, 5, 8, dtype=F64)
    options = {"batch_first": True, "window": 5, "readout": "odds", "dtype": F64}
    for mode in ("h+J", "h", "J"):
        ours = diabat.BoltzmannMultiheadAttention(8, 2, mode=mode, **options)
        ours.load_state_dict(torchs.state_dict(), strict=False)
        if mode == "J":  # no scores but the mask
            nn.init.zeros_(torchs.in_proj_weight[:8])
            nn.init.zeros_(torchs.in_proj_bias[:8])
        given = {"attn_mask": torch.randn(5, 5, dtype=F64), "key_padding_mask": torch.randn(2, 5, dtype=F64)}
        for found, expected in zip(ours(x, x, x, **given), torchs(x, x, x, **given), strict=True):
            assert torch.allclose(found, expected)
    ours = diabat.BoltzmannMultiheadAttention(8, 2, **options)
    nn.init.normal_(ours.couplings.pairs)
    last = torch.tensor([False] * 4 + [True]).expand(2, 5)

    def out(low: float) -> Tensor:
        found: Tensor = ours(x, x, x, torch.zeros(2, 5, dtype=F64).masked_fill(last, low))[0]
        return found

    hidden = ours(x, x, x, last)[0]
    assert torch.allclose(out(-math.inf), hidden)
    assert (out(-1e4) - hidden).abs().max() > 0.01
    with pytest.warns(UserWarning, match="key_padding_mask: -1e.09 is added to scores and hides no key"):
        assert (out(-1e9) - hidden).abs().max() > 0.01
    for layer in (diabat.BoltzmannAttention(8, 2, 5), diabat.NeuroGameAttention(8, 2)):
        with refused("key_padding_mask: expected bool"):
            layer(x.float(), torch.zeros(2, 5))


@says
def gradients_of_couplings() -> None:
    r"""conventions: They belong to the energy written as $\frac12 \sum_{j \ne k} J_{jk} s_j s_k$.
    statistics: $J_{jk}$ and $J_{kj}$ are one parameter: each gets half of its derivative. An entry of $K$ gets a
    sixth.
    statistics: \frac{\partial \log P}{\partial J_{jk}} = s_j s_k - \langle s_j s_k \rangle"""
    # No backend, energy or clamped problem has a derivative where two indices coincide.
    problem, K = drawn(n=4, dtype=F64), pack_three_body(0.2 * torch.randn(4, dtype=F64), 4)
    h, J, K = (t.clone().requires_grad_() for t in (problem.fields, problem.couplings, K))
    exact, both, s = sampler("exact"), Ising(h, J, three_body=K), torch.tensor([1.0, -1, -1, 1], dtype=F64)
    moments = exact.moments(both, correlations=True)
    dh, dJ, dK = torch.autograd.grad(both.log_prob(s, moments.log_partition), (h, J, K))
    assert torch.allclose(dh, s - moments.magnetization)
    assert torch.allclose(dJ, (s[:, None] * s - moments.correlation).fill_diagonal_(0) / 2)
    assert torch.equal(dK, pack_three_body(dK[triple_indices(4)], 4))
    given = both.clamp(torch.tensor([1, -1, 0, 0]))
    total = exact.moments(given).log_partition + given.energy(s) + both.energy(-s)
    for of, d in zip((J, K), torch.autograd.grad(total, (J, K)), strict=True):
        assert (d[of == 0] == 0).all()
        assert (d != 0).any()


def _defaults(function: Any) -> list[tuple[str, Any]]:
    return [(p.name, p.default) for p in inspect.signature(function).parameters.values()]


@says
def inside_an_encoder() -> None:
    """conventions: `nn.TransformerEncoder` warns of that unless it is built with `enable_nested_tensor=False`. |
    conventions: - `forward` takes torch's arguments, in the same order and with the same defaults
    conventions: The constructor takes torch's arguments in the same order, and needs one more by name: `window`.
    `add_bias_kv` and `add_zero_attn` must be False.
    conventions: | refused | `add_bias_kv`, `add_zero_attn` |
    conventions: Its parameters have torch's names. Those of `couplings` are added.
    questions: `diabat.BoltzmannMultiheadAttention` replaces `nn.MultiheadAttention` up to `window` keys, its one new
    argument."""
    ours = diabat.BoltzmannMultiheadAttention(16, 4, batch_first=True, window=6)
    plain = nn.TransformerEncoderLayer(16, 4, batch_first=True)
    added = set(ours.state_dict()) - set(plain.self_attn.state_dict())
    assert {name.split(".")[0] for name in added} == {"couplings"}
    assert _defaults(type(ours).forward) == _defaults(nn.MultiheadAttention.forward)
    constructor = _defaults(nn.MultiheadAttention)
    assert _defaults(type(ours))[: len(constructor)] == constructor
    assert inspect.signature(type(ours)).parameters["window"].default is inspect.Parameter.empty
    for name in ("add_bias_kv", "add_zero_attn"):
        with refused(f"{name}: expected False"):
            diabat.BoltzmannMultiheadAttention(16, 4, window=6, **{name: True})
    with refused("key: expected at most window = 6 positions, got 7"):
        ours(*torch.randn(3, 2, 7, 16))
    plain.self_attn = ours
    nn.TransformerEncoder(plain, 2, enable_nested_tensor=False).eval()(torch.randn(2, 6, 16))
    with pytest.warns(UserWarning, match="enable_nested_tensor is True, but"):
        nn.TransformerEncoder(plain, 2)
