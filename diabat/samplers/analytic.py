"""Backends that compute their moments: the same interface, with derivatives of autograd and torch.func."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from diabat.ising import Ising, without_autocast
from diabat.samplers.answers import Moments
from diabat.samplers.base import Sampler
from diabat.samplers.call_checks import expanded
from diabat.samplers.capabilities import UnsupportedError
from diabat.samplers.derivatives import analytic_moments, differentiated
from diabat.samplers.folding import transformed
from diabat.samplers.odds import analytic_log_odds


class AnalyticSampler(Sampler):
    """Base class of backends with ``exact`` among their gradients.

    A backend implements ``_moments``, whose probabilities and log Z autograd can differentiate in h, J and K.  All
    other methods have a default; a backend overrides those that it can do better.

    Attributes:
        smooth: Whether autograd can differentiate the result of ``_moments`` as it is, and again.
        plain: Whether ``differentiable_log_odds`` elsewhere than on the CPU is operators of torch that read no number.
        enumerates: Whether the compiled call of a window may enumerate its states in the place of the backend.
    """

    smooth: bool = False
    plain: bool = False
    enumerates: bool = False

    def differentiable_moments(self, ising: Ising, correlations: bool = False, seed: int = 0) -> Moments:
        """Moments differentiable in h, J and K, as from :meth:`moments` but without the ``info`` of the call."""
        if transformed():  # functions with all rules take matrices
            ising = ising.dense()
        elif ising.edges is not None:
            self._require(ising)
            ising = expanded(ising, self.capabilities)
        # A smooth graph needs no custom derivatives, except under transforms.
        if (self.smooth or not differentiated(ising)) and not transformed():
            return self._answer(ising, correlations, seed)
        return analytic_moments(self, ising, correlations, seed)

    def differentiable_log_odds(self, ising: Ising) -> Tensor:
        """Log P(s = +1) - log P(s = -1), [*batch, n], differentiable; 0 for invisible spins.

        From two solutions or more, :func:`diabat.samplers.odds.analytic_log_odds`; overridden where one is enough.
        """
        return analytic_log_odds(self.differentiable_moments, ising)

    def for_window(self, window: int, reach: int) -> AnalyticSampler:
        """Return the sampler for a layer of windows with couplings up to distance ``reach``; by default itself.

        Raises:
            UnsupportedError: If it does not support such problems.
        """
        return self

    @abstractmethod
    def _moments(self, ising: Ising, correlations: bool, seed: int) -> Moments: ...

    def _answer(self, ising: Ising, correlations: bool, seed: int) -> Moments:
        """Refuse unsupported problems, then call the backend."""
        with without_autocast(ising.fields):
            self._require(ising)
            return self._moments(ising, correlations, seed)

    def _smooth_moments(self, ising: Ising) -> tuple[Tensor, Tensor | None]:
        """Compute P(s = +1) and log Z with operations that autograd can differentiate twice."""
        if self.smooth:
            moments = self._moments(ising, False, 0)
            return moments.probability, moments.log_partition
        able = f"sampler '{self.name}' has first derivatives only"
        raise UnsupportedError("gradient", f"{able}, got a second one; use 'exact' or 'banded'.")
