r"""Derivatives of analytic moments: first and second, by autograd and under ``torch.func``.

If the graph of a backend can be differentiated again (``AnalyticSampler.smooth``), autograd differentiates it; that of
``mean_field`` has the last two functions below as its derivatives.  For all other analytic backends, and under
torch.func, whose transforms hide values, three autograd functions of plain tensors wrap the backend; the backward pass
of each is the next one:

    moments   (h, J, K, visible)                          ->  P(s = +1), log Z
    gradient  (h, J, K, visible, v, u)                    ->  g = ∂L/∂(h, J, K),      L = Σ v P + Σ u log Z
    second    (h, J, K, visible, v, u, w of h, of J, of K)  ->  ∂(Σ w g)/∂(h, J, K, v, u)

The first two use the solver and the gradient of the backend, the last its ``_smooth_moments``.  A third derivative
raises.  Their last argument is a `Solver`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad

from diabat.ising import Ising, without_autocast
from diabat.ising.edges import Edges
from diabat.samplers.capabilities import UnsupportedError
from diabat.samplers.folding import Terms, batched_cotangent, dims_of, folded_terms, mapped_first, unfolded

if TYPE_CHECKING:
    from diabat.samplers.answers import Moments, Solution

Gradients = tuple[Tensor | None, ...]


class Backend(Protocol):
    """What derivatives ask of an `AnalyticSampler`."""

    name: str

    def _answer(self, ising: Ising, correlations: bool, seed: int) -> Moments: ...

    def _smooth_moments(self, ising: Ising) -> tuple[Tensor, Tensor | None]: ...


@dataclass(frozen=True, eq=False)
class Solver:
    """One call of a backend: its arguments except the problem.

    Attributes:
        edges: The edges whose values take the place of J; None for matrices.
        wanted: Which of h, J and K are differentiated.
        kept: The graph of an earlier pass.
    """

    sampler: Backend
    correlations: bool
    seed: int
    edges: Edges | None
    wanted: Sequence[bool]
    kept: _Kept | None = None

    def problem(self, terms: Terms) -> Ising:
        """The problem of these terms."""
        J: Tensor | Edges | None = terms.couplings
        if self.edges is not None and terms.couplings is not None:
            J = self.edges.with_values(terms.couplings)
        return Ising(terms.fields, J, terms.visible, terms.three_body, check=False)

    def solve(self, terms: Terms, wanted: Sequence[bool]) -> _Kept:
        """Call the backend, and keep its graph if a term is wanted."""
        leaves = h, J, K = _leaves(terms[:3], wanted)
        with torch.set_grad_enabled(any(wanted)):
            problem = self.problem(Terms(h, J, K, terms.visible))
            moments = self.sampler._answer(problem, self.correlations, self.seed)
        return _Kept(moments, leaves, (moments.probability, moments.log_partition) if any(wanted) else ())


@dataclass(frozen=True, eq=False)
class _Kept:
    """The backend's graph from its leaves to its results; no tuple, whose tensors torch.func would wrap."""

    moments: Moments | None
    leaves: Gradients = ()
    results: Gradients = ()

    def follows(self, wanted: Sequence[bool]) -> bool:
        """Whether the graph reaches the wanted terms; a transform of torch.func hides that an outer one wants them."""
        if not self.results:
            return False
        both = zip(self.leaves, wanted, strict=True)
        return all(leaf is None or leaf.requires_grad or not want for leaf, want in both)


def differentiated(ising: Ising) -> bool:
    """Whether autograd follows a call with this problem, backward or forward."""
    if forward_ad._current_level >= 0:
        return True
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in ising.terms)


def analytic_moments(sampler: Backend, ising: Ising, correlations: bool, seed: int) -> Moments:
    """Moments of a problem, differentiable in h, J and K at least twice; unsupported derivatives raise."""
    solver = Solver(sampler, correlations, seed, ising.edges, (torch.is_grad_enabled(),) * 3)
    result: Any = _Moments.apply(*ising.terms, ising.visible, solver)
    p, log_z, pairs, visible, kept = result
    return replace(kept.moments, probability=p, log_partition=log_z, correlation=pairs, visible=visible)


def differentiable_gradient(
    sampler: Backend, solution: Solution, ising: Ising, wanted: Sequence[bool], terms: Sequence[Any], v: Tensor
) -> Gradients:  # fmt: skip
    """The gradient of Σ v P by the ``wanted`` of the terms h, J and K, at their solution, differentiable once more."""
    leaves = h, J, K = _leaves(terms, wanted)
    solver = Solver(sampler, False, 0, ising.edges, wanted)
    with torch.enable_grad():
        h, J, K = leaves
        results = solution.attached(solver.problem(Terms(h, J, K, ising.visible)))
    solver = replace(solver, kept=_Kept(None, leaves, results))
    slopes: Any = _Gradient.apply(*terms, ising.visible, v, None, solver)
    return tuple(slopes)


def smooth_gradient(
    terms: Sequence[Tensor | None], solve: Callable[..., Any], wanted: Sequence[bool], v: Tensor, u: Tensor | None
) -> Gradients:  # fmt: skip
    """Differentiable gradient of Σ v P + Σ u log Z by the ``wanted`` terms; ``solve`` gives P and log Z of terms."""
    # Separate leaves: v may also depend on the terms, but is held fixed here.
    terms = [None if t is None else t.view_as(t) for t in terms]
    p, log_z = solve(*terms)
    asked = [t is not None and want for t, want in zip(terms, wanted, strict=False)]
    loss = (p * v).sum() + (0 if u is None else (log_z * u).sum())
    chosen = _chosen(terms, asked)
    return _present(torch.autograd.grad(loss, chosen, create_graph=True, materialize_grads=True), asked)


def _leaves(terms: Sequence[Tensor | None], wanted: Sequence[bool]) -> Any:
    return tuple(
        None if t is None else t.detach().requires_grad_(bool(want))
        for t, want in zip(terms, wanted, strict=True)
    )


def _chosen(terms: Sequence[Tensor | None], asked: Sequence[bool]) -> list[Tensor]:
    return [t for t, ask in zip(terms, asked, strict=True) if t is not None and ask]


def _present(slopes: Iterable[Tensor], asked: Sequence[bool]) -> Gradients:
    """Tensors where they are asked for, None elsewhere."""
    slopes = iter(slopes)
    return tuple(next(slopes) if ask else None for ask in asked)


def _pairs(results: Sequence[Any], cotangents: Sequence[Any]) -> list[tuple[Tensor, Tensor]]:
    """Results and their cotangents, where there are both."""
    both = zip(results, cotangents, strict=True)
    return [(r, c) for r, c in both if r is not None and c is not None]


class _Opaque(torch.autograd.Function):
    """Keeps its inputs; under vmap a call for the larger batch, with J and K expanded for every element.

    The outputs are gradients of h, J and K in their shapes, and others in the shape of the batch.
    """

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *tensors, ctx.solver = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        *tensors, solver = inputs
        size, dims = info.batch_size, in_dims[:-1]
        terms = folded_terms(Terms(*tensors[:4]), dims[:4], size, own=True)
        cotangents = [
            None if t is None else mapped_first(t, d, size)
            for t, d in zip(tensors[4:], dims[4:], strict=True)
        ]
        directions = [
            None if t is None or like is None else t.reshape(like.shape)
            for t, like in zip(cotangents[2:], terms[:3], strict=False)
        ]
        slopes: Any = cls.apply(*terms, *cotangents[:2], *directions, replace(solver, kept=None))
        own = [unfolded(g, t, d) for g, t, d in zip(slopes, tensors[:3], dims[:3], strict=False)]
        return (*own, *slopes[3:]), dims_of(*own, *slopes[3:])


class _Moments(_Opaque):
    """(h, J, K, visible) -> P, log Z or None, correlations or None, visible, and the state for the backward pass."""

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor, _Kept]:
        *tensors, solver = inputs
        terms = Terms(*tensors)
        both = zip(terms[:3], solver.wanted, strict=True)
        kept = solver.solve(terms, [want and t is not None and t.requires_grad for t, want in both])
        m = kept.moments
        log_z, pairs = (None if t is None else t.detach() for t in (m.log_partition, m.correlation))
        # Rounding can push a certain spin above 1.
        return m.probability.detach().clamp(0, 1), log_z, pairs, m.visible, kept

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        _Opaque.setup_context(ctx, inputs, output)
        _, _, pairs, visible, ctx.kept = output
        ctx.mark_non_differentiable(*(t for t in (pairs, visible) if t is not None))

    @staticmethod
    def backward(ctx: Any, v: Tensor, u: Tensor | None, *rest: Any) -> Gradients:
        wanted = tuple(ctx.needs_input_grad[:3])
        solver = replace(ctx.solver, wanted=wanted, kept=ctx.kept if ctx.kept.follows(wanted) else None)
        slopes: Any = _Gradient.apply(*ctx.saved_tensors, v, u, solver)
        return *slopes, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Gradients:
        terms = ctx.saved_tensors
        v, u = torch.zeros_like(terms[0]), None
        if ctx.kept.moments.log_partition is not None:
            u = torch.zeros_like(terms[0][..., 0])
        # The derivative of Σ v P + Σ u log Z along the tangents is linear in v and u.
        slopes: Any = _Second.apply(*terms, v, u, *tangents[:3], replace(ctx.solver, wanted=(False,) * 3))
        return *slopes[3:], None, None, None

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        *terms, solver = inputs
        result: Any = cls.apply(*folded_terms(Terms(*terms), in_dims[:4], info.batch_size), solver)
        *tensors, kept = result
        # The graph belongs to the larger batch; the backward pass builds a new one.
        return (*tensors, _Kept(kept.moments)), (*dims_of(*tensors), None)


class _Gradient(_Opaque):
    """(h, J, K, visible, v, u) -> ∂L/∂h, ∂L/∂J and ∂L/∂K in their shapes, None where not wanted."""

    @staticmethod
    def forward(*inputs: Any) -> Gradients:
        *tensors, v, u, solver = inputs
        kept = solver.kept or solver.solve(Terms(*tensors), solver.wanted)
        asked = [want and t is not None for t, want in zip(kept.leaves, solver.wanted, strict=True)]
        with torch.enable_grad(), without_autocast(tensors[0]):
            pairs = _pairs(kept.results, (v, u))
            return _present(_cotangents_through(pairs, _chosen(kept.leaves, asked)), asked)

    @staticmethod
    def backward(ctx: Any, *w: Tensor | None) -> Gradients:
        solver = replace(ctx.solver, wanted=tuple(ctx.needs_input_grad[:3]), kept=None)
        slopes: Any = _Second.apply(*ctx.saved_tensors, *w, solver)
        h, J, K, v, u = slopes
        return h, J, K, None, v, u, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Gradients:
        *terms, v, u = ctx.saved_tensors
        solver = replace(ctx.solver, kept=None)
        t_v, t_u = (
            None if t is None else torch.zeros_like(t) if d is None else d
            for t, d in ((v, tangents[4]), (u, tangents[5]))
        )
        linear: Any = _Gradient.apply(*terms, t_v, t_u, solver)
        if all(t is None for t in tangents[:3]):
            return tuple(linear)
        # The Hessian is symmetric, and the gradient linear in v and u.
        curved: Any = _Second.apply(*terms, v, u, *tangents[:3], solver)
        return tuple(None if b is None else a + b for a, b in zip(curved[:3], linear, strict=True))


def _cotangents_through(pairs: list[tuple[Tensor, Tensor]], leaves: list[Tensor]) -> tuple[Tensor, ...]:
    """Σ ∂r/∂leaf · c over results and their cotangents."""
    results, cotangents = zip(*pairs, strict=True)
    options: Any = {"retain_graph": True, "materialize_grads": True}
    if batched_cotangent(*cotangents):
        return torch.autograd.grad(results, leaves, cotangents, **options)
    # Passing cotangents to torch.autograd.grad loads sympy, a quarter of a second.
    loss = sum(((r * c).sum() for r, c in pairs[1:]), (pairs[0][0] * pairs[0][1]).sum())
    return torch.autograd.grad(loss, leaves, **options)


class _Second(_Opaque):
    """(h, J, K, visible, v, u, w of h, of J, of K) -> the gradient of Σ w g in h, J, K, v and u."""

    @staticmethod
    def forward(*inputs: Any) -> Gradients:
        *terms, visible, v, u, w_h, w_J, w_K, solver = inputs
        directions = (w_h, w_J, w_K)
        followed = [w is not None or want for w, want in zip(directions, solver.wanted, strict=True)]
        leaves = h, J, K, *_ = _leaves((*terms, v, u), (*followed, True, True))
        asked = [t is not None and want for t, want in zip(leaves, (*solver.wanted, True, True), strict=True)]
        with torch.enable_grad():
            with without_autocast(h):
                results = solver.sampler._smooth_moments(solver.problem(Terms(h, J, K, visible)))
            (r, c), (t, w) = (
                zip(*pairs, strict=True)
                for pairs in (_pairs(results, leaves[3:]), _pairs(leaves[:3], directions))
            )
            first = torch.autograd.grad(r, t, c, create_graph=True, materialize_grads=True)
        with without_autocast(v):
            slopes = torch.autograd.grad(first, _chosen(leaves, asked), w, materialize_grads=True)
        return _present(slopes, asked)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Gradients:
        name = ctx.solver.sampler.name
        raise UnsupportedError("gradient", f"at most second derivatives through sampler '{name}'", "a third")


for _function in (_Moments, _Gradient, _Second):
    # torch reads the signature in every call, and computing it takes longer than one small problem.
    _function.forward.__signature__ = inspect.signature(_function.forward)  # type: ignore[union-attr]  # of a function
