"""Samples and moments as files, xarray datasets and pandas frames."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save

import diabat
from diabat.files import parse_tensor_file, tensor_file
from diabat.samplers.tempering.chain_statistics import split_rhat
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


def test_chains_are_rows_of_the_dataset() -> None:
    pytest.importorskip("xarray")
    given = samples()
    data, frame = given.to_xarray(labels=["a", "b", ("c", 1), 4]), given.to_pandas()
    assert data.spins.dims == ("chain", "draw", "batch_0", "batch_1", "spin")
    assert (data.spins.shape, data.energy.shape) == ((4, 5, 2, 3, 4), (4, 5, 2, 3))
    assert list(data.spin.values) == ["a", "b", ("c", 1), 4]
    for chain, draw in ((0, 0), (3, 1), (1, 4)):
        read = 4 * draw + chain
        assert (data.spins[chain, draw].values == given.spins[read].numpy()).all()
        assert (data.energy[chain, draw].values == given.energy[read].numpy()).all()
        assert list(frame.loc[(chain, draw, 1, 2)]) == given.spins[read, 1, 2].tolist()
    independent = diabat.sampler("exact").sample(make_problem((3,), 4, seed=2), 6, seed=1)
    assert independent.to_xarray().sizes == {"chain": 1, "draw": 6, "batch": 3, "spin": 4}
    assert independent.to_xarray(chains=2).sizes["draw"] == 3
    with pytest.raises(ValueError, match="chains: expected a divisor of the 6 reads, got 4"):
        independent.to_xarray(chains=4)
    with pytest.raises(ValueError, match="labels: expected 4 different labels"):
        independent.to_xarray(labels="aabc")


def test_moments_are_rows_by_spin() -> None:
    pytest.importorskip("xarray")
    for given in (moments(), moments("tempering")):
        data, frame = given.to_xarray("abcd"), given.to_pandas("abcd")
        pairs = data.correlation.sel(spin="a", other_spin="c")
        assert (pairs.values == given.correlation[..., 0, 2].numpy()).all()
        assert (data.log_partition.values == given.log_partition.numpy()).all()
        assert frame.loc[(1, 2, "b"), "probability"] == float(given.probability[1, 2, 1])
        assert ("standard_error" in frame) == (given.standard_error is not None)
        assert not frame.loc[(1, 2, "d"), "visible"]


def test_arviz_reads_the_chains() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arviz = pytest.importorskip("arviz")
        sampler = diabat.sampler("tempering", num_chains=8, thin=1, num_replicas=1)
        chains = sampler.sample(make_problem((2,), 5, seed=4), 8 * 100, seed=1)
        found = arviz.rhat(chains.to_xarray(), method="split").spins.values
    assert found == pytest.approx(split_rhat(chains.spins.reshape(100, 8, 2, 5).numpy()), rel=1e-9)


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(ImportError, match=r"xarray: .* pip install -e '\.\[stats\]'"):
        samples().to_pandas()
