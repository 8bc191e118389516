"""Problems onto one chip: its graph, its tilings by size, its strongest chain."""

from __future__ import annotations

from collections.abc import Sequence

from diabat.checks import ArgumentError
from diabat.samplers.base import UnsupportedError
from diabat.samplers.dimod.dwave_layout import pack_tiles
from diabat.samplers.dimod.dwave_options import QPU
from diabat.samplers.dimod.dwave_tiles import Tiling, find_tiling
from diabat.samplers.dimod.layout import Packed
from diabat.samplers.dimod.programming import Problem
from diabat.samplers.dimod.ranges import stated_ranges
from diabat.samplers.dimod.target import DimodLike, accepted_parameters, device_properties, missing_package


class Placement:
    """Packs problems into tiles of a chip; a tiling is searched for once per size of problem.

    Args:
        qpu: How problems are placed.
        sampler: A structured sampler (DWaveSampler or a stand-in), not a composite that embeds by itself.

    Raises:
        ValueError: If the sampler has no graph of qubits, or no flux biases where ancillas need them.
    """

    def __init__(self, qpu: QPU, sampler: DimodLike) -> None:
        if not callable(getattr(sampler, "to_networkx_graph", None)):
            raise ArgumentError(
                "qpu", f"expected a structured sampler such as DWaveSampler, got {type(sampler).__name__}."
            )
        if qpu.fields == "ancilla" and "flux_biases" not in accepted_parameters(sampler):
            raise ArgumentError(
                "qpu.fields",
                f"'ancilla' needs flux_biases, which {type(sampler).__name__} has not; use 'gauge'.",
            )
        self.qpu, self.sampler = qpu, sampler
        properties = device_properties(sampler)
        self.num_qubits = int(properties["num_qubits"])
        allowed = stated_ranges(properties).J
        self.strongest = None if allowed is None or allowed[0] >= 0 else -allowed[0]
        self._tilings: dict[int, Tiling] = {}

    def pack(self, problems: Sequence[Problem]) -> list[Packed]:
        """Pack problems into as few submissions as the tiles allow.

        Raises:
            UnsupportedError: If a problem is larger than ``qpu.spins`` or than the chip takes.
        """
        if not problems:
            return []
        largest = max(len(problem.spins) for problem in problems)
        # The reference problems of an estimate may be larger than qpu.spins.
        tiling = self.tiling(max(self.qpu.spins or 0, largest))
        return pack_tiles(problems, tiling, self.qpu, self.strongest, self.num_qubits)

    def tiling(self, spins: int) -> Tiling:
        """Tiles for problems of so many spins, searched for when first asked for."""
        width = spins + (self.qpu.fields != "direct")
        if width not in self._tilings:
            graph = self.sampler.to_networkx_graph()  # type: ignore[attr-defined]  # checked on construction
            try:
                self._tilings[width] = find_tiling(
                    graph, width, most=self.qpu.tiles, seed=self.qpu.embedding_seed
                )
            except ImportError as error:
                raise ValueError(missing_package(error, "qpu: the search for tiles")) from None
            except ValueError as error:
                raise UnsupportedError(str(error)) from None
        return self._tilings[width]
