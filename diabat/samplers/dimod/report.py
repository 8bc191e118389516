"""Reports of a call: its submissions, and the cost of a dry run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from diabat.samplers.diagnostics import Watched
from diabat.samplers.dimod.packing import FloatArray, Logical, Reads
from diabat.samplers.dimod.submit import Submitter, Work

WATCHED = (
    Watched(
        "chain_break_fraction.mean",
        "chain breaks, mean",
        most=0.05,
        advice="use stronger qubit chains (qpu.chain_strength), or shorter ones",
    ),
    Watched("chain_break_fraction.max", "chain breaks, most broken chain"),
    Watched("ancilla_flips", "ancilla flips", most=0.05, advice="use a stronger qpu.flux_bias"),
    Watched("beta_fit.beta_h", "fitted beta of the fields", 0.7, 1.4, "declare or estimate beta anew"),
    Watched("beta_fit.beta_J", "fitted beta of couplings", 0.7, 1.4, "declare or estimate beta anew"),
)
"""Watched entries: broken chains, flipped ancillas, and fitted temperatures."""


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
        """Entries of ``info``; chain breaks and ancilla flips only if there are chains and ancillas."""
        facts: dict[str, Any] = {
            "submissions": self.submissions,
            "cached_submissions": self.cached,
            "qubits": self.qubits,
            "longest_chain": self.longest_chain,
            "qpu_access_s": None if self.access_us is None else self.access_us / 1e6,
        }
        if self.breaks:
            fractions = np.concatenate(self.breaks)
            facts["chain_break_fraction"] = {"mean": float(fractions.mean()), "max": float(fractions.max())}
        if self.flipped:
            facts["ancilla_flips"] = float(np.mean(self.flipped))
        return facts


@dataclass(frozen=True)
class DryRun:
    """Estimated cost of a call of ``sample``.

    Attributes:
        problems: Problems of the batch.
        submissions: Number of calls of the dimod sampler, including those in the cache.
        cached: Number of these calls that are in the cache.
        reads: Reads of the submissions that are not in the cache.
        logical_variables: Largest number of spins of one submission.
        qubits: Largest number of variables (on a chip: qubits) of one submission; None if a composite chooses qubits.
        longest_chain: Largest number of qubits of one spin; None likewise.
        scale: Factor of the programmed values; None for ``fit`` before the temperature is estimated.
        access_s: Estimated access time in seconds of submissions not in the cache; None if there is no estimate.
        reads_left: Remaining reads of ``max_reads`` before the call; None without this option.
        seconds_left: Remaining seconds of ``max_qpu_seconds`` before the call; None without this option.
        estimate_submissions: Submissions among these that estimate the temperature first.  Then no value was compared
            with ranges.
    """

    problems: int
    submissions: int
    cached: int
    reads: int
    logical_variables: int
    qubits: int | None
    longest_chain: int | None
    scale: float | None
    access_s: float | None
    reads_left: int | None
    seconds_left: float | None
    estimate_submissions: int

    def __str__(self) -> str:
        """One line per entry."""
        placed = f"on {self.qubits} qubits, at most {self.longest_chain} for one spin"
        lines = [
            f"problems: {self.problems}; submissions: {self.submissions}, answered by the cache: {self.cached}",
            f"{self.reads} reads to submit",
            f"at most {self.logical_variables} spins in one submission, "
            + (placed if self.qubits is not None else "on qubits that a composite chooses"),
            f"scale of the programmed values: {'unknown' if self.scale is None else f'{self.scale:g}'}",
            "access time: unknown" if self.access_s is None else f"access time: about {self.access_s:.4g} s",
        ]
        if self.estimate_submissions:
            first = f"{self.estimate_submissions} of the submissions estimate beta first"
            lines.append(f"{first}; values are compared with ranges after that")
        if self.reads_left is not None:
            lines.append(f"{self.reads_left} reads left of max_reads")
        if self.seconds_left is not None:
            lines.append(f"{self.seconds_left:.4g} s left of max_qpu_seconds")
        return "\n".join(lines)


def dry_run(
    submitter: Submitter, works: Sequence[Work], problems: int, rounds: Sequence[Work], scale: float | None
) -> DryRun:
    """Sum the cost of the submissions that are not in the cache; after rounds of an estimate none is."""
    new = [*rounds, *works] if rounds else submitter.missing(works)
    works = [*rounds, *works]
    packed = [] if submitter.embeds else [work.packed for work in works]
    budget, unplaced = submitter.budget, None if submitter.embeds else 0
    return DryRun(
        problems=problems,
        submissions=len(works),
        cached=len(works) - len(new),
        reads=sum(work.reads for work in new),
        logical_variables=max((len(work.packed.rows) for work in works), default=0),
        qubits=max((len(one.labels) for one in packed), default=unplaced),
        longest_chain=max((int(one.lengths.max()) for one in packed), default=unplaced),
        scale=scale,
        access_s=submitter.seconds(new),
        reads_left=None if budget.max_reads is None else budget.max_reads - budget.reads,
        seconds_left=None if budget.max_seconds is None else budget.max_seconds - budget.seconds,
        estimate_submissions=len(rounds),
    )
