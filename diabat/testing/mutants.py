"""Samplers with one mistake each.  A suite that passes any of them is not worth running."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, final

from torch import Tensor

from diabat.ising import Ising
from diabat.samplers.answers import Moments, Samples
from diabat.samplers.base import Capabilities, Sampler
from diabat.testing.fakes import WeightedSampler
from diabat.testing.mistakes import DRAW, PROBLEM, RESULT, Change, via_magnetization, without_three_body


def _same(value: Any) -> Any:
    return value


class Mutant(Sampler):
    """A sampler with its problem, seed, samples or moments changed on the way.

    Args:
        base: The correct sampler.
        name: Name of the mistake.
        problem: Ising -> Ising.
        seed: int -> int.
        samples: Samples -> Samples.
        moments: Moments -> Moments, applied to analytic moments only; sampled ones follow from the samples.
        promise: Capabilities -> Capabilities.
    """

    def __init__(
        self,
        base: Sampler,
        name: str,
        *,
        problem: Change = _same,
        seed: Change = _same,
        samples: Change = _same,
        moments: Change = _same,
        promise: Change = _same,
    ) -> None:
        self.base, self.name, self.num_reads = base, name, base.num_reads
        self.change_problem, self.change_seed = problem, seed
        self.change_samples, self.change_moments, self.promise = samples, moments, promise

    @property
    def capabilities(self) -> Capabilities:
        """Those of the base, or what the mutant promises instead."""
        promised: Capabilities = self.promise(self.base.capabilities)
        return promised

    def _sample(self, ising: Ising, num_reads: int, seed: int) -> Samples:
        drawn = self.base.sample(self.change_problem(ising), num_reads, seed=self.change_seed(seed))
        changed: Samples = self.change_samples(replace(drawn, visible=ising.visible_mask, info={}))
        return changed

    def _moments(self, ising: Ising, correlations: bool, seed: int) -> Moments:
        moments = self.base.moments(self.change_problem(ising), correlations=correlations, seed=seed)
        if moments.num_reads is not None:
            return super()._moments(ising, correlations, seed)
        changed: Moments = self.change_moments(replace(moments, visible=ising.visible_mask))
        return changed


@final
class _Live(Sampler):
    """Gives out its own memory: one buffer for all results, or one result for all equal calls."""

    def __init__(self, base: Sampler, name: str, *, cache: bool) -> None:
        self.base, self.name, self.num_reads, self.cache = base, name, base.num_reads, cache
        self.memory: dict[Any, Tensor] = {}

    @property
    def capabilities(self) -> Capabilities:
        return self.base.capabilities

    def _keep(self, value: Tensor, ising: Ising, seed: int) -> Tensor:
        parameters = (ising.fields, ising.couplings, ising.visible, ising.three_body)
        content = tuple(None if t is None else t.detach().numpy().tobytes() for t in parameters)
        key = (tuple(value.shape), value.dtype, (*content, seed) if self.cache else None)
        if key not in self.memory:
            self.memory[key] = value.detach().clone()
        elif not self.cache:
            self.memory[key].copy_(value.detach())
        return self.memory[key]

    def _sample(self, ising: Ising, num_reads: int, seed: int) -> Samples:
        drawn = self.base.sample(ising, num_reads, seed=seed)
        return replace(drawn, spins=self._keep(drawn.spins, ising, seed), info={})

    def _moments(self, ising: Ising, correlations: bool, seed: int) -> Moments:
        moments = self.base.moments(ising, correlations=correlations, seed=seed)
        return replace(moments, probability=self._keep(moments.probability, ising, seed))


def mutants(base: Sampler) -> dict[str, Sampler]:
    """Wrap a correct Boltzmann sampler in one mistake at a time; every one must fail :func:`check_sampler`.

    Args:
        base: A sampler that passes the suite.

    Returns:
        Mutants by name of the mistake; those of drawing are left out if the base does not draw.
    """
    built: dict[str, Sampler] = {}
    for changes in (PROBLEM, RESULT, DRAW if base.capabilities.samples else {}):
        built |= {name: Mutant(base, name, **change) for name, change in changes.items()}
    if base.capabilities.three_body:
        built["ignored_three_body"] = Mutant(base, "ignored_three_body", problem=without_three_body)
    else:
        promise = {"promise": lambda able: replace(able, three_body=True), "problem": without_three_body}
        built["swallowed_three_body"] = Mutant(base, "swallowed_three_body", **promise)
    if base.capabilities.exact:
        built["via_magnetization"] = Mutant(base, "via_magnetization", moments=via_magnetization)
    if base.capabilities.samples:  # of moments the base class makes copies
        for name, cache in (("aliased_buffer", False), ("cached_result", True)):
            built[name] = _Live(base, name, cache=cache)
        built["ignored_weights"] = WeightedSampler(base, keep_weights=False)
    return built
