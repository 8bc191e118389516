"""Backends by name, their options as recorded and shown, and backends of somebody else."""

from __future__ import annotations

import copy
import io
import pickle
import re
import textwrap
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import diabat
from diabat.ising import Ising
from diabat.samplers import Capabilities, Sampler, Samples, registry
from diabat.samplers.banded import BandedSampler
from diabat.samplers.exact import ExactSampler
from diabat.samplers.registry import register
from diabat.samplers.state import remembers, reset_chains, sampler_parameters
from diabat.testing import ReferenceSampler
from diabat.testing.problems import make_problem


@pytest.fixture
def private_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})


def test_built_in_backends_are_known_by_name() -> None:
    assert {"exact", "mean_field", "dqa"} <= set(diabat.available_backends())
    for name in diabat.available_backends():
        sampler = diabat.sampler(name)
        assert isinstance(sampler, Sampler)
        assert sampler.name == name


@pytest.mark.usefixtures("private_registry")
def test_third_party_backends_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def entry_points(*, group: str) -> list[EntryPoint]:
        asked.append(group)
        return [
            EntryPoint("reference", "diabat.testing:ReferenceSampler", group),
            # A package cannot take the name of a built-in backend.
            EntryPoint("exact", "diabat.testing:ReferenceSampler", group),
        ]

    monkeypatch.setattr(registry, "entry_points", entry_points)
    assert "reference" in diabat.available_backends()
    sampler = diabat.sampler("reference", num_reads=17)
    assert isinstance(sampler, ReferenceSampler)
    assert sampler.num_reads == 17
    assert not isinstance(diabat.sampler("exact"), ReferenceSampler)
    assert set(asked) == {"diabat.samplers"}
    with pytest.raises(TypeError, match=r"Did you mean 'num_reads'\?"):
        diabat.sampler("reference", num_read=17)
    with pytest.raises(ValueError, match=r"Did you mean 'reference'\?"):
        diabat.sampler("referenc")


@pytest.mark.usefixtures("private_registry")
def test_register() -> None:
    registry.register("mine", ReferenceSampler)
    registry.register("mine", ReferenceSampler)  # importing a module twice is no conflict
    assert "mine" in diabat.available_backends()
    assert isinstance(diabat.sampler("mine", analytic=True), ReferenceSampler)
    for name, factory in (("mine", lambda: ReferenceSampler()), ("exact", ReferenceSampler)):
        message = f"name: expected an unused name, got '{name}', which already exists"
        with pytest.raises(ValueError, match=message):
            registry.register(name, factory)


def test_as_sampler() -> None:
    sampler = ReferenceSampler()
    assert registry.as_sampler(sampler) is sampler
    assert registry.as_sampler("exact").name == "exact"
    for bad in (3, None, ReferenceSampler):
        value: Any = bad
        with pytest.raises(TypeError, match="sampler: expected a diabat Sampler or its name, got"):
            registry.as_sampler(value)


def test_any_time_is_a_number_of_spins_and_numbers_of_numpy_are_numbers() -> None:
    for seconds in (1e300, 1e-300):
        assert diabat.sampler("exact", max_seconds=seconds).capabilities.max_spins >= 1
    assert diabat.sampler("exact", max_seconds=np.float32(2)).capabilities.max_spins == 29
    assert diabat.sampler("mean_field", damping=np.float64(0.5)).name == "mean_field"


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
    assert repr(ExactSampler(memory_budget_mb=np.float32(8.0))).startswith(
        "ExactSampler(memory_budget_mb=8.0,"
    )
    nested = diabat.sampler("refine", sampler=ReferenceSampler(analytic=True))
    inner = "ReferenceSampler(analytic=True, num_reads=1000)"
    assert repr(nested) == f"RefineSampler(sampler={inner}, sweeps=4, num_reads=1000)"
    ladder = "1.0, " * 8
    assert f"'beta_schedule': [{ladder}...]" in repr(diabat.sampler("dimod", **HELD))
    # A sampler without a constructor.
    assert (Unoptioned().options, repr(Unoptioned())) == ({}, "Unoptioned()")
    # A changed copy says what was changed.
    assert BandedSampler().for_window(12, 3).options["bandwidth"] == 3
    assert BandedSampler().options["bandwidth"] is None


def test_options_do_not_alias() -> None:
    given = {"burn_in": 3}
    built = diabat.sampler("refine", sampler="tempering", options=given)
    given["burn_in"] = 4
    built.options["options"]["burn_in"] = 5
    assert built.options["options"] == {"burn_in": 3}


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


class Unoptioned(Sampler):
    """Nothing but what must be there."""

    name = "plain"
    capabilities = Capabilities()


def test_layers_show_their_sampler_with_its_options() -> None:
    sampler = ReferenceSampler(num_reads=9)
    for layer in (
        diabat.BoltzmannAttention(8, 2, 6, sampler=sampler),
        diabat.NeuroGameAttention(8, 2, sampler=sampler),
    ):
        shown_by_layer = repr(layer)
        assert shown_by_layer.count("ReferenceSampler") == 1
        for part in (
            "(sampler): ReferenceSampler(analytic=False, num_reads=9)",
            "num_heads=2",
            "gradient='auto'",
        ):
            assert part in shown_by_layer


ROOT = Path(__file__).parents[2]


def shown(page: str) -> str:
    """The example of a complete backend."""
    found = re.findall(r"^ *```python\n(.*?)^ *```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    (block,) = (textwrap.dedent(block) for block in found if "class Enumerated" in block)
    return block


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/backends.md"])
def test_the_backend_that_is_shown_is_complete_and_has_under_ten_lines(page: str) -> None:
    block = shown(page)
    assert block == shown("docs/backends.md")
    lines = block[block.index("class Enumerated") : block.index("check_sampler(Enumerated())")].splitlines()
    assert sum(bool(line.strip()) for line in lines) < 10
    names: dict[str, Any] = {}
    exec(block, names)  # holds it against the suite
    own = names["Enumerated"]()
    assert (own.capabilities.max_spins, own.options, repr(own)) == (12, {}, "Enumerated()")


class Biased(Sampler):
    """Learnable numbers, a base and chains; its constructor leaves ``super().__init__()`` out."""

    name = "biased"
    capabilities = Capabilities(max_spins=6, remembers=True)

    def __init__(self, scale: float = 1.0) -> None:
        self.base = ExactSampler()
        self.scale = nn.Parameter(torch.tensor(scale))
        self.register_buffer("seen", torch.zeros(1, dtype=torch.int64))

    def reset(self) -> None:
        self.seen = torch.zeros(1, dtype=torch.int64)

    def _sample(self, ising: Ising, num_reads: int, seed: int) -> Samples:
        self.seen = self.seen + 1
        scaled = Ising(ising.fields * self.scale.detach(), ising.couplings, ising.visible, check=False)
        return self.base.sample(scaled, num_reads, seed=seed)


class Late(Biased):
    """Calls ``super().__init__()`` after it has set attributes."""

    def __init__(self) -> None:
        self.first = nn.Parameter(torch.zeros(2))
        super().__init__(2.0)


class WithBase(Sampler):
    """Calls ``super().__init__()`` last, which must forget nothing."""

    name = "with_base"
    capabilities = Capabilities()

    def __init__(self, base: Sampler) -> None:
        self.base = base
        super().__init__()


def test_a_constructor_need_not_call_its_parents() -> None:
    assert dict(Biased(3.0).named_parameters()).keys() == {"scale"}
    assert [name for name, _ in Late().named_parameters()] == ["first", "scale"]
    assert isinstance(WithBase(Biased()).base, Biased)
    assert remembers(WithBase(Biased()))
    assert not remembers(WithBase(ExactSampler()))
    assert list(WithBase(Biased()).state_dict()) == ["base.scale", "base.seen"]


def test_somebody_elses_parameters_are_the_layers_once() -> None:
    own = Biased()
    layer = diabat.BoltzmannAttention(4, 2, 3, sampler=own)
    stack = nn.Sequential(layer, diabat.BoltzmannAttention(4, 2, 3, sampler=own))
    names = [name for name, _ in stack.named_parameters() if "scale" in name]
    assert names == ["0.sampler.scale", "1.sampler.scale"]
    assert (
        len(sampler_parameters(stack)) == 2
    )  # each layer has a copy, the sampler that was given none of them
    assert all(p is not own.scale for p in stack.parameters())
    layer(torch.randn(1, 3, 4))
    assert int(layer.sampler.state_dict()["seen"]) == 1
    assert int(own.state_dict()["seen"]) == 0


def test_somebody_elses_memory_is_taken_away_and_put_back() -> None:
    own, ising = Biased(), make_problem((), 3)
    own.sample(ising, 2, seed=1)
    with reset_chains(nn.ModuleList([WithBase(own)])):
        assert int(own.state_dict()["seen"]) == 0
        for _ in range(2):
            own.sample(ising, 2, seed=1)
    assert int(own.state_dict()["seen"]) == 1


def test_copies_share_nothing() -> None:
    own = Biased(2.0)
    stored = io.BytesIO()
    pickle.dump(own, stored)
    for other in (copy.deepcopy(own), pickle.loads(stored.getvalue())):
        assert torch.equal(other.scale, own.scale)
        assert other.options == own.options == {"scale": 2.0}
        with torch.no_grad():
            other.scale.zero_()
        assert torch.equal(own.scale, torch.tensor(2.0))
        ising = make_problem((2,), 3)
        assert torch.equal(own.sample(ising, 5, seed=1).spins, Biased(2.0).sample(ising, 5, seed=1).spins)


def test_a_sampler_that_is_compared_by_value_or_has_no_capabilities_is_refused() -> None:
    @dataclass
    class ByValue(ReferenceSampler):
        level: int = 1

    class Nothing(Sampler):
        name = "nothing"

    message = r"ByValue: expected a sampler that is compared by identity.*eq=False"
    with pytest.raises(TypeError, match=message):
        ByValue()
    with pytest.raises(TypeError, match="capabilities"):
        Nothing()  # type: ignore[abstract]
    with pytest.raises(diabat.UnsupportedError, match="accepts at most 6 visible spins, got 7"):
        Biased().sample(make_problem((3,), 7, lead="per_problem"), 2)
