"""Submissions one after the other: answered from the cache or within the budget, with retries."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from diabat.checks import ArgumentError
from diabat.samplers.dimod.budget import AccessTime, Budget, BudgetError, Held
from diabat.samplers.dimod.cache import AnswerCache, submission_key
from diabat.samplers.dimod.packing import FRACTIONS, Packed, Reads, expand, valid_time
from diabat.samplers.dimod.target import DimodLike, accepted_parameters, device_properties, family, identity
from diabat.scrubbing import safe_message

T = TypeVar("T")

# Class names anywhere among the bases, so that neither requests nor dwave.cloud needs to be imported.
# After these failures the problem may still have been answered:
_TIMEOUTS = frozenset({"TimeoutError", "Timeout", "RequestTimeout", "PollingTimeout"})
TRANSIENT = _TIMEOUTS | {
    "ConnectionError",  # Python's and that of requests
    "ChunkedEncodingError",
    "SolverOfflineError",  # dwave.cloud from here on
    "InternalServerError",
    "ProblemUploadError",
}
_LONGEST_WAIT_S = 60.0
# A sampler that returns too few reads is refused after this many submissions.
_MOST_PARTS = 4
_MOST_SUBMISSIONS = 1_000_000


class SubmissionError(RuntimeError):
    """A submission failed; the message contains no token, and no exception is chained that could contain one."""


def is_transient(error: BaseException, kinds: frozenset[str] = TRANSIENT) -> bool:
    """Whether an exception is about the network or an unavailable solver, not about the problem."""
    return any(base.__name__ in kinds for base in type(error).__mro__)


def with_retries(call: Callable[[], T], *, retries: int, wait_s: float, what: str) -> T:
    """Call with retries; after transient failure k wait ``wait_s`` · 2^k seconds, times a random 0.5 to 1.5.

    Args:
        call: The submission.
        retries: Further attempts after a transient failure.
        wait_s: First wait, in seconds; no wait is longer than a minute.
        what: Subject of the message, such as "DWaveSampler".

    Raises:
        BudgetError: If the call raises it; there is no retry.
        SubmissionError: After a failure that is not transient, or after the last attempt.
    """
    for attempt in range(retries + 1):
        try:
            return call()
        except BudgetError:
            raise
        except Exception as error:  # samplers raise many types; all are reported in the same form
            if not is_transient(error):
                raise SubmissionError(f"sampler: {what} failed: {safe_message(error)}") from None
            if attempt == retries:
                raise SubmissionError(
                    f"sampler: {what} failed {attempt + 1} times in a row, the last time with {safe_message(error)}"
                ) from None
        # Jitter: several runs must not retry at the same time; no result depends on it.
        time.sleep(min(wait_s * 2**attempt, _LONGEST_WAIT_S) * random.uniform(0.5, 1.5))
    raise AssertionError("unreachable: the last attempt returns or raises")


@dataclass(frozen=True, eq=False)
class Work:
    """Requested reads of one packed model.

    Attributes:
        packed: The model.
        factor: Scale of the problems' biases.
        reads: Requested reads, within the limit of one submission.
        seed: Seed of the whole call.
        part: Index of this submission among those of the same model.
    """

    packed: Packed
    factor: float
    reads: int
    seed: int
    part: int

    def stream(self, *kind: int) -> np.random.SeedSequence:
        """Seed sequence of this submission, from the seed, the number of the model and the part."""
        return np.random.SeedSequence(self.seed, spawn_key=(self.packed.number, self.part, *kind))

    def generator(self, *kind: int) -> np.random.Generator:
        """Generator of that sequence."""
        return np.random.Generator(np.random.PCG64(self.stream(*kind)))


def model(packed: Packed, factor: float = 1.0) -> Any:
    """The dimod model."""
    import dimod

    h, J = packed.biases.scaled(factor)
    terms = h, (*packed.biases.pairs.T, J), 0.0
    return dimod.BinaryQuadraticModel.from_numpy_vectors(*terms, "SPIN", variable_order=range(len(h)))


def split_reads(
    packed: Sequence[Packed], factor: float, reads: int, seed: int, most: int | None
) -> list[Work]:
    """Split the reads of every model into submissions of at most ``most`` reads.

    Raises:
        ValueError: If there would be more than a million.
    """
    size = reads if most is None else min(reads, most)
    if (count := len(packed) * -(-reads // size)) > _MOST_SUBMISSIONS:
        raise ArgumentError(
            "num_reads", f"expected at most {_MOST_SUBMISSIONS} submissions of {size} reads, got {count}."
        )
    return [
        Work(one, factor, min(size, reads - start), seed, part)
        for one in packed
        for part, start in enumerate(range(0, reads, size))
    ]


@dataclass(eq=False)
class Submitter:
    """Answers work; every call that costs money goes through :meth:`answer`.

    Attributes:
        sampler: The dimod sampler.
        parameters: Keywords of every call.
        cache: Cache of answers; None for no cache.
        budget: Limits of reads and access time.
        access: Estimate of the access time; None if there is none.
        retries: Attempts after a transient failure.
        wait_s: Wait before the first retry in seconds.
        options: Options of a sampler that was given by name; part of the cache key.
    """

    sampler: DimodLike
    parameters: Mapping[str, Any]
    cache: AnswerCache | None
    budget: Budget
    access: AccessTime | None
    retries: int
    wait_s: float
    options: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def seeded(self) -> bool:
        """Whether the sampler takes a seed."""
        return "seed" in accepted_parameters(self.sampler)

    @cached_property
    def embeds(self) -> bool:
        """Whether a composite places variables on qubits of its own choice."""
        graphs = [getattr(member, "nodelist", None) for member in family(self.sampler)]
        return any(nodes is not None and nodes != graphs[0] for nodes in graphs)

    @cached_property
    def _identity(self) -> dict[str, Any]:
        return identity(self.sampler) | {"options": dict(self.options)}

    def answers(
        self, works: Sequence[Work], later: Sequence[Work] = ()
    ) -> Iterator[tuple[Work, Reads, bool]]:
        """Answer all work in order; **this is the only Python loop over problems in this package**.

        dimod accepts one model at a time; ``together`` and tiles combine many problems in one model.

        Args:
            works: What is answered.
            later: Work that depends on these answers; if one of them is not cached, the budget must hold it as well.

        Yields:
            The work, its reads, and whether all of them came from the cache.

        Raises:
            BudgetError: Before the first submission, if those that are not cached would exceed the budget.
        """
        missing = self.missing(works)
        missing += later if missing else []
        self.budget.require(sum(work.reads for work in missing), self.seconds(missing))
        for work in works:
            yield work, *self.answer(work)

    def missing(self, works: Sequence[Work]) -> list[Work]:
        """Work whose first submission is not in the cache."""
        return [
            work for work in works if not (self.cache and self.cache.holds(self._key(work, work.reads, 0)))
        ]

    def seconds(self, works: Sequence[Work]) -> float | None:
        """Estimated access time of work in seconds; None without an estimate."""
        times = [self._seconds(work.packed, work.reads) for work in works]
        return None if self.access is None else sum(time for time in times if time is not None)

    def _seconds(self, packed: Packed, reads: int) -> float | None:
        """Estimated access time of a submission, in seconds; None if the sampler has no estimate.

        Raises:
            BudgetError: If the estimate is not a valid time and ``max_qpu_seconds`` is set.
        """
        if self.access is None:
            return None
        try:
            given: Any = self.access(self._qubits(packed), self._keywords(reads))
        except Exception as error:  # invalid timing data raises many types
            given = safe_message(error)
        told = valid_time(given)
        if told is None and self.budget.max_seconds is not None:
            raise BudgetError(
                "max_qpu_seconds",
                "expected a sampler that estimates its access time as a number of microseconds, got "
                f"{given!r:.200} from {type(self.sampler).__name__}.",
            )
        return None if told is None else told / 1e6

    def _qubits(self, packed: Packed) -> int:
        """Qubits that are read; all of the chip where a composite does not tell."""
        if packed.chip is not None:
            return len(packed.chip.fields)
        return int(device_properties(self.sampler).get("num_qubits", len(packed.rows)))

    def answer(self, work: Work) -> tuple[Reads, bool]:
        """Return exactly the requested reads of one piece of work, and whether all came from the cache.

        A short answer is completed by further submissions.

        Raises:
            SubmissionError: If the sampler fails or returns too few reads.
            BudgetError: If the budget does not allow it.
            ValueError: If the answer is invalid.
        """
        parts: list[Reads] = []
        cached, missing = True, work.reads
        for part in range(_MOST_PARTS):
            reads, found = self._call(work, missing, part)
            cached &= found
            parts.append(reads)
            missing -= len(reads.spins)
            if missing <= 0:
                return _joined(parts, work.reads), cached
            if not len(reads.spins):
                break
        raise SubmissionError(
            f"sampler: {type(self.sampler).__name__} was asked for {work.reads} reads and returned "
            f"{work.reads - missing} in {len(parts)} submissions."
        )

    def _call(self, work: Work, reads: int, part: int) -> tuple[Reads, bool]:
        if self.cache is None:
            return self._asked(work, reads, part), False
        key, size = self._key(work, reads, part), (len(work.packed.rows), reads)
        if (stored := self.cache.load(key, *size, quiet=True)) is not None:
            return stored, True
        with self.cache.asking(key):
            if (stored := self.cache.load(key, *size)) is not None:  # of another process that has asked
                return stored, True
            found = self._asked(work, reads, part)
            if len(found.spins):  # an answer without reads is asked for again
                self.cache.store(key, found)
        return found, False

    def _asked(self, work: Work, reads: int, part: int) -> Reads:
        """Submit; the answer may have fewer reads."""
        labels = list(range(len(work.packed.rows)))
        seconds = self._seconds(work.packed, reads)
        keywords = self._keywords(reads)
        if self.seeded:  # below 2^31, as samplers in C expect
            keywords["seed"] = int(work.stream(part).generate_state(1)[0] >> 1)

        def submit() -> tuple[Any, Held]:
            held = self.budget.hold(reads, seconds)
            try:
                sampleset = self.sampler.sample(model(work.packed, work.factor), **keywords)
                sampleset.resolve()  # remote samplers answer asynchronously; errors are raised here
            except Exception as error:
                if not is_transient(error, _TIMEOUTS):
                    held.release()
                raise
            return sampleset, held

        name = type(self.sampler).__name__
        sampleset, held = with_retries(submit, retries=self.retries, wait_s=self.wait_s, what=name)
        found = expand(sampleset, labels, work.generator(part, 1), reads)
        held.settle(len(found.spins), None if found.access_us is None else found.access_us / 1e6)
        return found

    def _keywords(self, reads: int) -> dict[str, Any]:
        return {**self.parameters, "num_reads": reads}

    def _key(self, work: Work, reads: int, part: int) -> str:
        place = {"seed": work.seed, "row": work.packed.number, "part": [work.part, part]}
        return submission_key(work.packed, work.factor, self._keywords(reads), self._identity | place)


def _joined(parts: list[Reads], reads: int) -> Reads:
    """The first ``reads`` reads of all parts."""
    times = [part.access_us for part in parts if part.access_us is not None]
    return Reads(
        np.concatenate([part.spins for part in parts])[:reads],
        {
            name: np.concatenate([part.fractions[name] for part in parts])[:reads]
            for name in FRACTIONS
            if all(name in part.fractions for part in parts)
        },
        sum(times) if times else None,
        sum(part.rows for part in parts),
    )
