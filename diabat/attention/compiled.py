"""Samplers inside the graphs of ``torch.compile`` and ``torch.export``: one operator that calls the bridge.

Tracing a sampler would unroll its kernels, or never end.  A traced layer calls ``diabat::probabilities`` instead, an
operator with a fake kernel (shapes only) whose real one runs what runs without a compiler.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from diabat.ising import Ising
from diabat.samplers.base import Sampler, UnsupportedError
from diabat.samplers.folding import Terms
from diabat.samplers.registry import backend_factory, sampler
from diabat.samplers.state import in_place

if TYPE_CHECKING:
    from diabat.attention.bridge import GradientBridge

_living: WeakValueDictionary[str, GradientBridge] = WeakValueDictionary()
_numbers = itertools.count()
_outside: dict[Callable[..., Any], Callable[..., Any]] = {}


def outside_graph(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function for calls from code that is being compiled: it breaks the graph and is not traced.

    ``torch.compiler.disable`` as a decorator would load the compiler, a second, with this package.
    """
    wrapped = _outside.get(function)
    if wrapped is None:
        wrapped = _outside[function] = torch.compiler.disable(function)
    return wrapped


def register(bridge: GradientBridge) -> str:
    """Name of a bridge in graphs: its options where those describe it, else a number that holds in this process."""
    name = _description(bridge) or f"bridge {next(_numbers)}"
    _living[name] = bridge
    return name


def compiled_probabilities(terms: Terms, parameters: Sequence[Tensor], name: str) -> Tensor:
    """Probabilities by the operator, for code that is being traced.

    Raises:
        UnsupportedError: If the graph is to be exported and the backend lives in this process only.
    """
    if torch.compiler.is_exporting() and not name.startswith("{"):
        raise UnsupportedError(
            "torch.export",
            "expected a sampler that its options describe, with the estimator 'exact' "
            "(exact, banded or mean_field), got one that draws or is not registered.",
        )
    differentiated = torch.is_grad_enabled()
    wanted = [differentiated and t is not None and t.requires_grad for t in (*terms[:3], *parameters)]
    probability: Tensor
    probability, _ = torch.ops.diabat.probabilities(*terms, list(parameters), name, wanted)
    return probability


def _description(bridge: GradientBridge) -> str | None:
    """JSON of a backend without state that any process can build again."""
    if bridge.estimator != "exact" or bridge.num_reads is not None:
        return None
    backend = bridge.sampler
    try:
        known = backend_factory(backend.name) is type(backend)
        return json.dumps({"sampler": backend.name, "options": backend.options}) if known else None
    except (ValueError, TypeError):  # no such backend, or options that JSON does not have
        return None


def _find(name: str) -> GradientBridge:
    bridge = _living.get(name)
    return _rebuilt(name) if bridge is None else bridge


@lru_cache(maxsize=32)
def _rebuilt(name: str) -> GradientBridge:
    from diabat.attention.bridge import GradientBridge

    if not name.startswith("{"):
        raise RuntimeError("sampler: expected the layer that this graph was compiled with, which is gone.")
    described = json.loads(name)
    built: Sampler = sampler(described["sampler"], **described["options"])
    return GradientBridge(built, "exact")


class _Kept(NamedTuple):
    """Leaves and result of a forward pass, with the graph between them."""

    leaves: tuple[Tensor | None, ...]
    result: Tensor


def _run(
    terms: Terms, parameters: Sequence[Tensor], bridge: GradientBridge, wanted: Sequence[bool], seed: int
) -> _Kept:
    """Run the bridge on leaves of their own."""
    leaves = [
        None if t is None else t.detach().requires_grad_(want)
        for t, want in zip((*terms[:3], *parameters), wanted, strict=True)
    ]
    fields, couplings, three_body, *own = leaves
    assert fields is not None
    problem = Ising(fields, couplings, terms.visible, three_body, check=False)
    with torch.set_grad_enabled(any(wanted)), in_place(bridge.sampler, [p for p in own if p is not None]):
        result = bridge.probabilities(problem, seed)
    return _Kept(tuple(leaves), result)


@lru_cache(maxsize=1)
def _usual_dispatch() -> tuple[Any, Any]:
    """Which of torch's dispatch keys a new thread includes and excludes."""

    def ask() -> tuple[Any, Any]:
        return torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(ask).result()


def _with_autograd() -> Any:
    """Let operations record graphs again: inside an operator torch switches autograd off for the thread.

    A thread of its own would do without torch's internals, and costs half a millisecond in each pass.
    """
    return torch._C._ForceDispatchKeyGuard(*_usual_dispatch())


@torch.library.custom_op("diabat::probabilities", mutates_args=())
def _probabilities(
    fields: Tensor,
    couplings: Tensor | None,
    three_body: Tensor | None,
    visible: Tensor | None,
    parameters: list[Tensor],
    bridge: str,
    wanted: list[bool],
) -> tuple[Tensor, Tensor]:
    """P(s = +1), and the seed as a tensor, on which the graph of this call hangs as long as it lives."""
    found = _find(bridge)
    seed = torch.randint(2**31, ()) if found.draws else torch.zeros((), dtype=torch.int64)
    terms = Terms(fields, couplings, three_body, visible)
    with _with_autograd():
        kept = _run(terms, parameters, found, wanted, int(seed))
    if any(wanted):
        seed.kept = kept  # type: ignore[attr-defined]  # an attribute of our own
    return kept.result.detach().clone(), seed


@_probabilities.register_fake
def _(fields: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(fields, memory_format=torch.contiguous_format), fields.new_empty(
        (), dtype=torch.int64, device="cpu"
    )


@torch.library.custom_op("diabat::probabilities_backward", mutates_args=())
def _probabilities_backward(
    cotangent: Tensor,
    seed: Tensor,
    fields: Tensor,
    couplings: Tensor | None,
    three_body: Tensor | None,
    visible: Tensor | None,
    parameters: list[Tensor],
    bridge: str,
    wanted: list[bool],
) -> list[Tensor]:
    """Gradients of what is wanted, in order."""
    with _with_autograd():
        kept: _Kept | None = getattr(seed, "kept", None)
        if kept is None:  # the compiler passed a copy of the seed: the same answer once more
            terms = Terms(fields, couplings, three_body, visible)
            kept = _run(terms, parameters, _find(bridge), wanted, int(seed))
        chosen = [t for t, want in zip(kept.leaves, wanted, strict=True) if want and t is not None]
        found = torch.autograd.grad(kept.result, chosen, cotangent, retain_graph=True, materialize_grads=True)
        return [g.contiguous() for g in found]


@_probabilities_backward.register_fake
def _(
    cotangent: Tensor,
    seed: Tensor,
    fields: Tensor,
    couplings: Tensor | None,
    three_body: Tensor | None,
    visible: Tensor | None,
    parameters: list[Tensor],
    bridge: str,
    wanted: list[bool],
) -> list[Tensor]:
    leaves = (fields, couplings, three_body, *parameters)
    return [
        torch.empty_like(t, memory_format=torch.contiguous_format)
        for t, want in zip(leaves, wanted, strict=True)
        if want and t is not None
    ]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *terms, parameters, ctx.bridge, ctx.wanted = inputs
    ctx.save_for_backward(*terms, output[1], *parameters)


def _backward(ctx: Any, cotangent: Tensor, of_seed: Tensor | None) -> tuple[Any, ...]:
    *terms, seed = ctx.saved_tensors[:5]
    parameters = list(ctx.saved_tensors[5:])
    found = iter(
        torch.ops.diabat.probabilities_backward(cotangent, seed, *terms, parameters, ctx.bridge, ctx.wanted)
    )
    h, J, K, *own = (next(found) if want else None for want in ctx.wanted)
    return h, J, K, None, own, None, None


_probabilities.register_autograd(_backward, setup_context=_save)
