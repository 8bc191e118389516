"""The options of a sampler: recorded by the base class, shown like the call that built it."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import diabat
from diabat.attention.pooling import BoltzmannPooling
from diabat.samplers import Capabilities, Sampler
from diabat.samplers.banded import BandedSampler
from diabat.samplers.exact import ExactSampler
from diabat.samplers.registry import register
from diabat.testing import ReferenceSampler

HELD: dict[str, Any] = {
    "sampler": "dwave.samplers:SimulatedAnnealingSampler",
    "beta": 1.0,
    "parameters": {"beta_schedule_type": "custom", "beta_schedule": [1.0] * 20},
}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("exact", {"memory_budget_mb": 8.0}),
    ("banded", {"bandwidth": 2}),
    ("mean_field", {"damping": 0.5}),
    ("dqa", {"annealing_time_ns": 2.0, "steps": 60, "betas": (1.5, 2.5)}),
    ("refine", {"sampler": "tempering", "options": {"burn_in": 3}, "sweeps": 2}),
    ("tempering", {"betas": (0.0, 0.5, 1.0), "persistent": True}),
    ("dimod", HELD),
    ("distributed", {"sampler": ExactSampler(max_seconds=9.0), "workers": 0}),
]


@pytest.mark.parametrize(("name", "options"), CASES, ids=[name for name, _ in CASES])
def test_options_build_an_equal_sampler(name: str, options: dict[str, Any]) -> None:
    built = diabat.sampler(name, **options)
    assert options.items() <= built.options.items()
    again = diabat.sampler(built.name, **built.options)
    for other in (again, copy.copy(built), copy.deepcopy(built)):
        assert repr(other) == repr(built)
    assert again.options == built.options


def test_repr_reads_like_the_call() -> None:
    assert repr(ExactSampler()) == "ExactSampler(memory_budget_mb=256.0, max_seconds=600.0)"
    budget = np.float32(8.0)
    assert repr(ExactSampler(memory_budget_mb=budget)).startswith("ExactSampler(memory_budget_mb=8.0,")
    nested = diabat.sampler("refine", sampler=ReferenceSampler(analytic=True))
    assert repr(nested) == (
        "RefineSampler(sampler=ReferenceSampler(analytic=True, num_reads=1000), sweeps=4, num_reads=1000)"
    )
    ladder = "1.0, " * 8
    assert f"'beta_schedule': [{ladder}...]" in repr(diabat.sampler("dimod", **HELD))


def test_options_do_not_alias() -> None:
    given = {"burn_in": 3}
    built = diabat.sampler("refine", sampler="tempering", options=given)
    given["burn_in"] = 4
    built.options["options"]["burn_in"] = 5
    assert built.options["options"] == {"burn_in": 3}


def test_a_changed_copy_says_what_was_changed() -> None:
    narrow = BandedSampler().for_window(12, 3)
    assert narrow.options["bandwidth"] == 3
    assert BandedSampler().options["bandwidth"] is None


class Third(ReferenceSampler):
    """Somebody's sampler: it keeps nothing under the names of its options."""

    name = "third"

    def __init__(self, first: int, /, second: list[int], *, api_token: str = "", **more: Any) -> None:
        super().__init__(num_reads=first)
        self._hidden = (second, api_token, more)


class Heir(Third):
    """Has the constructor of its parent."""


def test_somebody_elses_sampler_needs_nothing() -> None:
    names = ("password", "pat", "jwt", "cookie", "connection_string", "client_cert_key")
    other = dict.fromkeys(names, "x") | {"host": "https://me:pw@there/"}
    built = Heir(7, [1, 2], api_token="s3cret", other=other)
    assert built.num_reads == 7
    assert built.options == {"first": 7, "second": [1, 2], "other": {"host": "https://me:pw@there/"}}
    assert repr(built) == "Heir(first=7, second=[1, 2], other={'host': 'https://***@there/'})"
    assert repr(copy.deepcopy(built)) == repr(built)
    with pytest.raises(TypeError, match="second"):
        Heir(7)  # type: ignore[call-arg]


class Device:
    """Holds a token that its own representation would show."""

    def __repr__(self) -> str:
        return "Device(token='s3cret')"


@dataclass(repr=False, eq=False)
class Made(ReferenceSampler):
    """Its constructor is made after the class."""

    device: Any = None
    num_reads: int = 5
    tags: list[str] = field(default_factory=list)
    analytic = False


def test_objects_are_shown_by_their_type() -> None:
    built = Made(Device())
    assert repr(built) == "Made(device=Device(...), num_reads=5, tags=[])"
    register("made", Made)
    assert diabat.sampler("made", **built.options).options == built.options


def test_a_sampler_without_a_constructor() -> None:
    class Plain(Sampler):
        name = "plain"

        @property
        def capabilities(self) -> Capabilities:
            return ReferenceSampler().capabilities

    assert Plain().options == {}
    assert repr(Plain()) == "Plain()"


def test_layers_show_their_sampler_with_its_options() -> None:
    sampler = ReferenceSampler(num_reads=9)
    layers = [
        diabat.BoltzmannAttention(8, 2, 6, sampler=sampler),
        diabat.NeuroGameAttention(8, 2, sampler=sampler),
        BoltzmannPooling(8, 2, 6, sampler=sampler),
    ]
    for layer in layers:
        shown = repr(layer)
        assert shown.count("ReferenceSampler") == 1
        assert "(sampler): ReferenceSampler(analytic=False, num_reads=9)" in shown
        assert "num_heads=2" in shown
        assert "gradient='auto'" in shown
