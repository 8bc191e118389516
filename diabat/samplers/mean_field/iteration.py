"""The rule of :class:`diabat.samplers.mean_field.MeanFieldSampler` with torch: any device and size, edges, K."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from diabat.ising import Ising
from diabat.ising.edges import Edges
from diabat.samplers.folding import batched_cotangent
from diabat.samplers.mean_field import rules as rule
from diabat.samplers.mean_field.rules import Found, Rules

Product = Callable[[Tensor], Tensor]


def tangent(ising: Ising, m: Tensor, share: float = 1) -> Product:
    """The product of v with J + K m, the derivative of the local field; or with J + ``share`` K m."""
    more = None if ising.three_body is None else share * _times(ising.three_body, m)

    def product(v: Tensor) -> Tensor:
        J = ising.matrix
        if ising.edges is not None:
            out = ising.edges.local_fields(v)
        elif J is None:
            out = torch.zeros_like(v)
        elif J.ndim == 2 or (J.shape[-3] == 1 and v.ndim >= J.ndim - 1):  # all with the same J at once
            out = v @ (J if J.ndim == 2 else J.squeeze(-3))
        else:
            out = (J @ v[..., None])[..., 0]
        return out if more is None else out + (more @ v[..., None])[..., 0]

    return product


def _times(K: Tensor, m: Tensor) -> Tensor:
    """K m, [*batch, n, n]."""
    if K.ndim == 3:
        return (m @ K.flatten(1)).unflatten(-1, K.shape[1:])
    return torch.einsum("...jkl,...l->...jk", K, m)


def local_field(ising: Ising, m: Tensor) -> Tensor:
    """h_j + Σ_k J_jk m_k + ½ Σ_kl K_jkl m_k m_l, with m = 0 on invisible spins; differentiable."""
    return ising.fields + tangent(ising, m, 0.5)(m)


def slopes(m: Tensor, visible: Tensor) -> Tensor:
    """√D = √(1 - m²), 0 on invisible spins."""
    return torch.addcmul(visible.to(m), m, m, value=-1).clamp(min=0).sqrt()


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return torch.linalg.vecdot(a, b)[..., None]


def _longest(values: Tensor) -> Tensor:
    return values.abs().amax(-1, keepdim=True)  # a tenth of the time of vector_norm


def conjugate_gradients(
    product: Product, root: Tensor, right: Tensor, accuracy: float, steps: int = rule.MOST_STEPS
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Solve A z = b, A = 1 - √D J √D with the product of J (Hestenes and Stiefel, 1952).

    Returns:
        z, [*batch, n]; whether the last direction has no positive curvature, where z stops short of it, and whether the
        residual is within the accuracy, relative to b, bool [*batch, 1]; and that direction, [*batch, n].
    """
    p = rest = right
    z, zero, square = torch.zeros_like(right), right.new_zeros(()), _dot(right, right)
    limit, hidden = accuracy**2 * square, batched_cotangent(right)
    active, bent = square > limit, square < 0
    for _ in range(2 * right.shape[-1] if hidden else steps):
        if not hidden and not bool(active.any()):
            break
        image = torch.addcmul(p, root, product(root * p), value=-1)
        curvature = _dot(p, image)
        sound = active & (curvature > rule.LEAST_CURVATURE * _dot(p, p))
        bent, active = bent | (active ^ sound), sound
        pace = torch.where(active, square / curvature, zero)
        z, rest = torch.addcmul(z, pace, p), torch.addcmul(rest, pace, image, value=-1)
        left = _dot(rest, rest)
        p = torch.where(active, torch.addcmul(rest, left / square, p), p)
        square, active = torch.where(active, left, square), active & (left > limit)
    return z, bent, ~(bent | active), p


def respond(product: Product, root: Tensor, u: Tensor, *limits: Any) -> Tensor:
    """(1 - D J)⁻¹ u = u + √D A⁻¹ √D J u, [*batch, n]; to rounding, or to limits of `conjugate_gradients`."""
    limits, unit = limits or (10 * torch.finfo(u.dtype).eps,), unit_of(u)
    return u + root * unit * conjugate_gradients(product, root, root * product(u / unit), *limits)[0]


def unit_of(u: Tensor) -> Tensor:
    """The largest |number| of each problem: squares of very small ones would be 0."""
    return _longest(u).clamp(min=1e-37)


def symmetrised(ising: Ising) -> Ising:
    """Replace J and K by their symmetric part, so that their gradients are symmetric."""
    if ising.edges is not None:  # one value for both entries
        return ising
    J, K = ising.couplings, ising.three_body
    apart = 1 - torch.eye(ising.num_spins, dtype=ising.fields.dtype, device=ising.fields.device)
    if J is not None and J.requires_grad:
        J = (J + J.mT) / 2 * apart
    if K is not None and K.requires_grad:
        K = (K + K.transpose(-1, -2)) / 2
        K = (K + K.movedim(-1, -3) + K.movedim(-3, -1)) / 3 * (apart * apart[:, :, None] * apart[:, None, :])
    return Ising(ising.fields, J, ising.visible, K, check=False)


def fixed_points(ising: Ising, rules: Rules) -> Found:
    """The fixed points of a batch, as tensors [*batch, n] and [*batch]."""
    h, count, stop = ising.fields, 0, min(rule.FIRST_CUT, rules.most)
    kinds = (h.dtype, h.dtype, torch.int32, torch.float64, torch.bool)
    found = Found(*(h.new_zeros(h.shape if k < 2 else h.shape[:-1], dtype=d) for k, d in enumerate(kinds)))
    batch = _Batch(ising, rules)
    while True:
        batch.iterate(count, stop)
        ended = batch.residual <= rules.tolerance
        bent, solved, p = batch.test(ended)
        facts = (batch.counts, batch.residual, ended & solved)
        answers = (batch.m + batch.change, batch.local, *(fact[..., 0] for fact in facts))
        for values, answer in zip(found, answers, strict=True):
            values.view(-1, *answer.shape[2:])[batch.rows] = answer.to(values.dtype)
        waiting = ~ended | bent
        if stop == rules.most or not bool(waiting.any()):
            return found
        side = torch.where(_dot(batch.change, p) < 0, -rule.PUSH, rule.PUSH)
        batch.m = torch.where(bent, batch.m + side * p / _longest(p), batch.m)
        batch.keep(waiting[..., 0])
        count, stop = stop, min(2 * stop, rules.most)


def _is_definite(ising: Ising, m: Tensor | None = None) -> Tensor:
    """Whether 1 - J - K m is positive definite, and so is A, by Cholesky's factors; without m at all m, if K is None.

    Then there is one fixed point.  False also where it is not tried.

    Returns:
        bool, broadcastable to [C, Q, 1].
    """
    h, J, K = ising.fields, ising.matrix, ising.three_body
    if ising.edges is not None or ising.num_spins > rule.MOST_FACTORED or (m is None and K is not None):
        return h.new_zeros(1, dtype=torch.bool)
    system = torch.diag_embed(h.new_full(h.shape[-1:], rule.DEFINITE))
    if J is not None:
        system = system - J
    if K is not None and m is not None:
        system = system - _times(K, m)
    return (torch.linalg.cholesky_ex(system)[1] == 0)[..., None]


class _Batch:
    """Problems that iterate, in C groups of Q with the same couplings.

    Attributes:
        ising: The problems; fields [C, Q, n], J [C, 1, n, n] or [n, n], or edges with values [C, 1, E] or [E].
        rows: Index of each problem in the flat batch, int64 [C, Q].
        m, local, change: m, h + J m + ½ K m m, and g, [C, Q, n].
        damping, counts, residual: d, iterations and max |g|, [C, Q, 1].
        certain: Where there is no saddle, and no other minimum, bool [C, 1, 1]; ``safe`` is everywhere.
    """

    def __init__(self, ising: Ising, rules: Rules) -> None:
        n, distinct, lead, self.rules = ising.num_spins, ising.num_couplings, ising.lead, rules
        # Leading dimensions broadcast, so every J belongs to as many problems.
        self.rows = ising.coupling_index().argsort(stable=True).reshape(distinct, -1).to(ising.fields.device)
        shape = (distinct, 1) if distinct > 1 else ()

        def regrouped(t: Tensor, order: int) -> Tensor:
            own = t.shape[t.ndim - order :]
            return t.expand(*lead, *own).reshape(*shape, *own)

        h, visible = ising.fields.reshape(-1, n)[self.rows], ising.visible_mask.reshape(-1, n)[self.rows]
        self.ising, self.m = _changed(ising, h, visible, regrouped), torch.zeros_like(h)
        self.local, self.change, self.residual = h, h, h[..., :1]
        self.damping, self.counts = torch.full_like(h[..., :1], rules.damping), torch.zeros_like(h[..., :1])
        self.certain, self.hides = _is_definite(self.ising), ising.visible is not None
        self.safe = bool(self.certain.all())

    def keep(self, waiting: Tensor) -> None:
        """Drop the groups and places without a problem that waits."""
        groups, places = waiting.any(1).nonzero()[:, 0], waiting.any(0).nonzero()[:, 0]
        kept = (self.ising.fields, self.ising.visible_mask, self.rows, self.m, self.damping, self.counts)
        h, visible, self.rows, self.m, self.damping, self.counts = (t[groups][:, places] for t in kept)
        one = len(waiting) == 1
        self.ising = _changed(self.ising, h, visible, lambda t, order: t if one else t[groups])
        self.certain = self.certain if self.certain.ndim == 1 else self.certain[groups]

    def iterate(self, count: int, stop: int) -> None:
        """Iterate every problem from iteration ``count`` to ``stop``.

        Residuals are looked at after every few, and overshoots of certain problems too.
        """
        m, early = self.m, count == 0
        local, target = self._targets(m)
        change, before = target - m, m.new_tensor(torch.inf)
        residual = _longest(change)
        while count < stop and bool((active := residual > self.rules.tolerance).any()):
            pace, many = self.damping * active, min(rule.EVERY, stop - count)
            slow, watched = active & ~self.certain if early else active, not (early and self.safe)
            moved, leaps = self._newton(slow, residual, before, pace, m, change) if watched else (None, slow)
            for left in reversed(range(many)):
                last, m = (target, m), torch.lerp(m, target, pace) if moved is None else moved
                local, target = self._targets(m)
                if left and not watched:
                    continue
                past, change = change if watched else torch.sub(*last), target - m
                turned = _dot(change, past) < -rule.OVERSHOOT * _dot(past, past)
                turned = turned & slow if left else turned
                turned = turned if moved is None else turned & ~leaps
                self.damping = torch.where(turned, self.damping / 2, self.damping)
                pace, moved = self.damping * active, None
            self.counts, count = self.counts + many * active, count + many
            residual, before = _longest(change), _longest(past)
        self.m, self.local, self.change, self.residual = m, local, change, residual

    def _targets(self, m: Tensor) -> tuple[Tensor, Tensor]:
        """The local field, and tanh of it on visible spins."""
        ising, J = self.ising, self.ising.matrix
        if J is None or ising.three_body is not None:
            local = local_field(ising, m)
        elif J.ndim == 2:
            local = torch.addmm(ising.fields[0], m[0], J)[None]
        else:
            local = torch.baddbmm(ising.fields, m, J[:, 0])
        target = torch.tanh(local)
        return local, target * ising.visible_mask if self.hides else target

    def _newton(
        self, active: Tensor, residual: Tensor, before: Tensor, pace: Tensor, m: Tensor, change: Tensor
    ) -> tuple[Tensor | None, Tensor]:
        """Magnetizations after a move, None if no problem takes a Newton step, and which ones do."""
        rate = residual / before
        wanted = active & (residual < rule.NEAR) & (residual < before)
        wanted = wanted & (residual * rate**rule.SLOW > self.rules.tolerance)
        if not bool(wanted.any()):
            return None, wanted
        root = slopes(m + change, self.ising.visible_mask)
        far = respond(tangent(self.ising, m + change), root, change * wanted, rule.ACCURACY, rule.STEPS)
        reach = rule.REACH * pace * residual / (1 - rate)
        part = torch.where(wanted, (reach / _longest(far)).clamp(max=1), pace)
        return torch.addcmul(m, part, torch.where(wanted, far, change)), wanted

    def test(self, ended: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What `conjugate_gradients` says about A at points within the tolerance, where no certificate does."""
        m, visible = self.m + self.change, self.ising.visible_mask
        certain = self.certain if self.ising.three_body is None else _is_definite(self.ising, m)
        open_ = ended & ~certain
        if self.safe or not bool(open_.any()):
            return ended & False, ended | True, m
        # By the rank among visible spins: what is hidden does not choose the side of a saddle.
        u = torch.as_tensor(rule.probe(m.shape[-1])).to(m)[visible.cumsum(-1) - 1] * (visible & open_)
        return conjugate_gradients(tangent(self.ising, m), slopes(m, visible), u, rule.TEST)[1:]


def _changed(ising: Ising, h: Tensor, visible: Tensor, change: Callable[[Tensor, int], Tensor]) -> Ising:
    """The problem with other fields and mask, and changed values of J and K, tensors of this order for each J."""
    J, K = ising.held_couplings, ising.three_body
    if J is not None:
        J = J.with_values(change(J.values, 1)) if isinstance(J, Edges) else change(J, 2)
    return Ising(h, J, visible, None if K is None else change(K, 3), check=False)
