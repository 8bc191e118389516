"""Submissions one after the other: answered from the cache or within the budget, with retries."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from diabat.checks import ArgumentError, ArgumentTypeError, did_you_mean
from diabat.samplers.dimod.budget import AccessTime, Budget, BudgetError, DryRun, Held, estimated_access_us
from diabat.samplers.dimod.problems import Biases, FloatArray, Packed, model
from diabat.samplers.dimod.reads import (
    FRACTIONS,
    AnswerCache,
    Reads,
    expand,
    joined,
    submission_key,
    valid_time,
)
from diabat.scrubbing import refuse_secrets, safe_message


@runtime_checkable
class DimodLike(Protocol):
    """The used part of the interface of ``dimod.Sampler`` and composites."""

    parameters: Any
    properties: Any

    def sample(self, bqm: Any, **parameters: Any) -> Any:
        """Sample a binary quadratic model; returns a sample set."""


@runtime_checkable
class Placing(Protocol):
    """The used part of ``TiledComposite``: a composite that tells what it programs."""

    spins: int

    def batches(self, bqm: Any) -> list[list[int]]:
        """Variables of the submissions that a model needs."""

    def programmed(self, bqm: Any) -> Biases:
        """What is programmed on the chip for a model of one submission."""


def resolve(sampler: str | DimodLike, options: Mapping[str, Any] | None, name: str = "sampler") -> DimodLike:
    """Build a sampler from ``module:name`` and options, or return a sampler object.

    Importing a module executes it.  The named object is called only if it is a class of dimod samplers.  ``name`` is
    that of the argument, for messages.

    Raises:
        ValueError: If the name does not exist, the package is not installed, or importing or building it fails.
        TypeError: If it is not a dimod sampler, or the name is not that of a class of dimod samplers.
    """
    of_options = "options" if name == "sampler" else f"{name}_options"
    if isinstance(sampler, str):
        refuse_secrets(of_options, options or {})
        sampler = _build(sampler, dict(options or {}), name)
    elif options is not None:
        raise ArgumentError(of_options, f"cannot be combined with a sampler object, got {sorted(options)}.")
    if isinstance(sampler, type) or not isinstance(sampler, DimodLike):
        raise ArgumentTypeError(
            name, f"expected a dimod sampler or its name 'module:name', got {_kind(sampler)}."
        )
    return sampler


def _kind(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"


def _build(text: str, options: dict[str, Any], name: str) -> Any:
    module, _, attribute = text.partition(":")
    if not attribute.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise ArgumentError(
            name,
            "expected a dimod sampler or its name 'module:name', such as "
            f"'dwave.samplers:SimulatedAnnealingSampler', got {text!r}.",
        )
    try:
        found = getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise ValueError(missing_package(error, f"{name}: '{text}'")) from None
    except AttributeError:
        raise ArgumentError(name, f"expected a name in the module {module}, got '{attribute}'.") from None
    except Exception as error:  # importing a module can raise any type
        raise ArgumentError(name, f"'{text}' cannot be imported: {safe_message(error)}") from None
    import dimod

    # Functions, and classes that are not dimod samplers, must not be called.
    if not (isinstance(found, type) and issubclass(found, dimod.Sampler)):
        raise ArgumentTypeError(
            name, f"expected the name of a class of dimod samplers, got '{text}', {_kind(found)}."
        )
    try:
        return found(**options)
    except Exception as error:  # constructors can raise any type, and the message may contain a token
        raise ArgumentError(name, f"'{text}' cannot be built: {safe_message(error)}") from None


def missing_package(error: ImportError, what: str) -> str:
    """One sentence that names the package to install."""
    package = (error.name or "").partition(".")[0]
    if package in ("dwave", "minorminer", "networkx"):
        return f"{what} needs the extra dwave: pip install -e '.[dwave]'."
    return f"{what} needs a package that is not installed: {error}."


def family(sampler: Any) -> Iterator[Any]:
    """The sampler and its children, outermost first."""
    yield sampler
    for child in getattr(sampler, "children", None) or ():
        yield from family(child)


def device_properties(sampler: DimodLike) -> Mapping[str, Any]:
    """Merged properties of the family; the innermost sampler, which is the device, has precedence."""
    found: dict[str, Any] = {}
    for member in family(sampler):
        found |= dict(getattr(member, "properties", None) or {})
    return found


def accepted_parameters(sampler: DimodLike) -> set[str]:
    """Keywords of ``sample``: the declared ones and those of its signature."""
    named = inspect.signature(sampler.sample).parameters.values()
    own = {p.name for p in named if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)} - {"bqm", "self"}
    return own | set(sampler.parameters)


def check_parameters(sampler: DimodLike, parameters: Mapping[str, Any]) -> None:
    """Refuse unknown keywords, which many dimod samplers silently ignore.

    Raises:
        TypeError: If a keyword is unknown; the message gives the nearest one.
        ValueError: If the backend sets the keyword itself, or it is named like a token.
    """
    refuse_secrets("parameters", parameters)
    known = accepted_parameters(sampler)
    for name in parameters:
        if name in ("num_reads", "seed"):
            raise ArgumentError("parameters", f"expected no '{name}', which is given to sample().")
        if name == "max_answers":
            raise ArgumentError("parameters", "expected no 'max_answers', which would cut the reads.")
        if name not in known:
            hint = did_you_mean(name, known) or f" It accepts {', '.join(sorted(known))}."
            raise ArgumentTypeError(
                "parameters", f"{type(sampler).__name__} has no parameter '{name}'.{hint}"
            )
    if "num_reads" not in known:
        raise ArgumentError(
            "sampler", f"expected one that accepts num_reads, got {type(sampler).__name__}, which does not."
        )


def identity(sampler: DimodLike) -> dict[str, Any]:
    """Identity of the sampler for the cache key: classes, solver, graph and properties."""

    def one(member: Any) -> dict[str, str]:
        solver = getattr(member, "solver", None)
        return {
            "class": f"{type(member).__module__}.{type(member).__qualname__}",
            "solver": str(getattr(solver, "name", "")),
            "graph": str(getattr(solver, "graph_id", "")),
            "properties": _digest(getattr(member, "properties", None) or {}),
        }

    return {"sampler": [one(member) for member in family(sampler)]}


# Load and statistics change daily and are excluded; a new calibration changes the graph or a range.
_VOLATILE = ("avg_load", "problem_timing_data", "child_properties")


def _digest(properties: Mapping[str, Any]) -> str:
    kept = {str(key): value for key, value in properties.items() if key not in _VOLATILE}
    text = json.dumps(kept, sort_keys=True, default=lambda value: type(value).__name__)
    return hashlib.sha256(text.encode()).hexdigest()


def call_keywords(target: DimodLike, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords of every call: those of the user, with some hardware defaults switched off."""
    # auto_scale is True by default on hardware; raw answers preserve the order of the reads.
    defaults, known = {"auto_scale": False, "answer_mode": "raw"}, accepted_parameters(target)
    return {name: value for name, value in defaults.items() if name in known} | dict(parameters)


def access_time(sampler: DimodLike) -> AccessTime | None:
    """Find the estimator of a sampler's access time: the solver's method, else its timing data.

    Returns:
        None if neither exists, as for samplers that are not processors.
    """
    for member in family(sampler):
        for owner in (member, getattr(member, "solver", None)):
            estimate = getattr(owner, "estimate_qpu_access_time", None)
            if callable(estimate):
                return lambda qubits, keywords: estimate(qubits, **keywords)
    data = device_properties(sampler).get("problem_timing_data")
    if not data:
        return None
    return lambda qubits, keywords: estimated_access_us(data, qubits, keywords)


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
                return joined(parts, work.reads), cached
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
