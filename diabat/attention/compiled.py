"""Samplers inside the graphs of ``torch.compile`` and ``torch.export``: one operator that calls the bridge.

Tracing a sampler would unroll its loops, or not end.  A traced layer calls the operator ``diabat::probabilities``
instead.  Its fake kernel gives shapes only; its real kernel runs the same code as without a compiler.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from diabat.attention.bridge import GradientBridge, Problem
from diabat.ising.edges import Edges
from diabat.samplers.base import Sampler
from diabat.samplers.capabilities import UnsupportedError
from diabat.samplers.folding import Terms
from diabat.samplers.registry import backend_factory, sampler
from diabat.samplers.seeds import draw_seed
from diabat.samplers.state import in_place

_living: WeakValueDictionary[str, GradientBridge] = WeakValueDictionary()
_numbers = itertools.count()


class LayerBridge(GradientBridge):
    """The bridge of a layer, which compiled graphs find by a name: its options if they describe it, or a number."""

    def __init__(self, sampler: Sampler, gradient: str = "auto", num_reads: int | None = None) -> None:
        super().__init__(sampler, gradient, num_reads)
        self._name = _description(self) or f"bridge {next(_numbers)}"
        _living[self._name] = self

    def answer(self, odds: bool | None, problem: Problem, seed: int | None) -> Tensor:
        """As in the base class; in traced code by the operator, unless log-odds are operators of torch.

        UnsupportedError if the graph is exported and the backend cannot be rebuilt in another process.
        """
        fields, couplings, visible, three_body = problem
        own = odds is not None and (self.draws or self.is_plain(fields))
        if own or not torch.compiler.is_compiling():
            return super().answer(odds, problem, seed)
        if torch.compiler.is_exporting() and not self._name.startswith("{"):
            raise UnsupportedError(
                "torch.export",
                "a registered sampler with the estimator 'exact' (exact, banded or mean_field)",
                "one that draws or is not registered",
            )
        assert not isinstance(couplings, Edges)
        parameters = list(self.sampler.parameters())
        terms = (fields, couplings, three_body, *parameters)
        wanted = [torch.is_grad_enabled() and t is not None and t.requires_grad for t in terms]
        answer: Tensor
        answer, _ = torch.ops.diabat.probabilities(
            fields, couplings, three_body, visible, parameters, self._name, wanted, seed, odds
        )
        return answer


def _description(bridge: GradientBridge) -> str | None:
    """Describe a backend without state as JSON, from which any process can rebuild it."""
    if bridge.estimator != "exact" or bridge.num_reads is not None:
        return None
    backend = bridge.sampler
    try:
        known = backend_factory(backend.name) is type(backend)
        return json.dumps({"sampler": backend.name, "options": backend.options}) if known else None
    except (ValueError, TypeError):  # no such backend, or options that JSON does not have
        return None


def _find(name: str) -> GradientBridge:
    return _living.get(name) or _rebuilt(name)


@lru_cache(maxsize=32)
def _rebuilt(name: str) -> GradientBridge:
    if not name.startswith("{"):
        raise RuntimeError("sampler: the layer that this graph was compiled with no longer exists.")
    described = json.loads(name)
    return GradientBridge(sampler(described["sampler"], **described["options"]), "exact")


class _Kept(NamedTuple):
    """Leaves and result of a forward pass, with the graph between them."""

    leaves: tuple[Tensor | None, ...]
    result: Tensor


def _run(
    terms: Terms, parameters: Sequence[Tensor], bridge: GradientBridge, wanted: Sequence[bool], seed: int,
    odds: bool | None,
) -> _Kept:  # fmt: skip
    """Run the bridge on new leaf tensors."""
    leaves = [
        None if t is None else t.detach().requires_grad_(want)
        for t, want in zip((*terms[:3], *parameters), wanted, strict=True)
    ]
    fields, couplings, three_body, *own = leaves
    assert fields is not None
    with torch.set_grad_enabled(any(wanted)), in_place(bridge.sampler, [p for p in own if p is not None]):
        result = bridge.answer(odds, (fields, couplings, terms.visible, three_body), seed)
    return _Kept(tuple(leaves), result)


@lru_cache(maxsize=1)
def _usual_dispatch() -> tuple[Any, Any]:
    """Dispatch keys that torch includes and excludes in a new thread."""

    def keys() -> tuple[Any, Any]:
        return torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(keys).result()


def _with_autograd() -> Any:
    """Re-enable autograd inside an operator, where torch disables it for the thread.

    Running in a new thread would avoid torch's private functions, but costs half a millisecond per pass.
    """
    return torch._C._ForceDispatchKeyGuard(*_usual_dispatch())


@torch.library.custom_op("diabat::probabilities", mutates_args=())
def _probabilities(
    fields: Tensor, couplings: Tensor | None, three_body: Tensor | None, visible: Tensor | None,
    parameters: list[Tensor], bridge: str, wanted: list[bool], seed: int | None, odds: bool | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """P(s = +1) or log-odds, and the seed as a tensor; the graph of this call is an attribute of that tensor."""
    of_layer = _find(bridge)
    used = draw_seed(seed) if of_layer.draws else 0
    terms = Terms(fields, couplings, three_body, visible)
    with _with_autograd():
        kept = _run(terms, parameters, of_layer, wanted, used, odds)
    drawn = torch.tensor(used)
    if any(wanted):
        drawn.kept = kept  # type: ignore[attr-defined]  # an extra attribute, read in the backward pass
    return kept.result.detach().clone(), drawn


@_probabilities.register_fake
def _(fields: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(fields, memory_format=torch.contiguous_format), fields.new_empty(
        (), dtype=torch.int64, device="cpu"
    )


@torch.library.custom_op("diabat::probabilities_backward", mutates_args=())
def _probabilities_backward(
    cotangent: Tensor, seed: Tensor, fields: Tensor, couplings: Tensor | None, three_body: Tensor | None,
    visible: Tensor | None, parameters: list[Tensor], bridge: str, wanted: list[bool], odds: bool | None,
) -> list[Tensor]:  # fmt: skip
    """Gradients of the inputs that ``wanted`` selects, in order."""
    with _with_autograd():
        kept: _Kept | None = getattr(seed, "kept", None)
        if kept is None:  # the compiler passed a copy of the seed: compute the same result again
            terms = Terms(fields, couplings, three_body, visible)
            kept = _run(terms, parameters, _find(bridge), wanted, int(seed), odds)
        chosen = [t for t, want in zip(kept.leaves, wanted, strict=True) if want and t is not None]
        slopes = torch.autograd.grad(
            kept.result, chosen, cotangent, retain_graph=True, materialize_grads=True
        )
        return [g.contiguous() for g in slopes]


@_probabilities_backward.register_fake
def _(cotangent: Tensor, seed: Tensor, *inputs: Any) -> list[Tensor]:
    *terms, _visible, parameters, _bridge, wanted, _odds = inputs
    return [
        torch.empty_like(t, memory_format=torch.contiguous_format)
        for t, want in zip((*terms, *parameters), wanted, strict=True)
        if want and t is not None
    ]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *terms, parameters, ctx.bridge, ctx.wanted, _, ctx.odds = inputs
    ctx.save_for_backward(*terms, output[1], *parameters)


def _backward(ctx: Any, cotangent: Tensor, of_seed: Tensor | None) -> tuple[Any, ...]:
    h, J, K, visible, seed, *parameters = ctx.saved_tensors
    terms = h, J, K, visible, parameters
    slopes = iter(
        torch.ops.diabat.probabilities_backward(cotangent, seed, *terms, ctx.bridge, ctx.wanted, ctx.odds)
    )
    h, J, K, *own = (next(slopes) if want else None for want in ctx.wanted)
    return h, J, K, None, own, None, None, None, None


def _refuse_second(ctx: Any, *cotangents: Any) -> NoReturn:
    """The derivative of the derivative of the operator: always UnsupportedError."""
    got = "a second one; call the layer without torch.compile"
    raise UnsupportedError("gradient", "first derivatives of a compiled layer", got)


_probabilities.register_autograd(_backward, setup_context=_save)
_probabilities_backward.register_autograd(_refuse_second)
