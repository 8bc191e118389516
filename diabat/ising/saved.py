"""A problem as a safetensors file: its tensors, and ``check`` and labels of the spins as facts."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import Tensor

from diabat.checks import check_flag, is_integer
from diabat.compute.memory import require_file_memory
from diabat.files import (
    form_of,
    parse_tensor_file,
    read_file,
    reading,
    replace_file,
    require_form,
    tensor_file,
)
from diabat.ising.checks import DTYPES, IsingError, check_clamped, check_tensor
from diabat.ising.edges import Edges

_ATTRIBUTES = ("fields", "matrix", "visible", "three_body", "offset", "clamped")
_EDGES = ("index", "values")
_DTYPES = {"visible": (torch.bool,), "clamped": (torch.int8,), "index": (torch.int64,)}


class SavedProblem:
    """The files of a problem: a base of :class:`diabat.Ising`."""

    def save(self, path: str | Path, labels: Sequence[Hashable] | None = None) -> None:
        """Write the problem to one safetensors file, atomically and without pickle; every tensor bit for bit.

        Args:
            path: The file; ``diabat sample`` reads it too, if it holds one problem [n].
            labels: Different strings or integers, one per spin, for :func:`~diabat.ising.problem_files.read_problem`.

        Raises:
            IsingError: If labels are others, or if the problem, made with ``check=False``, is not a valid one.
            OSError: If the file cannot be written; an older one is intact.
        """
        problem, names = cast(Any, self), cast(Any, labels)
        parts = [(name, getattr(problem, name)) for name in _ATTRIBUTES]
        parts += [(name, getattr(problem.edges, name, None)) for name in _EDGES]
        parts = [(name, value) for name, value in parts if value is not None]
        for name, value in parts:
            check_tensor(name, value)
        tensors = {name: value.detach().clone() for name, value in parts}
        names = None if names is None else [int(x) if is_integer(x) else x for x in names]
        facts = {"check": problem.check, "labels": names}
        self._of(tensors, facts)  # refuses what could not be read
        replace_file(Path(path), tensor_file(tensors, form_of(type(self)) | facts))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file of :meth:`save`, on the CPU; its content is checked, whatever ``check`` was.

        Raises:
            IsingError: If the file is missing, damaged, or has other content; one sentence names it.
        """
        path = Path(path)
        with reading(path, "Ising", IsingError):
            return cls._parsed(read_file(path, follow=True, check=require_file_memory))[0]

    @classmethod
    def _parsed(cls, content: bytes) -> tuple[Self, list[Hashable] | None]:
        """The problem of a file and the labels of its spins; damage raises what `diabat.files.parsing` expects."""
        tensors, facts = parse_tensor_file(content)
        require_form(cls, facts)
        return cls._of(tensors, facts)

    @classmethod
    def _of(
        cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]
    ) -> tuple[Self, list[Hashable] | None]:
        """What the constructor accepts, with the clamped spins, ``check`` and labels."""
        known, kind = (*_ATTRIBUTES, *_EDGES), cast(Any, cls)
        for name, tensor in tensors.items():
            if name not in known:
                raise IsingError(name, f"only tensors of {', '.join(known)}", "another")
            if tensor.dtype not in (allowed := _DTYPES.get(name, DTYPES)):
                raise IsingError(name, f"dtype {' or '.join(map(str, allowed))}", tensor.dtype)
        parts: dict[str, Any] = {name: tensors.get(name) for name in _ATTRIBUTES}
        fields, J, clamped = tensors["fields"], parts["matrix"], parts["clamped"]
        edges = Edges(*(tensors[name] for name in _EDGES)) if tensors.keys() & set(_EDGES) else None
        if edges is not None and J is not None:
            raise IsingError("couplings", "a matrix or edges", "both")
        others = (parts[name] for name in ("visible", "three_body", "offset"))
        ising = kind(fields, J if edges is None else edges, *others)
        parts["edges"] = None if edges is None else ising.edges
        if clamped is not None:
            check_clamped(clamped, fields)
            if clamped.shape != fields.shape or bool(((clamped != 0) & ising.visible_mask).any()):
                raise IsingError(
                    "clamped", "expected the shape of fields, and that clamped spins are invisible."
                )
        check_flag("check", facts["check"])
        labels = facts.get("labels")
        if labels is not None:
            check_labels(labels, ising.num_spins)
        return ising._replaced(**parts, check=facts["check"]), labels


def check_labels(labels: Any, n: int) -> None:
    """Raise IsingError unless labels are a list of n different strings or integers."""
    simple = isinstance(labels, list) and all(isinstance(x, str) or is_integer(x) for x in labels)
    if not simple or len(labels) != n or len(set(labels)) != n:
        raise IsingError("labels", f"{n} different strings or integers", f"{labels!r:.60}")
