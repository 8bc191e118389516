r"""Derivatives of analytic moments: first and second, by autograd and under ``torch.func``.

If the graph of a backend is correct to any order (``Sampler.smooth``: exact, banded), autograd differentiates it.  For
all other analytic backends, and under torch.func, whose transforms hide values, three autograd functions of plain
tensors wrap the backend; the backward pass of each is the next one:

    moments   (h, J, K)           ->  P(s = +1), log Z
    gradient  (h, J, K, v, u)     ->  g = ∂L/∂(h, J, K),      L = Σ v P + Σ u log Z
    second    (h, J, K, v, u, w)  ->  ∂(Σ w g)/∂(h, J, K, v, u)

The first two use the solver and the gradient of the backend, the last its ``_smooth_moments``.  A third derivative
raises.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from diabat.edges import Edges
from diabat.ising import Ising, without_autocast
from diabat.samplers.capabilities import UnsupportedError
from diabat.samplers.folding import Terms, batched_cotangent, dims_of, folded_terms, mapped_first, unfolded

if TYPE_CHECKING:
    from diabat.samplers.answers import Moments
    from diabat.samplers.base import Sampler

Gradients = tuple[Tensor | None, ...]


@dataclass(frozen=True, eq=False)
class Solver:
    """One call of a backend: its arguments except the problem.

    Attributes:
        edges: The edges whose values take the place of J; None for matrices.
    """

    sampler: Sampler
    correlations: bool
    seed: int
    edges: Edges | None = None

    def problem(self, terms: Terms) -> Ising:
        """The problem of these terms."""
        J: Tensor | Edges | None = terms.couplings
        if self.edges is not None and terms.couplings is not None:
            J = self.edges.with_values(terms.couplings)
        return Ising(terms.fields, J, terms.visible, terms.three_body, check=False)


def differentiated(ising: Ising) -> bool:
    """Whether autograd follows a call with this problem, backward or forward."""
    if forward_ad._current_level >= 0:
        return True
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in ising._terms())


def analytic_moments(solver: Solver, ising: Ising) -> Moments:
    """Moments of a problem, differentiable in h, J and K at least twice; unsupported derivatives raise."""
    solver = replace(solver, edges=ising.edges)
    J = ising.matrix if ising.edges is None else ising.edges.values
    terms = Terms(ising.fields, J, ising.three_body, ising.visible)
    result: Any = _Moments.apply(*terms, solver, torch.is_grad_enabled())
    probability, log_partition, correlation, visible, kept = result
    return replace(
        kept.moments,
        probability=probability,
        log_partition=log_partition,
        correlation=correlation,
        visible=visible,
    )


@dataclass(frozen=True, eq=False)
class _Kept:
    """State that a forward pass keeps for the backward pass: the backend's graph from its leaves to its results.

    No tuple: torch.func would wrap the tensors in it, which then are no leaves any more.
    """

    moments: Moments
    leaves: Gradients = ()
    results: Gradients = ()


def _leaves(terms: Sequence[Tensor | None], wanted: Sequence[bool]) -> Any:
    """Detach tensors; those that are wanted require gradients."""
    return tuple(
        None if t is None else t.detach().requires_grad_(bool(want))
        for t, want in zip(terms, wanted, strict=True)
    )


def _present(found: Iterable[Tensor], asked: Sequence[bool]) -> Gradients:
    """Tensors where they are asked for, None elsewhere."""
    found = iter(found)
    return tuple(next(found) if ask else None for ask in asked)


def _pairs(results: Sequence[Any], cotangents: Sequence[Any]) -> list[tuple[Tensor, Tensor]]:
    """Results and their cotangents, where there are both."""
    both = zip(results, cotangents, strict=True)
    return [(r, c) for r, c in both if r is not None and c is not None]


def _solve(solver: Solver, terms: Terms, wanted: Sequence[bool]) -> _Kept:
    leaves = h, J, K = _leaves(terms[:3], wanted)
    with torch.set_grad_enabled(any(wanted)):
        problem = solver.problem(Terms(h, J, K, terms.visible))
        moments = solver.sampler._answer(problem, solver.correlations, solver.seed)
    return _Kept(moments, leaves, (moments.probability, moments.log_partition) if any(wanted) else ())


class _Moments(torch.autograd.Function):
    """(h, J, K, visible) -> P, log Z or None, correlations or None, visible, and the state for the backward pass."""

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor, _Kept]:
        *tensors, solver, differentiated = inputs
        terms = Terms(*tensors)
        kept = _solve(
            solver, terms, [differentiated and t is not None and t.requires_grad for t in terms[:3]]
        )
        found = kept.moments
        log_z, pairs = (None if t is None else t.detach() for t in (found.log_partition, found.correlation))
        # Rounding can push a certain spin above 1.
        return found.probability.detach().clamp(0, 1), log_z, pairs, found.visible, kept

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        *terms, ctx.solver, _ = inputs
        _, _, pairs, visible, ctx.kept = output
        ctx.save_for_backward(*terms)
        ctx.save_for_forward(*terms)
        ctx.mark_non_differentiable(*(t for t in (pairs, visible) if t is not None))

    @staticmethod
    def backward(ctx: Any, v: Tensor, u: Tensor | None, *rest: Any) -> Gradients:
        kept = ctx.kept if ctx.kept.results else None
        found: Any = _Gradient.apply(
            *ctx.saved_tensors, v, u, ctx.solver, tuple(ctx.needs_input_grad[:3]), kept
        )
        return *found, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Gradients:
        terms = ctx.saved_tensors
        v, u = torch.zeros_like(terms[0]), None
        if ctx.kept.moments.log_partition is not None:
            u = torch.zeros_like(terms[0][..., 0])
        # The derivative of Σ v P + Σ u log Z along the tangents is linear in v and u.
        found: Any = _Second.apply(*terms, v, u, *tangents[:3], ctx.solver, (False,) * 3)
        return *found[3:], None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        *terms, solver, differentiated = inputs
        folded = folded_terms(Terms(*terms), in_dims[:4], info.batch_size)
        result: Any = _Moments.apply(*folded, solver, differentiated)
        p, log_z, pairs, visible, kept = result
        # The graph belongs to the larger batch; the backward pass builds a new one.
        return (p, log_z, pairs, visible, _Kept(kept.moments)), (*dims_of(p, log_z, pairs), 0, None)


class _Gradient(torch.autograd.Function):
    """(h, J, K, visible, v, u) -> ∂L/∂h, ∂L/∂J and ∂L/∂K in their shapes, None where not wanted."""

    @staticmethod
    def forward(*inputs: Any) -> Gradients:
        *tensors, v, u, solver, wanted, kept = inputs
        if kept is None:
            kept = _solve(solver, Terms(*tensors), wanted)
        asked = [want and t is not None for t, want in zip(kept.leaves, wanted, strict=True)]
        chosen = [t for t, ask in zip(kept.leaves, asked, strict=True) if ask]
        with torch.enable_grad(), without_autocast(tensors[0]):
            return _present(_cotangents_through(_pairs(kept.results, (v, u)), chosen), asked)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *tensors, ctx.solver, ctx.wanted, _ = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *w: Tensor | None) -> Gradients:
        found: Any = _Second.apply(*ctx.saved_tensors, *w, ctx.solver, tuple(ctx.needs_input_grad[:3]))
        h, J, K, v, u = found
        return h, J, K, None, v, u, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Gradients:
        *terms, v, u = ctx.saved_tensors
        t_v, t_u = (
            None if t is None else torch.zeros_like(t) if d is None else d
            for t, d in ((v, tangents[4]), (u, tangents[5]))
        )
        linear: Any = _Gradient.apply(*terms, t_v, t_u, ctx.solver, ctx.wanted, None)
        if all(t is None for t in tangents[:3]):
            return tuple(linear)
        # The Hessian is symmetric, and the gradient linear in v and u.
        curved: Any = _Second.apply(*terms, v, u, *tangents[:3], ctx.solver, ctx.wanted)
        return tuple(None if b is None else a + b for a, b in zip(curved[:3], linear, strict=True))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        *tensors, solver, wanted, _ = inputs
        folded = _folded(tensors, in_dims, info.batch_size)
        found: Any = _Gradient.apply(*folded, solver, wanted, None)
        outputs = [unfolded(g, t, d) for g, t, d in zip(found, tensors[:3], in_dims[:3], strict=True)]
        return tuple(outputs), dims_of(*outputs)


def _cotangents_through(pairs: list[tuple[Tensor, Tensor]], leaves: list[Tensor]) -> tuple[Tensor, ...]:
    """Σ ∂r/∂leaf · c over results and their cotangents."""
    results, cotangents = zip(*pairs, strict=True)
    options: Any = {"retain_graph": True, "materialize_grads": True}
    if batched_cotangent(*cotangents):
        return torch.autograd.grad(results, leaves, cotangents, **options)
    # Passing cotangents to torch.autograd.grad loads sympy, a quarter of a second.
    loss = sum(((r * c).sum() for r, c in pairs[1:]), (pairs[0][0] * pairs[0][1]).sum())
    return torch.autograd.grad(loss, leaves, **options)


class _Second(torch.autograd.Function):
    """(h, J, K, visible, v, u, w of h, of J, of K) -> the gradient of Σ w g in h, J, K, v and u."""

    @staticmethod
    def forward(*inputs: Any) -> Gradients:
        *terms, visible, v, u, w_h, w_J, w_K, solver, wanted = inputs
        directions = (w_h, w_J, w_K)
        along_or_wanted = [w is not None or want for w, want in zip(directions, wanted, strict=True)]
        leaves = h, J, K, *_ = _leaves((*terms, v, u), (*along_or_wanted, True, True))
        asked = [t is not None and want for t, want in zip(leaves, (*wanted, True, True), strict=True)]
        with torch.enable_grad():
            with without_autocast(h):
                results = solver.sampler._smooth_moments(solver.problem(Terms(h, J, K, visible)))
            pairs, along = _pairs(results, leaves[3:]), _pairs(leaves[:3], directions)
            first = torch.autograd.grad(
                [r for r, _ in pairs],
                [t for t, _ in along],
                [c for _, c in pairs],
                create_graph=True,
                materialize_grads=True,
            )
        chosen = [t for t, ask in zip(leaves, asked, strict=True) if ask]
        with without_autocast(v):
            found = torch.autograd.grad(first, chosen, [w for _, w in along], materialize_grads=True)
        return _present(found, asked)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.name = inputs[-2].sampler.name

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Gradients:
        raise UnsupportedError(
            "gradient", f"expected at most second derivatives through sampler '{ctx.name}', got a third."
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        *tensors, solver, wanted = inputs
        size = info.batch_size
        folded = _folded(tensors[:6], in_dims, size)
        w = [
            None if t is None or like is None else mapped_first(t, d, size).reshape(like.shape)
            for t, d, like in zip(tensors[6:], in_dims[6:9], folded[:3], strict=True)
        ]
        found: Any = _Second.apply(*folded, *w, solver, wanted)
        terms = [unfolded(g, t, d) for g, t, d in zip(found, tensors[:3], in_dims[:3], strict=False)]
        outputs = [*terms, *found[3:]]
        return tuple(outputs), dims_of(*outputs)


def _folded(tensors: Sequence[Any], dims: Sequence[int | None], size: int) -> list[Tensor | None]:
    """h, J, K, visible, v and u of the larger batch, with J and K expanded for every element."""
    terms = folded_terms(Terms(*tensors[:4]), tuple(dims[:4]), size, own=True)  # type: ignore[arg-type]  # four
    cotangents = [
        None if t is None else mapped_first(t, d, size) for t, d in zip(tensors[4:6], dims[4:6], strict=True)
    ]
    return [*terms, *cotangents]


for _function in (_Moments, _Gradient, _Second):
    # torch reads the signature in every call, and computing it takes longer than one small problem.
    _function.forward.__signature__ = inspect.signature(_function.forward)  # type: ignore[union-attr]  # of a function
