"""Strategies of damaged files: of bytes, of JSON, and of safetensors."""

from __future__ import annotations

import copy
import json
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

_NUMBERS = """
0 -0 1 -1 2 3 7 255 1e-3 0.5 -1.5 1e400 -1e400 1e308 -1e308 1e30 3e38 5e-324 1_0 0x10 010 +1 1. .5 1e 1e1000000
2147483648 -2147483649 4294967296 9223372036854775807 9223372036854775808 -9223372036854775809 1000000000000
100000000000000000000000000000 nan NaN inf Infinity -inf .nan .inf null true ~ x "1" [] {} ''
"""
NUMBERS = tuple(text.encode() for text in _NUMBERS.split())
TOKENS = tuple(
    text.encode()
    for text in (*"[]{},:\"'#-|\x00\ufeff", "&a", "*a", "!!python/name:os.system", "\x1b[2J", "\u202e")
)
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 0.5, -0.5, 1e308, 2**31, 2**63, -(2**63) - 1, 10**30, 10**9, "", "x", "SPIN",
    "\x1b[2J\u202e\n",
    [], [0], [0, 0], [[0, 1, 0.5]], {}, {"a": 1}, "1", float("nan"), float("inf"),
)  # fmt: skip
_NUMBER = re.compile(rb"[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?")
_KEY = re.compile(rb'"[^"\n]{1,40}":\s*[^,{}\[\]\n]+|^\w+:.*$', re.MULTILINE)
_LINE = re.compile(rb"[^\n]*\n")
_FOUND = {"number": _NUMBER, "line": _LINE, "key": _KEY}


def saved(save: Callable[[Path], object]) -> bytes:
    """The content of the file that a function saves."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "saved"
        save(path)
        return path.read_bytes()


@st.composite
def damaged(draw: st.DrawFn, files: Sequence[bytes], *, is_json: bool = False) -> bytes:
    """One of the files with some nodes of its JSON, or some bytes, changed."""
    content = draw(st.sampled_from(files))
    if is_json and draw(st.booleans()):
        return json.dumps(draw(tampered(json.loads(content)))).encode()
    for _ in range(draw(st.integers(1, 3))):
        content = draw(_edited(content, files))
    return content


@st.composite
def _edited(draw: st.DrawFn, content: bytes, files: Sequence[bytes]) -> bytes:
    """A number, a line, a key or some bytes are replaced, removed, repeated or followed by something else."""
    kind = draw(st.sampled_from([*_FOUND, "number", "number", "bytes", "bytes", "end"]))
    start, stop = draw(st.integers(0, len(content))), len(content)
    if kind in _FOUND:
        spans = [match.span() for match in _FOUND[kind].finditer(content)] or [(0, 0)]
        start, stop = draw(st.sampled_from(spans))
    elif kind == "bytes":
        stop = start + draw(st.sampled_from([0, 1, 4, 8, 40]))
    piece, new = content[start:stop], st.sampled_from(NUMBERS)
    if kind == "line":
        new = st.sampled_from([0, 2, 3, 50]).map(lambda times: piece * times)
    elif kind == "key":
        new = st.just(piece + (b", " if b'"' in content else b"\n") + piece)
    elif kind == "bytes":
        flipped = st.integers(0, 7).map(lambda bit: bytes(byte ^ 1 << bit for byte in piece))
        new = flipped | st.sampled_from(TOKENS) | st.binary(max_size=300)
    elif kind == "end":
        other = draw(st.sampled_from(files))
        new = st.integers(0, len(other)).map(lambda begin: other[begin:])
    return content[:start] + draw(new) + content[stop:]


@st.composite
def tampered(draw: st.DrawFn, document: Any) -> Any:
    """A JSON document with one to three of its nodes replaced, removed, doubled or renamed."""
    document = json.loads(json.dumps(document))
    for _ in range(draw(st.integers(1, 3))):
        if not isinstance(document, dict | list) or not document:
            break
        parent, key = draw(_places(document))
        value, how = parent[key], draw(st.sampled_from(["replace", "replace", "scale", "remove", "double"]))
        if how == "remove":
            del parent[key]
        elif how == "double" and isinstance(parent, list):
            parent.insert(key, value)
        elif how == "double":
            parent[f"{key}2"] = value
        elif how == "scale" and type(value) in (int, float):
            parent[key] = draw(st.sampled_from([-value, value + 1, value * 10**6, value * 1.5]))
        else:
            parent[key] = copy.deepcopy(draw(st.sampled_from(VALUES)))  # which later changes may go into
    return document


@st.composite
def _places(draw: st.DrawFn, parent: Any) -> tuple[Any, Any]:
    """A container and a key of it, at any depth."""
    key = draw(st.sampled_from(list(parent) if isinstance(parent, dict) else range(len(parent))))
    deeper = isinstance(parent[key], dict | list) and parent[key] and draw(st.integers(0, 2))
    return draw(_places(parent[key])) if deeper else (parent, key)


@st.composite
def other_tensors(draw: st.DrawFn, content: bytes) -> bytes:
    """A safetensors file with another header, length, tensor or facts, or with damaged bytes."""
    from safetensors.numpy import load, save

    how = draw(st.sampled_from(["tensor", "tensor", "facts", "header", "length", "bytes"]))
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    facts: dict[str, str] = header.get("__metadata__", {})
    if how == "length":
        return draw(st.sampled_from([content[:-1], content + b"x"]))
    if how == "bytes":
        return draw(damaged([content]))
    if how == "header":
        new = json.dumps(draw(tampered(header))).encode()
        claimed = draw(st.just(len(new)) | st.sampled_from([0, 1, len(new) + 1, 2**40, 2**64 - 1]))
        return claimed.to_bytes(8, "little") + new + content[8 + size :]
    tensors: dict[str, Any] = load(content)
    if how == "facts" and facts:
        name = draw(st.sampled_from(sorted(facts)))
        facts[name] = json.dumps(draw(tampered(json.loads(facts[name])))) if facts[name][:1] in "{[" else "x"
    else:
        name = draw(st.sampled_from(sorted(tensors)))
        changed = draw(_other(tensors.pop(name)))
        if changed is not None:
            tensors[name] = np.ascontiguousarray(changed)
    return save(tensors, facts)


@st.composite
def _other(draw: st.DrawFn, tensor: Any) -> Any:
    """A tensor of another type, shape, order or content; text of JSON is changed as such; None to leave it out."""
    if tensor.dtype == np.uint8 and tensor[:1].tobytes() == b"{" and draw(st.booleans()):
        text = json.dumps(draw(tampered(json.loads(tensor.tobytes()))))
        return np.frombuffer(text.encode(), dtype=np.uint8)
    rows, columns = (*tensor.shape, 1, 1)[:2]
    shapes = st.sampled_from(
        [(), (0,), (1,), (2, 2), (rows, columns + 1), (rows + 1, columns), (*tensor.shape, 1)]
    )
    dtypes = st.sampled_from([np.float64, np.float32, np.float16, np.int64, np.uint8, np.bool_])
    numbers = st.sampled_from([0, -1, 3e38, np.nan, np.inf])
    orders = st.sampled_from([tensor[::-1] if tensor.ndim else tensor, np.stack((tensor, tensor)), None])
    with np.errstate(all="ignore"):
        return draw(
            dtypes.map(tensor.astype) | shapes.map(np.zeros) | orders
            | numbers.map(lambda number: np.full(tensor.shape, number).astype(tensor.dtype))
        )  # fmt: skip
