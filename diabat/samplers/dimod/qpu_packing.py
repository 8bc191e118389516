"""Packing of problems on a chip: several small ones per tile, hundreds of tiles per submission."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from diabat.checks import ArgumentError
from diabat.samplers.capabilities import UnsupportedError
from diabat.samplers.dimod.limits import stated_ranges
from diabat.samplers.dimod.options import QPU
from diabat.samplers.dimod.packing import FloatArray, IntArray, Packed, Problem
from diabat.samplers.dimod.qpu_tiles import Tiling, find_tiling, logical_graph
from diabat.samplers.dimod.target import DimodLike, accepted_parameters, device_properties, missing_package

# Ocean's uniform_torque_compensation.
_TORQUE = 1.414


def pack_tiles(
    problems: Sequence[Problem], tiling: Tiling, qpu: QPU, strongest: float | None, num_qubits: int
) -> list[Packed]:
    """Pack problems into tiles.

    Args:
        problems: The problems; none is larger than a tile.
        tiling: The tiles; with one additional logical spin if fields need an ancilla or a gauge spin.
        qpu: Fields and chains.
        strongest: Largest chain strength that the processor can program; None if it is unknown.
        num_qubits: Length of the list of flux biases.
    """
    bins = _fill(problems, tiling.spins - (qpu.fields != "direct"))
    parts = [bins[i : i + tiling.tiles] for i in range(0, len(bins), tiling.tiles)]
    return [_pack(part, tiling, qpu, strongest, num_qubits) for part in parts]


def _fill(problems: Sequence[Problem], room: int) -> list[list[Problem]]:
    """Fill tiles of at most ``room`` spins: the largest problems first, each into the fullest tile with room for it.

    Problems in the same tile are not coupled.  They share its ancilla, which is fixed, or its gauge spin: the products
    of spin and gauge of different problems are independent.
    """
    bins: list[list[Problem]] = []
    by_room: dict[int, list[list[Problem]]] = {left: [] for left in range(room + 1)}
    for problem in sorted(problems, key=lambda one: -len(one.spins)):
        size = len(problem.spins)
        left = next((r for r in range(size, room + 1) if by_room[r]), None)
        if left is None:
            bins.append([])
            left, chosen = room, bins[-1]
        else:
            chosen = by_room[left].pop()
        chosen.append(problem)
        by_room[left - size].append(chosen)
    return bins


def _pack(
    bins: list[list[Problem]], tiling: Tiling, qpu: QPU, strongest: float | None, num_qubits: int
) -> Packed:
    """One submission: chains are numbered tile by tile, the ancillas or gauge spins, last of each tile, after them."""
    h, J, chain_of = _logical(bins, tiling.spins, qpu.fields != "direct")
    t, i, qubit = tiling.qubits[tiling.qubits[:, 0] < len(bins)].T
    chain = chain_of[t, i]
    order = np.argsort(chain, kind="stable")[np.count_nonzero(chain < 0) :]
    labels, chain = qubit[order], chain[order]
    starts = np.flatnonzero(np.diff(chain, prepend=-1))
    lengths = np.diff(starts, append=len(labels))
    position = np.full(num_qubits, -1, dtype=np.int64)
    position[labels] = np.arange(len(labels))
    pairs, couplings, chains = _couplers(J, chain_of, tiling, qpu, strongest)
    members = [problem for part in bins for problem in part]
    rows = np.repeat([problem.row for problem in members], [len(problem.spins) for problem in members])
    flux = np.zeros(num_qubits)
    # A positive flux bias holds +1: its sign is opposite to that of h.
    flux[labels[np.searchsorted(chain, len(rows)) :]] = qpu.flux_bias
    return Packed(
        labels=labels,
        fields=h[t, i][order] / lengths[chain],
        pairs=position[pairs],
        couplings=couplings,
        chains=chains,
        rows=rows,
        spins=np.concatenate([problem.spins for problem in members]),
        starts=starts,
        gauges=chain_of[_tile_of(chain_of, len(rows)), -1] if qpu.fields == "gauge" else None,
        parameters={"flux_biases": flux.tolist()} if qpu.fields == "ancilla" else {},
    )


def _logical(bins: list[list[Problem]], width: int, extra: bool) -> tuple[FloatArray, FloatArray, IntArray]:
    """Biases [T, K] and [T, K, K] of the tiles, and the number of the chain of each logical spin, -1 without one."""
    tiles = len(bins)
    h, J, used = (
        np.zeros((tiles, width)),
        np.zeros((tiles, width, width)),
        np.zeros((tiles, width), dtype=bool),
    )
    for t, members in enumerate(bins):
        start = 0
        for problem in members:
            here = slice(start, start + len(problem.spins))
            h[t, here], J[t, here, here], used[t, here] = problem.fields, problem.matrix, True
            start = here.stop
    chain_of = np.full((tiles, width), -1, dtype=np.int64)
    chain_of[used] = np.arange(used.sum())
    if extra:
        # h_i s_i s_a with s_a = +1 (ancilla), or in the spins s_i s_a themselves (gauge).
        J[:, :, -1] += h
        chain_of[:, -1] = used.sum() + np.arange(tiles)
        h = np.zeros_like(h)
    return h, J, chain_of


def _tile_of(chain_of: IntArray, spins: int) -> IntArray:
    """Tile of each of the first ``spins`` chains."""
    return np.nonzero((chain_of >= 0) & (chain_of < spins))[0]


def _couplers(
    J: FloatArray, chain_of: IntArray, tiling: Tiling, qpu: QPU, strongest: float | None
) -> tuple[IntArray, FloatArray, FloatArray]:
    """Qubit pairs [E, 2] with the biases of the problems and those of the chains."""
    kept = tiling.couplers[:, 0] < len(J)
    (t, i, j), pairs = tiling.couplers[kept, :3].T, tiling.couplers[kept, 3:]
    values = J[t, i, j] * tiling.shares[kept]
    held = (i == j) & (chain_of[t, i] >= 0)
    strength = chain_strength(J, qpu, strongest) if held.any() else 0.0
    chains = np.where(held, -strength, 0.0)
    if qpu.chain_strength == "uniform_torque":  # it scales with the problem
        values, chains = values + chains, np.zeros_like(chains)
    some = (values != 0) | (chains != 0)
    return pairs[some], values[some], chains[some]


def chain_strength(couplings: FloatArray, qpu: QPU, strongest: float | None) -> float:
    """Strength of the chains of one submission.

    Args:
        couplings: Logical biases [T, K, K], from their upper triangles.
        qpu: The option ``chain_strength``.
        strongest: As in :func:`pack_tiles`.

    Raises:
        ValueError: If no strength is given and the processor does not report the largest one.
    """
    if qpu.chain_strength is None:
        if strongest is None:
            raise ArgumentError(
                "qpu.chain_strength", "expected a number for a device without a j_range, got None."
            )
        return strongest
    if qpu.chain_strength != "uniform_torque":
        return float(qpu.chain_strength)
    upper = np.triu(couplings, 1)
    present = upper != 0
    if not present.any():
        return 1.0
    degree = present.sum((1, 2)) * 2 / np.maximum((present | present.swapaxes(1, 2)).any(2).sum(1), 1)
    return _TORQUE * math.sqrt(float((upper[present] ** 2).mean()) * float(degree.max()))


class Placement:
    """Packs problems into tiles of a chip; the tiling is searched once per problem size and distance of couplings.

    Args:
        qpu: Options of the placement.
        sampler: A structured sampler (DWaveSampler or a substitute), not a composite that embeds problems.

    Raises:
        ValueError: If the sampler has no qubit graph, or ancillas need flux biases and it has none.
    """

    def __init__(self, qpu: QPU, sampler: DimodLike) -> None:
        if not callable(getattr(sampler, "to_networkx_graph", None)):
            raise ArgumentError(
                "qpu", f"expected a structured sampler such as DWaveSampler, got {type(sampler).__name__}."
            )
        if qpu.fields == "ancilla" and "flux_biases" not in accepted_parameters(sampler):
            raise ArgumentError(
                "qpu.fields",
                f"'ancilla' needs flux_biases, which {type(sampler).__name__} does not have; use 'gauge'.",
            )
        self.qpu, self.sampler = qpu, sampler
        properties = device_properties(sampler)
        self.num_qubits = int(properties["num_qubits"])
        allowed = stated_ranges(properties).J
        self.strongest = None if allowed is None or allowed[0] >= 0 else -allowed[0]
        self._tilings: dict[tuple[int, int], Tiling] = {}

    def pack(self, problems: Sequence[Problem], band: int | None = None) -> list[Packed]:
        """Pack problems into as few submissions as the tiles allow.

        Args:
            problems: The problems.
            band: Largest distance of two coupled spins; None if all may couple.

        Raises:
            UnsupportedError: If a problem is larger than ``qpu.spins``, or does not fit on the chip.
        """
        if not problems:
            return []
        largest = max(len(problem.spins) for problem in problems)
        # The reference problems of an estimate may be larger than qpu.spins.
        spins = max(self.qpu.spins or 0, largest)
        tiling = self.tiling(spins, spins - 1 if band is None else min(band, spins - 1))
        return pack_tiles(problems, tiling, self.qpu, self.strongest, self.num_qubits)

    def tiling(self, spins: int, band: int) -> Tiling:
        """Tiles for problems of ``spins`` spins coupled up to the distance ``band``, searched at the first call."""
        if (spins, band) not in self._tilings:
            graph = self.sampler.to_networkx_graph()  # type: ignore[attr-defined]  # checked on construction
            try:
                self._tilings[spins, band] = find_tiling(
                    graph,
                    logical_graph(spins, band, self.qpu.fields != "direct"),
                    most=self.qpu.tiles,
                    seed=self.qpu.embedding_seed,
                )
            except ImportError as error:
                raise ValueError(missing_package(error, "qpu: the search for tiles")) from None
            except ValueError as error:
                raise UnsupportedError(str(error)) from None
        return self._tilings[spins, band]
