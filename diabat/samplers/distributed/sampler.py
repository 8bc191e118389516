"""Backend ``distributed``: another backend, with the batch distributed over processes or a cluster."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any, NamedTuple, Self

from numpy.typing import NDArray
from torch import Tensor

from diabat.checks import check_count
from diabat.ising import Ising
from diabat.samplers.answers import AdjointGradient, Moments, Samples, lowest_state
from diabat.samplers.base import Sampler
from diabat.samplers.capabilities import Capabilities
from diabat.samplers.diagnostics import Watched, condensed
from diabat.samplers.distributed.chunks import Chunks
from diabat.samplers.distributed.jobs import Answer, Method, make_job, pack, run, run_packed, to_numpy
from diabat.samplers.distributed.workers import Workers
from diabat.samplers.registry import build_base
from diabat.samplers.seeds import child_seed


class DistributedSampler(Sampler):
    """Splits a batch into chunks, solves them in parallel with the base, and assembles the results.

    Chunks and their seeds (``numpy.random.SeedSequence(seed)``, one child per chunk) depend on the shapes, ``chunk``
    and ``read_chunk``, not on the number of workers: any number, including 0, gives the same tensors.  Shared couplings
    stay shared: a chunk has one J for all its problems, or one J for each group of them.

    The workers start at the first call, are kept for later calls, and stop with :meth:`close`, at the end of a
    ``with`` block, or with the program.  Scripts that use processes need ``if __name__ == "__main__":``.

    Estimates from a whole batch (``calibration="per_batch"`` of ``dqa``), and draws that are made once per batch, are
    made for each chunk.

    Args:
        sampler: The base: a name, or a sampler.
        options: Options of the base, if ``sampler`` is a name.
        workers: Number of processes with one thread each; 0 runs in this process; None uses one per processor.
        chunk: Largest number of problems per job.
        read_chunk: Largest number of reads per job of ``sample``, and of ``moments`` that average reads; None keeps the
            reads of a problem together.  For backends with expensive reads: each part repeats the burn-in,
            enumeration or anneal.
        executor: None for processes of this machine; a ``concurrent.futures.Executor``; ``"dask"`` or the address
            of a dask scheduler (``"tcp://host:8786"``), with the extra ``[cluster]``.

    Attributes:
        base: The base.

    Raises:
        ValueError: If an option has a bad value, or the base has learnable parameters or is persistent.
        TypeError: If an argument has the wrong type, or the base has no such option.
    """

    name = "distributed"

    # str comes first in the unions: a configuration reports the first member.
    def __init__(
        self,
        sampler: str | Sampler = "dqa",
        *,
        options: dict[str, Any] | None = None,
        workers: int | None = None,
        chunk: int = 64,
        read_chunk: int | None = None,
        executor: str | Executor | None = None,
    ) -> None:
        check_count("chunk", chunk)
        check_count("read_chunk", read_chunk, optional=True)
        self.workers = Workers(executor, workers)
        why = "which workers do not receive"
        self.base = build_base(sampler, options, samples=False, remembers=False, not_learnable=why)
        self.chunk, self.read_chunk, self.num_reads = chunk, read_chunk, self.base.num_reads
        self._packed: bytes | None = None

    @property
    def capabilities(self) -> Capabilities:
        """Those of the base without edges and ``exact`` gradients: autograd does not cross processes."""
        base = self.base.capabilities
        gradients = tuple(name for name in base.gradients if name != "exact")
        return replace(base, edges=False, gradients=gradients or ("straight_through",))

    @property
    def watched(self) -> tuple[Watched, ...]:
        """The watched entries of the base, over all jobs."""
        return tuple(fact.below("base", self.base.name) for fact in self.base.watched)

    @property
    def expected_error(self) -> str | None:
        """The expected error of the base."""
        return self.base.expected_error

    def adjoint(self, ising: Ising, cotangent: Tensor, *, seed: int) -> AdjointGradient:
        """The derivative of the base, chunk by chunk; ∂L/∂J is summed over chunks that share J."""
        self._require(ising)
        chunks = Chunks(ising.detach(), self.chunk)
        plan = _plan(chunks, seed)
        answers = self._answers(
            "adjoint", chunks, plan, [{"cotangent": to_numpy(chunks.cut(cotangent, p.box))} for p in plan]
        )
        h = chunks.assemble(_parts(plan, answers, "fields"))
        J = None
        if ising.couplings is not None:
            found = zip(plan, answers, strict=True)
            J = chunks.add_couplings([(part.box, answer.arrays["couplings"]) for part, answer in found])
        return AdjointGradient(h.to(ising.fields), J)

    def close(self) -> None:
        """Stop the workers; the next call starts new ones.  A given executor stays open."""
        self.workers.close()
        super().close()

    def _moments(self, ising: Ising, correlations: bool, seed: int) -> Moments:
        if self.read_chunk is not None and type(self.base)._moments is Sampler._moments:
            return super()._moments(ising, correlations, seed)  # averages over reads, drawn in parts
        chunks = Chunks(ising.detach(), self.chunk)
        plan = _plan(chunks, seed)
        answers = self._answers("moments", chunks, plan, [{"correlations": correlations}] * len(plan))
        found = {name: chunks.assemble(_parts(plan, answers, name)) for name in answers[0].arrays}
        info = self._info(plan, answers)
        return Moments(**found, visible=ising.visible_mask, num_reads=answers[0].num_reads, info=info)

    def _sample(self, ising: Ising, num_reads: int, seed: int) -> Samples:
        chunks = Chunks(ising, self.chunk)
        plan = _plan(chunks, seed, num_reads, self.read_chunk)
        options = [{"num_reads": part.reads.stop - part.reads.start} for part in plan]
        answers = self._answers("sample", chunks, plan, options)
        found = [((p.reads,), p.box, a.arrays["spins"]) for p, a in zip(plan, answers, strict=True)]
        spins, tracked = chunks.assemble(found, (num_reads,)), None
        if "tracked" in answers[0].arrays:
            # One state from each range of reads: as many as parts of each box, one after the other.
            ranges = len(plan) // len(chunks.boxes)
            kept = [answer.arrays["tracked"][None] for answer in answers]
            where = [((slice(i % ranges, i % ranges + 1),), p.box, kept[i]) for i, p in enumerate(plan)]
            tracked = lowest_state(ising, chunks.assemble(where, (ranges,))).spins
        return Samples(spins, ising.visible_mask, info=self._info(plan, answers), tracked=tracked)

    def _answers(
        self, method: Method, chunks: Chunks, plan: list[_Part], options: list[dict[str, Any]]
    ) -> list[Answer]:
        function: Callable[..., Answer] = run if self.workers.here else run_packed
        if not self.workers.here:
            self._packed = self._packed or pack(self.base)
        sent = self.base if self.workers.here else self._packed
        jobs = (
            (sent, make_job(method, chunks.problem(part.box), part.seed, **given))
            for part, given in zip(plan, options, strict=True)
        )
        return list(self.workers.results(function, jobs))

    def _info(self, plan: list[_Part], answers: list[Answer]) -> dict[str, Any]:
        base = condensed([{k: v for k, v in a.info.items() if k != "seed"} for a in answers])
        return {
            "base": base,
            "chunks": len(plan),
            "chunk_seeds": [part.seed for part in plan],
            "workers": self.workers.label,
            "busy_s": sum(answer.info["wall_s"] for answer in answers),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Part(NamedTuple):
    """One job: its problems, its reads and its seed."""

    box: Tensor
    reads: slice
    seed: int


def _plan(chunks: Chunks, seed: int, num_reads: int = 1, read_chunk: int | None = None) -> list[_Part]:
    """All jobs of a batch.  The first reads of a box have the same seed as its moments and adjoint."""
    size = min(read_chunk or num_reads, num_reads)
    return [
        _Part(
            box,
            slice(start, min(start + size, num_reads)),
            child_seed(seed, number, part) if part else child_seed(seed, number),
        )
        for number, box in enumerate(chunks.boxes)
        for part, start in enumerate(range(0, num_reads, size))
    ]


def _parts(plan: list[_Part], answers: list[Answer], name: str) -> list[tuple[tuple[()], Tensor, NDArray]]:
    """Arrays of one name with their places, as input of :meth:`Chunks.assemble`."""
    return [((), part.box, answer.arrays[name]) for part, answer in zip(plan, answers, strict=True)]
