"""Bad options and bad arguments: an answer in range, or a sentence that names the argument."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import diabat
from diabat.ising import Ising
from diabat.samplers.registry import backend_factory
from fuzz.api.analytic import check_range
from fuzz.api.reads import check_form
from fuzz.api.values import TENSORS, VALUES
from fuzz.dice import Dice
from fuzz.outcome import demand, naming

BACKENDS = ("exact", "banded", "mean_field", "tempering", "dqa", "refine", "dimod", "distributed")
_TINY: dict[str, dict[str, Any]] = {
    "tempering": {"burn_in": 2, "sweeps": 2},
    "dqa": {"annealing_time_ns": 1.0},
    "refine": {"sampler": "exact"},
}
# Such a number of sweeps, reads or chains is valid, and would take too long.
_LONG = (
    "sweeps",
    "burn_in",
    "num_chains",
    "num_reads",
    "thin",
    "max_iterations",
    "threads",
    "steps",
    "max_workers",
)
# They start processes, or need an account.
_ELSEWHERE = ("distributed", "dimod")
_PROBLEM = Ising(torch.tensor([[0.3, -0.2], [0.1, 0.0]]), torch.tensor([[0.0, 0.4], [0.4, 0.0]]))


def option(dice: Dice) -> None:
    """One option of one backend, of any value."""
    backend = dice.pick(BACKENDS)
    factory = backend_factory(backend)
    name = dice.pick(list(inspect.signature(factory).parameters))
    value = dice.pick(VALUES)
    options = {**_TINY.get(backend, {}), name: value}
    with naming(name):
        sampler = factory(**options)
    demand(bool(repr(sampler)), "repr: expected some text")
    long = isinstance(value, int | float) and value > 1e4 and name in _LONG
    if long or backend in _ELSEWHERE:
        return
    moments = sampler.moments(_PROBLEM, seed=1)
    check_range(moments, _PROBLEM)


def unknown_option(dice: Dice) -> None:
    """Unknown option names."""
    name = dice.pick(["beta", "num_read", "sweep", "steps_", "x", "engin", "bandwith", "temperature"])
    with naming(name):
        diabat.sampler(dice.pick(BACKENDS), **{name: dice.pick(VALUES)})
    demand(False, f"unknown option: expected a refusal of '{name}', got a sampler")


def problem(dice: Dice) -> None:
    """One argument of a problem replaced by something else."""
    good: dict[str, Any] = {
        "fields": torch.randn(3, 4),
        "couplings": torch.zeros(4, 4),
        "visible": torch.ones(3, 4, dtype=torch.bool),
        "three_body": torch.zeros(4, 4, 4),
    }
    shapes = {"fields": (3, 4), "couplings": (4, 4), "visible": (3, 4), "three_body": (4, 4, 4)}
    name = dice.pick(list(good))
    bad = _bad(dice, shapes[name])
    # What a bad kind of fields does not fit is the fault of the fields or of the others.
    with naming(name if name != "fields" else ""):
        ising = Ising(**{**good, name: bad})
    check_range(diabat.sampler("exact").moments(ising), ising)


def _bad(dice: Dice, shape: tuple[int, ...]) -> Any:
    if dice.chance(0.3):
        return dice.pick(VALUES)
    return TENSORS[dice.pick(list(TENSORS))](*shape)


def call(dice: Dice) -> None:
    """One argument of ``sample``, ``moments`` or a method of a problem replaced by something else."""
    name = dice.pick(list(_CALLS))
    _CALLS[name](dice)


def _num_reads(dice: Dice) -> None:
    value = dice.pick([v for v in VALUES if not (isinstance(v, int) and v > 1000)])
    with naming("num_reads"):
        samples = _sampler(dice).sample(_PROBLEM, value, seed=1)
    check_form(samples, _PROBLEM, int(value))


def _seed(dice: Dice) -> None:
    with naming("seed"):
        samples = _sampler(dice).sample(_PROBLEM, 3, seed=dice.pick(VALUES))
    check_form(samples, _PROBLEM, 3)


def _ising(dice: Dice) -> None:
    with naming("ising"):
        _sampler(dice).moments(dice.pick(VALUES))


def _clamp(dice: Dice) -> None:
    with naming("spins"):
        clamped = _PROBLEM.clamp(_bad(dice, (2, 2))).without_constants()
    check_range(diabat.sampler("exact").moments(clamped), clamped)


def _energy(dice: Dice) -> None:
    with naming("spins"):
        energy = _PROBLEM.energy(_bad(dice, (2, 2)))
    demand(isinstance(energy, Tensor), "energy: expected a tensor")


def _gradient(dice: Dice) -> None:
    with naming("gradient"):
        diabat.spin_probabilities(_PROBLEM.fields, None, "exact", gradient=dice.pick(VALUES))


def _by_name(dice: Dice) -> None:
    with naming("sampler"):
        diabat.spin_probabilities(_PROBLEM.fields, None, dice.pick(VALUES))


def _fields(dice: Dice) -> None:
    with naming("fields"):
        diabat.spin_probabilities(_bad(dice, (2, 2)), None, _sampler(dice))


def _layer(dice: Dice) -> None:
    good: dict[str, Any] = {"embed_dim": 4, "num_heads": 1, "window": 4, "mode": "h+J", "sampler": "exact"}
    good |= {"causal": True, "relative": True, "far": "none", "weights": "odds", "rotary": False}
    name = dice.pick(list(good))
    with naming(name):
        layer = diabat.BoltzmannAttention(**{**good, name: dice.pick([v for v in VALUES if not _big(v)])})
    y = layer(torch.randn(1, 1, layer.embed_dim))
    demand(bool(y.isfinite().all()), f"output: expected finite numbers, got {y}")


def _pool(dice: Dice) -> None:
    good: dict[str, Any] = {"embed_dim": 4, "num_heads": 1, "sampler": "mean_field"}
    name = dice.pick(list(good))
    with naming(name):
        layer = diabat.NeuroGameAttention(**{**good, name: dice.pick([v for v in VALUES if not _big(v)])})
    z = layer(torch.randn(1, 3, layer.embed_dim))
    demand(bool(z.isfinite().all()), f"output: expected finite numbers, got {z}")


def _inputs(dice: Dice) -> None:
    layer = dice.pick([diabat.BoltzmannAttention(4, 1, 4), diabat.NeuroGameAttention(4, 1)])
    y = layer(_bad(dice, (2, 3, 4)))
    demand(bool(y.isfinite().all()), f"output: expected finite numbers, got {y}")


def _big(value: Any) -> bool:
    return isinstance(value, int | float) and value > 1e6


def _sampler(dice: Dice) -> Any:
    name = dice.pick(["exact", "banded", "tempering", "dqa", "refine"])
    return diabat.sampler(name, **_TINY.get(name, {}))


_CALLS: dict[str, Callable[[Dice], None]] = {
    "num_reads": _num_reads,
    "seed": _seed,
    "ising": _ising,
    "clamp": _clamp,
    "energy": _energy,
    "gradient": _gradient,
    "sampler": _by_name,
    "fields": _fields,
    "layer": _layer,
    "pool": _pool,
    "inputs": _inputs,
}
