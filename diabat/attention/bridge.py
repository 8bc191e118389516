"""The gradient bridge: differentiable spin probabilities from any sampler."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from diabat.attention.estimators import ESTIMATORS
from diabat.attention.sampled import SampledCall, sampled_probabilities
from diabat.checks import ArgumentError, check_count
from diabat.ising import Ising
from diabat.ising.edges import Edges
from diabat.samplers.analytic import AnalyticSampler
from diabat.samplers.base import Sampler
from diabat.samplers.call_checks import not_analytic, refuse_trace
from diabat.samplers.capabilities import Estimator, UnsupportedError
from diabat.samplers.folding import is_traced
from diabat.samplers.odds import flipped_log_odds
from diabat.samplers.registry import as_sampler
from diabat.samplers.seeds import draw_seed
from diabat.samplers.state import remembers

P = ParamSpec("P")
R = TypeVar("R")
Maybe = Tensor | None
Problem = tuple[Tensor, Tensor | Edges | None, Maybe, Maybe]
"""h [*batch, n]; J [*lead, n, n], edges or None; visible, bool or None; K or None: arguments of `diabat.Ising`."""
_LEAST = 1e-20  # a smaller P may have lost digits in float32
_outside: dict[Callable[..., Any], Callable[..., Any]] = {}


def outside_graphs(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that compiled code breaks the graph at its call and does not trace it.

    ``torch.compiler.disable`` as a decorator would load the compiler, about one second, when diabat is imported.
    """

    @functools.wraps(function)
    def called(*args: P.args, **options: P.kwargs) -> R:
        if not torch.compiler.is_compiling():
            return function(*args, **options)
        if function not in _outside:
            _outside[function] = torch.compiler.disable(function)
        result: R = _outside[function](*args, **options)
        return result

    return called


@outside_graphs
def spin_probabilities(
    fields: Tensor,
    couplings: Tensor | Edges | None,
    sampler: Sampler | str,
    *,
    gradient: str = "auto",
    visible: Tensor | None = None,
    three_body: Tensor | None = None,
    num_reads: int | None = None,
    seed: int | None = None,
    check: bool = True,
) -> Tensor:
    r"""Compute alpha_j = P(s_j = +1) under P(s) ∝ exp(Σ h s + Σ_{j<k} J s s + Σ K s s s), differentiably.

    Works under ``torch.func``; use ``check=False`` inside ``vmap``, where values cannot be checked.  Autocast is
    switched off inside.  ``torch.compile`` breaks the graph here; inside the layers it does not.

    Args:
        fields: h, [*batch, n], float32 or float64, or whatever else :class:`diabat.Ising` converts.
        couplings: J, [*lead, n, n], symmetric with zero diagonal, edges or a sparse tensor, or None.  Edge values get
            gradients as a matrix does.
        sampler: A sampler or the name of one.
        gradient: ``exact`` (the sampler's own derivative by autograd), ``straight_through``, ``linear_response``,
            ``covariance``, ``adjoint`` (the exact derivative of a simulated anneal), or ``auto`` (the sampler's
            first choice).
        visible: bool, broadcastable to [*batch, n].
        three_body: K, [*lead, n, n, n], or None.
        num_reads: Reads for sampling backends; None takes the sampler's own setting.
        seed: Seed of the reads; None draws one.
        check: Validate the problem.

    Returns:
        Probabilities [*batch, n] in the dtype of the (converted) fields; 0 for invisible spins.  Sampled ones are
        smoothed, (reads·P + 1/2)/(reads + 1), so that they are never all zero.

    Raises:
        IsingError: If the problem is not valid.
        UnsupportedError: If the sampler does not support the problem or the estimator.
    """
    refuse_trace()
    bridge = GradientBridge(as_sampler(sampler), gradient, num_reads)
    ising = Ising(fields, couplings, visible, three_body, check=check)
    return bridge.probabilities(ising, seed)


class GradientBridge:
    """A sampler with its estimator and number of reads, resolved and checked once.

    Args:
        sampler: The backend.
        gradient: Estimator, or ``auto``.
        num_reads: Reads for sampling backends; None takes the sampler's own setting.

    Attributes:
        estimator: The estimator, with ``auto`` resolved.
        draws: Whether results depend on a seed.
        analytic: The sampler, if it is analytic.
        remembers: Whether results depend on earlier calls.
        enumerates: Whether the compiled call of a window may enumerate its states in the place of the backend.

    Raises:
        ValueError: If ``num_reads`` is not an integer >= 1.
        UnsupportedError: If the sampler does not support the estimator, or the estimator does not use reads.
    """

    def __init__(self, sampler: Sampler, gradient: str = "auto", num_reads: int | None = None) -> None:
        self.sampler, self.gradient, self.num_reads = sampler, gradient, num_reads
        self.estimator = choose_estimator(sampler, gradient)
        if num_reads is not None:
            self.num_reads = check_count("num_reads", num_reads)
            if self.estimator == "exact":
                reason = f"gradient 'exact' differentiates the sampler's own moments, expected None, got {num_reads}."
                raise UnsupportedError("num_reads", reason)
        self.analytic = sampler if isinstance(sampler, AnalyticSampler) else None
        self.enumerates = self.analytic is not None and self.analytic.enumerates
        uses_reads = self.estimator != "exact" and ESTIMATORS[self.estimator].uses_reads
        self.draws = num_reads is not None or uses_reads or self.analytic is None
        self.remembers = self.draws and remembers(sampler)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy by building a new bridge with a copy of the sampler."""
        return type(self), (self.sampler, self.gradient, self.num_reads)

    def __call__(
        self,
        fields: Tensor,
        couplings: Tensor | Edges | None,
        visible: Tensor | None,
        three_body: Tensor | None = None,
        seed: int | None = None,
    ) -> Tensor:
        """Compute the probabilities of a problem without validating it, given edges only if it `takes_edges`.

        ``seed`` is that of a bridge that draws; None takes one from torch's global generator.
        """
        return self.answer(None, (fields, couplings, visible, three_body), seed)

    def is_plain(self, fields: Tensor) -> bool:
        """Whether log-odds of these fields are operators of torch that read no number."""
        return self.analytic is not None and self.analytic.plain and not fields.is_cpu

    @property
    def takes_edges(self) -> bool:
        """Whether edges and a matrix give the same bits, and edges are not expanded."""
        able = self.sampler.capabilities
        return self.estimator == "exact" and able.exact and able.edges and not torch.compiler.is_compiling()

    def log_odds(
        self,
        fields: Tensor,
        couplings: Tensor | Edges | None,
        visible: Tensor | None,
        three_body: Tensor | None = None,
        seed: int | None = None,
        *,
        odds: bool = True,
    ) -> Tensor:
        r"""Log P(s_j = +1) - log P(s_j = -1) of a problem without validating it, [*batch, n]; arguments as in a call.

        Analytic backends compute both probabilities, never 1 - P, which would be 0 where P rounds to 1.  For backends
        that draw it is the smoothed count of the same reads, 1 - P, which is never 0; and so it is if ``odds`` is False
        and only log P is needed, but for problems whose P are all small.  Those are found on the CPU only.
        """
        return self.answer(odds, (fields, couplings, visible, three_body), seed)

    def answer(self, odds: bool | None, problem: Problem, seed: int | None) -> Tensor:
        """What a call, for None, or `log_odds` returns."""
        fields, _, visible, _ = problem
        if odds is None:
            if torch.jit.is_tracing():  # type: ignore[attr-defined]  # not exported by name
                refuse_trace()
            return self.probabilities(Ising(*problem, check=False), draw_seed(seed) if self.draws else None)
        if not self.draws and (odds or is_traced() or self.is_plain(fields)):
            return self._analytic_log_odds(Ising(*problem, check=False))
        up, limits = self.answer(None, problem, seed), torch.finfo(fields.dtype)
        if not self.draws and are_small(up, visible):
            return self._analytic_log_odds(Ising(*problem, check=False))
        up = up.clamp(limits.tiny**0.75, 1 - limits.eps)
        return up.log() - (-up).log1p()

    def _analytic_log_odds(self, ising: Ising) -> Tensor:
        refuse_inference(*ising.terms)
        if self.estimator == "exact":
            refuse_trace()
            assert self.analytic is not None
            return self.analytic.differentiable_log_odds(ising)
        return flipped_log_odds(lambda p: self(p.fields, p.couplings, p.visible, p.three_body), ising)

    def probabilities(self, ising: Ising, seed: int | None) -> Tensor:
        """Smoothed P(s = +1) of a batch, [*batch, n]; ValueError as `refuse_inference`."""
        refuse_inference(*ising.terms)
        if self.estimator == "exact":
            moments = self.sampler.differentiable_moments(ising, seed=0 if seed is None else draw_seed(seed))
            return moments.probability if moments.num_reads is None else moments.smoothed_probability
        estimator = ESTIMATORS[self.estimator]
        if estimator.uses_adjoint:
            seed = draw_seed(seed)  # forward and backward must use the same law
        return sampled_probabilities(ising, SampledCall(self.sampler, estimator, self.num_reads, seed))


def are_small(probability: Tensor, visible: Tensor | None) -> bool:
    """Whether every P(s_j = +1) of some problem is so small that weights of them need logarithms."""
    if not probability.numel():
        return False
    hidden = torch.zeros((), dtype=torch.bool, device=probability.device) if visible is None else ~visible
    shown = probability.detach() + hidden  # at least 1 where a spin is invisible
    if float(shown.amin()) >= _LEAST:
        return False
    return bool((((shown < _LEAST) | hidden).all(-1) & ~hidden.expand(shown.shape).all(-1)).any())


def refuse_inference(fields: Maybe, couplings: Maybe, three_body: Maybe = None) -> None:
    """Refuse, as a ValueError, terms of ``torch.inference_mode`` where others have a gradient: autograd saves none."""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return
    terms = (fields, couplings, three_body)
    if not any([t is not None and t.requires_grad for t in terms]):
        return
    for name, t in zip(("fields", "couplings", "three_body"), terms, strict=True):
        if t is not None and t.is_inference():
            got = "one made in torch.inference_mode; use its .clone(), or torch.no_grad there"
            raise ArgumentError(name, "a tensor that autograd can save", got)


def choose_estimator(sampler: Sampler, gradient: str) -> Estimator:
    """Resolve ``auto``; UnsupportedError, with what the sampler supports, for an estimator that it does not."""
    supported, known = sampler.capabilities.gradients, ("exact", *ESTIMATORS)
    if unknown := [name for name in supported if name not in known]:
        expected = f"gradients among {', '.join(known)} in the capabilities of '{sampler.name}'"
        raise UnsupportedError("sampler", expected, repr(unknown[0]))
    if not isinstance(gradient, str) or gradient not in ("auto", *known):
        raise UnsupportedError("gradient", f"auto, {', '.join(known)}", f"{gradient!r}")
    for estimator in supported:
        if gradient in ("auto", estimator):
            if estimator == "exact" and not isinstance(sampler, AnalyticSampler):
                raise not_analytic(sampler.name)
            return estimator
    able = f"sampler '{sampler.name}'{sampler.capabilities.note} supports {', '.join(supported) or 'none'}"
    raise UnsupportedError("gradient", f"{able}, got {gradient!r}.")
