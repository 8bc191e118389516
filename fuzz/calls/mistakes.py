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
from diabat.samplers.registry import backend_factory
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
    torch.float32,
    torch.float64,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.bool,
    torch.complex64,
)
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


BACKENDS = ("exact", "banded", "mean_field", "tempering", "dqa", "refine", "dimod", "distributed")
_TINY: dict[str, dict[str, Any]] = {
    "tempering": {"burn_in": 2, "sweeps": 2},
    "dqa": {"annealing_time_ns": 1.0},
    "refine": {"sampler": "exact"},
}
_OPTIONS = [
    (name, option) for name in BACKENDS for option in inspect.signature(backend_factory(name)).parameters
]
# Values of them that are valid and would take too long.
_LONG = {
    "sweeps",
    "burn_in",
    "num_chains",
    "num_reads",
    "thin",
    "max_iterations",
    "threads",
    "steps",
    "max_workers",
}
_PROBLEM = Ising(torch.tensor([[0.3, -0.2], [0.1, 0.0]]), torch.tensor([[0.0, 0.4], [0.4, 0.0]]))


@holds
def options(draw: st.DrawFn) -> None:
    """One option of a backend."""
    (backend, name), value = draw(st.sampled_from(_OPTIONS)), draw(VALUES)
    with naming(name):
        sampler = diabat.sampler(backend, **{**_TINY.get(backend, {}), name: value})
    demand(bool(repr(sampler)), "repr: expected some text")
    long = isinstance(value, int | float) and value > 1e4 and name in _LONG
    if not long and backend not in ("distributed", "dimod"):  # they start processes, or need an account
        in_range(sampler.moments(_PROBLEM, seed=1), _PROBLEM)


@holds
def unknown_options(draw: st.DrawFn) -> None:
    """An option that no backend has."""
    name = draw(
        st.sampled_from(["beta", "num_read", "sweep", "steps_", "x", "engin", "bandwith", "temperature"])
    )
    with naming(name):
        diabat.sampler(draw(st.sampled_from(BACKENDS)), **{name: draw(VALUES)})
    demand(False, f"unknown option: expected a refusal of '{name}', got a sampler")


_SHAPES = {"fields": (3, 4), "couplings": (4, 4), "visible": (3, 4), "three_body": (4, 4, 4), "offset": (3,)}


@holds
def arguments_of_problems(draw: st.DrawFn) -> None:
    """One argument of a problem."""
    name = draw(st.sampled_from([*_SHAPES]))
    good = {name: torch.zeros(shape) for name, shape in _SHAPES.items()} | {
        "visible": torch.ones(3, 4).bool()
    }
    # Fields that fit nothing else may be the fault of the others.
    with naming(name if name != "fields" else ""):
        ising = Ising(**{**good, name: draw(tensors(*_SHAPES[name]))})
    in_range(diabat.sampler("exact").moments(ising), ising)


def _attention(**changes: Any) -> Tensor:
    layer = diabat.BoltzmannAttention(
        **{"embed_dim": 4, "num_heads": 1, "window": 4, "relative": True} | changes
    )
    return layer(torch.randn(1, 1, layer.embed_dim))


def _pool(**changes: Any) -> Tensor:
    given: dict[str, Any] = {"embed_dim": 4, "num_heads": 1, "sampler": "mean_field"} | changes
    layer = diabat.NeuroGameAttention(**given)
    return layer(torch.randn(1, 3, layer.embed_dim))


_LAYER = (
    "embed_dim",
    "num_heads",
    "window",
    "mode",
    "sampler",
    "causal",
    "relative",
    "far",
    "weights",
    "rotary",
)
_MATRIX = tensors(2, 2)
_CALLS: list[tuple[str, st.SearchStrategy[Any], Callable[[Any, Any], Tensor]]] = [
    ("num_reads", SMALL, lambda sampler, v: sampler.sample(_PROBLEM, v, seed=1).spins),
    ("seed", VALUES, lambda sampler, v: sampler.sample(_PROBLEM, 3, seed=v).spins),
    ("ising", VALUES, lambda sampler, v: sampler.moments(v).probability),
    ("fields", _MATRIX, lambda sampler, v: diabat.spin_probabilities(v, None, sampler)),
    (
        "gradient",
        VALUES,
        lambda sampler, v: diabat.spin_probabilities(_PROBLEM.fields, None, sampler, gradient=v),
    ),
    ("sampler", VALUES, lambda _, v: diabat.spin_probabilities(_PROBLEM.fields, None, v)),
    ("spins", _MATRIX, lambda _, v: _PROBLEM.energy(v).nan_to_num()),  # NaN has the energy NaN
    ("spins", _MATRIX, lambda _, v: _PROBLEM.clamp(v).without_constants().fields),
    ("", tensors(2, 3, 4), lambda _, v: diabat.BoltzmannAttention(4, 1, 4)(v)),
    ("", tensors(2, 3, 4), lambda _, v: diabat.NeuroGameAttention(4, 1)(v)),
    *((name, SMALL, lambda _, v, name=name: _attention(**{name: v})) for name in _LAYER),
    *(
        (name, SMALL, lambda _, v, name=name: _pool(**{name: v}))
        for name in ("embed_dim", "num_heads", "sampler")
    ),
]


@holds
def arguments_of_calls(draw: st.DrawFn) -> None:
    """One argument of a backend, a method of a problem, or a layer."""
    backend = draw(st.sampled_from(["exact", "banded", "tempering", "dqa", "refine"]))
    name, bad, call = _CALLS[draw(st.integers(0, len(_CALLS) - 1))]
    sampler, value = diabat.sampler(backend, **_TINY.get(backend, {})), draw(bad)
    with naming(name):
        found = call(sampler, value)
    finite(found, "result")
