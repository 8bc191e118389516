r"""Exact enumeration by operators of torch: any device, traced tensors, three-body terms, derivatives of any order.

The m spins split into a left part x (a spins, low bits of the index of a state) and a right part y.  With the spins F
of a part and, if there are three-body terms, their products in pairs, the exponent of a state is

    h_L·s_x + e_L(x) + h_R·s_y + e_R(y) + F_L(x)ᵀ X F_R(y).

Few states are one softmax.  Many are two products with W = exp(Fᵀ X F), which all problems of one J share,

    A = exp(h_L·s_x + e_L(x)),     C = exp(h_R·s_y + e_R(y)),     Z = Σ_xy A W C,

    right state weights (A W) ∘ C,     left state weights A ∘ (C Wᵀ).

Nothing of size [problems, 2^m] exists then, and W only in tiles of rows, which the backward pass forms again.
Exponents are float64.  Row x of W is divided by exp(Σ_k |c_k|), c = F_L(x)ᵀ X, and A multiplied by it: no factor
exceeds 1.

Fields beyond the sum of the couplings of a spin are clipped, and an invisible spin is one that is pinned at -1; both
are exact to rounding (`prepared`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import threshold
from torch.utils.checkpoint import checkpoint

from diabat.compute.memory import require_memory
from diabat.ising import Ising, triple_indices
from diabat.samplers.exact.batches import Groups, is_readable, joined, parts_of
from diabat.samplers.folding import is_traced
from diabat.samplers.kept import kept

FEW_SPINS = 8
"""Up to so many spins all states of a problem are one softmax."""
MARGIN = {torch.float32: 12.0, torch.float64: 24.0}
"""A field that exceeds the couplings of its spin by so much decides it, to rounding."""
_TILE_BYTES = 1 << 22
LEAST = {torch.float32: 1e-25, torch.float64: 1e-200}
"""Smallest scaled sum with full relative precision: terms below the smallest normal number are lost."""
_LOWEST = {torch.float32: -87.0, torch.float64: -700.0}
# Logits, weights, and their cotangents.
_BYTES_PER_STATE = 32


class Part:
    """Constants of the states of some spins.

    Attributes:
        bits, zeros: Whether each spin is up, or down, [2^spins, spins]; bit j of the row index is spin j.
        signs: ±1 states, [2^spins, spins].
        upper: Pairs j < k, int64 [2, spins(spins-1)/2].
        pairs: Products s_j s_k for j < k, [2^spins, spins(spins-1)/2].
        triples: Triples j < k < l, int64 [3, spins(spins-1)(spins-2)/6].
    """

    def __init__(self, spins: int, device: torch.device, dtype: torch.dtype) -> None:
        self.spins = spins
        bits = torch.arange(2**spins, device=device)[:, None] >> torch.arange(spins, device=device) & 1
        self.bits, self.zeros = bits.to(dtype), (1 - bits).to(dtype)
        self.signs = 2 * self.bits - 1
        self.upper = torch.triu_indices(spins, spins, offset=1, device=device)
        self.pairs = self.signs[:, self.upper[0]] * self.signs[:, self.upper[1]]
        self.triples = torch.stack(triple_indices(spins, device))

    def features(self, three_body: bool) -> Tensor:
        """Spins of the part, followed by their pair products if three-body terms cross the cut."""
        return torch.cat((self.signs, self.pairs), 1) if three_body else self.signs


@kept(lambda spins, device, dtype=torch.float64: dtype.itemsize * (spins * (spins + 5) // 2) << spins)
def part(spins: int, device: torch.device, dtype: torch.dtype = torch.float64) -> Part:
    """Constants of some spins, shared by all calls."""
    return Part(spins, device, dtype)


class Energies(NamedTuple):
    """Exponents that the problems of a group share.

    Attributes:
        left: e_L, float64 [G, 2^a].
        right: e_R, float64 [G, 2^b].
        cross: X, float64 [G, f_L, f_R].
        three_body: Whether F includes pair products.
    """

    left: Tensor
    right: Tensor
    cross: Tensor
    three_body: bool

    @property
    def spins(self) -> tuple[int, int]:
        """Numbers a and b of spins of the parts."""
        return self.left.shape[-1].bit_length() - 1, self.right.shape[-1].bit_length() - 1


def energies(groups: Groups, a: int) -> Energies:
    """J and K on the parts, the left one of a spins, and the cut; differentiable.

    J is read through its symmetric part, so that the gradient of a symmetric matrix is symmetric.
    """
    like, J, K = groups[:3]
    number, _, m = like.shape
    L, R = part(a, like.device), part(m - a, like.device)
    if J is None:
        J = torch.zeros(number, m, m, dtype=torch.float64, device=like.device)
    J = (J + J.mT).double() / 2
    left = J[:, :a, :a][:, *L.upper] @ L.pairs.T
    right = J[:, a:, a:][:, *R.upper] @ R.pairs.T
    cross = J[:, :a, a:]
    if K is None:
        return Energies(left, right, cross, three_body=False)
    K = K.double()
    left = left + _triple_energy(K[:, :a, :a, :a], L)
    right = right + _triple_energy(K[:, a:, a:, a:], R)
    pair_left = K[:, :a, :a, a:][:, *L.upper]  # [G, pairs_L, b]
    pair_right = K[:, :a, a:, a:][:, :, *R.upper]  # [G, a, pairs_R]
    corner = K.new_zeros(number, pair_left.shape[1], pair_right.shape[2])
    cross = torch.cat((torch.cat((cross, pair_right), 2), torch.cat((pair_left, corner), 2)), 1)
    return Energies(left, right, cross, three_body=True)


def _triple_energy(K: Tensor, some: Part) -> Tensor:
    index = some.triples
    return K[:, *index] @ some.signs[:, index].prod(1).T


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
    e, least = (
        energies(groups, m if few else m // 2),
        torch.finfo(dtype).tiny ** 0.75,
    )  # its inverse is finite
    if states:
        odds, log_z = _odds_of_states(state_logits(given.fields, e, dtype))
        lost = None
    else:
        found = _of_few if few else _of_halves
        up, down, log_z, lost = found(given.fields, e, dtype)
        lost = lost | (torch.minimum(up, down).detach().amin(-1) <= least)
        odds = up.clamp_min(least).log() - down.clamp_min(least).log()
    odds, log_z = odds + 2 * given.excess, log_z - given.constant
    if groups.visible is not None:
        odds = odds.masked_fill(~groups.visible, 0)
    return Answer(odds, log_z, lost)


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
        require_memory(
            _BYTES_PER_STATE * number << a + b, f"all states of {number} problems of {a + b} spins"
        )
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


class Halves(NamedTuple):
    """Factors of the weights of one group, relative to a scale per problem.

    Attributes:
        A, V: Left factor and C Wᵀ, [G, Q, 2^a]; left state weights are A ∘ V.
        C, U: Right factor and A W, [G, Q, 2^b]; right state weights are U ∘ C.
        coefficients: c, float64 [G, 2^a, f_R].
        log_scale: Log of the scale, float64 [G, Q].
    """

    A: Tensor
    V: Tensor
    C: Tensor
    U: Tensor
    coefficients: Tensor
    log_scale: Tensor


def halves(fields: Tensor, e: Energies, dtype: torch.dtype) -> Halves:
    """Compute both products for fields [G, Q, m]."""
    a, _ = e.spins
    h = fields.double()
    c = part(a, h.device).features(e.three_body) @ e.cross
    left, left_scale = _scaled(e.left + c.detach().abs().sum(-1), dtype)
    right, right_scale = _scaled(e.right, dtype)
    A, C = _exponentials(h[..., :a], dtype) * left[:, None], _exponentials(h[..., a:], dtype) * right[:, None]
    found, blocks = list[tuple[Tensor, Tensor]](), _blocks(e, dtype)
    again = len(blocks) > 1 and torch.is_grad_enabled() and not is_traced()
    for rows in blocks:
        terms = A[..., rows], C, c[:, rows], e.three_body
        found.append(checkpoint(_products, *terms, use_reentrant=False) if again else _products(*terms))
    U, V = found[0][0], torch.cat([v for _, v in found], -1)
    for more, _ in found[1:]:
        U = U + more
    log_scale = left_scale + right_scale + h.detach().abs().sum(-1)
    return Halves(A, V, C, U, c, log_scale)


def _blocks(e: Energies, dtype: torch.dtype) -> list[slice]:
    """Row ranges of the tiles of W."""
    rows = e.left.shape[-1]
    step = max(1, min(rows, _TILE_BYTES // (len(e.left) * e.right.shape[-1] * dtype.itemsize)))
    return [slice(i, min(i + step, rows)) for i in range(0, rows, step)]


def _products(A: Tensor, C: Tensor, c: Tensor, three_body: bool) -> tuple[Tensor, Tensor]:
    """A W and C Wᵀ of some rows of W."""
    W = _tile(c, C.shape[-1], three_body, A.dtype)
    return A @ W, C @ W.mT


def _tile(c: Tensor, states: int, three_body: bool, dtype: torch.dtype) -> Tensor:
    """exp(Fᵀ X F_R - Σ|c|) of some left states, [G, rows, 2^b]."""
    if not three_body:
        return _exponentials(c, dtype)
    features = part(states.bit_length() - 1, c.device).features(True)
    return _weights(c @ features.T - c.detach().abs().sum(-1, keepdim=True), dtype)


def _exponentials(c: Tensor, dtype: torch.dtype) -> Tensor:
    """exp(Σ_k c_k s_k - Σ_k |c_k|) over all states, [..., 2^k] in ``dtype``, of c float64 [..., k].

    The product of two small tables: few exponentials, and no float64 numbers of the size of the result.
    """
    low = c.shape[-1] // 2
    factors = []
    for some in (c[..., :low], c[..., low:]):
        signs = part(some.shape[-1], c.device).signs
        factors.append(_weights(some @ signs.T - some.detach().abs().sum(-1, keepdim=True), dtype))
    return (factors[1][..., None] * factors[0][..., None, :]).flatten(-2)


def _scaled(exponent: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """exp(exponent - scale) and the scale of each row, its largest exponent, [rows, 1]."""
    scale = exponent.detach().amax(-1, keepdim=True)
    return _weights(exponent - scale, dtype), scale


def _weights(exponent: Tensor, dtype: torch.dtype) -> Tensor:
    """exp(exponent); 0 below the range of the precision, where exp and subnormal numbers take many times as long."""
    least = _LOWEST[dtype]
    return threshold(exponent.clamp(min=least).exp(), math.exp(least), 0.0).to(dtype)


def _of_halves(fields: Tensor, e: Energies, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sums of weights at s = +1 and at -1, log Z and which problems are lost."""
    t = halves(fields, e, dtype)
    left, right = t.A * t.V, t.U * t.C
    total = right.sum(-1)
    lost = ~(total.detach() >= LEAST[dtype])  # NaN is lost
    # Not divided by their sums, which log-odds do not need, and whose derivative could exceed the range.
    up, down = _of_parts(left, right)
    return up, down, total.double().log() + t.log_scale, lost


def smooth_moments(ising: Ising, *, odds: bool = False, states: bool = False) -> tuple[Tensor, Tensor]:
    """P(s = +1), or log-odds, [*batch, n], and log Z [*batch] in float64, of any derivative."""
    return solve(ising, torch.float64, odds=odds, states=states)[:2]


def solve(
    ising: Ising, dtype: torch.dtype, *, odds: bool, states: bool = False, budget: int = 1 << 28
) -> tuple[Tensor, Tensor, bool]:
    """The same, with products in a precision, and whether that was too little, which was then raised to float64.

    Numbers are read on the CPU only.  Elsewhere all is in float64, and what exceeds its range is NaN.  If the tables
    of all problems take more bytes than the budget, problems are solved in parts, each of which forms W again.

    Raises:
        ValueError: If products exceed the range of float64, and all states of a problem do not fit in memory.
    """
    parts, found = parts_of(ising), []
    if not parts.groups:
        zero = ising.fields * 0 + sum(0 * term.sum() for term in ising.terms if term is not None)
        return zero, zero.sum(-1), False
    readable, raised = is_readable(ising), False
    for groups in parts.groups:
        m = groups.fields.shape[-1]
        some = groups.split(_together(m if states or m <= FEW_SPINS else (m + 1) // 2, budget))
        solved = [[_solved(one, dtype, states, readable, budget) for one in row] for row in some]
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


def _together(spins: int, budget: int) -> int:
    """How many problems take no more than the budget, each for the states of so many spins."""
    return max(1, budget // (_BYTES_PER_STATE << spins))


def _solved(
    groups: Groups, dtype: torch.dtype, states: bool, readable: bool, budget: int
) -> tuple[Tensor, Tensor, bool]:
    """Log-odds and log Z of some groups in the precision of their fields, and whether that of products was raised."""
    own, m = groups.fields.dtype, groups.fields.shape[-1]
    if states or not readable or m <= FEW_SPINS:
        dtype = torch.float64
    found, given = answer(groups, dtype, states=states), dtype
    if dtype != torch.float64 and found.lost is not None and bool(found.lost.any()):
        found, dtype = answer(groups, torch.float64), torch.float64
    odds, log_z = found.log_odds, found.log_partition
    if found.lost is not None and not readable:
        known = torch.where(found.lost, math.nan, 1.0)  # so that derivatives are NaN as well
        odds, log_z = odds * known[..., None], log_z * known
    elif found.lost is not None and bool(found.lost.any()):
        some = groups.split(_together(m, budget))
        odds, log_z = _both([[answer(one, torch.float64, states=True)[:2] for one in row] for row in some])
    return odds.to(own), log_z.to(own), given != dtype


def all_states(groups: Groups) -> Tensor:
    """P(s) of every state in float64, [G, Q, 2^m], bit j of the index being spin j."""
    e = energies(groups, groups.fields.shape[-1] // 2)
    return state_logits(prepared(groups, torch.float64).fields, e, torch.float64).softmax(-1)


def pair_moments(ising: Ising, *, states: bool = False) -> Tensor:
    """<s_j s_k> in float64, [*batch, n, n], 1 on the diagonal; 0 for invisible spins."""
    parts, found = parts_of(ising), []
    for groups in parts.groups:
        pairs = _correlations(groups, states or groups.fields.shape[-1] <= FEW_SPINS)
        if is_readable(ising) and bool(pairs.isnan().any()):  # products that are beyond the range
            some = groups.split(_together(groups.fields.shape[-1], 1 << 28))
            pairs = joined([[_correlations(one, states=True) for one in row] for row in some])
        found.append(pairs)
    if not found:
        return ising.fields.new_zeros(*ising.fields.shape, ising.num_spins, dtype=torch.float64)
    seen = ising.visible_mask
    return parts.per_pair(found).masked_fill(~(seen[..., None] & seen[..., None, :]), 0)


def _correlations(groups: Groups, states: bool) -> Tensor:
    """<s_j s_k>, [G, Q, m, m], 1 on the diagonal; invisible spins are pinned at -1."""
    fields, m = prepared(groups, torch.float64).fields, groups.fields.shape[-1]
    e = energies(groups, m // 2)
    a, b = e.spins
    L, R = part(a, fields.device), part(b, fields.device)
    if states:
        table = state_logits(fields, e, torch.float64).softmax(-1).unflatten(-1, (1 << b, 1 << a))
        left, right = table.sum(-2), table.sum(-1)
        across = (R.signs.T @ (table @ L.signs)).mT
    else:
        t = halves(fields, e, torch.float64)
        total = (t.U * t.C).sum(-1, keepdim=True)
        total = total.where(total >= LEAST[torch.float64], math.nan)  # beyond the range
        left, right = t.A * t.V / total, t.U * t.C / total
        across = torch.stack([_across(t, e, R.signs[:, k], L.signs) for k in range(b)], -1) / total[..., None]
    out = torch.empty(*left.shape[:2], m, m, dtype=left.dtype, device=left.device)
    out[..., :a, :a] = torch.einsum("gqx,xj,xk->gqjk", left, L.signs, L.signs)
    out[..., a:, a:] = torch.einsum("gqy,yj,yk->gqjk", right, R.signs, R.signs)
    out[..., :a, a:], out[..., a:, :a] = across, across.mT
    return out


def _across(t: Halves, e: Energies, signs: Tensor, others: Tensor) -> Tensor:
    """Σ s_j s_k over all states of every left spin j and one right spin k, whose signs are given, [G, Q, a]."""
    C, blocks = t.C * signs, _blocks(e, t.C.dtype)
    parts = [_products(t.A[..., rows], C, t.coefficients[:, rows], e.three_body)[1] for rows in blocks]
    return (t.A * torch.cat(parts, -1)) @ others
