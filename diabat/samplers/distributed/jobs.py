"""One chunk of a batch as a job for another process, and its answer.

Tensors are sent as numpy arrays: torch would use shared memory and keep a file descriptor open for each.
"""

from __future__ import annotations

import pickle
import threading
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from numpy.typing import NDArray
from torch import Tensor

from diabat.checks import ArgumentError
from diabat.ising import Ising
from diabat.samplers.base import Sampler
from diabat.samplers.diagnostics import plain

Method = Literal["sample", "moments", "adjoint"]


@dataclass(frozen=True, eq=False)
class Job:
    """A call of a sampler.

    Attributes:
        method: The called method.
        fields: h, [*batch, n].
        couplings: J or None.
        visible: bool or None.
        three_body: K or None.
        seed: Seed of this job.
        num_reads: Reads of ``sample``.
        correlations: Whether ``moments`` reports pair correlations.
        cotangent: v of ``adjoint``, [*batch, n].
    """

    method: Method
    fields: NDArray
    couplings: NDArray | None
    visible: NDArray | None
    three_body: NDArray | None
    seed: int
    num_reads: int = 0
    correlations: bool = False
    cotangent: NDArray | None = None


@dataclass(frozen=True, eq=False)
class Answer:
    """The result of a sampler.

    Attributes:
        arrays: Its tensors by name, without those that are None.
        num_reads: Reads behind sampled moments.
        info: As plain data.
    """

    arrays: dict[str, NDArray]
    num_reads: int | None = None
    info: dict[str, Any] = field(default_factory=dict)


_RESULTS: dict[Method, tuple[str, ...]] = {
    "sample": ("spins", "log_weights", "tracked"),
    "moments": ("probability", "correlation", "log_partition", "standard_error"),
    "adjoint": ("fields", "couplings"),
}


def make_job(
    method: Method, ising: Ising, seed: int, *, cotangent: Tensor | None = None, **options: Any
) -> Job:
    """Turn a call of a sampler into a job."""
    parts = (ising.fields, ising.couplings, ising.visible, ising.three_body)
    h, J, visible, K = (None if part is None else to_numpy(part) for part in parts)
    assert h is not None
    v = None if cotangent is None else to_numpy(cotangent)
    return Job(method, h, J, visible, K, seed, cotangent=v, **options)


def run(sampler: Sampler, job: Job) -> Answer:
    """Run a job with a sampler."""
    parts = (job.fields, job.couplings, job.visible, job.three_body)
    h, J, visible, K = (None if part is None else _tensor(part) for part in parts)
    assert h is not None
    ising = Ising(h, J, visible, K, check=False)
    result: Any
    if job.method == "sample":
        result = sampler.sample(ising, job.num_reads, seed=job.seed)
    elif job.method == "moments":
        result = sampler.moments(ising, correlations=job.correlations, seed=job.seed)
    else:
        assert job.cotangent is not None
        result = sampler.adjoint(ising, _tensor(job.cotangent), seed=job.seed)
    tensors = {name: getattr(result, name) for name in _RESULTS[job.method]}
    arrays = {name: to_numpy(tensor) for name, tensor in tensors.items() if tensor is not None}
    if job.method == "adjoint":
        return Answer(arrays)
    return Answer(arrays, getattr(result, "num_reads", None), plain(result.info))


def run_packed(packed: bytes, job: Job) -> Answer:
    """Run a job with a sampler that was packed by :func:`pack`; each thread unpacks it once."""
    if getattr(_thread_state, "packed", None) != packed:
        # Sent between processes of one program, never read from a file.
        _thread_state.packed, _thread_state.sampler = packed, pickle.loads(packed)
    return run(_thread_state.sampler, job)


_thread_state = threading.local()


def pack(sampler: Sampler) -> bytes:
    """Pack a sampler for other processes.

    Raises:
        ValueError: If it cannot be pickled.
    """
    try:
        return pickle.dumps(sampler)
    except Exception as error:  # pickling can raise any type
        raise ArgumentError(
            "sampler",
            f"expected a backend that can be sent to another process, got '{sampler.name}' "
            f"({' '.join(str(error).split())}).",
        ) from error


def to_numpy(tensor: Tensor) -> NDArray:
    """Array of a tensor on any device; on the CPU it shares its memory."""
    array: NDArray = tensor.detach().cpu().numpy()
    return array


def _tensor(array: NDArray) -> Tensor:
    # Arrays from dask messages may be read-only, which torch does not support.
    return torch.from_numpy(array if array.flags.writeable else array.copy())
