"""Refusals that name their argument, for people and for the layers above."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from dataclasses import fields
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import dimod
import numpy as np
import pytest
import torch

import diabat
from diabat.attention.couplings import CouplingInit
from diabat.checks import (
    ArgumentError,
    ArgumentTypeError,
    check_choice,
    check_count,
    check_number,
    check_positive,
)
from diabat.documents.errors import refused
from diabat.heads import GameOptions
from diabat.huggingface.boltzmann.config import BoltzmannOptions
from diabat.ising import Ising, from_bqm, from_qubo
from diabat.ising.problem_files import read_problem, write_problem
from diabat.lab.models import TransformerOptions
from diabat.lab.tasks import BracketOptions, RecallOptions
from diabat.lab.training import TrainOptions


def test_an_error_has_its_argument_in_attribute_and_message() -> None:
    error = ArgumentError("window", "expected an integer >= 1, got 0.")
    assert (error.argument, error.reason) == ("window", "expected an integer >= 1, got 0.")
    assert str(error) == "window: expected an integer >= 1, got 0."
    alone = ArgumentError("nothing fits: not even this.")
    assert (alone.argument, str(alone)) == (None, "nothing fits: not even this.")


@pytest.mark.parametrize("kind", [ArgumentError, ArgumentTypeError, diabat.IsingError])
def test_errors_survive_copies_and_processes(kind: type[ArgumentError]) -> None:
    for error in (kind("a", "b: c."), kind("alone: d.")):
        for again in (copy.copy(error), pickle.loads(pickle.dumps(error))):
            assert type(again) is kind
            assert (again.argument, again.reason, str(again)) == (error.argument, error.reason, str(error))


def test_a_wrong_type_is_a_type_error_as_well() -> None:
    assert issubclass(ArgumentTypeError, TypeError)
    assert issubclass(ArgumentTypeError, ValueError)


def test_limits_of_counts() -> None:
    check_count("reads", 0, least=0)
    check_count("reads", None, optional=True)
    with pytest.raises(ArgumentError, match=r"^reads: expected an integer >= 2 or None, got 1\.$"):
        check_count("reads", 1, least=2, optional=True)
    with pytest.raises(ArgumentError, match=r"^reads: expected at most 3, got 4\.$"):
        check_count("reads", 4, most=3)


def test_choices_have_a_near_miss_hint() -> None:
    check_choice("engine", "aer", ("aer", "native"))
    with pytest.raises(ArgumentError, match=r"one of aer, native, got 'nativ'\. Did you mean 'native'\?$"):
        check_choice("engine", "nativ", ("aer", "native"))
    with pytest.raises(ArgumentError, match=r"got 3\.$"):
        check_choice("engine", 3, ("aer", "native"))


def test_a_key_of_the_configuration_is_made_of_section_and_argument() -> None:
    error = refused(ArgumentError("window", "expected more, got 1."), "task")
    assert (error.argument, str(error)) == ("task.window", "task.window: expected more, got 1.")
    # A sentence about no argument is about the section, whatever colons it holds.
    assert str(refused(ValueError("no: go"), "sampler")) == "sampler: no: go."


def test_no_layer_reads_an_argument_out_of_a_sentence() -> None:
    """An error carries its argument, so nobody splits its text at a colon."""
    root = Path(diabat.__file__).parent
    for path in root.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        for trick in (
            'partition(": ")',
            'removeprefix("sampler: ")',
            "removeprefix('sampler: ')",
            r're.match(r"\w+: "',
        ):
            assert trick not in source, f"{path.name} parses a message"


@pytest.mark.parametrize(
    "value", [2**2000, -(2**2000), 10**5000, Fraction(10**400)], ids=str.split("a b c d")
)
def test_numbers_that_no_float_holds_are_refused_in_a_sentence(value: Any) -> None:
    """Raw, they raise OverflowError where they are used, and ValueError where they are written."""
    refused: list[Callable[[], object]] = [
        lambda: check_number("x", value, "(-inf, inf)"),
        lambda: check_number("x", value, "[-inf, inf]"),
        lambda: check_positive("x", value),
        lambda: Ising([1.0], offset=value),
        lambda: Ising.from_dict({"a": value}),
        lambda: Ising.from_dict({"a": 1.0}, {("a", "b"): value}),
        lambda: from_qubo({("a", "a"): value}),
        lambda: from_qubo({("a", "a"): 1.0}, offset=value),
        lambda: from_bqm(dimod.BinaryQuadraticModel({"a": 1.0}, {}, 0.0, "SPIN"), beta=value),
        lambda: CouplingInit.of(value),
    ]
    for vartype, linear, quadratic, offset in (
        ("SPIN", value, 0, 0),
        ("BINARY", value, 0, 0),
        ("SPIN", 0, value, 0),
        ("BINARY", 0, value, 0),
        ("SPIN", 0, 0, value),
    ):
        bqm = dimod.BinaryQuadraticModel(
            {"a": linear}, {("a", "b"): quadratic}, offset, vartype, dtype=object
        )
        refused.append(partial(from_bqm, bqm))
    for call in refused:
        with pytest.raises(ArgumentError, match="expected") as caught:
            call()
        assert len(str(caught.value)) < 700


def test_numbers_of_numpy_are_compared_without_a_warning() -> None:
    for kind in (np.float16, np.float32):
        check_number("x", kind(0.5), "[0, 1)")
        check_positive("x", kind(0.5))
        assert from_qubo({("a", "a"): kind(0.5)})[0].fields.tolist() == [-0.25]


def numpy_integers(options: dict[str, Any]) -> dict[str, Any]:
    return {name: np.int64(value) if type(value) is int else value for name, value in options.items()}


@pytest.mark.parametrize("name", diabat.available_backends())
def test_backends_take_integers_of_numpy_and_keep_those_of_python(name: str) -> None:
    plain = diabat.sampler(name)
    built = diabat.sampler(name, **numpy_integers(plain.options))
    assert built.options == plain.options
    assert not [value for value in (built.options | vars(built)).values() if isinstance(value, np.generic)]


@pytest.mark.parametrize(
    "kind", [TrainOptions, RecallOptions, BracketOptions, TransformerOptions, BoltzmannOptions, GameOptions]
)
def test_options_take_integers_of_numpy_and_keep_those_of_python(kind: type[Any]) -> None:
    given: dict[str, Any] = {"window": 4} if kind in (BracketOptions, BoltzmannOptions) else {}
    plain = kind(**given)
    values = {f.name: getattr(plain, f.name) for f in fields(plain) if f.init and f.name != "sampler"}
    made = kind(**numpy_integers(values))
    for name, value in values.items():
        assert (type(getattr(made, name)), getattr(made, name)) == (type(value), value)


def test_small_integers_of_numpy_do_not_overflow() -> None:
    ising = diabat.Ising(torch.zeros(3, 50))
    options = {"num_replicas": np.int8(2), "num_chains": np.int8(100), "thin": np.int8(1), "betas": None}
    sampler = diabat.sampler("tempering", num_reads=np.int8(120), **options)
    two: Any = np.int8(2)
    assert sampler.moments(ising, seed=two).num_reads == 6400
    assert sampler.sample(ising, 60 * two, seed=two).spins.shape == (120, 3, 50)
    assert json.loads(json.dumps(sampler.options))["num_reads"] == 120
    layer = diabat.BoltzmannAttention(32 * two, two, window=50 * two, bandwidth=two, sampler="banded")
    assert [type(n) for n in (layer.embed_dim, layer.num_heads, layer.window)] == [int] * 3
    assert layer(torch.zeros(1, 100, 64)).shape == (1, 100, 64)
    pooling = diabat.NeuroGameAttention(32 * two, two, num_coalitions=7 * two)
    assert pooling(torch.zeros(1, 3, 64)).shape == (1, 64)


def test_labels_of_numpy_are_integers(tmp_path: Path) -> None:
    """dimod reads labels of COO as they are in the file; those of an array are numpy's."""
    ising, labels = diabat.Ising(torch.ones(2)), [*np.array([4, 7])]
    for name in ("a.coo", "a.json"):
        write_problem(tmp_path / name, ising, labels)
        assert read_problem(tmp_path / name).labels == [4, 7]
    ising.save(tmp_path / "a.safetensors", labels)
    assert read_problem(tmp_path / "a.safetensors").labels == [4, 7]
