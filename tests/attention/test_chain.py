"""Attention over chains: the law, its derivatives, and what the layer promises about memory and decoding."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from layers import F64, as_multihead
from layers import chain as built
from torch import Tensor
from torch.nn import functional as F

import diabat
from diabat import Ising
from diabat.attention import ChainCouplings, CouplingInit, chain, chain_operators, coupling_parameters
from diabat.attention.chain import attend, attend_once
from diabat.attention.chain_operators import ChainLaw, by_operators, fields_of, log_odds, mixed, weights_of
from diabat.attention.correlations import query_moments
from diabat.attention.coupled import recording
from diabat.attention.visible import Visible

LAWS = [ChainLaw(readout, 0.4, causal) for causal in (True, False) for readout in ("odds", "probability")]


def inputs(
    shape: tuple[int, ...] = (2, 2, 7, 7, 5),
    dtype: torch.dtype = F64,
    *,
    strength: float = 1.0,
    seed: int = 0,
) -> list[Tensor]:
    """Queries, keys, values and couplings of B, H, Q, S, d."""
    generator = torch.Generator().manual_seed(seed)
    batch, heads, queries, keys, features = shape
    q = 2 * torch.randn(batch, heads, queries, features, generator=generator, dtype=F64)
    k, v = torch.randn(2, batch, heads, keys, features, generator=generator, dtype=F64)
    J = strength * torch.randn(batch, heads, keys - 1, generator=generator, dtype=F64)
    return [t.to(dtype) for t in (q, k, v, J)]


def with_weights(law: ChainLaw, terms: Sequence[Tensor], mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    q, k, v, J = terms
    out, weights = attend(law, q, k, v, J, mask, need_weights=True)
    assert weights is not None
    return out, weights


def operated_with_weights(
    law: ChainLaw, terms: Sequence[Tensor], visible: Visible, softcap: float | None = None
) -> tuple[Tensor, Tensor]:
    q, k, v, J = terms
    out, weights = by_operators(law, q, k, v, J, visible, softcap=softcap, need_weights=True)
    assert weights is not None
    return out, weights


def solved(law: ChainLaw, terms: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
    q, k, v, J = terms
    return attend(law, q, k, v, J, mask)[0]


def operated(law: ChainLaw, terms: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
    q, k, v, J = terms
    return by_operators(law, q, k, v, J, seen_by(law, q, k, mask))[0]


def seen_by(law: ChainLaw, q: Tensor, k: Tensor, mask: Tensor | None = None) -> Visible:
    return Visible(q.shape[2], k.shape[2], law.causal, mask)


def padding(batch: int, keys: int, seed: int = 0) -> Tensor:
    """Visible keys, bool [B, S]; one in four is padding, and all of the last sequence."""
    mask = torch.rand(batch, keys, generator=torch.Generator().manual_seed(seed)) > 0.25
    mask[-1] = False
    return mask


def as_band(J: Tensor) -> Tensor:
    """Couplings [B, H, S, 1] of every key with the one before it, of J [B, H, S - 1]."""
    return F.pad(J, (1, 0))[..., None]


def between(J: Tensor, mask: Tensor) -> Tensor:
    return J.masked_fill(~(mask[:, None, 1:] & mask[:, None, :-1]), 0)


def enumerated(law: ChainLaw, q: Tensor, k: Tensor, v: Tensor, J: Tensor, mask: Tensor) -> Tensor:
    """Mixed values by enumeration of all states."""
    queries, keys = q.shape[2], k.shape[2]
    visible = torch.ones(queries, keys, dtype=torch.bool)
    visible = (visible.tril(keys - queries) if law.causal else visible) & mask[:, None, None]
    visible = visible.expand(*q.shape[:3], -1)
    scores = law.scale * q @ k.mT
    hidden = scores.masked_fill(~visible, -1e300)
    fields = hidden.log_softmax(-1) / 2 if law.readout == "odds" else scores
    couplings = torch.diag_embed(J, 1)[:, :, None]
    problem = Ising(fields.masked_fill(~visible, 0), couplings + couplings.mT, visible)
    if law.readout == "odds":
        weights = diabat.sampler("exact").differentiable_log_odds(problem).exp()
    else:
        weights = diabat.sampler("exact").moments(problem).probability
    weights = weights.masked_fill(~visible, 0)
    return weights / weights.sum(-1, keepdim=True).clamp_min(1e-300) @ v


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("strength", [0.3, 3.0, 30.0])
def test_the_law_is_that_of_enumeration(law: ChainLaw, strength: float) -> None:
    for seed in range(4):
        q, k, v, J = inputs((3, 2, 6, 9, 5), strength=strength, seed=seed)
        mask = padding(3, 9, seed)
        J = between(J, mask)
        expected = enumerated(law, q, k, v, J, mask)
        torch.testing.assert_close(solved(law, (q, k, v, J), mask), expected, rtol=0, atol=1e-10)
        torch.testing.assert_close(operated(law, (q, k, v, J), mask), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("law", LAWS)
def test_long_chains_are_those_of_the_banded_sampler(law: ChainLaw) -> None:
    q, k, v, J = inputs((1, 2, 70, 512, 24))
    edges = diabat.Edges(torch.stack((torch.arange(511), torch.arange(1, 512)), 1), J[:, :, None])
    visible = torch.ones(70, 512, dtype=torch.bool)
    visible = visible.tril(442) if law.causal else visible
    scores = law.scale * q @ k.mT
    fields = scores.masked_fill(~visible, -1e300).log_softmax(-1) / 2 if law.readout == "odds" else scores
    banded = diabat.sampler("banded", bandwidth=1)
    found = banded.differentiable_log_odds(Ising(fields.masked_fill(~visible, 0), edges, visible))
    weights = found.exp() if law.readout == "odds" else found.sigmoid()
    weights = weights.masked_fill(~visible, 0)
    expected = weights / weights.sum(-1, keepdim=True) @ v
    torch.testing.assert_close(solved(law, (q, k, v, J)), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("fields", "strength"), [(1.0, 1.0), (10.0, 15.0), (12.0, 5.0), (3.0, 40.0)])
def test_single_precision_is_within_1e_5_of_double(law: ChainLaw, fields: float, strength: float) -> None:
    """Strong fields and couplings, 16 and 32 times what a message resolves, move nothing out of range."""
    q, k, v, J = inputs((2, 2, 40, 40, 8), torch.float32, strength=strength)
    q = fields * q
    expected = operated(law, [t.double() for t in (q, k, v, J)])
    # What rounding of the scores themselves moves weights by.
    atol = 1e-5 + 2e-7 * float((q @ k.mT).abs().max())
    torch.testing.assert_close(solved(law, (q, k, v, J)).double(), expected, rtol=0, atol=atol)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("strength", [100.0, 300.0, 1000.0])
def test_couplings_of_any_size_are_those_of_the_operators(
    law: ChainLaw, strength: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest |J| of each head is between a hundredth and all of the strength; fields are up to hundreds."""
    for seed in range(6):
        q, k, v, J = inputs((2, 4, 12, 12, 4), seed=seed)
        spread = torch.logspace(-2, 0, 8, dtype=F64).view(2, 4, 1)
        terms = [10.0**seed % 97 * q, k, v, strength * spread * J / J.abs().amax(-1, keepdim=True)]
        terms = [t.requires_grad_() for t in terms]
        mask = padding(3, 12, seed)[:2]
        expected = operated(law, terms, mask)
        g = torch.randn_like(expected)
        slopes = torch.autograd.grad(expected, terms, g)
        with monkeypatch.context() as patch:
            patch.setattr(chain, "by_operators", None)  # the kernel alone
            found = solved(law, terms, mask)
            compiled = torch.autograd.grad(found, terms, g)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        for one, other in zip(compiled, slopes, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12 * (1 + float(other.abs().max())))


@pytest.mark.parametrize("weights", ["odds", "probability"])
@pytest.mark.parametrize(
    ("dtype", "strengths"), [(torch.float32, (4.0, 8.0, 11.9, 15.0)), (F64, (40.0, 79.0, 150.0, 300.0))]
)
def test_keys_far_below_the_others_are_not_raised(
    weights: str, dtype: torch.dtype, strengths: tuple[float, ...]
) -> None:
    """Neighbours raise the odds of key 2 by exp(4J), and lower those of key 5 by as much: which one counts?"""
    visible = torch.ones(1, 7, dtype=torch.bool)
    q, v = torch.ones(1, 1, 1, 1, dtype=dtype), torch.eye(7, dtype=dtype)[:, None, :, None]
    for strength in strengths:
        J = strength * torch.tensor([0.0, -1, -1, 0, 1, 1], dtype=F64)[None, None]
        for low in torch.linspace(1, 12, 23).tolist():
            for fifth in (0.0, -low * strength):
                scores = torch.full((7,), -low * strength).to(dtype)
                scores[5] = fifth
                k, couplings = scores.view(1, 1, 7, 1).expand(7, -1, -1, -1), J.to(dtype).expand(7, -1, -1)
                law = ChainLaw(weights, 1.0, True)
                found = solved(law, (q.expand(7, -1, -1, -1), k, v, couplings)).flatten()
                fields = fields_of(weights, scores.double()[None], visible)
                odds = log_odds(fields, couplings[0, 0].double())[0]
                # As in `normalised_weights`; there the smallest number is that of the type.
                alpha = odds.sigmoid() + torch.finfo(dtype).tiny ** 0.75
                expected = odds.softmax(-1) if weights == "odds" else alpha / alpha.sum()
                atol = 3e-6 if dtype == torch.float32 else 1e-13
                torch.testing.assert_close(found.double(), expected, rtol=0, atol=atol)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize(("dtype", "strong"), [(torch.float32, 13.0), (torch.float32, 151.0), (F64, 151.0)])
def test_a_strong_coupling_concerns_its_own_head_only(
    dtype: torch.dtype, strong: float, dropout: float
) -> None:
    """All others are computed as without it, to the last bit; at padding it does nothing."""
    law = ChainLaw("odds", 0.4, True, dropout)
    given = inputs((3, 2, 40, 40, 5), dtype)
    mask = torch.ones(3, 40, dtype=torch.bool)
    mask[2, 30:] = False

    def results(J: Tensor) -> list[Tensor]:
        torch.manual_seed(4)
        terms = [t.clone().requires_grad_() for t in (*given[:3], J)]
        out = solved(law, terms, mask)
        return [out.detach(), *torch.autograd.grad(out.sin().sum(), terms)]

    before, J = results(given[3]), given[3].clone()
    J[2, 0, 29], J[2, 1, 35] = strong, -strong
    assert all(torch.equal(one, other) for one, other in zip(results(J), before, strict=True))
    J[1, 0, 20] = strong
    others = torch.ones(3, 2, dtype=torch.bool)
    others[1, 0] = False
    for one, other in zip(results(J), before, strict=True):
        assert torch.equal(one[others], other[others])
        assert not torch.equal(one[1, 0], other[1, 0])


@pytest.mark.parametrize("weights", ["odds", "probability"])
@pytest.mark.parametrize(("dtype", "strength"), [(torch.float32, 1.0), (F64, 1.0), (torch.float32, 200.0)])
@pytest.mark.parametrize("what", ["key", "coupling", "value"])
def test_nan_reaches_what_sees_it(weights: str, dtype: torch.dtype, strength: float, what: str) -> None:
    law = ChainLaw(weights, 0.4, True)
    q, k, v, J = given = inputs((2, 2, 70, 70, 4), dtype, strength=strength)
    clean, place = solved(law, given), 40
    {"key": k, "coupling": J, "value": v}[what][1, 0, place] = torch.nan
    seen = torch.zeros(2, 2, 70, dtype=torch.bool)
    seen[1, 0, place + (what == "coupling") :] = True
    found, (slow, shown) = (
        solved(law, given),
        by_operators(law, q, k, v, J, seen_by(law, q, k), need_weights=True),
    )
    assert shown is not None
    assert torch.equal(found.isnan(), seen[..., None].expand_as(found))
    assert torch.equal(slow.isnan(), found.isnan())
    assert torch.equal(found[~seen], clean[~seen])
    assert what == "value" or torch.equal(shown.isnan().any(-1), seen)
    once = attend_once(law, q[:, :, -1:], k, v, as_band(J), torch.ones(1, 70, dtype=torch.bool))
    assert torch.equal(once.isnan().all(-1)[..., 0], seen[..., -1])
    # Where no query sees it, it does nothing.
    mask = torch.ones(2, 70, dtype=torch.bool)
    mask[1, place] = False
    assert bool(solved(law, given, mask).isfinite().all())
    assert bool(operated(law, given, mask).isfinite().all())


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("strength", [1.0, 200.0])
def test_infinite_scores_are_the_limit_of_large_ones(
    law: ChainLaw, dtype: torch.dtype, strength: float
) -> None:
    law = law._replace(scale=1.0)
    q, v = torch.ones(1, 1, 9, 1, dtype=dtype), inputs((1, 1, 9, 9, 1), dtype)[2]
    J = inputs((1, 1, 9, 9, 1), dtype, strength=strength)[3]
    for up, down in (
        ([2], []),
        ([2, 5], []),
        ([], [2]),
        ([], [1, 2, 3]),
        ([6], [0, 4]),
        ([], range(9)),
        (range(9), []),
    ):
        scores = torch.linspace(-2, 1, 9, dtype=dtype).sin()
        large = scores.clone()
        scores[list(up)], scores[list(down)] = torch.inf, -torch.inf
        large[list(up)], large[list(down)] = 1e5, -1e5
        terms = [q, scores.view(1, 1, 9, 1), v, J]
        found, atol = solved(law, terms), 1e-12 if dtype == F64 else 5e-6 * (1 + strength)
        torch.testing.assert_close(operated(law, terms), found, rtol=0, atol=atol)
        visible = torch.ones(1, 9, dtype=torch.bool)
        once = attend_once(law, q[:, :, :1], terms[1], v, as_band(J), visible)
        torch.testing.assert_close(once, found[:, :, -1:], rtol=0, atol=atol)
        limit = operated(law, [t.double() for t in (q, large.view(1, 1, 9, 1), v, J)])
        if law.readout == "odds" or dtype == F64:  # the least probability depends on the type
            torch.testing.assert_close(found.double(), limit, rtol=0, atol=max(atol, 1e-9))


def test_a_long_scan_keeps_its_precision() -> None:
    """Matrices are scaled as they grow: their logarithms would be in the ten thousands here."""
    generator = torch.Generator().manual_seed(0)
    fields = 10 + 10 * torch.rand(1, 3000, generator=generator)
    J = 8 * torch.randn(1, 2999, generator=generator)
    found, expected = log_odds(fields, J), log_odds(fields.double(), J.double())
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-4)


def test_operators_refuse_what_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diabat.compute.memory.available_bytes", lambda: 1 << 29)
    with pytest.raises(
        ValueError, match=r"^weights: operators for weights .* GiB of memory, got 0\.5 GiB available"
    ):
        log_odds(torch.zeros(4096, 4096), torch.zeros(4095))
    with pytest.raises(ValueError, match=re.escape("weights: operators for weights [1024, 4096] of chains")):
        log_odds(torch.zeros(1024, 4096, requires_grad=True), torch.zeros(4095))


def test_saturated_messages_stay_finite() -> None:
    """T = -1 and r near 1, where 1 + T r vanishes in single precision."""
    q = torch.tensor([[[[40.0]]]])
    k = torch.tensor([[[[30.0], [-30.0], [30.0], [0.0]]]])
    terms = [t.requires_grad_() for t in (q, k, torch.ones(1, 1, 4, 1), torch.full((1, 1, 3), 12.0))]
    for law in LAWS:
        out = solved(law, terms)
        gradients = torch.autograd.grad(out.sum(), terms)
        assert all(bool(t.isfinite().all()) for t in (out, *gradients))


@pytest.mark.parametrize("law", LAWS)
def test_without_couplings_odds_are_softmax(law: ChainLaw) -> None:
    q, k, v, J = inputs((2, 3, 50, 50, 24), torch.float32)
    law = law._replace(scale=24**-0.5)
    found = solved(law, (q, k, v, 0 * J))
    softmax = F.scaled_dot_product_attention(q, k, v, is_causal=law.causal, scale=law.scale)
    assert (law.readout == "odds") == torch.allclose(found, softmax, rtol=0, atol=2e-6)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("padded", [True, False])
def test_gradients_three_ways(law: ChainLaw, padded: bool) -> None:
    """The compiled adjoint, autograd through the operators, and finite differences."""
    mask = padding(2, 7) if padded else None
    q, k, v, J = inputs((2, 2, 5, 7, 3))
    terms = [t.requires_grad_() for t in (q, k, v, J if mask is None else between(J, mask))]
    g = torch.randn(2, 2, 5, 3, dtype=F64)
    compiled = torch.autograd.grad(solved(law, terms, mask), terms, g)
    operators = torch.autograd.grad(operated(law, terms, mask), terms, g)
    torch.testing.assert_close(compiled[:3], operators[:3], rtol=1e-9, atol=1e-10)
    if mask is None:  # else the couplings of padding are no parameters
        torch.testing.assert_close(compiled[3], operators[3], rtol=1e-9, atol=1e-10)
        assert torch.autograd.gradcheck(lambda *t: solved(law, t), terms)
        assert torch.autograd.gradgradcheck(lambda *t: solved(law, t), terms)


def test_second_derivatives_by_some_terms() -> None:
    """Autograd asks for no derivative by what does not need one."""
    q, k, v, J = inputs()
    q.requires_grad_()
    (slope,) = torch.autograd.grad(solved(LAWS[0], (q, k, v, J)).sum(), q, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.square().sum(), q)
    assert bool((curvature != 0).any())


@pytest.mark.parametrize("law", LAWS[:2])
@pytest.mark.parametrize("shape", [(2, 2, 5, 7, 20), (2, 2, 34, 39, 70), (1, 2, 75, 91, 21)], ids=str)
def test_gradients_of_any_number_of_queries_keys_and_features(shape: tuple[int, ...], law: ChainLaw) -> None:
    """More features than lanes and no multiple of them, keys left over from fours, several blocks of queries."""
    for dtype, tolerance in ((F64, 1e-11), (torch.float32, 2e-5)):
        terms = [t.requires_grad_() for t in inputs(shape, dtype)]
        g = torch.randn(*shape[:3], shape[-1], dtype=dtype)
        found = torch.autograd.grad(solved(law, terms), terms, g)
        doubles = [t.detach().double().requires_grad_() for t in terms]
        expected = torch.autograd.grad(operated(law, doubles), doubles, g.double())
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=0, atol=tolerance * float(other.abs().max()))


@pytest.mark.parametrize(
    ("dtype", "strength"), [(torch.float32, 1.0), (torch.float32, 30.0), (torch.float32, 400.0), (F64, 1.0)]
)
def test_dropout_is_differentiated_as_drawn(dtype: torch.dtype, strength: float) -> None:
    law = ChainLaw("odds", 0.4, True, 0.3)
    terms = [t.requires_grad_() for t in inputs((2, 2, 40, 40, 6), dtype, strength=strength)]
    torch.manual_seed(3)
    out = solved(law, terms)
    g = torch.randn_like(out)
    first = torch.autograd.grad(out, terms, g, retain_graph=True)
    # Through the operators and the same factors.
    by_noise = torch.autograd.grad(out, terms, g, create_graph=True)
    for found, expected in zip(first, by_noise, strict=True):
        atol = max(2e-5, 1e-6 * strength) * float(expected.detach().abs().max())
        torch.testing.assert_close(found, expected, rtol=0, atol=atol)
    torch.manual_seed(3)
    assert torch.equal(out, solved(law, terms))


def test_dropout_has_the_mean_of_all_weights_and_draws_the_same_in_both_precisions() -> None:
    law, terms = ChainLaw("odds", 0.4, True, 0.3), inputs((2, 2, 40, 40, 6), torch.float32)
    # The mean over 400 draws, within 5 standard errors (alpha = 6e-7 for each of 480 numbers).
    plain = solved(ChainLaw("odds", 0.4, True), terms)
    draws = torch.stack([solved(law, terms) for _ in range(400)])
    error = draws.std(0) / 20
    assert bool(((draws.mean(0) - plain).abs() <= 5 * error + 1e-6).all())
    torch.manual_seed(5)
    single = solved(law, terms)
    torch.manual_seed(5)
    torch.testing.assert_close(solved(law, [t.double() for t in terms]).float(), single)


def grouped(law: ChainLaw, terms: Sequence[Tensor]) -> list[Tensor]:
    """Queries of four heads in pairs of two, and values of 9 numbers; as tokens [B, L, H, d] in memory."""
    q, k, v, J = terms
    v = torch.cat((v, v.flip(-1)), -1)[:, :2, :, :9]
    return [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k[:, :2], v)] + [J]


@pytest.mark.parametrize("law", [*LAWS, LAWS[0]._replace(dropout=0.3)])
@pytest.mark.parametrize(("dtype", "strength"), [(torch.float32, 1.0), (F64, 1.0), (F64, 100.0)])
def test_weights_and_groups_of_heads(law: ChainLaw, dtype: torch.dtype, strength: float) -> None:
    """Heads that share keys are those of repeated keys; weights and their derivatives are those of the operators."""
    given = [t.requires_grad_() for t in grouped(law, inputs((2, 4, 37, 50, 6), dtype, strength=strength))]
    mask = padding(3, 50)[:2]
    alone = [given[0], *(t.repeat_interleave(2, 1) for t in given[1:3]), given[3]]

    def results(terms: list[Tensor], mask: Tensor | None = mask) -> tuple[Tensor, ...]:
        torch.manual_seed(7)
        return with_weights(law, terms, mask)

    torch.manual_seed(7)
    out, weights = results(given)
    assert out.shape == (2, 4, 37, 9)
    torch.manual_seed(7)
    assert torch.equal(solved(law, given, mask), out)
    assert all(torch.equal(a, b) for a, b in zip(results(alone), (out, weights), strict=True))
    torch.testing.assert_close(weights @ alone[2], out)
    g, of_weights = torch.randn_like(out), torch.randn_like(weights)
    double = dtype == F64
    for cotangents in ((g, of_weights), (None, of_weights), (g, None)):
        found, expected, total = (
            torch.autograd.grad(
                [t for t, c in zip(outs, cotangents, strict=True) if c is not None],
                given,
                [c for c in cotangents if c is not None],
                create_graph=further,
            )
            for outs, further in ((results(given), False), (results(given), True), (results(alone), False))
        )
        for one, other, third in zip(found, expected, total, strict=True):
            atol = (1e-11 if double else 3e-5) * float(other.detach().abs().max() + 1e-3)
            torch.testing.assert_close(one, other, rtol=0, atol=atol)
            torch.testing.assert_close(one, third, rtol=0, atol=atol)


def test_second_derivatives_of_weights() -> None:
    law, terms = LAWS[0], [t.requires_grad_() for t in grouped(LAWS[0], inputs((1, 4, 3, 4, 5)))]
    assert torch.autograd.gradgradcheck(lambda *t: with_weights(law, t), terms)


def by_definition(
    law: ChainLaw, terms: Sequence[Tensor], seen: Tensor, bias: Tensor | None, softcap: float | None
) -> tuple[Tensor, Tensor]:
    q, k, v, J = terms
    groups = q.shape[1] // k.shape[1]
    scores = law.scale * q @ k.repeat_interleave(groups, 1).mT
    scores = scores if softcap is None else softcap * (scores / softcap).tanh()
    scores = scores if bias is None else scores + bias
    weights = weights_of(law.readout, fields_of(law.readout, scores, seen), J, seen)
    return weights @ v.repeat_interleave(groups, 1), weights


@pytest.mark.parametrize("rows", [1, 3, 99])
@pytest.mark.parametrize("what", ["causal", "padding", "mask of heads", "mask of queries", "row"])
@pytest.mark.parametrize("law", LAWS[:2])
def test_operators_over_blocks_of_queries(
    law: ChainLaw, what: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masks, what they add, soft caps, NaN values, and derivatives of two orders do not depend on the blocks."""
    monkeypatch.setattr(chain_operators, "_NUMBERS", rows * 2 * 4 * 8)
    given = [t.requires_grad_() for t in grouped(law, inputs((2, 4, 7, 8, 6)))]
    mask, bias, softcap = torch.rand(2, 4, 7, 8, generator=torch.Generator().manual_seed(1)) > 0.3, None, None
    if what in ("causal", "padding"):
        visible = seen_by(law, given[0], given[1], padding(3, 8)[:2] if what == "padding" else None)
    else:
        mask = {"mask of heads": mask, "mask of queries": mask[0, 0], "row": mask[:, :1, :1]}[what]
        softcap, bias = 2.0, torch.linspace(-1, 1, 8, dtype=F64).expand(mask.shape).clone().requires_grad_()
        visible = Visible(7, 8, mask=mask, bias=bias)
    seen = visible.rows(given[0].device)
    both = operated_with_weights(law, given, visible, softcap)
    expected = by_definition(law, given, seen, bias, softcap)
    torch.testing.assert_close(both, expected)
    leaves = given if bias is None else [*given, bias]
    g = torch.randn_like(both[0])

    def slopes(outs: Any) -> list[Tensor]:
        first = torch.autograd.grad(
            (outs[0].sin(), outs[1]), leaves, (g, outs[1].detach()), create_graph=True
        )
        return [*first, *torch.autograd.grad([t.square().sum() for t in first], leaves)]

    for one, other in zip(slopes(both), slopes(expected), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
    values = given[2].detach().clone()
    values[1, 0, 5] = torch.nan
    q, k, _, J = (t.detach() for t in given)
    lost, none = by_operators(law, q, k, values, J, visible, softcap=softcap)
    assert none is None
    reached = seen.expand(2, 4, 7, 8)[..., 5].clone()
    reached[0], reached[1, 2:] = False, False
    assert torch.equal(lost.isnan(), reached[..., None].expand_as(lost))
    torch.testing.assert_close(lost[~reached], both[0][~reached].detach())
    torch.testing.assert_close(mixed(both[1].detach(), values, visible), lost, equal_nan=True)


def test_dropout_of_operators_is_differentiated_as_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_operators, "_NUMBERS", 3 * 2 * 2 * 9)
    law, given = ChainLaw("odds", 0.4, True, 0.4), [t.requires_grad_() for t in inputs((2, 2, 7, 9, 3))]
    visible = seen_by(law, *given[:2])
    out, weights = operated_with_weights(law, given, visible)
    _, plain = operated_with_weights(law._replace(dropout=0.0), given, visible)
    kept = weights > 0
    assert 0.4 < float(kept.sum() / (plain > 0).sum()) < 0.8
    torch.testing.assert_close(weights, torch.where(kept, plain / 0.6, 0))
    for one, other in zip(
        torch.autograd.grad(out.sin().sum(), given),
        torch.autograd.grad((torch.where(kept, plain / 0.6, 0) @ given[2]).sin().sum(), given),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("order", [1, 2])
def test_memory_of_operators_is_that_of_a_block(order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that autograd keeps has more numbers, whichever derivative is taken."""
    monkeypatch.setattr(chain_operators, "_NUMBERS", 4 * 512)
    q, k, v, J = given = [t.requires_grad_() for t in inputs((1, 1, 512, 512, 2), torch.float32)]
    sizes: list[int] = []

    def note(t: Tensor) -> Tensor:
        sizes.append(t.numel())
        return t

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        out, _ = by_operators(LAWS[0], q, k, v, J, Visible(512, 512, True))
        first = torch.autograd.grad(out.square().sum(), given, create_graph=order > 1)
        if order > 1:
            torch.autograd.grad(sum(t.square().sum() for t in first), given)
    assert 512 < max(sizes) <= 4 * 512


def test_results_do_not_depend_on_threads_batch_or_layout() -> None:
    law = ChainLaw("odds", 0.4, True)
    q, k, v, J = inputs((6, 4, 64, 64, 16), torch.float32)
    torch.set_num_threads(3)
    found = solved(law, (q, k, v, J))
    torch.set_num_threads(1)
    assert torch.equal(found, solved(law, (q, k, v, J)))
    assert torch.equal(found[2:4], solved(law, [t[2:4] for t in (q, k, v, J)]))
    moved = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v)]
    assert torch.equal(found, solved(law, [*moved, J]))


def test_memory_is_linear_in_the_length() -> None:
    """Nothing that autograd keeps, nor what a forward pass returns, has L · L numbers."""
    layer = built(8, 1, dtype=torch.float32, readout="odds")
    sizes: list[int] = []

    def note(t: Tensor) -> Tensor:
        sizes.append(t.numel())
        return t

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        layer(torch.randn(1, 2048, 8)).sum().backward()
    assert max(sizes) <= 2048 * 8


OPTIONS: dict[str, dict[str, Any]] = {
    "tokens": {},
    "distance": {"couplings": "distance"},
    "gates": {"couplings": "gates"},
    "odds, rotary": {"readout": "odds", "rotary": True},
    "rank 2": {"rank": 2},
    "all keys": {"causal": False},
    "band of 3": {"bandwidth": 3},
    "gates, band of 2": {"bandwidth": 2, "couplings": "gates"},
    "band of 2, odds": {"bandwidth": 2, "readout": "odds", "couplings": "distance"},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_the_layer_in_its_own_terms(name: str) -> None:
    """Compiled, with weights, and by the sampler that any other backend would take the place of."""
    layer = built(**OPTIONS[name])
    x = torch.randn(3, 9, 12, dtype=F64)
    padded = torch.zeros(3, 9, dtype=torch.bool)
    padded[1, :3], padded[2, 7:] = True, True
    out = layer(x, padded)
    again, weights = layer(x, padded, need_weights=True)
    assert bool((weights.masked_select(padded[:, None, None].expand(weights.shape)) == 0).all())
    object.__setattr__(layer._law, "exact", False)
    by_sampler, others = layer(x, padded, need_weights=True)
    torch.testing.assert_close(out, again)
    torch.testing.assert_close(out, by_sampler)
    torch.testing.assert_close(weights, others)


@pytest.mark.parametrize("name", OPTIONS)
def test_couplings_are_those_of_the_tokens(name: str) -> None:
    layer = built(**OPTIONS[name])
    chain, x = layer.couplings, torch.randn(2, 6, 12, dtype=F64)
    with layer.recording():
        layer(x)
        J = layer.last_problem().couplings
    expected = torch.zeros(2, 2, 6, 6, dtype=F64)
    for d in range(1, chain.bandwidth + 1):
        for j in range(d, 6):
            for h in range(2):
                value = chain.by_distance[h, d - 1].expand(2)
                if chain.left_features is not None:
                    rank = len(chain.left_features) // 2
                    a = x[:, j - d] @ chain.left_features[h * rank : (h + 1) * rank].T
                    row = (h * chain.bandwidth + d - 1) * rank
                    b = x[:, j] @ chain.right_features[row : row + rank].T
                    gated = "gates" in name
                    value = value * (a.sigmoid() * b.sigmoid())[:, 0] if gated else value + (a * b).sum(-1)
                expected[:, h, j - d, j] = expected[:, h, j, j - d] = value.detach()
    torch.testing.assert_close(J[:, :, 0].detach(), expected)


@pytest.mark.parametrize("dtype", [F64, torch.float32])
@pytest.mark.parametrize("weights", ["odds", "probability"])
@pytest.mark.parametrize(("batch", "keys"), [(1, 1), (1, 2), (2, 33), (9, 5), (1, 130)])
def test_one_query_by_its_kernel(batch: int, keys: int, weights: str, dtype: torch.dtype) -> None:
    """Two heads share keys; pairs fill part of a vector of lanes, or more than one; keys fill up to three blocks."""
    q, _, _, J = inputs((batch, 4, 1, keys, 6), dtype)
    _, k, v, _ = inputs((batch, 2, 1, keys, 6), dtype, seed=1)
    v = torch.cat((v, v), -1)[..., :9]
    visible, bias = padding(batch, keys), inputs((batch, 1, 1, keys, 1), dtype, seed=2)[1][:, 0, :, 0]
    for mask in (visible, visible.logical_not()):
        for added in (None, bias):
            found = attend_once(ChainLaw(weights, 0.4, True), q, k, v, as_band(J), mask, added)
            scores = 0.4 * q.double() @ k.double().repeat_interleave(2, 1).mT
            scores = scores if added is None else scores + bias.double()[:, None, None]
            seen = mask[:, None, None]
            expected = weights_of(weights, fields_of(weights, scores, seen), J.double(), seen)
            expected = expected @ v.double().repeat_interleave(2, 1)
            assert found.dtype == dtype
            tolerance = 1e-13 if dtype == F64 else 5e-6
            torch.testing.assert_close(found.double(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("weights", ["odds", "probability"])
@pytest.mark.parametrize(("dtype", "strong"), [(torch.float32, 17.0), (torch.float32, 400.0), (F64, 400.0)])
def test_one_query_with_strong_couplings(weights: str, dtype: torch.dtype, strong: float) -> None:
    q, k, v, J = inputs((9, 2, 1, 90, 5), dtype)
    law = ChainLaw(weights, 1.0, True)
    visible, bias = torch.ones(9, 90, dtype=torch.bool), torch.linspace(-1, 1, 90, dtype=dtype)[None]
    plain = attend_once(law, q, k, v, as_band(J), visible, bias)
    J[1, 1, 3::2] = -strong
    found = attend_once(law, q, k, v, as_band(J), visible, bias)
    scores = (q @ k.mT + bias).double()
    expected = (
        weights_of(weights, fields_of(weights, scores, visible[:1]), J.double(), visible[:1]) @ v.double()
    )
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-12 if dtype == F64 else 5e-6)
    others = torch.ones(9, 2, dtype=torch.bool)
    others[1, 1] = False
    assert torch.equal(found[others], plain[others])
    visible[1, 4::2] = False  # one end of each strong coupling
    weak = attend_once(law, q, k, v, as_band(J.clamp(-5, 5)), visible, bias)
    assert torch.equal(attend_once(law, q, k, v, as_band(J), visible, bias), weak)


@pytest.mark.parametrize("strength", [1.0, 20.0, 200.0])
def test_steps_of_strong_couplings(strength: float) -> None:
    layer = built(dtype=torch.float32, couplings="distance").eval()
    with torch.no_grad():
        layer.couplings.by_distance.fill_(strength)
        x = torch.randn(1, 12, 12)
        _, state = layer.prefill(x[:, :11])
        torch.testing.assert_close(layer.step(x[:, 11], state)[0], layer(x)[:, -1], rtol=0, atol=2e-6)


@pytest.mark.parametrize("bandwidth", [1, 3])
@pytest.mark.parametrize("source", ["tokens", "gates"])
def test_couplings_of_one_token_by_their_kernel(source: str, bandwidth: int) -> None:
    rank = 3 if source == "tokens" else None
    chain = ChainCouplings(12, 2, source, rank=rank, bandwidth=bandwidth, dtype=F64)
    x = torch.randn(3, 6, 12, dtype=F64)
    for parameter in chain.parameters():
        torch.nn.init.normal_(parameter)
    band, features = chain(x)
    for t in range(6):
        before = features[:, :, max(0, t - bandwidth) : t].detach()
        with torch.no_grad():
            found = chain(x[:, t : t + 1], before)
        for one, row in zip(found, (band[:, :, t], features[:, :, t]), strict=True):
            torch.testing.assert_close(one[:, :, 0], row.detach(), rtol=0, atol=1e-13)


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize(
    ("options", "backend"),
    [
        ({"readout": "odds", "dropout": 0.1}, "aot_eager"),
        ({"bandwidth": 2}, "aot_eager"),
        pytest.param({"readout": "odds", "dropout": 0.1}, "inductor", marks=pytest.mark.slow),
    ],
    ids=["odds", "band", "default compiler"],
)
def test_it_compiles_to_one_graph(options: dict[str, Any], backend: str) -> None:
    layer, x = built(dtype=torch.float32, **options).eval(), torch.randn(2, 20, 12)
    torch.compiler.reset()  # the limit of graphs counts those of all layers
    torch.testing.assert_close(torch.compile(layer, fullgraph=True, backend=backend)(x), layer(x))


def test_a_pass_in_inference_mode_leaves_nothing_that_training_cannot_use() -> None:
    layer = built(dtype=torch.float32, bandwidth=3)
    x = torch.randn(1, 13, 12)
    with torch.inference_mode():
        layer(x)
    layer(x).sum().backward()
    assert layer.couplings.by_distance.grad is not None


def test_couplings_start_at_the_given_ones_and_train() -> None:
    layer = diabat.ChainAttention(8, 2, readout="odds", coupling_init=CouplingInit(mean=0.7))
    assert coupling_parameters(layer) == [layer.couplings.by_distance]
    x = torch.randn(1, 10, 8)
    with layer.recording():
        layer(x)
        J = layer.last_problem().couplings
    torch.testing.assert_close(J[0, 0, 0].diagonal(1), torch.full((9,), 0.7))
    layer(x).square().sum().backward()
    assert all(p.grad is not None for p in layer.parameters())
    assert float(layer.couplings.right_features.grad.abs().max()) > 0


def test_correlations_of_a_query_are_those_of_the_chain() -> None:
    layer = built()
    with layer.recording():
        layer(torch.randn(2, 6, 12, dtype=F64))
        found = query_moments(layer, 4, sequence=1)
        problem = layer.last_problem()
    fields, J = problem.fields, problem.couplings
    assert found.couplings is not None
    assert torch.equal(found.couplings, J[1, :, 0, :5, :5])
    problem = Ising(fields[1, :, 4, :5], found.couplings)
    exact = diabat.sampler("exact").moments(problem, correlations=True)
    m = exact.magnetization
    torch.testing.assert_close(found.correlations, exact.correlation - m[:, :, None] * m[:, None])


@pytest.mark.parametrize("sampler", ["mean_field", "tempering", "dqa"])
def test_other_backends_answer(sampler: str) -> None:
    torch.manual_seed(0)
    layer = diabat.ChainAttention(8, 2, sampler=sampler)
    out = layer(torch.randn(2, 6, 8))
    out.sum().backward()
    assert bool(out.isfinite().all())


@pytest.mark.parametrize("readout", ["odds", "probability"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_multihead_attention_couples_its_keys(readout: str, is_causal: bool) -> None:
    """As self-attention it is BoltzmannAttention; masks that are no prefix go by the operators."""
    layer = built(readout=readout, causal=is_causal)
    other = as_multihead(layer, couplings="tokens", readout=readout)
    x = torch.randn(3, 9, 12, dtype=F64)
    padded = torch.zeros(3, 9, dtype=torch.bool)
    padded[1, 6:] = True
    expected = layer(x, padded)
    fast, none = other(x, x, x, padded, need_weights=False, is_causal=is_causal)
    assert none is None
    slow, _ = other(x, x, x, padded, is_causal=is_causal)
    later = torch.ones(9, 9, dtype=torch.bool).triu(1)
    with recording([other, layer]):
        masked, _ = other(
            x, x, x, padded, need_weights=False, attn_mask=later if is_causal else torch.zeros(9, 9)
        )
        found = other.last_problem()
        layer(x, padded)
        wanted = layer.last_problem()
    torch.testing.assert_close(found.couplings, wanted.couplings)
    seen = found.visible_mask
    assert torch.equal(seen, wanted.visible_mask)
    torch.testing.assert_close(found.fields[seen], wanted.fields[seen])
    for result in (fast, slow, masked):
        torch.testing.assert_close(result, expected)
    cross, shown = other(x[:, :4], x, x, average_attn_weights=False)
    assert cross.shape == (3, 4, 12)
    torch.testing.assert_close(shown.sum(-1), torch.ones(3, 2, 4, dtype=F64))
