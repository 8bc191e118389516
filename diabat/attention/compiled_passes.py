"""Autograd functions of compiled passes, that keep their arguments only; operators take over in a second derivative."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from diabat.ising import without_autocast
from diabat.samplers.folding import refuse_batched_cotangent

Maybe = Tensor | None


class CompiledPasses(ABC):
    """Both compiled passes of one call, and the same by operators, each of the same terms."""

    @abstractmethod
    def results(self, *terms: Maybe) -> tuple[Maybe, ...]:
        """The forward pass."""

    @abstractmethod
    def gradient(self, terms: Sequence[Any], wanted: Sequence[bool], *cotangents: Maybe) -> Sequence[Maybe]:
        """Derivatives by the terms, at least the wanted ones; a cotangent of None is 0."""

    @abstractmethod
    def by_operators(self, *terms: Any) -> Sequence[Maybe]:
        """The results by operators that autograd differentiates again."""

    def __call__(self, *terms: Maybe) -> Any:
        """The results, differentiable."""
        return _Compiled.apply(self, *terms) if torch.is_grad_enabled() else self.results(*terms)


class _Compiled(torch.autograd.Function):
    """(passes, their terms) -> their results."""

    @staticmethod
    def forward(ctx: Any, passes: CompiledPasses, *terms: Maybe) -> tuple[Maybe, ...]:
        ctx.passes = passes
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*terms)
        return passes.results(*terms)

    @staticmethod
    def backward(ctx: Any, *cotangents: Maybe) -> tuple[Maybe, ...]:
        refuse_batched_cotangent(*cotangents)
        terms, wanted = ctx.saved_tensors, ctx.needs_input_grad[1:]  # once: checkpointing computes terms here
        if all(g is None for g in cotangents):
            return (None,) * (1 + len(terms))
        with without_autocast(terms[0]):
            if not torch.is_grad_enabled():
                return None, *ctx.passes.gradient(terms, wanted, *cotangents)
            of_wanted = iter(slopes(ctx.passes.by_operators, wanted, *terms, *cotangents))
        return None, *(next(of_wanted) if want else None for want in wanted)


def slopes(
    function: Callable[..., Sequence[Maybe]], wanted: Sequence[bool], *terms_and_cotangents: Any
) -> tuple[Tensor, ...]:
    """Derivatives by the arguments that are wanted, of the results times their cotangents, which follow them all."""
    terms, upstream = list(terms_and_cotangents[: len(wanted)]), terms_and_cotangents[len(wanted) :]
    leaves = []
    for i, want in enumerate(wanted):
        if want:
            # Separate leaves: the cotangents may also depend on the terms, but are held fixed here.
            linked = terms[i].requires_grad
            terms[i] = terms[i].view_as(terms[i]) if linked else terms[i].detach().requires_grad_()
            leaves.append(terms[i])
    # A result of other terms only, as the mass of keys without fields, is constant.
    both = zip(function(*terms), upstream, strict=True)
    pairs = [(r, g) for r, g in both if g is not None and r is not None and r.requires_grad]
    if not pairs:
        return tuple(map(torch.zeros_like, leaves))
    results, cotangents = zip(*pairs, strict=True)
    return torch.autograd.grad(results, leaves, cotangents, create_graph=True, materialize_grads=True)
