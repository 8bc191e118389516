"""Options and arguments of any value and type: an answer in range, or a sentence that names the argument."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

import diabat
from diabat.ising import Ising
from diabat.samplers.registry import _BUILT_IN, backend_factory
from fuzz.calls.laws import finite, in_range
from fuzz.properties import demand, holds, naming

ODD: tuple[Any, ...] = (
    0, 1, -1, 2, 3, 7, 0.5, 1.0, -0.5, 1e-300, 1e300, 10**30, -(10**30), 2**31, 2**63, 2**64,
    math.nan, math.inf, -math.inf, np.float32("nan"), None, True, "", "5", "exact", "no such", "a\nb", b"bytes",
    (), [], {}, (0.0, 1.0), [1, 2], {"a": 1}, 1 + 2j, object(), len, np.int64(3), np.float64(0.5),
    np.array([1.0, 2.0]), torch.tensor(1.0), torch.tensor([1, 2]), slice(None), range(3),
)  # fmt: skip
VALUES = st.sampled_from(ODD) | st.integers() | st.floats() | st.text(max_size=5)
SMALL = VALUES.filter(lambda value: not (isinstance(value, int | float) and value > 1e4))
"""Without numbers that are valid sizes and would take too long."""
_DTYPES = (
    torch.float32, torch.float64, torch.int64, torch.float16, torch.bfloat16, torch.bool, torch.complex64,
)  # fmt: skip
_FORMS: dict[str, Callable[[Tensor], Any]] = {
    "nan": lambda t: torch.full(t.shape, math.nan),
    "inf": lambda t: torch.full(t.shape, math.inf),
    "huge": lambda t: torch.full(t.shape, 3e38),
    "random": lambda t: torch.randn(t.shape),
    "sparse": lambda t: t.to_sparse(),
    "meta": lambda t: t.to("meta"),
    "numpy": lambda t: np.zeros(t.shape),
    "lists": lambda t: np.ones(t.shape).tolist(),
    "one more axis": lambda t: t[..., None],
    "one axis fewer": lambda t: t[0],
    "one longer": lambda t: torch.cat([t, t[..., :1]], -1),
    "empty": lambda t: t[..., :0],
    "scalar": lambda t: t.sum(),
}


def tensors(*shape: int) -> st.SearchStrategy[Any]:
    """What may be given in place of a tensor of this shape."""
    forms = st.sampled_from([*_FORMS]).map(lambda form: _FORMS[form](torch.ones(shape)))
    zeros = st.sampled_from(_DTYPES).map(lambda dtype: torch.zeros(shape, dtype=dtype))
    return forms | zeros | VALUES


BACKENDS = tuple(_BUILT_IN)
_TINY: dict[str, dict[str, Any]] = {
    "tempering": {"burn_in": 2, "sweeps": 2}, "dqa": {"annealing_time_ns": 1.0}, "refine": {"sampler": "exact"},
}  # fmt: skip
_KNOWN = {name: inspect.signature(backend_factory(name)).parameters for name in BACKENDS}
_OPTIONS = [(name, one) for name, known in _KNOWN.items() for one in (*known, "engin")]
_PROBLEM = Ising(torch.tensor([[0.3, -0.2], [0.1, 0.0]]), torch.tensor([[0.0, 0.4], [0.4, 0.0]]))


@holds
def options(draw: st.DrawFn) -> None:
    """One option of a backend, of any value, or one that it does not have."""
    (backend, name), value = draw(st.sampled_from(_OPTIONS)), draw(VALUES)
    path = name == "schedule" and "/" in str(value)  # whose refusal names the file
    with naming("" if path else name):
        sampler = diabat.sampler(backend, **{**_TINY.get(backend, {}), name: value})
    demand(name != "engin", "unknown option: expected a refusal, got a sampler")
    demand(bool(repr(sampler)), "repr: expected some text")
    long = isinstance(value, int | float) and value > 1e4  # a valid number that would take too long
    if not long and backend not in ("distributed", "dimod"):  # they start processes, or need an account
        log_z = sampler.capabilities.log_partition
        in_range(sampler.moments(_PROBLEM, log_partition=log_z, seed=1), _PROBLEM)


def _solved(**arguments: Any) -> Tensor:
    ising = Ising(**arguments)
    moments = diabat.sampler("exact").moments(ising)
    in_range(moments, ising)
    return moments.probability


def _built(kind: Any, length: int) -> Callable[..., Tensor]:
    def call(**arguments: Any) -> Tensor:
        layer = kind(**arguments)
        return layer(torch.randn(1, length, layer.embed_dim))

    return call


_SHAPES = {"fields": (3, 4), "couplings": (4, 4), "visible": (3, 4), "three_body": (4, 4, 4), "offset": (3,)}
_GOOD: dict[str, Any] = {name: torch.zeros(shape) for name, shape in _SHAPES.items()}
_LAYER = {"embed_dim": 4, "num_heads": 1}
_ATTENTION = {"window": 4, "mode": "h+J", "sampler": "exact", "causal": True, "relative": True, "far": "none"}
_MATRIX, _X = {"spins": tensors(2, 2)}, {"x": tensors(2, 3, 4)}
Case = tuple[Callable[..., Tensor], dict[str, Any], dict[str, st.SearchStrategy[Any]]]
_CASES: tuple[Case, ...] = (
    (_solved, _GOOD | {"visible": None}, {name: tensors(*shape) for name, shape in _SHAPES.items()}),
    (_built(diabat.BoltzmannAttention, 1), _LAYER | _ATTENTION, dict.fromkeys(_LAYER | _ATTENTION, SMALL)),
    (_built(diabat.NeuroGameAttention, 3), _LAYER, dict.fromkeys([*_LAYER, "sampler"], SMALL)),
    (diabat.BoltzmannAttention(4, 1, 4), {}, _X),
    (diabat.NeuroGameAttention(4, 1), {}, _X),
    (lambda spins: _PROBLEM.energy(spins).nan_to_num(), {}, _MATRIX),  # NaN has the energy NaN
    (lambda spins: _PROBLEM.clamp(spins).without_constants().fields, {}, _MATRIX),
)


@holds
def arguments(draw: st.DrawFn) -> None:
    """One argument of a problem, a backend, the gradient bridge or a layer, of any value and type."""
    name = draw(st.sampled_from(["exact", "banded", "tempering", "dqa", "refine"]))
    sampler = diabat.sampler(name, **_TINY.get(name, {}))
    numbers = {"num_reads": SMALL, "seed": VALUES}
    bridge = {"fields": tensors(2, 2), "gradient": VALUES, "sampler": VALUES}
    fitting = {"fields": _PROBLEM.fields, "couplings": None, "sampler": sampler}
    cases: tuple[Case, ...] = (
        (lambda **given: sampler.sample(_PROBLEM, **given).spins, {"num_reads": 3, "seed": 1}, numbers),
        (lambda ising: sampler.moments(ising).probability, {}, {"ising": VALUES}),
        (diabat.spin_probabilities, fitting, bridge),
        *_CASES,
    )
    call, good, bad = draw(st.sampled_from(cases))
    name = draw(st.sampled_from([*bad]))
    # An input, or fields that fit nothing else, may be the fault of the others.
    with naming("" if name == "x" or (name == "fields" and call is _solved) else name):
        result = call(**{**good, name: draw(bad[name])})
    finite(result, "result")
