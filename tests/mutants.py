"""Samplers with one mistake each: a changed problem, seed, samples or moments."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from fakes import scaled
from torch import Tensor

from diabat.ising import Ising
from diabat.samplers.analytic import AnalyticSampler
from diabat.samplers.answers import Moments, Samples
from diabat.samplers.base import Sampler
from diabat.samplers.capabilities import Capabilities


def _same(value: Any) -> Any:
    return value


class Mutant(Sampler):
    """A sampler whose problem, seed, samples or moments are changed."""

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
        """Capabilities of the base, or those that the mutant declares instead."""
        promised: Capabilities = self.promise(self.base.capabilities)
        return promised

    def _sample(self, ising: Ising, num_reads: int, seed: int) -> Samples:
        drawn = self.base.sample(self.change_problem(ising), num_reads, seed=self.change_seed(seed))
        changed: Samples = self.change_samples(replace(drawn, visible=ising.visible_mask, info={}))
        return changed

    def _moments(self, ising: Ising, correlations: bool, seed: int, log_partition: bool = False) -> Moments:
        moments = self.base.moments(self.change_problem(ising), correlations=correlations, seed=seed)
        if moments.num_reads is not None:
            return super()._moments(ising, correlations, seed)
        changed: Moments = self.change_moments(replace(moments, visible=ising.visible_mask))
        return changed


class AnalyticMutant(Mutant, AnalyticSampler):
    """The same of an analytic sampler."""


def mutant(base: Sampler, name: str, **changes: Change) -> Sampler:
    """A mutant with the derivatives of its base."""
    return (AnalyticMutant if isinstance(base, AnalyticSampler) else Mutant)(base, name, **changes)


def mutants(base: Sampler) -> dict[str, Sampler]:
    """Wrap a correct Boltzmann sampler in one mistake at a time; every one must fail :func:`check_sampler`."""
    built: dict[str, Sampler] = {}
    for changes in (PROBLEM, RESULT, DRAW if base.capabilities.samples else {}):
        built |= {name: mutant(base, name, **change) for name, change in changes.items()}
    if base.capabilities.three_body:
        built["ignored_three_body"] = mutant(base, "ignored_three_body", problem=without_three_body)
    else:
        promise = {"promise": lambda able: replace(able, three_body=True), "problem": without_three_body}
        built["swallowed_three_body"] = mutant(base, "swallowed_three_body", **promise)
    if base.capabilities.exact:
        built["via_magnetization"] = mutant(base, "via_magnetization", moments=via_magnetization)
    if base.capabilities.samples:  # of moments the base class makes copies
        for name, cache in (("aliased_buffer", False), ("cached_result", True)):
            built[name] = mutant(base, name, **_live(cache))
    return built


Change = Callable[[Any], Any]


def _live(cache: bool) -> dict[str, Change]:
    """Results in the sampler's own memory: one buffer for all of a shape, or one result for all equal ones."""
    memory: dict[Any, Tensor] = {}

    def keep(value: Tensor) -> Tensor:
        key = (value.shape, value.dtype, value.detach().numpy().tobytes() if cache else None)
        if key not in memory:
            memory[key] = value.detach().clone()
        return memory[key] if cache else memory[key].copy_(value.detach())

    return {
        "samples": lambda samples: replace(samples, spins=keep(samples.spins)),
        "moments": lambda moments: replace(moments, probability=keep(moments.probability)),
    }


def without_three_body(ising: Ising) -> Ising:
    """Omit K."""
    return Ising(ising.fields, ising.couplings, ising.visible, check=False)


def _without_mask(ising: Ising) -> Ising:
    return Ising(ising.fields, ising.couplings, None, ising.three_body, check=False)


def _first_couplings(ising: Ising) -> Ising:
    J = ising.couplings
    J = None if J is None else J.reshape(-1, *J.shape[-2:])[0]
    return Ising(ising.fields, J, ising.visible, ising.three_body, check=False)


def _roll_moments(axis: int) -> Change:
    def change(moments: Moments) -> Moments:
        if moments.probability.ndim < -axis:
            return moments
        return replace(moments, probability=moments.probability.roll(1, axis))

    return change


def _roll_samples(axis: int) -> Change:
    def change(samples: Samples) -> Samples:
        if samples.spins.ndim - 1 < -axis:
            return samples
        return _spins(samples, samples.spins.roll(1, axis))

    return change


def _spins(samples: Samples, spins: Tensor) -> Samples:
    return replace(samples, spins=torch.where(samples.visible, spins, -1).to(samples.spins.dtype))


def _sorted(samples: Samples) -> Samples:
    """Reads in the order of their magnetization, as a solver returns them that sorts by energy."""
    order = samples.spins.float().sum(-1, keepdim=True).argsort(0)
    return replace(samples, spins=samples.spins.gather(0, order.expand_as(samples.spins)))


def _sticky(samples: Samples) -> Samples:
    """Every third read repeats the previous one: a chain that is read too often."""
    spins = samples.spins.clone()
    spins[1::3] = spins[0::3][: len(spins[1::3])]
    return replace(samples, spins=spins)


def _mixed_temperatures(samples: Samples) -> Samples:
    """Every fourth read is at infinite temperature: replica labels swapped."""
    spins = samples.spins.clone()
    noise = torch.randint(0, 2, spins[::4].shape, generator=torch.Generator().manual_seed(len(spins)))
    spins[::4] = (2 * noise - 1).to(spins)
    return _spins(samples, spins)


def _probability_of_one(moments: Moments) -> Moments:
    return replace(moments, probability=moments.visible.to(moments.probability))


def via_magnetization(moments: Moments) -> Moments:
    """Compute P as (m + 1)/2."""
    m = 2 * moments.probability - 1
    return replace(moments, probability=torch.where(moments.visible, (m + 1) / 2, 0))


# A changed problem affects samples and analytic moments alike.
PROBLEM: dict[str, dict[str, Change]] = {
    "beta_times_1.05": {"problem": lambda ising: scaled(ising, 1.05, 1.05)},
    "half_fields": {"problem": lambda ising: scaled(ising, 0.5, 1)},
    "negated_fields": {"problem": lambda ising: scaled(ising, -1, 1)},
    "negated_couplings": {"problem": lambda ising: scaled(ising, 1, -1)},
    "ignored_couplings": {"problem": lambda ising: scaled(ising, 1, 0)},
    "double_counted_couplings": {"problem": lambda ising: scaled(ising, 1, 2)},
    "first_couplings_for_all": {"problem": _first_couplings},
    "ignored_visibility": {"problem": _without_mask},
}
RESULT: dict[str, dict[str, Change]] = {
    "constant": {"samples": lambda s: _spins(s, torch.ones_like(s.spins)), "moments": _probability_of_one},
    "permuted_columns": {"samples": _roll_samples(-1), "moments": _roll_moments(-1)},
    "swapped_problems": {"samples": _roll_samples(-2), "moments": _roll_moments(-2)},
}
DRAW: dict[str, dict[str, Change]] = {
    "ignored_seed": {"seed": lambda seed: 0},
    "unseeded": {"seed": lambda seed: secrets.randbelow(2**31)},
    "identical_reads": {"samples": lambda s: replace(s, spins=s.spins[:1].expand_as(s.spins).clone())},
    "sticky_reads": {"samples": _sticky},
    "sorted_reads": {"samples": _sorted},
    "mixed_temperatures": {"samples": _mixed_temperatures},
    "one_read_short": {"samples": lambda s: replace(s, spins=s.spins[: max(1, len(s.spins) - 1)])},
    "float_spins": {"samples": lambda s: replace(s, spins=s.spins.float())},
    "bits_for_spins": {"samples": lambda s: replace(s, spins=(s.spins + 1) // 2)},
}
