"""Fixed points of a batch with their derivatives, by compiled code or by torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from diabat.ising import Ising
from diabat.samplers.answers import Solution
from diabat.samplers.derivatives import Backend, differentiable_gradient
from diabat.samplers.folding import batched_cotangent
from diabat.samplers.mean_field.compiled import CompiledBatch, is_compiled
from diabat.samplers.mean_field.iteration import (
    fixed_points,
    local_field,
    respond,
    slopes,
    symmetrised,
    tangent,
)
from diabat.samplers.mean_field.rules import Rules


class FixedPoint(Solution):
    """A batch, solved outside the graph of autograd.

    At the fixed point x = h + J tanh(x) + ... of local fields, dx = (1 - J D)⁻¹ (dh + dJ m + ...), D = diag(1 - m²):
    a cotangent u of x becomes v = (1 - D J)⁻¹ u, and dL/dh = v, dL/dJ = Σ v mᵀ over the problems with this J,
    symmetrised.

    Args:
        ising: The batch.
        rules: Options, as in `MeanFieldSampler`.
        odds: The result is log P(s = +1) - log P(s = -1) = 2x in place of P(s = +1) = σ(2x).
        sampler: Whose moments these are, for second derivatives.

    Attributes:
        found: What the iteration has found, in tensors.
    """

    def __init__(
        self, ising: Ising, rules: Rules, *, odds: bool = False, sampler: Backend | None = None
    ) -> None:
        self._ising, self._odds, self._sampler = ising, odds, sampler
        self._compiled = CompiledBatch(ising, rules) if is_compiled(ising) else None
        self.found = self._compiled.found if self._compiled else fixed_points(ising.detach(), rules)
        twice = 2 * self.found.local
        # σ(2x), not (tanh x + 1)/2: it keeps its relative precision when m is -1 to rounding.
        result = twice if odds else twice.sigmoid_()
        self.result = result if ising.visible is None else torch.where(ising.visible, result, 0)

    @property
    def info(self) -> dict[str, Any]:
        """What ``info`` of moments says of the iteration."""
        _, _, iterations, residual, converged = self.found
        return {
            "iterations": int(iterations.max()),
            "residual": float(residual.max()),
            "converged": bool(converged.all()),
            "problems": {"iterations": iterations, "residual": residual, "converged": converged},
        }

    def gradient(self, v: Tensor, u: Tensor | None = None, *, pairs: bool) -> tuple[Tensor, Tensor | None]:
        """As in the base class; mean field has no log Z."""
        m, visible, J = self.found.magnetization, self._ising.visible, self._ising.matrix
        if not self._odds:
            v = torch.ops.aten.sigmoid_backward.default(v, self.result)
        elif visible is not None:
            v = v * visible
        if self._compiled is None or batched_cotangent(v):  # values of many at once are hidden
            dh = 2 * respond(tangent(self._ising.detach(), m), slopes(m, self._ising.visible_mask), v)
        else:
            dh = self._compiled.respond(v)
        return dh, None if J is None or not pairs else _pair_gradient(dh, m, J.shape[:-2])

    def backward(self, ctx: Any, v: Tensor, u: Tensor | None) -> tuple[Tensor | None, ...]:
        """As in the base class; with ``create_graph`` it can be differentiated once more."""
        terms, ising = ctx.saved_tensors, self._ising
        wanted, missing = ctx.needs_input_grad[: len(terms)], 3 - len(terms)
        if torch.is_grad_enabled() and self._sampler is not None:
            padded = (*wanted, *[False] * missing), (*terms, *[None] * missing)
            return differentiable_gradient(self._sampler, self, ising, *padded, v)[: len(terms)]
        if ising.edges is None and ising.three_body is None:
            return self.gradient(v, pairs=wanted[1])
        dh, _ = self.gradient(v, pairs=False)
        return dh, *_term_gradients(ising, self.found.magnetization, dh, wanted[1:])


def _pair_gradient(v: Tensor, m: Tensor, lead: torch.Size) -> Tensor:
    """Σ (v mᵀ + m vᵀ)/2 over the problems with the same J, [*lead, n, n], with a zero diagonal."""
    n, shared = v.shape[-1], not lead or lead[-1] == 1
    if v.ndim == 2 and shared:
        G = v.mT @ m
    elif v.ndim > 1 and shared:  # summed over the last dimension of the batch
        G = (v.mT @ m)[..., None, :, :].sum_to_size(*lead, n, n)
    else:
        G = (v[..., :, None] * m[..., None, :]).sum_to_size(*lead, n, n)
    G = (G + G.mT).mul_(0.5).reshape(*lead, n, n)
    (G.fill_diagonal_(0) if G.ndim == 2 else G.diagonal(dim1=-2, dim2=-1).zero_())
    return G


def _term_gradients(ising: Ising, m: Tensor, v: Tensor, wanted: Sequence[bool]) -> list[Tensor | None]:
    """The gradient of Σ v x at fixed m in J, or the values of edges, and in K, where they are wanted."""
    h, J, K = ising.terms
    pairs = [(t, w) for t, w in zip((J, K), (*wanted, False), strict=False)]
    J, K = leaves = [None if t is None else t.detach().requires_grad_(w) for t, w in pairs]
    with torch.enable_grad():
        held = J if ising.edges is None or J is None else ising.edges.with_values(J)
        local = local_field(symmetrised(Ising(h, held, ising.visible, K, check=False)), m)
        asked = [t for t in leaves if t is not None and t.requires_grad]
        found = iter(torch.autograd.grad(local, asked, v, materialize_grads=True) if asked else ())
    return [next(found) if t is not None and t.requires_grad else None for t in leaves[: len(wanted)]]
