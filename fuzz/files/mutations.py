"""Strategies of damaged files: of bytes, of JSON, and of safetensors."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from fuzz.problems import one_in

_NUMBERS = """
0 -0 1 -1 2 3 7 255 1e-3 0.5 -1.5 1e400 -1e400 1e308 -1e308 1e30 3e38 5e-324 1_0 0x10 010 +1 1. .5 1e 1e1000000
2147483648 -2147483649 4294967296 9223372036854775807 9223372036854775808 -9223372036854775809 1000000000000
100000000000000000000000000000 nan NaN inf Infinity -inf .nan .inf null true ~ x "1" [] {} ''
"""
NUMBERS = tuple(text.encode() for text in _NUMBERS.split())
TOKENS = tuple(text.encode() for text in (*"[]{},:\"'#-|\x00\ufeff", "&a", "*a", "!!python/name:os.system"))
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 0.5, -0.5, 1e308, 2**31, 2**63, -(2**63) - 1, 10**30, 10**9, "", "x", "SPIN",
    [], [0], [0, 0], [[0, 1, 0.5]], {}, {"a": 1}, "1", float("nan"), float("inf"),
)  # fmt: skip

_NUMBER = re.compile(rb"[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?")
_KEY = re.compile(rb'"[^"\n]{1,40}":\s*[^,{}\[\]\n]+|^\w+:.*$', re.MULTILINE)
_LINE = re.compile(rb"[^\n]*\n")
_EDITS = (
    "number",
    "number",
    "number",
    "flip",
    "cut",
    "insert",
    "end",
    "splice",
    "repeat",
    "swap",
    "key twice",
)


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
    """The bytes between two places are replaced."""
    kind = draw(st.sampled_from(_EDITS))
    where = {"number": _NUMBER, "key twice": _KEY, "repeat": _LINE, "swap": _LINE}.get(kind)
    if where is not None:
        spans = [match.span() for match in where.finditer(content)] or [(0, 0)]
        start, stop = draw(st.sampled_from(spans))
    else:
        start = draw(st.integers(0, len(content)))
        length = {"flip": st.just(1), "cut": st.sampled_from([1, 4, 8, 40]), "insert": st.just(0)}
        stop = start + draw(length[kind]) if kind in length else len(content)
    piece, new = content[start:stop], b""
    if kind == "number":
        new = draw(st.sampled_from(NUMBERS))
    elif kind == "flip":
        new = bytes(byte ^ 1 << draw(st.integers(0, 7)) for byte in piece)
    elif kind == "insert":
        new = draw(st.sampled_from(TOKENS) | st.binary(max_size=300))
    elif kind == "splice":
        other = draw(st.sampled_from(files))
        new = other[draw(st.integers(0, len(other))) :]
    elif kind == "repeat":
        new = piece * draw(st.sampled_from([2, 3, 50]))
    elif kind == "swap":
        end = content.find(b"\n", stop) + 1 or len(content)
        stop, new = end, content[stop:end] + piece
    elif kind == "key twice":
        new = piece + (b", " if b'"' in content else b"\n") + piece
    return content[:start] + new + content[stop:]


@st.composite
def tampered(draw: st.DrawFn, document: Any) -> Any:
    """A JSON document with one to three of its nodes replaced, removed, doubled or renamed."""
    document = json.loads(json.dumps(document))
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(document))
        if not places:
            break
        parent, key = draw(st.sampled_from(places))
        value, how = (
            parent[key],
            draw(st.sampled_from(["replace", "replace", "replace", "scale", "remove", "double"])),
        )
        if how == "remove":
            del parent[key]
        elif how == "double" and isinstance(parent, list):
            parent.insert(key, value)
        elif how == "double":
            parent[f"{key}2"] = value
        elif how == "scale" and isinstance(value, int | float) and not isinstance(value, bool):
            parent[key] = draw(st.sampled_from([-value, value + 1, value * 10**6, value * 1.5]))
        else:
            parent[key] = copy.deepcopy(draw(st.sampled_from(VALUES)))  # which later changes may go into
    return document


def _places(node: Any) -> list[tuple[Any, Any]]:
    keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else []
    return [place for key in keys for place in ((node, key), *_places(node[key]))]


@st.composite
def other_tensors(draw: st.DrawFn, files: Sequence[bytes]) -> bytes:
    """A safetensors file with another header, length, tensor or facts, or with damaged bytes."""
    from safetensors.numpy import load, save

    content = draw(st.sampled_from(files))
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
        tensor = tensors.pop(name)
        if (changed := draw(_other(tensor))) is not None:
            tensors[name + "x" * draw(one_in(8))] = np.ascontiguousarray(changed)
    return save(tensors, facts)


@st.composite
def _other(draw: st.DrawFn, tensor: Any) -> Any:
    """A tensor of another type, shape, order or content; text of JSON is changed as such; None to leave it out."""
    if tensor.dtype == np.uint8 and tensor[:1].tobytes() == b"{" and not draw(one_in(4)):
        text = json.dumps(draw(tampered(json.loads(tensor.tobytes()))))
        return np.frombuffer(text.encode(), dtype=np.uint8)
    rows, columns = (*tensor.shape, 1, 1)[:2]
    shapes = [(), (0,), (1,), (2, 2), (rows, columns + 1), (rows + 1, columns), (*tensor.shape, 1)]
    with np.errstate(all="ignore"):
        return draw(
            st.sampled_from([np.float64, np.float32, np.float16, np.int64, np.uint8, np.bool_]).map(
                tensor.astype
            )
            | st.sampled_from(shapes).map(np.zeros)
            | st.sampled_from([0, -1, 3e38, np.nan, np.inf]).map(
                lambda x: np.full(tensor.shape, x).astype(tensor.dtype)
            )
            | st.sampled_from(
                [tensor[::-1] if tensor.ndim else tensor, np.stack((tensor, tensor)), None, tensor]
            )
        )
