from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import pytest

import diabat
from diabat.samplers import registry
from diabat.samplers.base import Sampler
from diabat.testing import ReferenceSampler


@pytest.fixture(autouse=True)
def _private_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})


def test_built_in_backends_are_known_by_name() -> None:
    assert {"exact", "mean_field", "dqa"} <= set(diabat.available_backends())
    for name in diabat.available_backends():
        sampler = diabat.sampler(name)
        assert isinstance(sampler, Sampler)
        assert sampler.name == name


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        (
            "exat",
            {},
            ValueError,
            r"sampler: expected one of .*dqa, exact.*, got 'exat'\. Did you mean 'exact'\?",
        ),
        ("meanfield", {}, ValueError, r"Did you mean 'mean_field'\?"),
        ("zzzzzz", {}, ValueError, r"got 'zzzzzz'\.$"),
        ("dqa", {"anealing_time_ns": 1}, TypeError, r"'dqa' has no .*\. Did you mean 'annealing_time_ns'\?"),
        ("exact", {"memory_budget": 1}, TypeError, r"Did you mean 'memory_budget_mb'\?"),
        ("exact", {"qqq": 1}, TypeError, r"no option 'qqq'\. It accepts memory_budget_mb, max_seconds\."),
        ("exact", {"max_seconds": -1}, ValueError, "max_seconds: expected a positive finite number, got -1"),
    ],
)
def test_unknown_names_and_options_are_refused(
    name: str, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        diabat.sampler(name, **options)


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


def test_register() -> None:
    registry.register("mine", ReferenceSampler)
    registry.register("mine", ReferenceSampler)  # importing a module twice is no conflict
    assert "mine" in diabat.available_backends()
    assert isinstance(diabat.sampler("mine", analytic=True), ReferenceSampler)
    with pytest.raises(ValueError, match="name: expected an unused name, got 'mine', which already exists"):
        registry.register("mine", lambda: ReferenceSampler())
    with pytest.raises(ValueError, match="name: expected an unused name, got 'exact', which already exists"):
        registry.register("exact", ReferenceSampler)


def test_as_sampler() -> None:
    sampler = ReferenceSampler()
    assert registry.as_sampler(sampler) is sampler
    assert registry.as_sampler("exact").name == "exact"
    for bad in (3, None, ReferenceSampler):
        value: Any = bad
        with pytest.raises(TypeError, match="sampler: expected a diabat Sampler or its name, got"):
            registry.as_sampler(value)
