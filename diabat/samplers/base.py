"""The interface of all backends: problems in, samples or moments out, capabilities declared as data.

``Sampler.sample`` and ``Sampler.moments`` are final: they validate, refuse what the backend does not support
with one sentence, draw and record the seed, and call the backend's ``_sample`` or ``_moments``.
"""

from __future__ import annotations

import copy
import sys
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, final

import torch
from torch import Tensor, nn

from diabat.checks import ArgumentError, ArgumentTypeError, check_count
from diabat.compute.memory import require_memory
from diabat.ising import Ising, check_size, without_autocast
from diabat.samplers.answers import AdjointGradient, Moments, Samples
from diabat.samplers.derivatives import Solver, analytic_moments
from diabat.samplers.diagnostics import Watched
from diabat.samplers.options import WithOptions
from diabat.samplers.seeds import as_int, draw_seed

Law = Literal["boltzmann", "mean-field", "diabatic"]
Estimator = Literal["exact", "straight_through", "linear_response", "covariance", "adjoint"]

# Analytic backends form sums of exponents in float64: next to this, a term of size 1 keeps seven digits.
LARGEST = 1e9


class UnsupportedError(ArgumentError):
    """The problem asks for something that the backend does not do; the message says what and what to use."""


@dataclass(frozen=True)
class Capabilities:
    """What a backend can do; the defaults are those of a backend that draws Boltzmann samples of fields and couplings.

    Attributes:
        exact: Moments are exact up to rounding.
        law: The law that is sampled: ``boltzmann``, or the backend's own (``mean-field``, ``diabatic``).
        max_spins: Largest number of visible spins in one problem, None if unbounded.
        three_body: Accepts K.
        per_problem_couplings: Accepts a J of its own for every problem at reasonable cost.
        samples: Can draw samples.
        correlations: Can report pair correlations.
        log_partition: Reports log Z.
        gradients: Estimators that may be used with it, best first (``gradient="auto"`` takes the first).
        max_states: Largest Σ 2^n that a layer may ask for in one call if every problem has a J of its own, so that no
            work is shared; None if the backend does not enumerate.
    """

    exact: bool = False
    law: Law = "boltzmann"
    max_spins: int | None = None
    three_body: bool = False
    per_problem_couplings: bool = True
    samples: bool = True
    correlations: bool = True
    log_partition: bool = False
    gradients: tuple[Estimator, ...] = ("straight_through", "linear_response", "covariance")
    max_states: int | None = None


class Sampler(WithOptions, nn.Module, ABC):
    """Base class of all backends.

    A backend sets ``name`` and ``capabilities`` (an attribute, or a property that depends on its options) and
    implements ``_moments`` (analytic backends) or ``_sample`` (sampling backends, which inherit moments averaged over
    ``num_reads`` reads), or both.  Its ``options`` are recorded here, whatever its constructor does with them.

    A sampler is an ``nn.Module``: learnable numbers that the law depends on are its parameters, which ``adjoint``
    differentiates in the order of ``parameters()``; what it carries from call to call is in its ``state_dict``.  A
    constructor need not call ``super().__init__()``.

    Attributes:
        name: Registry name.
        num_reads: Reads that ``moments`` averages over, for sampling backends.
        smooth: Whether autograd can differentiate what ``_moments`` returns any number of times.
    """

    name: str
    smooth: bool = False
    num_reads: int = 1000

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Make the module ready for attributes before any constructor runs.

        Raises:
            TypeError: If the class compares by value, which modules must not.
        """
        if cls.__hash__ is None:
            raise TypeError(
                f"{cls.__name__}: expected a sampler that is compared by identity, as torch's modules are, "
                "got one that is compared by value; use @dataclass(eq=False)."
            )
        built = super().__new__(cls)
        nn.Module.__init__(built)
        return built

    def __init__(
        self,
    ) -> None:  # what __new__ has done, done again, would forget the attributes set meanwhile
        pass

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What this backend, as configured, can do."""

    @property
    def watched(self) -> tuple[Watched, ...]:
        """Facts of ``info`` that tell how good an answer is, with their limits; see `diabat.samplers.diagnostics`."""
        return ()

    @property
    def expected_error(self) -> str | None:
        """What is known of the distance from the Boltzmann law, besides the noise of reads; None if nothing is."""
        return None

    @property
    def remembers(self) -> bool:
        """Whether an answer depends on the calls before it; composites do if their base does."""
        return any(base.remembers for base in self._bases)

    @property
    def _bases(self) -> list[Sampler]:
        """The samplers that this one stands on, as its submodules."""
        return [child for child in self.children() if isinstance(child, Sampler)]

    @final
    def sample(self, ising: Ising, num_reads: int, *, seed: int | None = None) -> Samples:
        """Draw reads.

        Args:
            ising: The batch of problems.
            num_reads: Reads per problem, at least 1.
            seed: The same seed gives the same tensor on any number of threads.  None draws one, recorded in
                ``info["seed"]``.

        Returns:
            int8 spins [num_reads, *batch, n].

        Raises:
            UnsupportedError: If the backend does not support the problem or does not sample.
            ValueError: If ``num_reads`` or ``seed`` is out of range, or the reads, int8, would not fit into the memory
                that is available.
        """
        refuse_trace()
        _require_ising(ising)
        num_reads = as_int(num_reads)
        check_count("num_reads", num_reads)
        if not self.capabilities.samples:
            raise UnsupportedError(f"sampler '{self.name}' computes moments only and cannot draw samples.")
        self._require(ising)
        require_room(ising, num_reads)
        drawn = draw_seed(seed)
        start = time.perf_counter()
        with torch.no_grad(), without_autocast(ising.fields):
            samples = self._sample(ising.detach(), num_reads, drawn)
        info = {"backend": self.name, "seed": drawn, "wall_s": time.perf_counter() - start, **samples.info}
        return replace(samples, info=info, ising=ising.detach())

    @final
    def moments(
        self,
        ising: Ising,
        *,
        correlations: bool = False,
        num_reads: int | None = None,
        seed: int | None = None,
    ) -> Moments:
        """Compute P(s = +1), optionally pair correlations, log Z where known, standard errors where sampled.

        Differentiable in h, J and K if ``"exact"`` is among ``capabilities.gradients``, by autograd and under
        ``torch.func``, and twice where the backend has second derivatives (``exact``, ``banded``, ``mean_field``);
        otherwise use :func:`diabat.spin_probabilities`.  Autocast does not reach in here.

        Args:
            ising: The batch of problems.
            correlations: Also report <s_j s_k>; not differentiable.
            num_reads: Average this many reads of :meth:`sample`, whatever the backend does otherwise; None leaves it
                to the backend.
            seed: As in :meth:`sample`; analytic backends ignore it.

        Raises:
            UnsupportedError: If the backend does not support the problem, does not report correlations, or is asked
                for reads and draws none.
            ValueError: If ``num_reads`` or ``seed`` is out of range.
        """
        refuse_trace()
        _require_ising(ising)
        if correlations and not self.capabilities.correlations:
            raise UnsupportedError(f"sampler '{self.name}' does not report pair correlations.")
        if num_reads is not None:
            return self._average(ising, correlations, num_reads, seed)
        drawn = draw_seed(seed)
        start = time.perf_counter()
        if "exact" in self.capabilities.gradients:
            moments = self.differentiable_moments(ising, correlations, drawn)
        else:
            with without_autocast(ising.fields):
                self._require(ising)
                moments = self._moments(ising, correlations, drawn)
            # Rounding can push a certain spin above 1.
            moments = replace(moments, probability=moments.probability.clamp(0, 1))
        info = {"backend": self.name, "wall_s": time.perf_counter() - start, **moments.info}
        if moments.num_reads is not None:
            info.setdefault("seed", drawn)
        return replace(moments, info=info)

    def differentiable_moments(self, ising: Ising, correlations: bool = False, seed: int = 0) -> Moments:
        """Moments differentiable in h, J and K, as from :meth:`moments` but without facts about the call."""
        # A graph that is right to any order needs no help of ours, unless torch.func looks on.
        if self.smooth and not torch._C._are_functorch_transforms_active():
            return self._answer(ising, correlations, seed)
        return analytic_moments(Solver(self, correlations, seed), ising)

    def _answer(self, ising: Ising, correlations: bool, seed: int) -> Moments:
        """Refuse what is not supported, and call the backend."""
        with without_autocast(ising.fields):
            self._require(ising)
            return self._moments(ising, correlations, seed)

    def _average(self, ising: Ising, correlations: bool, num_reads: int, seed: int | None) -> Moments:
        if not self.capabilities.samples:
            raise UnsupportedError(
                "num_reads",
                f"sampler '{self.name}' computes its moments without reads, expected None, got {num_reads}.",
            )
        samples = self.sample(ising, num_reads, seed=seed)
        return samples.moments(correlations=correlations, dtype=ising.fields.dtype)

    def adjoint(self, ising: Ising, cotangent: Tensor, *, seed: int) -> AdjointGradient:
        """Exact derivative of L = Σ_j v_j P(s_j = +1) under the sampler's own law.

        Args:
            ising: The batch of problems.
            cotangent: v, [*batch, n].
            seed: That of the forward call, for whatever is random in the law.

        Raises:
            UnsupportedError: If the backend has no adjoint gradient.
        """
        raise UnsupportedError("gradient", f"sampler '{self.name}' has no adjoint gradient.")

    def for_window(self, window: int, reach: int) -> Sampler:
        """The sampler for couplings that reach ``reach`` spins among ``window``; itself for most.

        A layer asks once, when it is built: couplings start from zero, where no sampler sees which are parameters.

        Raises:
            UnsupportedError: If it would refuse such problems.
        """
        return self

    def with_own_parameters(self) -> Sampler:
        """A copy whose parameters and state are its own, which begins anew; itself if it has neither."""
        if not self.remembers and next(self.parameters(), None) is None:
            return self
        own = copy.deepcopy(self)
        own.reset()
        return own

    def reset(self) -> None:
        """Forget the calls before; a backend that ``remembers`` says how."""
        for base in self._bases:
            base.reset()

    def close(self) -> None:
        """Release what the backend holds, such as worker processes; most hold nothing."""
        for base in self._bases:
            base.close()

    def _sample(self, ising: Ising, num_reads: int, seed: int) -> Samples:
        raise UnsupportedError(f"sampler '{self.name}' cannot draw samples.")

    def _smooth_moments(self, ising: Ising) -> tuple[Tensor, Tensor | None]:
        """P(s = +1) and log Z in operations that autograd can differentiate twice, for second derivatives."""
        if self.smooth:
            moments = self._moments(ising, False, 0)
            return moments.probability, moments.log_partition
        raise UnsupportedError(
            "gradient",
            f"sampler '{self.name}' has first derivatives only, got a second one; use 'exact' or 'banded'.",
        )

    def _moments(self, ising: Ising, correlations: bool, seed: int) -> Moments:
        require_room(ising, self.num_reads)
        samples = self._sample(ising.detach(), self.num_reads, seed)
        return samples.moments(correlations=correlations, dtype=ising.fields.dtype)

    def _require(self, ising: Ising) -> None:
        """Refuse what the capabilities exclude, in a full sentence."""
        able = self.capabilities
        if "exact" in able.gradients:
            check_size(ising, LARGEST)
        elif not ising.check:
            check_size(ising, sys.float_info.max)
        if ising.three_body is not None and not able.three_body:
            raise UnsupportedError(
                "three_body",
                f"sampler '{self.name}' accepts fields and couplings only; "
                "use 'exact', 'tempering' or 'mean_field' for three-body terms.",
            )
        if able.max_spins is not None:
            visible = ising.num_spins
            if visible > able.max_spins and ising.visible is not None:
                visible = int(ising.visible_mask.sum(-1).max())
            if visible > able.max_spins:
                raise UnsupportedError(
                    "fields",
                    f"sampler '{self.name}' accepts at most {able.max_spins} visible spins, got {visible}.",
                )
        if not able.per_problem_couplings and ising.couplings is not None:
            distinct = ising.couplings.shape[:-2].numel()
            if distinct > 1 and distinct == ising.num_problems:
                raise UnsupportedError(
                    "couplings",
                    f"sampler '{self.name}' needs couplings shared by the batch, got {distinct} different J.",
                )


def _require_ising(ising: Any) -> None:
    if not isinstance(ising, Ising):
        raise ArgumentTypeError("ising", f"expected a diabat.Ising, got {type(ising).__name__}.")


def refuse_trace() -> None:
    """Raise UnsupportedError under ``torch.jit.trace``, which would freeze what a sampler answers into constants."""
    if torch.jit.is_tracing():  # type: ignore[attr-defined]  # not exported by name
        raise UnsupportedError(
            "torch.jit.trace",
            "expected no sampler in a trace, which would freeze its answers, got one; use "
            "torch.compile or torch.export.",
        )


def require_room(ising: Ising, num_reads: int) -> None:
    """Refuse more reads than fit into memory: one byte per read, problem and spin.

    Raises:
        ValueError: The message says how much is needed and how much there is.
    """
    require_memory(
        num_reads * ising.fields.numel(), f"{num_reads} reads of {ising.num_problems} problems", "num_reads"
    )
