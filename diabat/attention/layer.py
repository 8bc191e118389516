"""What every layer over a sampler has: the bridge, bound when the layer is built, and the angles of its anneal."""

from __future__ import annotations

from torch import Tensor, nn

from diabat.attention.bridge import GradientBridge
from diabat.ising import Ising
from diabat.samplers.base import Sampler
from diabat.samplers.registry import as_sampler


class IsingLayer(nn.Module):
    """Binds a sampler, an estimator and a number of reads.

    Attributes:
        schedule_angles: Learnable angles of the sampler's anneal, if it has some; each layer has its own.
    """

    def use_sampler(
        self, sampler: Sampler | str, *, gradient: str = "auto", num_reads: int | None = None
    ) -> None:
        """Put another backend in place of the one that the layer was built with, e.g. hardware after training.

        Args:
            sampler: A sampler or the name of one.
            gradient: Estimator, see :func:`diabat.spin_probabilities`.
            num_reads: Reads per problem for sampling backends.

        Raises:
            ValueError: If ``num_reads`` is invalid.
            UnsupportedError: If the sampler does not support the layer's problems or the estimator.
        """
        built = self._fitted(as_sampler(sampler).with_own_parameters())
        self._bridge = GradientBridge(built, gradient, num_reads, in_graphs=True)
        self.schedule_angles = nn.ParameterList(built.parameters) if built.parameters else None

    def _fitted(self, sampler: Sampler) -> Sampler:
        """Adapt a backend to the layer's problems, or refuse what it would refuse at the first batch."""
        return sampler

    @property
    def sampler(self) -> Sampler:
        """The backend; another one may be assigned, which keeps estimator and reads (see :meth:`use_sampler`)."""
        return self._bridge.sampler

    @sampler.setter
    def sampler(self, sampler: Sampler | str) -> None:
        self.use_sampler(sampler, gradient=self.gradient, num_reads=self.num_reads)

    @property
    def gradient(self) -> str:
        """Estimator, as it was asked for."""
        return self._bridge.gradient

    @property
    def num_reads(self) -> int | None:
        """Reads per problem for sampling backends, as asked for."""
        return self._bridge.num_reads

    def _probabilities(
        self,
        fields: Tensor,
        couplings: Tensor | None,
        visible: Tensor | None,
        three_body: Tensor | None = None,
        *,
        seed: int | None = None,
    ) -> Tensor:
        """P(s = +1) of problems that are valid by construction; shapes as in :class:`diabat.Ising`.

        Without a seed, one is drawn from torch's global generator where the backend needs it.
        """
        if self.schedule_angles is not None:
            # load_state_dict(assign=True) and functional_call put other tensors in place of the parameters.
            self.sampler.parameters = tuple(self.schedule_angles)
        if seed is None:
            return self._bridge(fields, couplings, visible, three_body)
        return self._bridge.probabilities(Ising(fields, couplings, visible, three_body, check=False), seed)
