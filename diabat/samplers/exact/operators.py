r"""Exact enumeration by operators of torch: any device, traced tensors, three-body terms, derivatives of any order.

Few states are one softmax over their exponents (`parts`), many are products of halves (`halves`).  Fields beyond the
sum of the couplings of a spin are clipped, and an invisible spin is one that is pinned at -1; both are exact to
rounding (`prepared`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from diabat.compute.memory import require_memory
from diabat.ising import Ising
from diabat.samplers.exact.batches import Groups, is_readable, joined, parts_of
from diabat.samplers.exact.halves import LEAST, across, halves
from diabat.samplers.exact.parts import Energies, energies, part
from diabat.samplers.kept import kept

FEW_SPINS = 8
"""Up to so many spins all states of a problem are one softmax."""
MARGIN = {torch.float32: 12.0, torch.float64: 24.0}
"""A field that exceeds the couplings of its spin by so much decides it, to rounding."""
BUDGET = 1 << 28
"""Bytes of working memory, if nobody says how many."""
# Logits, weights, and their cotangents.
_BYTES_PER_STATE = 32


class Prepared(NamedTuple):
    """Fields without invisible spins and without any beyond the couplings.

    Attributes:
        fields: h of the problem that is solved, [G, Q, m].
        excess: What log-odds are more than those of this problem, divided by 2, [G, Q, m].
        constant: What its log Z is more than that of the visible spins, [G, Q].
    """

    fields: Tensor
    excess: Tensor
    constant: Tensor


def prepared(groups: Groups, dtype: torch.dtype) -> Prepared:
    r"""Pin invisible spins, and clip fields, in a precision; both are exact to its rounding.

    An invisible spin is pinned at -1 by its field, and its couplings are taken off the fields of the others.  The
    log-odds of spin j are 2 h_j + f(h of the others), and the other spins cannot turn it where

        |h_j| > c_j = Σ_k |J_jk| + Σ_{k<l} |K_jkl| + margin:

    a field beyond c_j is solved at ±c_j, and what was clipped added to its log-odds, twice, and to log Z.
    """
    h, (J, K) = groups.fields.to(dtype), (None if t is None else t.to(dtype) for t in groups[1:3])
    bound, constant = h.new_full((1, 1, 1), MARGIN[dtype]), h.new_zeros(()).expand(h.shape[:2])
    if J is not None:
        J = (J + J.mT) / 2
        bound = bound + J.detach().abs().sum(-1)[:, None]
    if K is not None:
        bound = bound + K.detach().abs().sum((-2, -1))[:, None] / 2  # which counts every pair twice
    if groups.visible is not None:
        hidden = (~groups.visible).to(dtype)
        h = h.masked_fill(~groups.visible, 0)
        if K is not None:
            pulls = torch.einsum("gjkl,gqk,gql->gqj", K, hidden, hidden)
            h, constant = h - pulls / 2, constant - (pulls * hidden).sum(-1) / 6
        if J is not None:
            pulls = hidden @ J
            h, constant = h + pulls, constant + (pulls * hidden).sum(-1) / 2
        constant = constant + (bound * hidden).sum(-1)
        h = torch.where(groups.visible, h, -bound)
    clipped = torch.minimum(torch.maximum(h, -bound), bound)
    excess = h - clipped
    return Prepared(clipped, excess, constant - excess.abs().sum(-1))


class Answer(NamedTuple):
    """Results of groups of problems.

    Attributes:
        log_odds: log P(s = +1) - log P(s = -1), [G, Q, m]; 0 for invisible spins.
        log_partition: log Z of the visible spins, [G, Q].
        lost: Whether a sum is below the range of the precision, bool [G, Q]; None where it cannot be.
    """

    log_odds: Tensor
    log_partition: Tensor
    lost: Tensor | None


def answer(groups: Groups, dtype: torch.dtype, *, states: bool = False) -> Answer:
    """Solve groups of problems in a precision.

    Few states are one softmax, many are products of halves.  On request all are sums of exponentials for each spin,
    which have any strength.

    Raises:
        ValueError: If all states of the problems do not fit in memory.
    """
    given, m = prepared(groups, dtype), groups.fields.shape[-1]
    few = m <= FEW_SPINS
    e = energies(groups, m if few else m // 2)
    least = torch.finfo(dtype).tiny ** 0.75  # its inverse is finite
    if states:
        odds, log_z = _odds_of_states(state_logits(given.fields, e, dtype))
        lost = None
    else:
        found = _of_few if few else _of_halves
        up, down, log_z, lost = found(given.fields, e, dtype)
        lost = lost | (torch.minimum(up, down).detach().amin(-1) <= least)
        odds = _log(up) - _log(down)
    odds, log_z = odds + 2 * given.excess, log_z - given.constant
    if groups.visible is not None:
        odds = odds.masked_fill(~groups.visible, 0)
    return Answer(odds, log_z, lost)


def _log(x: Tensor) -> Tensor:
    """Log x of x > 0 by x over its own value: no derivative has a power of 1/x, which could exceed the range."""
    value = x.detach()
    return (x / value).log() + value.log()


@kept(lambda spins, device: 8 * spins * (spins + 3) << spins)
def _of_spins(spins: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Signs [n, 2^n], halves of products in pairs [n·n, 2^n], and what is up and down [2^n, 2n], of all states."""
    all_spins = part(spins, device)
    signs = all_spins.signs.T
    return signs, (signs[:, None] * signs).flatten(0, 1) / 2, torch.cat((all_spins.bits, all_spins.zeros), 1)


def layer_log_odds(h: Tensor, J: Tensor, visible: Tensor | None) -> Tensor:
    """Log-odds of few spins, [*batch, Q, n], by few operators, for J [*lead, 1, n, n] that is symmetric by its making.

    As `answer`, in float64: fields are clipped, and invisible spins pinned.  A P beyond its range is 0, whose logarithm
    has no gradient but NaN.
    """
    signs, products, both = _of_spins(h.shape[-1], h.device)
    dtype, h, J = h.dtype, h.double(), J.squeeze(-3).double()
    bound = J.detach().abs().sum(-1)[..., None, :] + MARGIN[torch.float64]
    if visible is not None:
        hidden = ~torch.atleast_2d(visible)
        h = torch.where(visible, h + hidden.double() @ J, -bound)
    # A field beyond the bound has the derivative 2 there as well.
    excess = (h - torch.clamp(h, -bound, bound)).detach()
    weights = ((h - excess) @ signs + (J.flatten(-2) @ products)[..., None, :]).softmax(-1)
    up, down = (weights @ both).log().chunk(2, -1)
    odds = torch.add(up - down, excess, alpha=2)
    return (odds if visible is None else odds.masked_fill(hidden, 0)).to(dtype)


def state_logits(fields: Tensor, e: Energies, dtype: torch.dtype) -> Tensor:
    """Exponents of all states, [G, Q, 2^m] in ``dtype``; bit j of the index is spin j."""
    (a, b), like, number = e.spins, fields.device, fields.shape[:2].numel()
    if like.type == "cpu" and a + b > FEW_SPINS:
        needed = _BYTES_PER_STATE * number << a + b
        require_memory(needed, f"all states of {number} problems of {a + b} spins")
    h = fields.to(dtype)
    logits = h[..., :a] @ part(a, like, dtype).signs.T
    shared = e.left[:, None]  # [G, 2^b, 2^a]
    if b:
        L, R = part(a, like).features(e.three_body), part(b, like).features(e.three_body)
        shared = (shared + e.right[..., None] + R @ (L @ e.cross).mT).flatten(1)[:, None]
        of_right = h[..., a:] @ part(b, like, dtype).signs.T
        logits = (logits[..., None, :] + of_right[..., None]).flatten(2)
    return logits + shared.to(dtype)


def _odds_of_states(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Log-odds of every spin, and log Z, from the exponents of all states; each spin is then summed out."""
    odds = list[Tensor]()
    while logits.shape[-1] > 1:
        down, up = logits.chunk(2, -1)
        odds.insert(0, up.logsumexp(-1) - down.logsumexp(-1))
        logits = torch.stack((down, up)).logsumexp(0)  # second derivatives of logaddexp are NaN far apart
    return torch.stack(odds, -1), logits[..., 0]


def _of_few(fields: Tensor, e: Energies, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """P(s = +1), P(s = -1), log Z and which problems are lost, from a softmax over all states."""
    logits = state_logits(fields, e, dtype)
    weights, log_z = logits.softmax(-1), logits.logsumexp(-1)
    all_spins = part(fields.shape[-1], fields.device, dtype)
    return weights @ all_spins.bits, weights @ all_spins.zeros, log_z, log_z.isnan().detach()


def _of_parts(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Sums at s = +1 and at -1 of the weights of both parts."""
    L, R = (part(t.shape[-1].bit_length() - 1, t.device, t.dtype) for t in (left, right))
    return torch.cat((left @ L.bits, right @ R.bits), -1), torch.cat((left @ L.zeros, right @ R.zeros), -1)


def _of_halves(fields: Tensor, e: Energies, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sums of weights at s = +1 and at -1, log Z and which problems are lost."""
    t = halves(fields, e, dtype)
    left, right = t.A * t.V, t.U * t.C
    total = right.sum(-1)
    lost = ~(total.detach() >= LEAST[dtype])  # NaN is lost
    # Not divided by their sums, which log-odds do not need, and whose derivative could exceed the range.
    up, down = _of_parts(left, right)
    return up, down, _log(total.double()) + t.log_scale, lost


def smooth_moments(ising: Ising, *, odds: bool = False) -> tuple[Tensor, Tensor]:
    """P(s = +1), or log-odds, [*batch, n], and log Z [*batch] in float64, of any derivative."""
    return solve(ising, torch.float64, odds=odds)[:2]


def solve(
    ising: Ising, dtype: torch.dtype, *, odds: bool, budget: int = BUDGET
) -> tuple[Tensor, Tensor, bool]:
    """Results as of `smooth_moments`, with products in a precision, and whether that was raised to float64.

    It is raised where it is too little.  Numbers are read on the CPU only.  Elsewhere all is in float64, and what
    exceeds its range is NaN.  If the tables of all problems take more bytes than the budget, problems are solved in
    parts, each of which forms W again.

    Raises:
        ValueError: If products exceed the range of float64, and all states of a problem do not fit in memory.
    """
    parts, found = parts_of(ising), []
    if not parts.groups:
        zero = ising.fields * 0 + sum((0 * term).sum() for term in ising.terms if term is not None)
        return zero, zero.sum(-1), False
    readable, raised = is_readable(ising), False
    for groups in parts.groups:
        m = groups.fields.shape[-1]
        some = groups.split(problems_within(budget, m if m <= FEW_SPINS else (m + 1) // 2))
        solved = [[_solved(one, dtype, readable, budget) for one in row] for row in some]
        raised = raised or any(own for row in solved for _, _, own in row)
        found.append(_both([[one[:2] for one in row] for row in solved]))
    result, log_z = parts.per_spin([one for one, _ in found]), parts.per_problem([one for _, one in found])
    if not odds:
        result = torch.sigmoid(result)
        if ising.visible is not None:
            result = result.masked_fill(~ising.visible, 0)
    return result, log_z, raised


def _both(values: Sequence[Sequence[tuple[Tensor, Tensor]]]) -> tuple[Tensor, Tensor]:
    """Log-odds and log Z of the parts of `Groups.split`, put together."""
    odds, log_z = (joined([[one[k] for one in row] for row in values]) for k in (0, 1))
    return odds, log_z


def problems_within(budget: int, spins: int) -> int:
    """How many problems take no more bytes than the budget, each for the states of so many spins; at least 1."""
    return max(1, budget // (_BYTES_PER_STATE << spins))


def _solved(groups: Groups, dtype: torch.dtype, readable: bool, budget: int) -> tuple[Tensor, Tensor, bool]:
    """Log-odds and log Z of some groups in the precision of their fields, and whether that of products was raised."""
    own, m = groups.fields.dtype, groups.fields.shape[-1]
    if not readable or m <= FEW_SPINS:
        dtype = torch.float64
    found, given = answer(groups, dtype), dtype
    if dtype != torch.float64 and found.lost is not None and bool(found.lost.any()):
        found, dtype = answer(groups, torch.float64), torch.float64
    odds, log_z = found.log_odds, found.log_partition
    if found.lost is not None and not readable:
        # NaN in the derivatives by all terms as well: others meet masks of small weights, behind which they are 0.
        terms = [
            groups.fields.sum(-1),
            *(t.flatten(1).sum(-1)[:, None] for t in groups[1:3] if t is not None),
        ]
        known = torch.where(found.lost, math.nan, 0.0) * sum(terms)
        odds, log_z = odds + known[..., None], log_z + known
    elif found.lost is not None and bool(found.lost.any()):
        some = groups.split(problems_within(budget, m))
        odds, log_z = _both([[answer(one, torch.float64, states=True)[:2] for one in row] for row in some])
    return odds.to(own), log_z.to(own), given != dtype


def all_states(groups: Groups) -> Tensor:
    """P(s) of every state in float64, [G, Q, 2^m], bit j of the index being spin j."""
    e = energies(groups, groups.fields.shape[-1] // 2)
    return state_logits(prepared(groups, torch.float64).fields, e, torch.float64).softmax(-1)


def pair_moments(ising: Ising, *, budget: int = BUDGET) -> Tensor:
    """<s_j s_k> in float64, [*batch, n, n], 1 on the diagonal; 0 for invisible spins."""
    parts, found = parts_of(ising), []
    for groups in parts.groups:
        m = groups.fields.shape[-1]
        pairs = None if m <= FEW_SPINS else _correlations(groups, states=False)
        # Products that are beyond the range are NaN.
        if pairs is None or (is_readable(ising) and bool(pairs.isnan().any())):
            some = groups.split(problems_within(budget, m))
            pairs = joined([[_correlations(one, states=True) for one in row] for row in some])
        found.append(pairs)
    if not found:
        return ising.fields.new_zeros(*ising.fields.shape, ising.num_spins, dtype=torch.float64)
    seen = ising.visible_mask
    return parts.per_pair(found).masked_fill(~(seen[..., None] & seen[..., None, :]), 0)


def _correlations(groups: Groups, *, states: bool) -> Tensor:
    """<s_j s_k>, [G, Q, m, m], 1 on the diagonal, from all states or halves; invisible spins are pinned at -1."""
    fields, m = prepared(groups, torch.float64).fields, groups.fields.shape[-1]
    e = energies(groups, m // 2)
    a, b = e.spins
    L, R = part(a, fields.device), part(b, fields.device)
    if states:
        table = state_logits(fields, e, torch.float64).softmax(-1).unflatten(-1, (1 << b, 1 << a))
        left, right = table.sum(-2), table.sum(-1)
        cross = (R.signs.T @ (table @ L.signs)).mT
    else:
        t = halves(fields, e, torch.float64)
        total = (t.U * t.C).sum(-1, keepdim=True)
        total = total.where(total >= LEAST[torch.float64], math.nan)  # beyond the range
        left, right, cross = t.A * t.V / total, t.U * t.C / total, across(t, e) / total[..., None]
    out = torch.empty(*left.shape[:2], m, m, dtype=left.dtype, device=left.device)
    out[..., :a, :a] = torch.einsum("gqx,xj,xk->gqjk", left, L.signs, L.signs)
    out[..., a:, a:] = torch.einsum("gqy,yj,yk->gqjk", right, R.signs, R.signs)
    out[..., :a, a:], out[..., a:, :a] = cross, cross.mT
    return out
