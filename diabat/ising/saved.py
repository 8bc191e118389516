"""A problem as the content of a safetensors file: its tensors, and ``check`` and labels of the spins as facts."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from diabat.checks import check_flag, is_integer
from diabat.files import form_of, parse_tensor_file, require_form, tensor_file
from diabat.ising.checks import DTYPES, IsingError, check_clamped, check_tensor
from diabat.ising.edges import Edges
from diabat.ising.model import Ising

_ATTRIBUTES = ("fields", "matrix", "visible", "three_body", "offset", "clamped")
_EDGES = ("index", "values")
_DTYPES = {"visible": (torch.bool,), "clamped": (torch.int8,), "index": (torch.int64,)}


def content_of(ising: Ising, labels: Sequence[Any] | None = None) -> bytes:
    """The file of a problem; IsingError if :func:`problem_of` would refuse it."""
    parts = [(name, getattr(ising, name)) for name in _ATTRIBUTES]
    parts += [(name, getattr(ising.edges, name, None)) for name in _EDGES]
    parts = [(name, value) for name, value in parts if value is not None]
    for name, value in parts:
        check_tensor(name, value)
    tensors = {name: value.detach().clone() for name, value in parts}
    names = None if labels is None else [int(x) if is_integer(x) else x for x in labels]
    facts = {"check": ising.check, "labels": names}
    _problem(tensors, facts)
    return tensor_file(tensors, form_of(Ising) | facts)


def problem_of(content: bytes) -> tuple[Ising, list[Hashable] | None]:
    """The problem of a file and the labels of its spins; damage raises what :func:`~diabat.files.parsing` expects."""
    tensors, facts = parse_tensor_file(content)
    require_form(Ising, facts)
    return _problem(tensors, facts)


def _problem(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> tuple[Ising, list[Hashable] | None]:
    """What the constructor accepts, with the clamped spins, ``check`` and labels."""
    known = (*_ATTRIBUTES, *_EDGES)
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
    ising = Ising(fields, J if edges is None else edges, *others)
    parts["edges"] = None if edges is None else ising.edges
    if clamped is not None:
        check_clamped(clamped, fields)
        if clamped.shape != fields.shape or bool(((clamped != 0) & ising.visible_mask).any()):
            raise IsingError("clamped", "expected the shape of fields, and that clamped spins are invisible.")
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
