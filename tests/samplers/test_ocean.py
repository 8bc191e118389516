"""Every backend as a ``dimod.Sampler``: dimod's own tests, and the law, which those do not look at.

alpha = 1e-6 per test of a law, N = 20,000 reads of 4 variables, G-test of all 16 states against enumeration by
dimod.  The power against a flipped sign, half the fields or beta 0.6 for 0.7 is tested below.
"""

from __future__ import annotations

import inspect
import json
from functools import cache
from typing import Any

import dimod
import dimod.testing
import numpy as np
import pytest
import torch
from dimod.exceptions import SamplerUnknownArgWarning
from dwave.preprocessing.composites import FixVariablesComposite, SpinReversalTransformComposite
from mutants import mutants
from problems import ALPHA, g_test

import diabat
from diabat.ising import Ising, from_bqm
from diabat.samplers import Samples, UnsupportedError, available_backends
from diabat.samplers.ocean import OceanSampler, to_sampleset
from diabat.testing import ReferenceSampler

from .fakes import assert_takes_models_of_dimod

READS, BETA = 20_000, 0.7
# Draws no samples; wraps a dimod sampler already, and has no default for it.
LEFT_OUT = {"mean_field", "dimod"}
OPTIONS: dict[str, dict[str, Any]] = {
    "dqa": {"annealing_time_ns": 1.0, "steps": 40},
    "refine": {"sampler": "exact"},
    "distributed": {"sampler": "exact", "workers": 0},
}
BACKENDS = sorted(set(available_backends()) - LEFT_OUT)
BOLTZMANN = [name for name in BACKENDS if name != "dqa"]


@cache
def ocean(name: str) -> OceanSampler:
    return OceanSampler(name, **OPTIONS.get(name, {}))


def model(vartype: str = "BINARY") -> Any:
    """Fields, couplings of both signs, an offset, and labels that cannot be sorted."""
    linear = {("a", 1): 0.8, "b": -1.3, 3: 0.4, "d": 0.1}
    quadratic = {(("a", 1), "b"): 1.1, ("b", 3): -0.9, (("a", 1), "d"): 0.7, (3, "d"): 1.5}
    return dimod.BinaryQuadraticModel(linear, quadratic, 1.5, vartype)


def law(bqm: Any, beta: float) -> torch.Tensor:
    """exp(-beta E)/Z of all states, [1, 2^n]; bit j is variable j of the model, bit 1 its upper value."""
    states = (np.arange(2**bqm.num_variables)[:, None] >> np.arange(bqm.num_variables)) & 1
    rows = states if bqm.vartype is dimod.BINARY else 2 * states - 1
    weight = np.exp(-beta * bqm.energies((rows.astype(np.int8), list(bqm.variables))))
    return torch.from_numpy(weight / weight.sum())[None]


def spins(sampleset: Any, bqm: Any) -> torch.Tensor:
    """±1 [reads, 1, n], columns in the order of the model's variables."""
    columns = [sampleset.variables.index(v) for v in bqm.variables]
    return torch.from_numpy(np.where(sampleset.record.sample[:, columns] > 0, 1, -1))[:, None]


def pvalue(sampleset: Any, bqm: Any, beta: float = BETA) -> float:
    return g_test(spins(sampleset, bqm), law(bqm, beta))


# Some of dimod's models have fields that an anneal of a nanosecond does not follow.
@pytest.mark.filterwarnings("ignore::diabat.circuits.OutOfRangeWarning")
@pytest.mark.parametrize("name", BACKENDS)
def test_dimods_own_tests(name: str) -> None:
    def factory() -> OceanSampler:
        return ocean(name)

    assert_takes_models_of_dimod(factory)
    dimod.testing.assert_sampler_api(ocean(name))


@pytest.mark.parametrize("vartype", ["SPIN", "BINARY"])
@pytest.mark.parametrize("name", BACKENDS)
def test_form_of_the_sample_set(name: str, vartype: str) -> None:
    """int8, one row per read, energies of the model, the same rows for the same seed, and plain info."""
    bqm = model(vartype)
    first, again, other = (ocean(name).sample(bqm, num_reads=50, seed=seed, beta=0.3) for seed in (7, 7, 8))
    dimod.testing.assert_sampleset_energies(first, bqm)
    assert first.vartype is bqm.vartype
    assert first.record.sample.dtype == np.int8
    assert first.record.sample.shape == (50, 4)
    assert (first.record.num_occurrences == 1).all()
    assert np.array_equal(first.record.sample, again.record.sample)
    assert not np.array_equal(first.record.sample, other.record.sample)
    assert (first.info["backend"], first.info["seed"], first.info["beta"]) == (name, 7, 0.3)
    assert dimod.SampleSet.from_serializable(json.loads(json.dumps(first.to_serializable()))) == first


@pytest.mark.parametrize("vartype", ["SPIN", "BINARY"])
@pytest.mark.parametrize("name", BOLTZMANN)
def test_the_law_is_boltzmann_at_the_beta_asked_for(name: str, vartype: str) -> None:
    bqm = model(vartype)
    assert pvalue(ocean(name).sample(bqm, num_reads=READS, seed=1, beta=BETA), bqm) > ALPHA


def test_beta_is_one_unless_said_otherwise_and_another_is_seen() -> None:
    bqm = model()
    sampleset = ocean("exact").sample(bqm, num_reads=READS, seed=2)
    assert sampleset.info["beta"] == 1.0
    assert pvalue(sampleset, bqm, 1.0) > ALPHA
    assert pvalue(ocean("exact").sample(bqm, num_reads=READS, seed=2, beta=0), bqm, 0.0) > ALPHA
    assert pvalue(ocean("exact").sample(bqm, num_reads=READS, seed=1, beta=0.6), bqm) < ALPHA


MISTAKES = ("negated_fields", "negated_couplings", "half_fields", "permuted_columns", "ignored_couplings")


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("vartype", ["SPIN", "BINARY"])
def test_the_test_of_the_law_sees_mistakes(mistake: str, vartype: str) -> None:
    bqm, wrong = model(vartype), OceanSampler(mutants(diabat.sampler("exact"))[mistake])
    assert pvalue(wrong.sample(bqm, num_reads=READS, seed=1, beta=BETA), bqm) < ALPHA


def test_rows_are_the_reads_in_their_order() -> None:
    bqm = model("SPIN")
    sampleset = ocean("exact").sample(bqm, num_reads=100, seed=3)
    problem, labels = diabat.ising.from_bqm(bqm)
    drawn = diabat.sampler("exact").sample(problem, 100, seed=3)
    assert labels == list(bqm.variables)
    assert torch.equal(spins(sampleset, bqm)[:, 0], drawn.spins.long())


@pytest.mark.parametrize("vartype", ["SPIN", "BINARY"])
def test_the_empty_model(vartype: str) -> None:
    sampleset = ocean("exact").sample(dimod.BinaryQuadraticModel({}, {}, 2.5, vartype), num_reads=3)
    assert sampleset.record.sample.shape == (3, 0)
    assert (sampleset.record.energy == 2.5).all()
    assert {"backend", "seed", "beta"} <= sampleset.info.keys()


def test_a_drawn_seed_replays() -> None:
    first = ocean("exact").sample(model(), num_reads=40)
    numbers: Any = np.array([40, first.info["seed"]])  # integers as numpy has them
    again = ocean("exact").sample(model(), num_reads=numbers[0], seed=numbers[1])
    assert np.array_equal(first.record.sample, again.record.sample)


class Chatty(ReferenceSampler):
    """Info of every kind that a backend may give."""

    def _sample(self, ising: Ising, num_reads: int, seed: int) -> Samples:
        drawn = super()._sample(ising, num_reads, seed)
        facts = {"t": torch.ones(2), "a": np.arange(3), "x": np.float64(0.5), "p": (1, 2)}
        rest = {"m": {3: np.bool_(True)}, "nan": float("nan"), "o": torch.float32}
        return Samples(drawn.spins, drawn.visible, info=facts | rest)


def test_info_is_plain_data() -> None:
    info = OceanSampler(Chatty()).sample(model()).info
    expected = {"t": [1.0, 1.0], "a": [0, 1, 2], "x": 0.5, "p": [1, 2], "m": {"3": True}, "nan": None}
    assert {key: info[key] for key in (*expected, "o")} == expected | {"o": "torch.float32"}
    json.dumps(info, allow_nan=False)


@pytest.mark.parametrize("name", BACKENDS)
def test_parameters_are_the_keywords_of_sample_and_name_properties(name: str) -> None:
    sampler = ocean(name)
    parameters = inspect.signature(sampler.sample).parameters.values()
    assert {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} == sampler.parameters.keys()
    assert {item for items in sampler.parameters.values() for item in items} <= sampler.properties.keys()
    json.dumps(sampler.properties)
    assert sampler.properties["max_spins"] == sampler.sampler.capabilities.max_spins


def test_properties_and_parameters_are_copies_and_unknown_keywords_are_named_and_ignored() -> None:
    assert OceanSampler().sampler.name == "tempering"
    sampler = ocean("exact")
    sampler.properties["law"] = sampler.parameters["beta"] = []
    assert sampler.properties["law"] == "boltzmann"
    assert sampler.parameters["beta"]
    with pytest.warns(SamplerUnknownArgWarning, match="num_raeds"):
        sampleset = ocean("exact").sample(model(), num_raeds=3)
    assert len(sampleset) == 1


def test_spin_reversal_leaves_the_law_as_it_is() -> None:
    bqm = model("SPIN")
    composite = SpinReversalTransformComposite(ocean("exact"), seed=5)
    sampleset = composite.sample(bqm, num_spin_reversal_transforms=4, num_reads=READS // 4, beta=BETA)
    assert len(sampleset) == READS
    assert (
        pvalue(sampleset, bqm) > 1e-9
    )  # seeds of the runs are drawn, so that alpha is the chance of a failure


def test_fixed_variables_give_the_conditional_law() -> None:
    bqm, fixed = model(), {"b": 1}
    composite = FixVariablesComposite(ocean("exact"), algorithm="explicit")
    sampleset = composite.sample(bqm, fixed_variables=fixed, num_reads=READS, seed=6, beta=BETA)
    assert (sampleset.record.sample[:, sampleset.variables.index("b")] == 1).all()
    rest = bqm.copy()
    rest.fix_variables(fixed)
    assert pvalue(sampleset, rest) > ALPHA


def test_closing_reaches_the_backend() -> None:
    class Holding(ReferenceSampler):
        closed = False

        def close(self) -> None:
            self.closed = True

    backend = Holding()
    with OceanSampler(backend) as sampler:
        sampler.sample(model())
    assert backend.closed
    with ocean("exact") as sampler:
        sampler.sample(model())


def test_it_is_reached_from_the_top() -> None:
    assert diabat.samplers.ocean.OceanSampler is OceanSampler
    assert "ocean" in dir(diabat.samplers)
    with pytest.raises(AttributeError, match=r"module 'diabat.samplers' has no attribute 'lake'"):
        diabat.samplers.lake  # noqa: B018 - the access is the test


def test_reads_become_a_sample_set() -> None:
    bqm = dimod.BinaryQuadraticModel({"a": 0.5, "b": -0.2}, {("a", "b"): 1.0}, 0.25, "SPIN")
    problem, labels = from_bqm(bqm)
    samples = diabat.sampler("exact").sample(problem, 20, seed=3)
    found = to_sampleset(samples, labels)
    assert found.record.sample.tolist() == samples.spins.tolist()
    assert np.allclose(found.record.energy, bqm.energies((samples.spins.numpy(), labels)))
    assert (list(found.variables), found.info["seed"]) == (["a", "b"], 3)
    json.dumps(found.to_serializable())
    batch = diabat.sampler("exact").sample(Ising(torch.zeros(2, 3)), 4)
    with pytest.raises(ValueError, match=r"samples: expected reads of one problem .* got shape \[4, 2, 3\]"):
        to_sampleset(batch)
    hidden = diabat.sampler("exact").sample(Ising(torch.zeros(2), visible=torch.tensor([True, False])), 4)
    with pytest.raises(ValueError, match="got invisible spins"):
        to_sampleset(hidden)
    with pytest.raises(ValueError, match="labels: expected 2 different labels, got"):
        to_sampleset(samples, ["a", "a"])


def test_constrained_models_are_refused_in_a_sentence() -> None:
    cqm, sampler = dimod.ConstrainedQuadraticModel(), OceanSampler("exact")
    with pytest.raises(
        UnsupportedError, match=r"cqm: expected a binary quadratic model, got .* use dimod.cqm_to_bqm"
    ):
        sampler.sample_cqm(cqm)
    with pytest.raises(
        TypeError, match=r"bqm: expected a dimod.BinaryQuadraticModel, got .*; use dimod.cqm_to_bqm"
    ):
        sampler.sample(cqm)
