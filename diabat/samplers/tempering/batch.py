"""A batch of Ising models as parallel-tempering simulations, and the chains that are kept between calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diabat.checks import ArgumentError
from diabat.compute.memory import require_memory
from diabat.edges import Edges
from diabat.ising import Ising
from diabat.ising_checks import is_within
from diabat.samplers.answers import lowest_state
from diabat.samplers.capabilities import UnsupportedError
from diabat.samplers.grouping import Group, Tier, tiers, undivided
from diabat.samplers.tempering.simulation import ChainSimulation, EdgeSimulation, Simulation

Array = NDArray[Any]

_LARGEST_COUPLING = 1e25


def require_single_precision(sampler: str, ising: Ising) -> None:
    """Refuse couplings whose sums overflow float32.

    Fields beyond float32 are clipped: the spin is still determined by its field, unless couplings are as large.

    Raises:
        UnsupportedError: If a coupling is too large; the message names the sampler.
    """
    for name, value in zip(("couplings", "three_body"), ising.terms[1:], strict=True):
        if value is None or is_within(value, _LARGEST_COUPLING):
            continue
        if (largest := float(value.detach().abs().max())) > _LARGEST_COUPLING:
            raise UnsupportedError(
                name,
                f"sampler '{sampler}' computes in float32, expected values up to "
                f"{_LARGEST_COUPLING:g}, got {largest:.3g}.",
            )


@dataclass(frozen=True, eq=False)
class Kept:
    """Chains kept between two calls."""

    NAMES: ClassVar[tuple[str, ...]] = ("chains", "couplings", "ladder")

    spins: Tensor  # by rung, int8 [C, R, *batch, n]
    couplings: int | None  # number of distinct couplings of the batch; None if unknown
    betas: Array | None  # ladder of every problem of the flat batch, float64 [N, R]; None if not tuned yet

    @classmethod
    def checked(cls, spins: Any, replicas: int) -> Kept:
        """Check and copy the spins that a caller gives.

        Raises:
            ValueError: If they are not int8 ±1 of shape [C, R, *batch, n].
        """
        expected = f"expected int8 spins of -1 and +1, [num_chains, {replicas}, *batch, n]"
        if not isinstance(spins, Tensor):
            raise ArgumentError("chains", f"{expected}, got {type(spins).__name__}.")
        if spins.dtype != torch.int8 or spins.ndim < 3 or spins.shape[1] != replicas:
            raise ArgumentError("chains", f"{expected}, got {spins.dtype} of shape {list(spins.shape)}.")
        if not bool((spins.abs() == 1).all()):
            raise ArgumentError("chains", f"{expected}, got other values.")
        return cls(spins.detach().cpu().clone(), None, None)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], replicas: int) -> Kept:
        """Check and copy the result of :meth:`tensors`.

        Raises:
            ValueError: If chains are missing, chains or ladder have another number of replicas or problems, or the
                ladder is not ascending.
        """
        if "chains" not in tensors:
            names = ", ".join(tensors)
            raise ArgumentError("state", f"expected the chains of a persistent sampler, got {names}.")
        spins = cls.checked(tensors["chains"], replicas).spins
        couplings = int(tensors["couplings"]) if "couplings" in tensors else None
        if "ladder" not in tensors:
            return cls(spins, couplings, None)
        ladder = tensors["ladder"].cpu().numpy().copy()
        expected, got = [math.prod(spins.shape[2:-1]), replicas], list(ladder.shape)
        if got != expected:
            raise ArgumentError("state", f"expected a ladder of shape {expected}, got {got}.")
        if ladder.dtype != np.float64 or not (np.isfinite(ladder).all() and (np.diff(ladder) >= 0).all()):
            raise ArgumentError("state", "expected a ladder of ascending float64, got other values.")
        return cls(spins, couplings, ladder)

    def tensors(self) -> dict[str, Tensor]:
        """Copies of all tensors under ``NAMES``: ``chains``, and if they are known ``couplings`` and ``ladder``."""
        found = {"chains": self.spins.clone()}
        if self.couplings is not None:
            found["couplings"] = torch.tensor(self.couplings)
        if self.betas is not None:
            found["ladder"] = torch.from_numpy(self.betas.copy())
        return found

    def fits(self, ising: Ising, chains: int, replicas: int, couplings: int) -> bool:
        """Whether a call can continue these chains."""
        shape = (chains, replicas, *ising.fields.shape)
        return tuple(self.spins.shape) == shape and self.couplings in (None, couplings)


class Part:
    """The simulation of one tier, whose P problems are its places, in order.

    ``seen`` is True for spins, False for phantoms, bool [P, m].
    """

    def __init__(
        self, tier: Tier, simulate: Callable[..., ChainSimulation], batch: Batch, chains: int, ladder: Array,
        track: bool,
    ) -> None:  # fmt: skip
        self.tier = tier
        places = tier.places
        queries = places.rows.numpy()
        self._cells = places.cells.numpy()  # [P, m]
        self.seen = self._cells < batch.ising.fields.numel()
        kept = batch.start
        tuned = None if kept is None else kept.betas
        betas = np.tile(ladder, (len(queries), 1)) if tuned is None else tuned[queries]
        spins = None if kept is None else self._gather(kept.spins)
        self.simulation = simulate(queries=queries, chains=chains, betas=betas, spins=spins, track=track)

    def _gather(self, spins: Tensor) -> Array:
        """Gather spins [C, R, *batch, n] into [P, C, R, m]; phantoms are +1."""
        if self.tier.whole:
            by_problem = spins.reshape(*spins.shape[:2], *self._cells.shape).permute(2, 0, 1, 3)
            return by_problem.contiguous().numpy()
        flat = spins.reshape(*spins.shape[:2], -1).numpy()
        padded = np.concatenate((flat, np.ones((*flat.shape[:2], 1), np.int8)), axis=-1)
        return np.ascontiguousarray(padded[..., self._cells].transpose(2, 0, 1, 3))

    def write(self, values: Array, flat: Array) -> None:
        """Write values [P, m, ...] into the rows of all cells, [N·n + 1, ...]."""
        if self.tier.whole:
            flat[:-1].reshape(values.shape)[...] = values
        else:
            flat[self._cells] = values

    def write_reads(self, reads: Array, flat: Array) -> None:
        """Write reads [t, P, C, m] into [N·n + 1, reads]: all chains of one time, then those of the next."""
        by_cell = reads.transpose(1, 3, 0, 2).reshape(*self._cells.shape, -1)
        self.write(by_cell[..., : flat.shape[1]], flat)

    def dense(self, values: Array) -> Tensor:
        """Put values [P, ...] into the slots of the tier, [G, Q, ...], on its device; zero elsewhere."""
        return self.tier.padded(torch.from_numpy(values)).to(self.tier.problems.device)


class Batch:
    """All problems of a call: C chains of each, with β of the rungs in ``ladder`` [R].

    Attributes:
        tiers: The tiers of the batch.
        parts: One per tier; none if nothing is visible.
        start: The kept chains of the previous call, if they fit and this call continues them, or None.
        visible_spins: Number of visible spins of all problems.

    Raises:
        ValueError: If the chains do not fit in memory.
    """

    def __init__(
        self, ising: Ising, chains: int, ladder: Array, kept: Kept | None, *, track: bool = False
    ) -> None:
        self.ising, self._shape = ising, (chains, len(ladder))
        coupled = ising.held_couplings is not None or ising.three_body is not None
        self._couplings = ising.num_couplings if coupled else 0
        self.start = kept if kept is not None and kept.fits(ising, *self._shape, self._couplings) else None
        # The spins of all replicas, and a copy of them as a result.
        needed = (2 * len(ladder) + track) * chains * ising.fields.numel()
        require_memory(needed, f"{chains} chains of {len(ladder)} replicas of {ising.num_problems} problems")
        if ising.edges is None:
            self.tiers = tiers(ising, _cost)
            simulations = [(group.tier, _dense(group)) for group in self.tiers.gather(ising)]
        else:
            self.tiers = undivided(ising)
            simulations = [(tier, _sparse(tier, ising, ising.edges)) for tier in self.tiers.tiers]
        self.parts = [Part(*pair, self, chains, ladder, track) for pair in simulations]
        self.visible_spins = (
            ising.fields.numel() if self.tiers.whole else sum(int(part.seen.sum()) for part in self.parts)
        )

    def kept(self) -> Kept:
        """The current chains."""
        total, replicas = self.ising.num_problems, self._shape[1]
        spins = np.full((self.ising.fields.numel() + 1, *self._shape), -1, np.int8)
        betas = np.ones((total, replicas))
        for part in self.parts:
            part.write(part.simulation.spins().transpose(0, 3, 1, 2), spins)
            betas[part.tier.places.rows.numpy()] = part.simulation.betas
        by_chain = torch.from_numpy(spins[:-1]).movedim(0, -1).reshape(*self._shape, *self.ising.fields.shape)
        return Kept(by_chain.contiguous(), self._couplings, betas)

    def lowest(self) -> Tensor:
        """The tracked state of lowest energy of each problem, of all its chains, int8 [*batch, n]."""
        flat = np.full((self.ising.fields.numel() + 1, self._shape[0]), -1, np.int8)
        for part in self.parts:
            part.write_reads(part.simulation.lowest[None], flat)
        by_chain = torch.from_numpy(flat[:-1].T.copy()).reshape(-1, *self.ising.fields.shape)
        return lowest_state(self.ising, by_chain.to(self.ising.fields.device)).spins

    def per_problem(self, values: Sequence[Array]) -> Tensor:
        """Join values [P, k] of every part to float64 [*batch, k]; NaN for problems without visible spins."""
        width = values[0].shape[1] if values else 0
        if not width:
            return torch.empty(*self.ising.batch_shape, 0, dtype=torch.float64)
        if self.tiers.whole:
            flat = torch.from_numpy(values[0].astype(np.float64))
            return flat.reshape(*self.ising.batch_shape, width).to(self.ising.fields.device)
        return torch.stack([self.one_per_problem([v[:, i] for v in values]) for i in range(width)], dim=-1)

    def one_per_problem(self, values: Sequence[Array], fill: float = float("nan")) -> Tensor:
        """Join values [P] of every part to float64 [*batch]."""
        if not values:
            return torch.full(self.ising.batch_shape, fill, dtype=torch.float64)
        pairs = zip(self.parts, values, strict=True)
        return self.tiers.per_problem([part.dense(v.astype(np.float64)) for part, v in pairs], fill)


def _dense(group: Group) -> Callable[..., ChainSimulation]:
    """The simulation of a tier whose couplings are matrices."""
    tier, fields = group.tier, group.fields.cpu()
    fields = fields.reshape(-1, fields.shape[-1]) if tier.whole else fields[tier.places[:2]]
    couplings, three_body = (
        None if t is None else t.cpu().numpy() for t in (group.couplings, group.three_body)
    )
    return partial(Simulation, couplings, three_body, fields.numpy(), tier.places.groups.numpy())


def _sparse(tier: Tier, ising: Ising, edges: Edges) -> Callable[..., ChainSimulation]:
    """The simulation of the problems of a tier whose couplings are edges."""
    n, rows = ising.num_spins, tier.places.rows
    return partial(
        EdgeSimulation,
        edges.index.cpu().numpy(),
        edges.values.reshape(edges.lead.numel(), edges.count).cpu().numpy(),
        ising.coupling_index()[rows].numpy(),
        ising.visible_mask.reshape(-1, n).cpu()[rows].numpy(),
        ising.fields.reshape(-1, n).cpu()[rows].numpy(),
    )


def single(ising: Ising, chains: int, by_edges: bool) -> ChainSimulation:
    """Plain chains of one visible problem on the CPU; couplings held as edges may be expanded into a matrix."""
    n, edges, first = ising.num_spins, ising.edges, np.zeros(1, np.int64)
    h = ising.fields.numpy().reshape(1, n)
    options: dict[str, Any] = {"chains": chains, "betas": np.ones((1, 1))}
    if by_edges and edges is not None:
        values = edges.values.numpy().reshape(1, -1)
        return EdgeSimulation(edges.index.numpy(), values, first, np.full((1, n), True), h, first, **options)
    J = None if ising.couplings is None else ising.couplings.numpy().reshape(1, n, n)
    K = None if ising.three_body is None else ising.three_body.numpy().reshape(1, n, n, n)
    return Simulation(J, K, h, first, first, **options)


def _cost(groups: int, problems: int, spins: int) -> float:
    """Number of additions of a sweep, plus a constant for the calls of one tier, for 16 chains."""
    return 1e5 + groups * problems * float(spins) ** 2
