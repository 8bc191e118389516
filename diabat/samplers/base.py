"""The interface of all backends: problems in, samples or moments out.

``Sampler.sample`` and ``Sampler.moments`` are final: they validate the arguments, refuse unsupported problems, draw
and record the seed, and call the backend's ``_sample`` or ``_moments``.
"""

from __future__ import annotations

import copy
import sys
from abc import ABC, abstractmethod
from typing import Any, Self, cast, final

import torch
from torch import Tensor, nn

from diabat.checks import ArgumentTypeError, check_count
from diabat.compute.loading import preparing
from diabat.compute.memory import require_memory
from diabat.edges import DENSE_SPINS
from diabat.ising import Ising, without_autocast
from diabat.samplers.answers import AdjointGradient, Moments, Samples, Solution
from diabat.samplers.capabilities import Capabilities, UnsupportedError
from diabat.samplers.derivatives import analytic_moments, differentiated
from diabat.samplers.diagnostics import Watched, note_answer
from diabat.samplers.folding import transformed
from diabat.samplers.odds import analytic_log_odds
from diabat.samplers.options import WithOptions
from diabat.samplers.precision import InFloat32
from diabat.samplers.seeds import draw_seed

# Analytic backends form sums of exponents in float64: in a sum of this size a term of size 1 keeps seven digits.
LARGEST = 1e9


class Sampler(WithOptions, InFloat32, ABC):
    """Base class of all backends.

    A backend sets ``name`` and ``capabilities`` (an attribute or a property) and implements ``_moments`` (analytic
    backends), ``_sample`` (sampling backends, whose moments are averages over ``num_reads`` reads), or both.

    A sampler is an ``nn.Module``, and its constructor need not call ``super().__init__()``.  Learnable numbers that the
    law depends on are its parameters, which ``adjoint`` differentiates in their order.  State that it keeps between
    calls is in its ``state_dict``.

    Attributes:
        name: Registry name.
        num_reads: Reads that ``moments`` averages over, for sampling backends.
        smooth: Whether autograd can differentiate the result of ``_moments`` as it is, and again.
        plain: Whether ``differentiable_log_odds`` elsewhere than on the CPU is operators of torch that read no number.
        enumerates: Whether the compiled call of a window may enumerate its states in the place of the backend.
    """

    name: str
    smooth: bool = False
    plain: bool = False
    enumerates: bool = False
    num_reads: int = 1000

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Initialise the module before any constructor runs, so that constructors can set attributes.

        Raises:
            TypeError: If the class compares by value; modules must compare by identity.
        """
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
    def described(self) -> str:
        """The backend in a refusal: its name, and what else decides what it, or its base, supports."""
        return f"'{self.name}'" + "".join(b.described.removeprefix(f"'{b.name}'") for b in self._bases)

    @property
    def resolved(self) -> dict[str, Any]:
        """What options that were left to the backend, or to its base, became, as plain data for the record of a run."""
        return {key: value for base in self._bases for key, value in base.resolved.items()}

    @property
    def watched(self) -> tuple[Watched, ...]:
        """Entries of ``info`` that measure the quality of a result, with limits; see `diabat.samplers.diagnostics`."""
        return ()

    @property
    def averages_reads(self) -> bool:
        """Whether ``moments`` has no method of its own and averages ``num_reads`` reads of ``sample``."""
        return type(self)._moments is Sampler._moments

    @property
    def remembers(self) -> bool:
        """Whether a result depends on earlier calls; for composites, whether that of the base does."""
        return any(base.remembers for base in self._bases)

    @property
    def _bases(self) -> list[Sampler]:
        """The base samplers of a composite, which are its submodules."""
        return [child for child in self.children() if isinstance(child, Sampler)]

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
        _require_call(ising)
        num_reads = check_count("num_reads", num_reads)
        if not self.capabilities.samples:
            raise UnsupportedError(f"sampler '{self.name}' computes moments only and cannot draw samples.")
        self._require(ising)
        require_room(ising, num_reads)
        drawn = draw_seed(seed)
        start = preparing.clock()
        held = ising.detach()
        with torch.no_grad(), without_autocast(ising.fields):
            samples = self._sample(self._taken(held.without_constants()), num_reads, drawn)
        known = {"backend": self.name, "seed": drawn, "wall_s": preparing.clock() - start}
        info = known | cast("Any", samples.info)  # so that entries of `Info` are not computed yet
        note_answer(num_reads, info)
        found = Samples(samples.spins, samples.visible, info, held, samples.tracked)
        return found.with_clamped(held.clamped)

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
        _require_call(ising)
        if correlations and not self.capabilities.correlations:
            raise UnsupportedError(f"sampler '{self.name}' does not report pair correlations.")
        if correlations and ising.edges is not None and ising.num_spins > DENSE_SPINS:
            raise UnsupportedError(
                "correlations",
                f"expected at most {DENSE_SPINS} spins, whose correlations form a matrix, got {ising.num_spins}; "
                "average the products of the spins of interest over the reads of sample.",
            )
        if log_partition and (num_reads is not None or not self.capabilities.log_partition):
            got = f"'{self.name}' with its options" if num_reads is None else "num_reads, and reads have none"
            raise UnsupportedError("log_partition", f"expected a sampler that computes log Z, got {got}.")
        if num_reads is not None:
            if not self.capabilities.samples:
                raise UnsupportedError(
                    "num_reads",
                    f"expected a sampler that draws reads, got '{self.name}', which computes its moments without "
                    "them; leave num_reads out.",
                )
            samples = self.sample(ising, num_reads, seed=seed)
            return samples.moments(correlations=correlations, dtype=ising.fields.dtype).with_constants(ising)
        analytic = "exact" in self.capabilities.gradients
        drawn = 0 if analytic and seed is None else draw_seed(seed)
        start = preparing.clock()
        given, ising = ising, ising.without_constants()
        if analytic:
            moments = self.differentiable_moments(ising, correlations, drawn)
        else:
            with without_autocast(
                ising.fields
            ):  # one call deeper, a warning of dqa would not be at the caller
                self._require(ising)
                answer = self._moments_with_log_partition if log_partition else self._moments
                moments = answer(self._taken(ising), correlations, drawn)
            # Rounding can push a certain spin above 1.
            moments = moments.replaced(probability=moments.probability.clamp(0, 1))
        known = {"backend": self.name, "wall_s": preparing.clock() - start}
        if moments.num_reads is not None:
            known["seed"] = drawn
        info = known | cast("Any", moments.info)
        note_answer(moments.num_reads, info)
        return moments.replaced(info=info).with_constants(given)

    def differentiable_moments(self, ising: Ising, correlations: bool = False, seed: int = 0) -> Moments:
        """Moments differentiable in h, J and K, as from :meth:`moments` but without the ``info`` of the call."""
        if transformed():  # functions with all rules take matrices
            ising = ising.dense()
        elif ising.edges is not None:
            self._require(ising)
            ising = self._taken(ising)
        # A smooth graph needs no custom derivatives, except under transforms.
        if (self.smooth or not differentiated(ising)) and not transformed():
            return self._answer(ising, correlations, seed)
        return analytic_moments(self, ising, correlations, seed)

    def differentiable_log_odds(self, ising: Ising) -> Tensor:
        """Log P(s = +1) - log P(s = -1) of an analytic backend, [*batch, n], differentiable; 0 for invisible spins.

        From two solutions or more, :func:`diabat.samplers.odds.analytic_log_odds`; overridden where one is enough.
        """
        return analytic_log_odds(self.differentiable_moments, ising)

    def solution(self, ising: Ising, *, odds: bool = False) -> Solution | None:
        """Moments and their derivative outside autograd, for layers with a derivative of their own.

        Args:
            ising: The batch of problems, without a check of their shapes.
            odds: Request log P(s = +1) - log P(s = -1) in place of P(s = +1).

        Returns:
            None, the default, if the backend has no such form for these problems.
        """
        return None

    def _answer(self, ising: Ising, correlations: bool, seed: int) -> Moments:
        """Refuse unsupported problems, then call the backend."""
        with without_autocast(ising.fields):
            self._require(ising)
            return self._moments(ising, correlations, seed)

    def moments_and_states(self, ising: Ising, *, seed: int) -> tuple[Moments, Tensor | None]:
        """:meth:`moments`, and the final states that ``adjoint`` starts from; None, the default, if it needs none."""
        return self.moments(ising, seed=seed), None

    def adjoint(
        self, ising: Ising, cotangent: Tensor, *, seed: int, states: Tensor | None = None
    ) -> AdjointGradient:
        """Exact derivative of L = Σ_j v_j P(s_j = +1) under the sampler's own law.

        Args:
            ising: The batch of problems.
            cotangent: v, [*batch, n].
            seed: The seed of the forward call, for the random parts of the law.
            states: From :meth:`moments_and_states` of the same problems and seed, which saves a simulation; None gives
                the same numbers.

        Raises:
            UnsupportedError: If the backend has no adjoint gradient.
        """
        raise UnsupportedError("gradient", f"sampler '{self.name}' has no adjoint gradient.")

    def for_window(self, window: int, reach: int) -> Sampler:
        """Return the sampler for a layer of windows with couplings up to distance ``reach``; by default itself.

        Raises:
            UnsupportedError: If it does not support such problems.
        """
        return self

    def with_own_parameters(self) -> Sampler:
        """Return a copy with separate parameters and with its state reset; itself if it has neither."""
        if not self.remembers and next(self.parameters(), None) is None:
            return self
        own = copy.deepcopy(self)
        own.reset()
        return own

    def reset(self) -> None:
        """Discard the state of earlier calls; a backend that ``remembers`` overrides this."""
        for base in self._bases:
            base.reset()

    def close(self) -> None:
        """Release resources such as worker processes; most backends have none."""
        for base in self._bases:
            base.close()

    def _sample(self, ising: Ising, num_reads: int, seed: int) -> Samples:
        raise UnsupportedError(f"sampler '{self.name}' cannot draw samples.")

    def _smooth_moments(self, ising: Ising) -> tuple[Tensor, Tensor | None]:
        """Compute P(s = +1) and log Z with operations that autograd can differentiate twice."""
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

    def _moments_with_log_partition(self, ising: Ising, correlations: bool, seed: int) -> Moments:
        """Overridden where log Z costs something, so that ``_moments`` leaves it out."""
        return self._moments(ising, correlations, seed)

    def _taken(self, ising: Ising) -> Ising:
        """The problem in the form that the backend takes: edges are expanded if it takes none, or beside K."""
        if ising.edges is None or (self.capabilities.edges and ising.three_body is None):
            return ising
        return ising.dense()

    def _require_terms(self, ising: Ising, able: Capabilities) -> None:
        """Refuse numbers and terms that the capabilities exclude at any number of spins."""
        if "exact" in able.gradients:
            ising.check_size(LARGEST)
        elif not ising.check:
            ising.check_size(sys.float_info.max)
        if ising.three_body is not None and not able.three_body:
            raise UnsupportedError(
                "three_body",
                f"sampler '{self.name}' accepts fields and couplings only; "
                "use 'exact', 'tempering' or 'mean_field' for three-body terms.",
            )

    def _require(self, ising: Ising) -> None:
        """Refuse problems that the capabilities exclude."""
        able, visible = self.capabilities, ising.num_spins
        self._require_terms(ising, able)
        if able.max_spins is None or visible <= able.max_spins:
            return
        if ising.visible is not None:
            visible = int(ising.visible_mask.sum(-1).max())
        if visible > able.max_spins:
            expected = f"sampler '{self.name}' accepts at most {able.max_spins} visible spins"
            raise UnsupportedError("fields", f"{expected}, got {visible}.")


def _require_call(ising: Any) -> None:
    refuse_trace()
    if not isinstance(ising, Ising):
        raise ArgumentTypeError("ising", f"expected a diabat.Ising, got {type(ising).__name__}.")


def refuse_trace() -> None:
    """Raise UnsupportedError under ``torch.jit.trace``, which would record results of samplers as constants."""
    if torch.jit.is_tracing():  # type: ignore[attr-defined]  # not exported by name
        raise UnsupportedError(
            "torch.jit.trace",
            "cannot record layers and samplers, whose results would be constants of the trace; use torch.compile or "
            "torch.export.",
        )


def require_room(ising: Ising, num_reads: int) -> None:
    """Refuse, by a ValueError, more reads than fit in memory: one byte per read, problem and spin."""
    what = f"{num_reads} reads of {ising.num_problems} problems"
    require_memory(num_reads * ising.fields.numel(), what, "num_reads")
