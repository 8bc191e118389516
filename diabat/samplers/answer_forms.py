"""Answers in other forms: safetensors files without pickles, and frames of pandas.

A file has the tensors of an answer, those of its ``info`` as "info/<key>", and in its metadata the other facts.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch
from torch import Tensor

from diabat.checks import ArgumentError, check_count
from diabat.compute.memory import require_file_memory
from diabat.extras import extra
from diabat.files import (
    form_of,
    jsonable,
    parse_tensor_file,
    read_file,
    reading,
    replace_file,
    require_form,
    tensor_file,
)
from diabat.ising.arguments import check_states
from diabat.ising.checks import DTYPES

Labels = Sequence[Hashable] | None


class SavedAnswer:
    """An answer that can be written to one safetensors file, without pickle."""

    def save(self, path: str | Path) -> None:
        """Write all tensors and ``info``, atomically; the problem of samples is not written.

        Tensors in ``info`` stay tensors.  Else it becomes JSON: tuples and nested tensors lists, NaN and infinity None.

        Raises:
            OSError: If the file cannot be written; an older one is intact.
        """
        values: dict[str, Any] = vars(self)
        info, facts = values["info"], {"num_reads": getattr(self, "num_reads", None), **form_of(type(self))}
        apart = {f"info/{key}": value.clone() for key, value in info.items() if isinstance(value, Tensor)}
        facts["info"] = jsonable({key: value for key, value in info.items() if f"info/{key}" not in apart})
        apart |= {name: value for name, value in values.items() if isinstance(value, Tensor)}
        replace_file(Path(path), tensor_file(apart, facts))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file of :meth:`save`: the same tensors in their dtypes, on the CPU.

        Samples know their problem again after ``dataclasses.replace(samples, ising=problem)``.

        Raises:
            ValueError: If the file is missing, damaged, or has other content; one sentence names it.
        """
        path = Path(path)
        with reading(path, cls.__name__, ArgumentError):
            tensors, facts = parse_tensor_file(read_file(path, follow=True, check=require_file_memory))
            require_form(cls, facts)
            info = facts["info"] | {n[5:]: tensors.pop(n) for n in list(tensors) if n.startswith("info/")}
            check_count("num_reads", facts["num_reads"], optional="spins" not in tensors)
            known = [field.name for field in fields(cast(Any, cls)) if "Tensor" in str(field.type)]
            if others := tensors.keys() - set(known):
                raise ValueError(f"expected only tensors of {', '.join(known)}, got {min(others)!r}")
            _check(tensors, facts["num_reads"])
            values: dict[str, Any] = {**tensors, "info": info}
            return cls(**values if "spins" in tensors else values | {"num_reads": facts["num_reads"]})


def _check(tensors: dict[str, Tensor], num_reads: int | None) -> None:
    """Refuse tensors of other shapes or dtypes than those of answers [*batch, n] have, and impossible values."""
    shape = tensors["visible"].shape
    shapes = {"spins": (num_reads, *shape), "correlation": (*shape, *shape[-1:]), "log_partition": shape[:-1]}
    kinds = {"spins": (torch.int8,), "tracked": (torch.int8,), "visible": (torch.bool,)}
    for name, tensor in tensors.items():
        expected, got = list(shapes.get(name, shape)), list(tensor.shape)
        if tensor.dtype not in kinds.get(name, DTYPES) or got != expected:
            allowed = " or ".join(map(str, kinds.get(name, DTYPES)))
            raise ArgumentError(name, f"expected {allowed} {expected}, got {tensor.dtype} {got}")
        if tensor.dtype == torch.int8:
            check_states(tensor, torch.ones(shape, dtype=torch.bool))
        if name == "probability" and not bool(((tensor >= 0) & (tensor <= 1)).all()):
            raise ArgumentError(name, "expected numbers from 0 to 1, got others")
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise ArgumentError(name, "expected finite numbers, got others")


def spin_index(n: int, labels: Labels) -> Any:
    """An index of pandas with a label of each spin."""
    names = list(range(n)) if labels is None else list(labels)
    if len(set(names)) != len(names) or len(names) != n:
        raise ArgumentError("labels", f"{n} different labels", names)
    return extra("pandas", "stats").Index(names, name="spin", tupleize_cols=False)


def row_index(sizes: Mapping[str, int], batch: Sequence[int], spins: Any = None) -> Any:
    """An index of pandas with a row for each place in the dimensions ``sizes``, in the batch, and each spin."""
    pandas, axes = extra("pandas", "stats"), len(batch)
    names = ["batch"] if axes == 1 else [f"batch_{axis}" for axis in range(axes)]
    counts = {**sizes, **dict(zip(names, batch, strict=True))}
    levels = [pandas.Index(range(count), dtype="int64", name=name) for name, count in counts.items()]
    levels += [] if spins is None else [spins]
    if len(levels) == 1:
        return levels[0]
    codes = np.indices([len(level) for level in levels]).reshape(len(levels), -1)
    return pandas.MultiIndex(levels, codes, names=[level.name for level in levels])
