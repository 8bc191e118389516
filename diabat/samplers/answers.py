"""What samplers answer with: moments, reads, and the derivative of a law of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from diabat.checks import ArgumentError, check_count
from diabat.extras import extra
from diabat.ising import Ising
from diabat.samplers.answer_forms import Labels, SavedAnswer, row_index, spin_index
from diabat.samplers.diagnostics import chains_of

LEAST_ERROR = 2 / 3  # of independent reads: chains cannot measure modes that they never visited


@dataclass(frozen=True, eq=False)
class Moments(SavedAnswer):
    """First and second moments of a batch of Ising models.

    Attributes:
        probability: P(s_j = +1), [*batch, n]; 0 for invisible spins.  Never computed as (m + 1)/2, which loses its
            relative precision when the magnetization is -1 to rounding.
        visible: bool [*batch, n].
        correlation: <s_j s_k>, [*batch, n, n], 1 on the diagonal; 0 for invisible spins.  None unless asked.
        log_partition: log Z of the visible spins, with the offset, [*batch], where the backend knows it, or was asked
            for it.
        standard_error: Standard error of ``probability``, [*batch, n], for sampled moments.
        num_reads: Number of reads behind sampled moments, None for analytic ones.
        info: Backend, seed, timing and backend-specific facts; see :class:`~diabat.samplers.diagnostics.Info`.
    """

    probability: Tensor
    visible: Tensor
    correlation: Tensor | None = None
    log_partition: Tensor | None = None
    standard_error: Tensor | None = None
    num_reads: int | None = None
    info: Mapping[str, Any] = field(default_factory=dict)

    def replaced(self, **changes: Any) -> Moments:
        """Return the same moments with other attributes; ``dataclasses.replace`` takes ten times as long."""
        moments = object.__new__(type(self))
        vars(moments).update(vars(self), **changes)
        return moments

    @property
    def magnetization(self) -> Tensor:
        """<s_j> = 2 P(s_j = +1) - 1, [*batch, n]; 0 for invisible spins."""
        return torch.where(self.visible, 2 * self.probability - 1, 0)

    @property
    def smoothed_probability(self) -> Tensor:
        """(reads·P + 1/2)/(reads + 1) for sampled moments, the probability itself for analytic ones.

        Strictly positive on visible spins, so that normalised attention weights are never 0/0.
        """
        if self.num_reads is None:
            return self.probability
        smoothed = (self.num_reads * self.probability + 0.5) / (self.num_reads + 1)
        return torch.where(self.visible, smoothed, 0)

    def with_constants(self, ising: Ising) -> Moments:
        """Moments of a problem from those of its :meth:`~diabat.Ising.without_constants`: offset and clamped spins."""
        shifted = self
        if ising.offset is not None and self.log_partition is not None:
            shifted = self.replaced(log_partition=self.log_partition + ising.offset)
        if ising.clamped is None:
            return shifted
        value, fixed = ising.clamped.to(self.probability), ising.clamped != 0
        m = torch.where(fixed, value, self.magnetization)
        C, error = self.correlation, self.standard_error
        if C is not None:
            products = m[..., :, None] * m[..., None, :]
            C = torch.where(fixed[..., :, None] | fixed[..., None, :], products, C)
        return shifted.replaced(
            probability=torch.where(fixed, (value + 1) / 2, self.probability),
            visible=self.visible | fixed,
            correlation=C,
            standard_error=None if error is None else error.masked_fill(fixed, 0),
        )

    def to_pandas(self, labels: Labels = None) -> Any:
        """The moments of each spin as a ``pandas.DataFrame``, one row per (*batch, spin).

        Columns are ``probability``, ``magnetization``, ``standard_error`` if there is one, and ``visible``, in the
        dtypes of the tensors.  Names, ``labels`` and errors as :meth:`Samples.to_pandas`.
        """
        names = ("probability", "magnetization", "standard_error", "visible")
        values = {name: getattr(self, name) for name in names}
        columns = {name: t.reshape(-1).numpy(force=True) for name, t in values.items() if t is not None}
        *batch, n = self.visible.shape
        rows = row_index({}, batch, spin_index(n, labels))
        return extra("pandas", "stats").DataFrame(columns, rows, copy=True)


class Solution(ABC):
    """Analytic moments with their derivative, outside the graph of autograd; see :meth:`AnalyticSampler.solution`.

    Attributes:
        result: P(s_j = +1) or, if they were requested, log-odds, [*batch, n]; 0 for invisible spins.
        log_partition: Log Z, [*batch], where the backend knows it.
    """

    result: Tensor
    log_partition: Tensor | None = None

    @abstractmethod
    def gradient(self, v: Tensor, u: Tensor | None = None, *, pairs: bool) -> tuple[Tensor, Tensor | None]:
        """dL/dh in the shape of h and, if requested, dL/dJ in that of J.

        Args:
            v: Cotangent of the result, [*batch, n].
            u: Cotangent of log Z, [*batch], or None for 0.
            pairs: Whether dL/dJ is requested.
        """

    def backward(self, ctx: Any, v: Tensor, u: Tensor | None) -> tuple[Tensor | None, ...]:
        """The gradient that autograd requests; a solution that it can differentiate again overrides this."""
        return self.gradient(v, u, pairs=ctx.needs_input_grad[1])

    def attached(self, ising: Ising) -> tuple[Tensor, Tensor | None]:
        """The result and log Z in the graph of autograd of h and J, and of K if there is one."""
        h, J, K = terms = ising.terms
        if not (torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in terms)):
            return self.result, self.log_partition
        attached: Any = _Attached.apply(h, J, self) if K is None else _Attached.apply(h, J, K, self)
        return attached


class AdjointSolution(Solution):
    """Moments of the sampler's own law with their exact derivative, also with respect to the sampler's parameters.

    A backend with ``adjoint`` among ``capabilities.gradients`` returns one from :meth:`Sampler.solution`.
    """

    @property
    @abstractmethod
    def moments(self) -> Moments:
        """The moments, computed when they are first read; from reads, if those of the sampler are."""

    @property
    def result(self) -> Tensor:  # type: ignore[override]  # computed
        """P(s_j = +1), [*batch, n]."""
        return self.moments.probability

    @abstractmethod
    def derivative(self, v: Tensor) -> AdjointGradient:
        """The derivative of Σ_j v_j P(s_j = +1) of the law, not of reads, for v [*batch, n]."""

    def gradient(self, v: Tensor, u: Tensor | None = None, *, pairs: bool) -> tuple[Tensor, Tensor | None]:
        """As :class:`Solution`, without the derivatives with respect to parameters."""
        slopes = self.derivative(v)
        return slopes.fields, slopes.couplings if pairs else None


class _Attached(torch.autograd.Function):
    """(h, J or None, K if there is one, their solution) -> its result and log Z; J may be the values of edges."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor | None]:
        *terms, solution = inputs
        ctx.save_for_backward(*terms)
        ctx.set_materialize_grads(False)
        ctx.solution = solution
        # Copies: the solution, which the graph holds, must not hold the graph, nor see what a caller does to a result.
        log_z = solution.log_partition
        return solution.result.clone(), None if log_z is None else log_z.clone()

    @staticmethod
    def backward(ctx: Any, v: Tensor | None, u: Tensor | None) -> tuple[Tensor | None, ...]:
        v = torch.zeros_like(ctx.solution.result) if v is None else v
        return *ctx.solution.backward(ctx, v, u), None


class Lowest(NamedTuple):
    """The state of lowest energy of each problem.

    Attributes:
        spins: int8 ±1, [*batch, n]; -1 for invisible spins.
        energy: [*batch].
    """

    spins: Tensor
    energy: Tensor


def lowest_state(ising: Ising, spins: Tensor) -> Lowest:
    """The state of lowest energy of each problem, of states [k, *batch, n]; the first one of equals."""
    energy = ising.energy(spins)
    best = energy.argmin(0, keepdim=True)  # [1, *batch]
    chosen = torch.take_along_dim(spins, best[..., None], 0)
    return Lowest(chosen[0], torch.take_along_dim(energy, best, 0)[0])


@dataclass(frozen=True, eq=False)
class Samples(SavedAnswer):
    """Reads of a batch of Ising models.

    Attributes:
        spins: int8 ±1, [num_reads, *batch, n]; -1 for invisible spins, the value of clamped ones.
        visible: bool [*batch, n].
        info: Backend, seed, effective beta, timing.
        ising: The problems, detached, which :meth:`Sampler.sample` sets; their memory is the caller's.
        tracked: The state of lowest energy that the backend visited on the way to the reads, int8 [*batch, n], -1 for
            invisible spins; None if it does not keep one (``tempering`` does with ``track_lowest=True``).
    """

    spins: Tensor
    visible: Tensor
    info: Mapping[str, Any] = field(default_factory=dict)
    ising: Ising | None = field(default=None, repr=False)
    tracked: Tensor | None = field(default=None, repr=False)

    @property
    def num_reads(self) -> int:
        """Number of reads."""
        return self.spins.shape[0]

    @property
    def energy(self) -> Tensor:
        """E(s) = -(c + Σ h s + Σ J s s + Σ K s s s) of each read, in the dtype of the fields, [num_reads, *batch].

        Raises:
            ValueError: If the samples do not know their problem.
        """
        return self._problem.energy(self.spins)

    @property
    def _problem(self) -> Ising:
        if self.ising is not None:
            return self.ising
        got = "got None; use Ising.energy(samples.spins)."
        raise ArgumentError("ising", f"expected the problem of the reads, as Sampler.sample keeps it, {got}")

    def lowest(self) -> Lowest:
        """Return the state of lowest energy of each problem: of the reads, the first of equals, and of ``tracked``.

        Raises:
            ValueError: If the samples do not know their problem.
        """
        reads = lowest_state(self._problem, self.spins)
        if self.tracked is None:
            return reads
        return lowest_state(self._problem, torch.stack((reads.spins, self.tracked)))

    def with_clamped(self, clamped: Tensor | None) -> Samples:
        """The same reads with clamped spins at their values, int8 [*batch, n], 0 for free spins; itself for None."""
        if clamped is None:
            return self
        fixed = clamped != 0
        tracked = None if self.tracked is None else torch.where(fixed, clamped, self.tracked)
        spins = torch.where(fixed, clamped, self.spins)
        return replace(self, spins=spins, visible=self.visible | fixed, tracked=tracked)

    def moments(self, *, correlations: bool = False, dtype: torch.dtype = torch.float32) -> Moments:
        """Averages over N reads; the standard error sqrt(P(1 - P)/N), with P smoothed, treats them as independent.

        Where a chain gave several reads (``thin`` of ``tempering``, also below a composite) the error is that of
        independent chains, or of at least 16 segments of a single chain, but at least two thirds of that of N
        independent reads.
        """
        reads = self.num_reads
        probability = (self.spins > 0).sum(0).double() / reads
        smooth = (reads * probability + 0.5) / (reads + 1)
        error = (smooth * (1 - smooth) / reads).sqrt()
        chains = chains_of(self.info) or reads
        if (length := reads // chains) > 1:
            error = torch.maximum(LEAST_ERROR * error, _spread(self.spins[: length * chains] > 0, chains))
        correlation = None
        if correlations:
            s = torch.where(self.visible, self.spins.double(), 0)
            correlation = (torch.einsum("r...j,r...k->...jk", s, s) / reads).to(dtype)
        return Moments(
            probability=torch.where(self.visible, probability, 0).to(dtype),
            visible=self.visible,
            correlation=correlation,
            standard_error=torch.where(self.visible, error, 0).to(dtype),
            num_reads=reads,
            info={} | cast("Any", self.info),  # a copy that computes nothing
        )

    def to_pandas(self, labels: Labels = None, *, chains: int | None = None) -> Any:
        """The reads as a ``pandas.DataFrame``: a row per (chain, draw, *batch), an int8 column per spin.

        Row (c, d) is read d · chains + c: read r is of chain r mod chains.  A batch of several dimensions is
        ``batch_0``, ``batch_1``, ...

        Args:
            labels: One per spin, as :meth:`Ising.from_dict` and ``from_bqm`` return them; None for 0 .. n - 1.
            chains: Number of chains; None for ``info["num_chains"]`` of ``tempering``, also as the base of a composite,
                else 1.  Without ``thin`` each read of ``tempering`` is a chain.

        Raises:
            ImportError: If pandas is missing; the message contains the command that installs it.
            ValueError: If the reads cannot be divided by the chains, or labels are not one different one per spin.
        """
        count = chains_of(self.info) or 1 if chains is None else chains
        count = check_count("chains", count)
        if self.num_reads % count:
            raise ArgumentError("chains", f"a divisor of the {self.num_reads} reads", count)
        *batch, n = self.visible.shape
        spins = self.spins.unflatten(0, (-1, count)).transpose(0, 1).reshape(-1, n)
        rows = row_index({"chain": count, "draw": self.num_reads // count}, batch)
        columns = spin_index(n, labels)
        return extra("pandas", "stats").DataFrame(spins.numpy(force=True), rows, columns, copy=True)


def _spread(up: Tensor, chains: int) -> Tensor:
    """Standard error of the mean of [T·chains, ...], from the means of chains, or of segments of a single one."""
    if chains > 1:
        means = up.unflatten(0, (-1, chains)).sum(0).double() * chains / len(up)
    else:
        size = max(1, len(up) // 16)
        means = up[: len(up) // size * size].unflatten(0, (-1, size)).sum(1).double() / size
    return (means.var(0) / len(means)).sqrt()


class AdjointGradient(NamedTuple):
    """Derivative of a loss through the sampler's own law.

    Attributes:
        fields: ∂L/∂h, [*batch, n].
        couplings: ∂L/∂J in the shape of J, symmetric, the energy being read as ½ Σ_{j≠k} J_jk s_j s_k; None
            without J.
        parameters: ∂L/∂θ for each of the sampler's ``parameters``.
    """

    fields: Tensor
    couplings: Tensor | None
    parameters: tuple[Tensor, ...] = ()
