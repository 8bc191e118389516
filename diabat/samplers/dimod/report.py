"""Reports of a call: its submissions, and the cost of a dry run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from diabat.samplers.diagnostics import Watched
from diabat.samplers.dimod.packing import FRACTIONS, FloatArray, Reads
from diabat.samplers.dimod.submit import Submitter, Work

WATCHED = (
    Watched(
        "chain_break_fraction.mean",
        "chain breaks, mean",
        most=0.05,
        advice="use stronger qubit chains (chain_strength), or shorter ones",
    ),
    Watched("chain_break_fraction.max", "chain breaks, most broken chain"),
    Watched("ancilla_flips", "ancilla flips", most=0.05, advice="use a stronger flux_bias"),
    Watched("beta_fit.beta_h", "fitted beta of the fields", 0.7, 1.4, "declare or estimate beta anew"),
    Watched("beta_fit.beta_J", "fitted beta of couplings", 0.7, 1.4, "declare or estimate beta anew"),
)
"""Watched entries: broken chains, flipped ancillas, and fitted temperatures."""


@dataclass
class Tally:
    """Submissions, chains and access time of one call; chains are known unless a composite does not tell."""

    known: bool = True
    submissions: int = 0
    cached: int = 0
    qubits: int = 0
    longest_chain: int = 0
    answered: int = 0
    kept: int = 0
    access_us: float | None = None
    fractions: dict[str, list[FloatArray]] = field(default_factory=lambda: {name: [] for name in FRACTIONS})

    def add(self, work: Work, reads: Reads, cached: bool) -> None:
        """Count one answer."""
        self.submissions += 1
        self.cached += cached
        self.answered += reads.rows
        self.kept += work.reads
        if (chip := work.packed.chip) is None:
            self.known = False
        else:
            self.qubits = max(self.qubits, len(chip.fields))
            self.longest_chain = max(self.longest_chain, chip.longest_chain)
        if reads.access_us is not None and not cached:
            self.access_us = (self.access_us or 0.0) + reads.access_us
        for name, values in reads.fractions.items():
            self.fractions[name].append(values)

    def info(self) -> dict[str, Any]:
        """Entries of ``info``; chain breaks and ancilla flips only if there are chains and ancillas."""
        facts: dict[str, Any] = {
            "submissions": self.submissions,
            "cached_submissions": self.cached,
            "reads_answered": self.answered,
            "reads_kept": self.kept,
            "qubits": self.qubits if self.known else None,
            "longest_chain": self.longest_chain if self.known else None,
            "qpu_access_s": None if self.access_us is None else self.access_us / 1e6,
        }
        breaks, flips = (self.fractions[name] for name in FRACTIONS)
        if breaks:
            broken = np.concatenate(breaks)
            facts["chain_break_fraction"] = {"mean": float(broken.mean()), "max": float(broken.max())}
        if flips:
            facts["ancilla_flips"] = float(np.concatenate(flips).mean())
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
        access_s: Estimated access time in seconds of submissions not in the cache; None if there is no estimate.  If a
            composite chooses qubits, it is that of one submission of the whole chip for each call.
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
        if self.qubits is None:
            whole = "; the time is that of all qubits, read once" if self.access_s is not None else ""
            lines.append(f"what the composite submits is not known{whole}: the timing of its answers counts")
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
    chips = [work.packed.chip for work in works]
    told, budget = [chip for chip in chips if chip is not None], submitter.budget
    known = len(told) == len(chips)
    return DryRun(
        problems=problems,
        submissions=len(works),
        cached=len(works) - len(new),
        reads=sum(work.reads for work in new),
        logical_variables=max((len(work.packed.rows) for work in works), default=0),
        qubits=max((len(chip.fields) for chip in told), default=0) if known else None,
        longest_chain=max((chip.longest_chain for chip in told), default=0) if known else None,
        scale=scale,
        access_s=submitter.seconds(new),
        reads_left=None if budget.max_reads is None else budget.max_reads - budget.reads,
        seconds_left=None if budget.max_seconds is None else budget.max_seconds - budget.seconds,
        estimate_submissions=len(rounds),
    )
