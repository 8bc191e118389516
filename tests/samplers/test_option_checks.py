"""Options of every kind and type are refused by their name, in a sentence of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import diabat
from diabat.circuits import builtin_plan, save_plan

ARRAY = np.array([1.0, 2.0])


@pytest.mark.parametrize(
    ("backend", "name", "value"),
    [
        ("exact", "max_seconds", "x"),
        ("exact", "max_seconds", float("inf")),
        ("exact", "memory_budget_mb", ARRAY),
        ("exact", "memory_budget_mb", torch.tensor([1, 2])),
        ("exact", "memory_budget_mb", True),
        ("mean_field", "damping", "x"),
        ("mean_field", "damping", ARRAY),
        ("mean_field", "damping", float("nan")),
        ("mean_field", "tolerance", None),
        ("mean_field", "tolerance", 10**400),
        ("mean_field", "max_iterations", 2**70),
        ("mean_field", "tolerance", float("inf")),
        ("tempering", "persistent", ARRAY),
        ("tempering", "store_chain", 1),
        ("tempering", "method", ARRAY),
        ("dqa", "engine", ARRAY),
        ("dqa", "precision", ARRAY),
        ("dqa", "protocol", {}),
        ("dqa", "calibration", ARRAY),
        ("dqa", "order", ARRAY),
        ("dqa", "grid", {"a": 1}),
        ("dqa", "grid", b"bytes"),
        ("refine", "options", ARRAY),
        ("refine", "sampler", "a\nb"),
        ("dimod", "cache_dir", 1.5),
        ("dimod", "scale", ARRAY),
        ("banded", "engine", ARRAY),
    ],
)
def test_an_option_that_is_none_is_refused_by_name(backend: str, name: str, value: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=rf"^(.*: )?{name}: expected [^\n]*, got ") as caught:
        diabat.sampler(backend, **{name: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("seconds", [1e300, 1e-300])
def test_any_time_is_a_number_of_spins(seconds: float) -> None:
    limit = diabat.sampler("exact", max_seconds=seconds).capabilities.max_spins
    assert limit >= 1


def test_numbers_of_numpy_are_numbers() -> None:
    assert diabat.sampler("exact", max_seconds=np.float32(2)).capabilities.max_spins == 29
    assert diabat.sampler("mean_field", damping=np.float64(0.5)).name == "mean_field"


def test_a_gradient_that_is_no_name_is_refused() -> None:
    for value in (ARRAY, None, "a\nb"):
        with pytest.raises(ValueError, match=r"gradient: expected [^\n]*, got [^\n]*$"):
            diabat.spin_probabilities(torch.zeros(2), None, "exact", gradient=value)


def test_a_plan_with_a_bad_range_is_named(tmp_path: Path) -> None:
    plan, metadata = builtin_plan("boltzmann-4")
    path = tmp_path / "mine.json"
    save_plan(path, plan, {**metadata, "trained_range": 3})
    with pytest.raises(ValueError, match=r"mine\.json: trained_range: expected .*, got 3\.$"):
        diabat.sampler("dqa", schedule=str(path))
