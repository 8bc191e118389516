"""Submissions to a dimod sampler, one after the other: from the cache or within the budget, with retries."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np

from diabat.checks import ArgumentError, ArgumentTypeError, did_you_mean
from diabat.extras import install_command
from diabat.samplers.dimod.budget import AccessTime, Budget, BudgetError, DryRun, Spent, estimated_access_us
from diabat.samplers.dimod.problems import Biases, Packed, check_times, model, placed
from diabat.samplers.dimod.reads import (
    AnswerCache,
    Reads,
    expand,
    joined,
    key_text,
    submission_key,
    valid_time,
)
from diabat.secrets import refuse_secrets, safe_message


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
    """Build a sampler from ``module:name`` and options, or return a sampler object; else ValueError or TypeError.

    Importing a module executes it.  The named object is called only if it is a class of dimod samplers.  ``name`` is
    that of the argument, for messages.
    """
    of_options = "options" if name == "sampler" else f"{name}_options"
    if isinstance(sampler, str):
        refuse_secrets(of_options, options or {})
        sampler = _build(sampler, dict(options or {}), name)
    elif options is not None:
        raise ArgumentError(of_options, f"cannot be combined with a sampler object, got {sorted(options)}.")
    if isinstance(sampler, type) or not isinstance(sampler, DimodLike):
        raise ArgumentTypeError(name, "a dimod sampler or its name 'module:name'", _kind(sampler))
    return sampler


def _kind(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"


def _build(text: str, options: dict[str, Any], name: str) -> Any:
    module, _, attribute = text.partition(":")
    if not attribute.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        such = "such as 'dwave.samplers:SimulatedAnnealingSampler'"
        raise ArgumentError(name, f"a dimod sampler or its name 'module:name', {such}", f"{text!r}")
    try:
        named = getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise ValueError(missing_package(error, f"{name}: '{text}'")) from None
    except AttributeError:
        raise ArgumentError(name, f"a name in the module {module}", f"'{attribute}'") from None
    except Exception as error:  # importing a module can raise any type
        raise ArgumentError(name, f"'{text}' cannot be imported: {safe_message(error)}") from None
    import dimod

    # Functions, and classes that are not dimod samplers, must not be called.
    if not (isinstance(named, type) and issubclass(named, dimod.Sampler)):
        expected = "the name of a class of dimod samplers"
        raise ArgumentTypeError(name, expected, f"'{text}', {_kind(named)}")
    try:
        return named(**options)
    except Exception as error:  # constructors can raise any type, and the message may contain a token
        raise ArgumentError(name, f"'{text}' cannot be built: {safe_message(error)}") from None


def missing_package(error: ImportError, what: str) -> str:
    """One sentence that names the package to install."""
    package = (error.name or "").partition(".")[0]
    if package in ("dwave", "minorminer", "networkx"):
        return f"{what} needs the extra dwave: {install_command('dwave')}."
    return f"{what} needs a package that is not installed: {error}."


def family(sampler: Any) -> Iterator[Any]:
    """The sampler and its children, outermost first."""
    yield sampler
    for child in getattr(sampler, "children", None) or ():
        yield from family(child)


def device_properties(sampler: DimodLike) -> Mapping[str, Any]:
    """Merged properties of the family; the innermost sampler, which is the device, has precedence."""
    merged: dict[str, Any] = {}
    for member in family(sampler):
        merged |= dict(getattr(member, "properties", None) or {})
    return merged


def accepted_parameters(sampler: DimodLike) -> set[str]:
    """Keywords of ``sample``: the declared ones and those of its signature."""
    named = inspect.signature(sampler.sample).parameters.values()
    own = {p.name for p in named if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)} - {"bqm", "self"}
    return own | set(sampler.parameters)


def call_keywords(sampler: DimodLike, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords of every call: those of the user, with some hardware defaults switched off.

    Unknown keywords raise TypeError, as many dimod samplers silently ignore them.  Those that the backend sets itself,
    that are named like a token or that change the temperature raise ValueError.
    """
    refuse_secrets("parameters", parameters)
    known, kind = accepted_parameters(sampler), type(sampler).__name__
    for name in parameters:
        if name in ("num_reads", "seed"):
            raise ArgumentError("parameters", f"expected no '{name}', which is given to sample().")
        if name == "max_answers":
            raise ArgumentError("parameters", "expected no 'max_answers', which would cut the reads.")
        if name not in known:
            hint = did_you_mean(name, known) or f" It accepts {', '.join(sorted(known))}."
            if name in inspect.signature(type(sampler)).parameters:
                hint = f" It is an option of {kind}(...)."
            raise ArgumentTypeError("parameters", f"{kind} has no parameter '{name}'.{hint}")
    if "num_reads" not in known:
        raise ArgumentError("sampler", "one that accepts num_reads", f"{kind}, which does not")
    if parameters.get("auto_scale"):
        got = "True, which scales every problem to the full range and so changes its temperature"
        fix = "scale='fit' scales by a factor that is reported"
        raise ArgumentError("auto_scale", "False", f"{got}; {fix}")
    # auto_scale is True by default on hardware; raw answers preserve the order of the reads.
    defaults = {"auto_scale": False, "answer_mode": "raw"}
    return {name: value for name, value in defaults.items() if name in known} | dict(parameters)


def identity(sampler: DimodLike) -> dict[str, Any]:
    """Identity of the sampler for the cache key: classes, solver, graph and properties."""

    def one(member: Any) -> dict[str, str]:
        solver = getattr(member, "solver", None)
        properties = getattr(member, "properties", None) or {}
        kept = {str(key): value for key, value in properties.items() if key not in _VOLATILE}
        text = json.dumps(kept, sort_keys=True, default=lambda value: type(value).__name__)
        return {
            "class": f"{type(member).__module__}.{type(member).__qualname__}",
            "solver": str(getattr(solver, "name", "")),
            "graph": str(getattr(solver, "graph_id", "")),
            "properties": hashlib.sha256(text.encode()).hexdigest(),
        }

    return {"sampler": [one(member) for member in family(sampler)]}


# Load and statistics change daily and are excluded; a new calibration changes the graph or a range.
_VOLATILE = ("avg_load", "problem_timing_data", "child_properties")


def access_time(sampler: DimodLike) -> AccessTime | None:
    """The solver's estimator of its access time, else that of its timing data; None of what is no processor."""
    for member in family(sampler):
        for owner in (member, getattr(member, "solver", None)):
            estimate = getattr(owner, "estimate_qpu_access_time", None)
            if callable(estimate):
                return lambda qubits, keywords: estimate(qubits, **keywords)
    data = device_properties(sampler).get("problem_timing_data")
    return (lambda qubits, keywords: estimated_access_us(data, qubits, keywords)) if data else None


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
# A processor takes the couplers of its graph only.
_PLACED = "put a TiledComposite or an EmbeddingComposite around it"
# A sampler that returns too few reads is refused after this many submissions.
_MOST_PARTS = 4
_MOST_SUBMISSIONS = 1_000_000


class SubmissionError(RuntimeError):
    """A submission failed; the message contains no token, and no exception is chained that could contain one."""


def is_transient(error: BaseException, kinds: frozenset[str] = TRANSIENT) -> bool:
    """Whether an exception is about the network or an unavailable solver, not about the problem."""
    return any(base.__name__ in kinds for base in type(error).__mro__)


@dataclass(frozen=True, eq=False)
class Work:
    """Requested reads of one packed model, within the limit of one submission."""

    packed: Packed
    factor: float  # of the problems' biases
    reads: int
    seed: int  # of the whole call
    part: int  # index among the submissions of the same model

    def stream(self, *kind: int) -> np.random.SeedSequence:
        """Seed sequence of this submission, from the seed, the number of the model and the part."""
        return np.random.SeedSequence(self.seed, spawn_key=(self.packed.number, self.part, *kind))


def split_reads(
    packed: Sequence[Packed], factor: float, reads: int, seed: int, most: int | None
) -> list[Work]:
    """Split the reads of every model into submissions of at most ``most`` reads, a million at most (ValueError)."""
    size = reads if most is None else min(reads, most)
    if (count := len(packed) * -(-reads // size)) > _MOST_SUBMISSIONS:
        raise ArgumentError("num_reads", f"at most {_MOST_SUBMISSIONS} submissions of {size} reads", count)
    return [
        Work(one, factor, min(size, reads - start), seed, part)
        for one in packed
        for part, start in enumerate(range(0, reads, size))
    ]


class Submitter:
    """Answers work; every call that costs money goes through :meth:`answer`.

    Args:
        sampler: The dimod sampler, or its name.
        options: Keywords of its constructor, if it is given by name; part of the cache key.
        parameters: Keywords of every call.
        cache: Cache of answers; None for no cache.
        budget: Limits of reads and access time.
        retries: Attempts after a transient failure.
        wait_s: Wait before the first retry in seconds.

    Raises:
        ValueError: If there is no such sampler, or a processor would refuse a keyword.  Also if a limit of time is set
            and the sampler has no timing.
        TypeError: If it is no dimod sampler, has no such keyword, or a key of the cache cannot hold an option.
    """

    def __init__(
        self, sampler: str | DimodLike, options: Mapping[str, Any] | None, parameters: Mapping[str, Any],
        cache: AnswerCache | None, budget: Budget, retries: int, wait_s: float,
    ) -> None:  # fmt: skip
        self.sampler = resolve(sampler, options)
        self.parameters, self.access = call_keywords(self.sampler, parameters), access_time(self.sampler)
        check_times(self.parameters, device_properties(self.sampler))
        if budget.max_seconds is not None and self.access is None:
            expected = "a sampler that reports its timing (problem_timing_data)"
            raise ArgumentError("max_qpu_seconds", expected, f"{type(self.sampler).__name__}, which does not")
        self.cache, self.budget = cache, budget
        self._retries, self._wait_s, self._options = retries, wait_s, dict(options or {})
        if cache is not None:
            key_text(self.parameters, self._options)

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
        return identity(self.sampler) | {"options": self._options}

    def answers(
        self, works: Sequence[Work], later: Sequence[Work] = ()
    ) -> Iterator[tuple[Work, Reads, bool]]:
        """Answer all work in order; **this is the only Python loop over problems in this package**.

        dimod accepts one model at a time; ``together`` and tiles combine many problems in one model.  Yields the work,
        its reads, and whether all of them came from the cache.  ``later`` depends on these answers: if one of them is
        not cached, the budget must hold it as well, or a BudgetError is raised before the first submission.
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

    def dry_run(
        self, works: Sequence[Work], problems: int, rounds: Sequence[Work], scale: float | None
    ) -> DryRun:
        """Sum the cost of the submissions that are not in the cache; after rounds of an estimate none is."""
        new = [*rounds, *works] if rounds else self.missing(works)
        works = [*rounds, *works]
        (qubits, longest), budget = placed([work.packed for work in works]), self.budget
        return DryRun(
            problems=problems,
            submissions=len(works),
            cached=len(works) - len(new),
            reads=sum(work.reads for work in new),
            logical_variables=max((len(work.packed.rows) for work in works), default=0),
            qubits=qubits,
            longest_chain=longest,
            scale=scale,
            access_s=self.seconds(new),
            reads_left=None if budget.max_reads is None else budget.max_reads - budget.reads,
            seconds_left=None if budget.max_seconds is None else budget.max_seconds - budget.seconds,
            estimate_submissions=len(rounds),
        )

    def _seconds(self, packed: Packed, reads: int) -> float | None:
        """Estimated access time of a submission in seconds; None without one, which no limit of time allows."""
        if self.access is None:
            return None
        if packed.chip is not None:
            qubits = len(packed.chip.fields)
        else:  # all of the chip where a composite does not tell
            qubits = int(device_properties(self.sampler).get("num_qubits", len(packed.rows)))
        try:
            estimate: Any = self.access(qubits, self._keywords(reads))
        except Exception as error:  # invalid timing data raises many types
            estimate = safe_message(error)
        microseconds = valid_time(estimate)
        if microseconds is None and self.budget.max_seconds is not None:
            expected = "a sampler that estimates its access time as a number of microseconds"
            got = f"{estimate!r:.200} from {type(self.sampler).__name__}"
            raise BudgetError("max_qpu_seconds", expected, got)
        return None if microseconds is None else microseconds / 1e6

    def answer(self, work: Work) -> tuple[Reads, bool]:
        """Return exactly the requested reads of one piece of work, and whether all came from the cache.

        A short answer is completed by further submissions.  Raises SubmissionError if the sampler fails or returns too
        few reads, BudgetError if the budget does not allow it, and ValueError if the answer is invalid.
        """
        parts: list[Reads] = []
        cached, missing = True, work.reads
        for part in range(_MOST_PARTS):
            reads, stored = self._call(work, missing, part)
            cached &= stored
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
            answer = self._asked(work, reads, part)
            if len(answer.spins):  # an answer without reads is asked for again
                self.cache.store(key, answer)
        return answer, False

    def _asked(self, work: Work, reads: int, part: int) -> Reads:
        """Submit; the answer may have fewer reads."""
        seconds, keywords = self._seconds(work.packed, reads), self._keywords(reads)
        if self.seeded:  # below 2^31, as samplers in C expect
            keywords["seed"] = int(work.stream(part).generate_state(1)[0] >> 1)
        sampleset, held = self._submit(work, keywords, seconds)
        order = np.random.Generator(np.random.PCG64(work.stream(part, 1)))
        drawn = expand(sampleset, list(range(len(work.packed.rows))), order, reads)
        self.budget.settle(held, len(drawn.spins), None if drawn.access_us is None else drawn.access_us / 1e6)
        return drawn

    def _submit(self, work: Work, keywords: Mapping[str, Any], seconds: float | None) -> tuple[Any, Spent]:
        """An answer, and what was counted of it; after transient failure k waits ``wait_s`` · 2^k seconds.

        Jitter, a factor of 0.5 to 1.5: several runs must not retry at the same time; no result depends on it.
        """
        failed = f"sampler: {type(self.sampler).__name__} failed"
        for attempt in range(self._retries + 1):
            held = self.budget.hold(keywords["num_reads"], seconds)
            try:
                sampleset = self.sampler.sample(model(work.packed, work.factor), **keywords)
                sampleset.resolve()  # remote samplers answer asynchronously; errors are raised here
                return sampleset, held
            except Exception as error:  # samplers raise many types; all are reported in the same form
                if not is_transient(error, _TIMEOUTS):
                    self.budget.settle(held, 0, 0.0)
                if isinstance(error, BudgetError):  # of a backend behind an OceanSampler
                    raise
                if not is_transient(error):
                    unplaced = type(error).__name__ == "BinaryQuadraticModelStructureError"
                    fix = f"; {_PLACED}" if unplaced else ""
                    raise SubmissionError(f"{failed}: {safe_message(error)}{fix}") from None
                if attempt == self._retries:
                    times = f"{attempt + 1} times in a row, the last time with"
                    raise SubmissionError(f"{failed} {times} {safe_message(error)}") from None
            time.sleep(min(self._wait_s * 2**attempt, _LONGEST_WAIT_S) * random.uniform(0.5, 1.5))
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _keywords(self, reads: int) -> dict[str, Any]:
        return {**self.parameters, "num_reads": reads}

    def _key(self, work: Work, reads: int, part: int) -> str:
        place = {"seed": work.seed, "row": work.packed.number, "part": [work.part, part]}
        return submission_key(work.packed, work.factor, self._keywords(reads), self._identity | place)
