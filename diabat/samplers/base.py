"""The interface of all backends: problems in, samples or moments out.

``Sampler.sample`` and ``Sampler.moments`` are final: they validate the arguments, refuse unsupported problems, draw
and record the seed, and call the backend's ``_sample`` or ``_moments``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self, cast, final

import torch
from torch import nn

from diabat.checks import check_count
from diabat.compute.loading import preparing
from diabat.ising import Ising, without_autocast
from diabat.ising.edges import DENSE_SPINS
from diabat.samplers.answers import Moments, Samples, Solution
from diabat.samplers.call_checks import expanded, not_analytic, require_call, require_room, require_supported
from diabat.samplers.capabilities import Capabilities, UnsupportedError
from diabat.samplers.diagnostics import Watched, note_answer
from diabat.samplers.options import WithOptions
from diabat.samplers.precision import InFloat32
from diabat.samplers.seeds import draw_seed


class Sampler(WithOptions, InFloat32, ABC):
    """Base class of all backends.

    A backend sets ``name`` and ``capabilities`` (an attribute or a property) and implements ``_sample`` (its moments
    are averages over ``num_reads`` reads), ``_moments``, or both; one that reports log Z takes ``log_partition=True``
    as a further argument of ``_moments``.  Backends that autograd differentiates are :class:`AnalyticSampler`.

    A sampler is an ``nn.Module``, and its constructor need not call ``super().__init__()``.  Learnable numbers that the
    law depends on are its parameters, which an adjoint solution differentiates in their order.  State that it keeps
    between calls is in its ``state_dict``.

    Attributes:
        name: Registry name.
        num_reads: Reads that ``moments`` averages over, for sampling backends.
    """

    name: str
    num_reads: int = 1000

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Initialise the module before a constructor sets attributes; TypeError for a class that compares by value."""
        if cls.__hash__ is None:
            raise TypeError(
                f"{cls.__name__}: expected a sampler that is compared by identity, as torch's modules are, "
                "got one that is compared by value; use @dataclass(eq=False)."
            )
        built = super().__new__(cls, *args, **options)
        nn.Module.__init__(built)
        return built

    def __init__(self) -> None:  # __new__ has initialised the module; doing it again would discard attributes
        pass

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What this backend supports with its options."""

    @property
    def resolved(self) -> dict[str, Any]:
        """What options that were left to the backend, or to its base, became, as plain data for the record of a run."""
        return {key: value for base in bases_of(self) for key, value in base.resolved.items()}

    @property
    def watched(self) -> tuple[Watched, ...]:
        """Entries of ``info`` that measure the quality of a result, with limits; see `diabat.samplers.diagnostics`."""
        return ()

    @final
    def sample(self, ising: Ising, num_reads: int, *, seed: int | None = None) -> Samples:
        """Draw reads.

        Args:
            ising: The batch of problems.
            num_reads: Reads per problem, at least 1.
            seed: The same seed gives the same tensor on any number of threads; None takes one from torch's global
                generator.  Recorded in ``info["seed"]``.

        Returns:
            int8 spins [num_reads, *batch, n].

        Raises:
            UnsupportedError: If the backend does not support the problem or does not sample.
            ValueError: If ``num_reads`` or ``seed`` is out of range, or the int8 reads do not fit in the available
                memory.
        """
        require_call(ising)
        num_reads = check_count("num_reads", num_reads)
        if not self.capabilities.samples:
            raise UnsupportedError(f"sampler '{self.name}' computes moments only and cannot draw samples.")
        self._require(ising)
        require_room(ising, num_reads)
        drawn = draw_seed(seed)
        start = preparing.clock()
        held = ising.detach()
        with torch.no_grad(), without_autocast(ising.fields):
            samples = self._sample(expanded(held.without_constants(), self.capabilities), num_reads, drawn)
        known = {"backend": self.name, "seed": drawn, "wall_s": preparing.clock() - start}
        info = known | cast("Any", samples.info)  # so that entries of `Info` are not computed yet
        note_answer(num_reads, info)
        return Samples(samples.spins, samples.visible, info, held, samples.tracked).with_clamped(held.clamped)

    @final
    def moments(
        self,
        ising: Ising,
        *,
        correlations: bool = False,
        log_partition: bool = False,
        num_reads: int | None = None,
        seed: int | None = None,
    ) -> Moments:
        """Compute P(s = +1), optionally pair correlations, log Z where known, standard errors where sampled.

        Differentiable in h, J and K, also under ``torch.func``, if ``"exact"`` is among ``capabilities.gradients``, and
        twice through ``exact``, ``banded`` and ``mean_field``; otherwise use :func:`diabat.spin_probabilities`.
        Autocast is disabled inside.

        Args:
            ising: The batch of problems.
            correlations: Also report <s_j s_k>; not differentiable.
            log_partition: Also report log Z; ``exact`` and ``banded`` report it in any case, because it costs nothing.
            num_reads: Average over this many reads of :meth:`sample`; None uses the default method of the backend.
            seed: As in :meth:`sample`; analytic backends ignore it, and leave torch's generator as it is.

        Raises:
            UnsupportedError: If the backend does not support the problem, does not report correlations or log Z, or
                is given ``num_reads`` but draws no reads.
            ValueError: If ``num_reads`` or ``seed`` is out of range.
        """
        require_call(ising)
        if correlations and not self.capabilities.correlations:
            raise UnsupportedError(f"sampler '{self.name}' does not report pair correlations.")
        if correlations and ising.edges is not None and ising.num_spins > DENSE_SPINS:
            expected = f"at most {DENSE_SPINS} spins, whose correlations form a matrix"
            fix = "average the products of the spins of interest over the reads of sample"
            raise UnsupportedError("correlations", expected, f"{ising.num_spins}; {fix}")
        if log_partition and (num_reads is not None or not self.capabilities.log_partition):
            got = f"'{self.name}' with its options" if num_reads is None else "num_reads, and reads have none"
            raise UnsupportedError("log_partition", "a sampler that computes log Z", got)
        if num_reads is not None:
            if not self.capabilities.samples:
                got = f"'{self.name}', which computes its moments without them; leave num_reads out"
                raise UnsupportedError("num_reads", "a sampler that draws reads", got)
            samples = self.sample(ising, num_reads, seed=seed)
            return samples.moments(correlations=correlations, dtype=ising.fields.dtype).with_constants(ising)
        analytic = "exact" in self.capabilities.gradients
        drawn = 0 if analytic and seed is None else draw_seed(seed)
        start = preparing.clock()
        whole, ising = ising, ising.without_constants()
        if analytic:
            moments = self.differentiable_moments(ising, correlations, drawn)
        else:
            # One call deeper, a warning of dqa would not be at the caller.
            with without_autocast(ising.fields):
                self._require(ising)
                also = {"log_partition": True} if log_partition else {}
                moments = self._moments(expanded(ising, self.capabilities), correlations, drawn, **also)
            # Rounding can push a certain spin above 1.
            moments = moments.replaced(probability=moments.probability.clamp(0, 1))
        known = {"backend": self.name, "wall_s": preparing.clock() - start}
        if moments.num_reads is not None:
            known["seed"] = drawn
        info = known | cast("Any", moments.info)
        note_answer(moments.num_reads, info)
        return moments.replaced(info=info).with_constants(whole)

    def differentiable_moments(self, ising: Ising, correlations: bool = False, seed: int = 0) -> Moments:
        """Moments in the graph of autograd; for gradients ``exact``, which :class:`AnalyticSampler` provides.

        Raises:
            UnsupportedError: If the backend is no AnalyticSampler.
        """
        raise not_analytic(self.name)

    def solution(self, ising: Ising, *, odds: bool = False, seed: int = 0) -> Solution | None:
        """Moments and their derivative outside autograd, for layers with a derivative of their own.

        Args:
            ising: The batch of problems, without a check of their shapes.
            odds: Request log P(s = +1) - log P(s = -1) in place of P(s = +1).
            seed: Seed of the random parts of the law.

        Returns:
            None, the default, if the backend has no such form for these problems.
        """
        return None

    def reset(self) -> None:
        """Discard the state of earlier calls; a backend whose capabilities say that it ``remembers`` overrides this."""
        for base in bases_of(self):
            base.reset()

    def close(self) -> None:
        """Release resources such as worker processes; most backends have none."""
        for base in bases_of(self):
            base.close()

    def _sample(self, ising: Ising, num_reads: int, seed: int) -> Samples:
        raise UnsupportedError(f"sampler '{self.name}' cannot draw samples.")

    def _moments(self, ising: Ising, correlations: bool, seed: int) -> Moments:
        require_room(ising, self.num_reads)
        samples = self._sample(ising.detach(), self.num_reads, seed)
        return samples.moments(correlations=correlations, dtype=ising.fields.dtype)

    def _require(self, ising: Ising) -> None:
        """Refuse problems that the capabilities exclude."""
        require_supported(self.name, self.capabilities, ising)


def bases_of(sampler: nn.Module) -> list[Sampler]:
    """The base samplers of a composite, which are its submodules."""
    return [child for child in sampler.children() if isinstance(child, Sampler)]
