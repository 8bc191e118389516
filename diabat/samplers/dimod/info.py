"""Facts of a call, added up over its submissions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from diabat.samplers.dimod.programming import FloatArray
from diabat.samplers.dimod.readout import Logical, Reads
from diabat.samplers.dimod.submit import Work


@dataclass
class Tally:
    """Submissions, chains and access time of one call."""

    submissions: int = 0
    cached: int = 0
    qubits: int = 0
    longest_chain: int = 0
    access_us: float | None = None
    breaks: list[FloatArray] = field(default_factory=list)
    flipped: list[float] = field(default_factory=list)

    def add(self, work: Work, reads: Reads, logical: Logical, cached: bool) -> None:
        """Count one answer."""
        self.submissions += 1
        self.cached += cached
        self.qubits = max(self.qubits, len(work.packed.labels))
        self.longest_chain = max(self.longest_chain, int(work.packed.lengths.max()))
        if reads.access_us is not None and not cached:
            self.access_us = (self.access_us or 0.0) + reads.access_us
        if reads.chain_breaks is not None:
            self.breaks.append(reads.chain_breaks)
        elif self.longest_chain > 1:
            self.breaks.append(logical.broken)
        if logical.flipped is not None:
            self.flipped.append(logical.flipped)

    def info(self) -> dict[str, Any]:
        """Entries of ``info``; chain breaks and flipped ancillas where there are chains and ancillas."""
        facts: dict[str, Any] = {
            "submissions": self.submissions,
            "cached_submissions": self.cached,
            "qubits": self.qubits,
            "longest_chain": self.longest_chain,
            "qpu_access_s": None if self.access_us is None else self.access_us / 1e6,
        }
        if self.breaks:
            fractions = np.concatenate(self.breaks)
            facts["chain_break_fraction"] = {
                "mean": float(fractions.mean()),
                "max": float(fractions.max()),
            }
        if self.flipped:
            facts["ancilla_flips"] = float(np.mean(self.flipped))
        return facts
