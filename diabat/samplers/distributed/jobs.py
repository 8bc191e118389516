"""One chunk of a batch as a job for another process, and its answer.

Tensors are sent as numpy arrays: torch would use shared memory and keep a file descriptor open for each.
"""

from __future__ import annotations

import pickle
import threading
from typing import Any, Literal, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from diabat.checks import ArgumentError
from diabat.ising import Ising
from diabat.samplers.base import Sampler
from diabat.samplers.diagnostics import plain

Method = Literal["sample", "moments", "adjoint"]


class Job(NamedTuple):
    """A call of a sampler.

    Attributes:
        method: The called method.
        seed: Seed of this job.
        options: The other arguments of the method: ``num_reads``, ``correlations`` or the array ``cotangent``.
        fields: h, [*batch, n].
        couplings: J or None.
        visible: bool or None.
        three_body: K or None.
    """

    method: Method
    seed: int
    options: dict[str, Any]
    fields: NDArray
    couplings: NDArray | None
    visible: NDArray | None
    three_body: NDArray | None


class Answer(NamedTuple):
    """The result of a sampler.

    Attributes:
        arrays: Its tensors by name, without those that are None.
        num_reads: Reads behind sampled moments.
        info: As plain data.
    """

    arrays: dict[str, NDArray]
    num_reads: int | None
    info: dict[str, Any]


_RESULTS: dict[Method, tuple[str, ...]] = {
    "sample": ("spins", "tracked"),
    "moments": ("probability", "correlation", "log_partition", "standard_error"),
    "adjoint": ("fields", "couplings"),
}


def make_job(method: Method, ising: Ising, seed: int, **options: Any) -> Job:
    """Turn a call of a sampler into a job."""
    h = to_numpy(ising.fields)
    parts = (None if t is None else to_numpy(t) for t in (ising.couplings, ising.visible, ising.three_body))
    return Job(method, seed, options, h, *parts)


def run(sampler: Sampler, job: Job) -> Answer:
    """Run a job with a sampler."""
    J, visible, K = (None if array is None else _tensor(array) for array in job[4:])
    ising = Ising(_tensor(job.fields), J, visible, K, check=False)
    options = dict(job.options)
    if job.method == "adjoint":
        options["cotangent"] = _tensor(options["cotangent"])
    result = getattr(sampler, job.method)(ising, seed=job.seed, **options)
    tensors = {name: getattr(result, name) for name in _RESULTS[job.method]}
    arrays = {name: to_numpy(tensor) for name, tensor in tensors.items() if tensor is not None}
    return Answer(arrays, getattr(result, "num_reads", None), plain(getattr(result, "info", {})))


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
