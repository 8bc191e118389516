"""Samples and moments as files and pandas frames."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save

import diabat
from diabat.files import parse_tensor_file, tensor_file
from diabat.testing.problems import make_problem, with_visible

PROBLEM = with_visible(make_problem((2, 3), 4, seed=1), torch.tensor([True, True, True, False]))
CHAINS = diabat.sampler("tempering", num_chains=4, thin=2, num_replicas=2, track_lowest=True)


def samples() -> diabat.Samples:
    return CHAINS.sample(PROBLEM, 20, seed=1)


def moments(backend: str = "exact", **options: Any) -> diabat.Moments:
    sampler = diabat.sampler(backend, **options)
    log_z = sampler.capabilities.log_partition
    return sampler.moments(PROBLEM, correlations=True, log_partition=log_z, seed=1)


MADE: dict[str, Callable[[], Any]] = {
    "chains": samples,
    "clamped": lambda: CHAINS.sample(PROBLEM.clamp(torch.tensor([0, 1, 0, 0])), 8, seed=1),
    "exact": moments,
    "averages": lambda: moments("tempering"),
    "no R-hat": lambda: moments().replaced(info={"rhat": torch.tensor([1.0, float("nan")])}),
}


@pytest.mark.parametrize("name", MADE)
def test_what_was_saved_is_loaded(name: str, tmp_path: Path) -> None:
    given, path = MADE[name](), tmp_path / "answer"
    for _ in range(2):  # over one that is there
        given.save(path)
    back = type(given).load(path)
    assert os.listdir(tmp_path) == ["answer"]
    assert back.info.keys() == given.info.keys()
    values = {key: value for key, value in vars(given).items() if key not in ("ising", "info")}
    for old, new in ((values, vars(back)), (given.info, back.info)):
        for key, value in old.items():
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(new[key], value, rtol=0, atol=0, equal_nan=True)
            assert isinstance(value, torch.Tensor | dict) or new[key] == value
    if isinstance(given, diabat.Samples):
        assert back.ising is None
        assert torch.equal(replace(back, ising=given.ising).lowest().energy, given.lowest().energy)


def changed(facts: dict[str, Any], **tensors: torch.Tensor) -> Callable[[bytes], bytes]:
    """Writes the file with other facts or tensors."""

    def change(content: bytes) -> bytes:
        held, said = parse_tensor_file(content)
        return tensor_file(held | tensors, said | facts)

    return change


READS = torch.ones(20, 2, 3, 4)
DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut": (lambda content: content[:-1], "not fully covered"),
    "no facts": (lambda content: save(load(content)), "expected the entry '__metadata__', got none"),
    "a list": (changed({"info": [1]}), ""),
    "a spin of 0": (changed({}, spins=torch.zeros_like(READS).char()), "got 0 at [0, 0, 0, 0]"),
    "floats": (changed({}, spins=READS), "spins: expected torch.int8 [20, 2, 3, 4], got torch.float32 [20"),
    "fewer reads": (changed({"num_reads": 19}), "spins: expected torch.int8 [19, 2, 3, 4], got"),
    "no number": (changed({"num_reads": None}), "num_reads: expected an integer >= 1"),
    "unknown": (changed({}, more=READS[0]), "expected only tensors of spins, visible, tracked, got 'more'"),
    # Samples have an attribute of this name, which is no tensor.
    "a problem": (
        changed({}, ising=READS[0]),
        "expected only tensors of spins, visible, tracked, got 'ising'",
    ),
    "an answer in it": (changed({}, num_reads=READS[0]), "tracked, got 'num_reads'"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_are_refused_in_a_sentence(damage: str, tmp_path: Path) -> None:
    change, message = DAMAGE[damage]
    path = tmp_path / "answer"
    samples().save(path)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ValueError, match=r"^Samples: ") as caught:
        diabat.Samples.load(path)
    assert f"{path} is damaged: " in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _: b"spins\n" * 100, "not a safetensors file."),
        (
            changed({"format": "diabat-moments"}),
            "another file: expected {'format': 'diabat-samples', 'version': 1}, ",
        ),
    ],
)
def test_other_files_are_not_called_damaged(change: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "answer"
    samples().save(path)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ValueError, match=rf"^Samples: {re.escape(f'{path} is {message}')}"):
        diabat.Samples.load(path)


def test_missing_files_pipes_and_impossible_probabilities_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^Moments: expected the file .*none, got none"):
        diabat.Moments.load(tmp_path / "none")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="no regular file"):
        diabat.Moments.load(tmp_path / "pipe")
    moments().replaced(probability=1.5 * READS[0].double()).save(tmp_path / "moments")
    with pytest.raises(ValueError, match="probability: expected numbers from 0 to 1"):
        diabat.Moments.load(tmp_path / "moments")


@pytest.mark.parametrize("name", ["correlation", "log_partition", "standard_error"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_moments_that_are_not_finite_are_refused(name: str, value: float, tmp_path: Path) -> None:
    given = moments("tempering")
    number = getattr(given, name).clone()
    number.view(-1)[-1] = value
    given.replaced(**{name: number}).save(tmp_path / "moments")
    with pytest.raises(ValueError, match=f"{name}: expected finite numbers, got others"):
        diabat.Moments.load(tmp_path / "moments")


def test_reads_are_rows_by_chain() -> None:
    pytest.importorskip("pandas")
    given, labels = samples(), ["a", "b", ("c", 1), 4]
    frame = given.to_pandas(labels=labels)
    assert frame.index.names == ["chain", "draw", "batch_0", "batch_1"]
    assert (frame.shape, list(frame.columns), set(map(str, frame.dtypes))) == ((120, 4), labels, {"int8"})
    for chain, draw in ((0, 0), (3, 1), (1, 4)):
        assert list(frame.loc[(chain, draw, 1, 2)]) == given.spins[4 * draw + chain, 1, 2].tolist()
    frame.iloc[:] = 0  # a copy
    assert bool(given.spins.abs().all())
    independent = diabat.sampler("exact").sample(make_problem((3,), 4, seed=2), 6, seed=1)
    assert independent.to_pandas().index.levshape == (1, 6, 3)
    assert independent.to_pandas(chains=2).index.levshape == (2, 3, 3)
    assert list(independent.to_pandas().columns) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="chains: expected a divisor of the 6 reads, got 4"):
        independent.to_pandas(chains=4)
    with pytest.raises(ValueError, match="labels: expected 4 different labels"):
        independent.to_pandas(labels="aabc")


def test_moments_are_rows_by_spin() -> None:
    pytest.importorskip("pandas")
    for given in (moments(), moments("tempering")):
        frame = given.to_pandas("abcd")
        for name in ("probability", "magnetization"):
            assert frame.loc[(1, 2, "b"), name] == float(getattr(given, name)[1, 2, 1])
        assert ("standard_error" in frame) == (given.standard_error is not None)
        assert not frame.loc[(1, 2, "d"), "visible"]


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    for given in (samples(), moments()):
        with pytest.raises(ImportError, match=r"pandas: .* pip install -e '\.\[stats\]'"):
            given.to_pandas()
