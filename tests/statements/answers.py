"""Statistics, Ocean, processes."""

from __future__ import annotations

import itertools
import math
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import dimod
import numpy as np
import pytest
import torch

import diabat
from diabat import Ising, sampler
from diabat.ising import from_bqm, from_qubo
from diabat.ising.problem_files import is_problem, read_problem
from diabat.samplers.ocean import OceanSampler
from statements.table import F64, drawn, refused, says


@says
def chains_of_composites() -> None:
    """statistics: Reads of `distributed` and `refine` have the chains of their base."""
    base, problem = {"num_chains": 8, "thin": 1}, drawn(2)
    for name in ("distributed", "refine"):
        options = {"workers": 0} if name == "distributed" else {}
        reads = sampler(name, sampler="tempering", options=base, **options).sample(problem, 16, seed=0)
        assert reads.to_pandas().index.levshape == (8, 2, 2)
    reads = sampler("tempering", **base).sample(problem, 16, seed=0)
    assert reads.to_pandas().index.levshape == (8, 2, 2)


@says
def still_spins() -> None:
    """statistics: - A spin that is invisible or fixed by `clamp` has the same value in every read.
    statistics: `samples.visible` has the invisible ones."""
    problem = drawn()
    hidden = Ising(problem.fields, problem.couplings, torch.tensor([True] * 5 + [False]))
    samples = sampler("exact").sample(hidden, 50, seed=0)
    assert (samples.spins[..., 5] == -1).all()
    assert samples.visible.tolist() == [True] * 5 + [False]
    held = sampler("exact").sample(problem.clamp(torch.tensor([1, 0, 0, 0, 0, -1])), 50, seed=0).spins
    assert (held[:, 0] == 1).all()
    assert (held[:, 5] == -1).all()


@says
def likelihoods() -> None:
    r"""statistics: A state that contradicts a fixed variable has `log_prob` -inf.
    statistics: | `mean_field`, `dqa`, `dimod`, `refine` | none: `log_prob` refuses None |
    statistics: Where $h$, $J$ or $K$ need a gradient, a $\log Z$ without one is refused
    statistics: The last line is a marginal: $\log P(s_c) = \log Z_c - \log Z$, with $Z_c$ of the clamped
    problem."""
    problem, exact = drawn(dtype=F64), sampler("exact")
    held = torch.tensor([1, 0, 0, -1, 0, 0])
    given, log_z = problem.clamp(held), exact.moments(problem).log_partition
    index = torch.arange(64)
    chosen = (index & 1 == 1) & (index >> 3 & 1 == 0)
    assert log_z is not None
    marginal = exact.moments(given).log_partition - log_z
    assert float(marginal) == pytest.approx(float(exact.state_probabilities(problem)[chosen].sum().log()))
    assert given.log_prob(-torch.ones(6, dtype=F64), torch.zeros((), dtype=F64)) == -math.inf
    for name in ("mean_field", "dqa", "dimod", "refine"):
        none = sampler(name).moments(problem, seed=0).log_partition
        with refused("log_partition: expected log Z, .* got None"):
            problem.log_prob(torch.ones(6), none)
    with refused("log_partition: expected a gradient as in fields, got none"):
        Ising(problem.fields.requires_grad_(), problem.couplings).log_prob(torch.ones(6), log_z)


@says
def ocean() -> None:
    """hardware: `OceanSampler("dqa", schedule="boltzmann-8")`; the default is `tempering`. `mean_field` only
    computes moments and is refused.
    hardware: `num_reads` (1, as everywhere in Ocean), `seed`, `beta`.
    hardware: Unknown keywords are ignored with a `SamplerUnknownArgWarning`
    hardware: Rows.** int8, one per read
    hardware: Energies are those of the model, offset included, for SPIN and BINARY.
    hardware: The same seed gives the same sample set"""
    spin = dimod.BinaryQuadraticModel({"a": 0.5}, {("a", "b"): 1.0}, 0.7, "SPIN")
    assert OceanSampler().sampler.name == "tempering"
    assert len(OceanSampler().sample(spin).record) == 1
    with refused("sampler: expected a backend that draws samples, got 'mean_field'"):
        OceanSampler("mean_field")
    with pytest.warns(dimod.exceptions.SamplerUnknownArgWarning):
        OceanSampler("exact").sample(spin, betta=2.0)
    for model in (spin, spin.change_vartype("BINARY", inplace=False)):
        one, other = (OceanSampler("exact").sample(model, num_reads=20, seed=3) for _ in range(2))
        assert one.record.sample.dtype == np.int8
        assert np.array_equal(one.record.sample, other.record.sample)
        assert np.allclose(one.record.energy, model.energies(one))


@says
def jobs() -> None:
    """backends: No process, one process and a hundred give the same tensors.
    backends: `chunk_seeds`, the seed of every job; and `busy_s`
    backends: `exact` does not, because autograd cannot cross the boundary of a process."""
    backend = sampler("distributed", sampler="exact", workers=0, chunk=2)
    assert "exact" not in backend.capabilities.gradients
    info = backend.moments(drawn(5), seed=7).info
    assert (info["chunks"], len(info["chunk_seeds"])) == (3, 3)
    assert info["base"]["backend"] == "exact"
    assert info["busy_s"] > 0


@says
def log_odds_of_a_variable() -> None:
    """statistics: coefficients of a logistic regression on ±1 variables are $2h$ and $2J$."""
    problem, rest = drawn(dtype=F64), torch.tensor([0, 1, -1, 1, 1, -1.0], dtype=F64)
    p = sampler("exact").moments(problem.clamp(rest)).probability[0]
    assert float(torch.logit(p)) == pytest.approx(
        float(2 * (problem.fields[0] + problem.couplings[0] @ rest))
    )


@says
def files_of_answers() -> None:
    """statistics: Tensors come back bit for bit, `info` as JSON has it. The problem is not in the file."""
    problem = drawn(3)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "answer.safetensors"
        reads, moments = (
            f(problem, seed=1)
            for f in (partial(sampler("tempering").sample, num_reads=4), sampler("tempering").moments)
        )
        reads.save(path)
        again = diabat.Samples.load(path)
        assert torch.equal(again.spins, reads.spins)
        assert again.ising is None
        moments.save(path)
        assert torch.equal(diabat.Moments.load(path).probability, moments.probability)
        assert set(diabat.Moments.load(path).info) == set(moments.info)


@says
def files_of_problems() -> None:
    """problems: A batch, K, the mask, the offset and clamped spins come back bit for bit, in their dtypes.
    problems: a damaged file, or another one, is refused in one sentence."""
    given = torch.ones(2, 6).bool()
    base = drawn(2, 1)
    problem = diabat.Ising(base.fields, base.couplings, given[:1], offset=0.5).clamp([1, 0, 0, 0, 0, -1])
    with TemporaryDirectory() as folder:
        path = Path(folder) / "p.safetensors"
        problem.save(path)
        again = diabat.Ising.load(path)
        for name in ("fields", "matrix", "visible", "offset", "clamped"):
            assert torch.equal(getattr(again, name), getattr(problem, name))
        sampler("exact").sample(problem, 2, seed=1).save(path)
        with refused(r"p\.safetensors is another file: expected .*'diabat-ising'.*'diabat-samples'"):
            diabat.Ising.load(path)


@says
def qubos() -> None:
    r"""problems: Entries (a, b) and (b, a) are added. A bit is $x = (1 + s)/2$ of its spin $s$. So `qubo.energy(s)` is
    $\beta\, x^T Q x$: the offset of the problem is the constant.
    problems: `read_problem`, `diabat sample FILE` and `diabat fidelity FILE` tell the format by the content, not by
    the name."""
    Q = torch.tensor([[1.0, -2.0], [0.5, 3.0]])
    problem, _ = from_qubo(Q, beta=2.0)
    for x in itertools.product((0.0, 1.0), repeat=2):
        bits = torch.tensor(x)
        assert float(problem.energy(2 * bits - 1)) == pytest.approx(float(2 * bits @ Q @ bits))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "named.csv"
        path.write_text('{"qubo": [[0, 0, 1], [0, 1, -2], [1, 0, 0.5], [1, 1, 3]], "beta": 2}')
        assert torch.equal(read_problem(path).ising.fields, problem.fields)
        assert is_problem(path)


@says
def beta_of_ocean() -> None:
    r"""hardware: Reads follow $P(x) \propto \exp(-\beta E(x))$
    hardware: Backends with another law (`dqa`) draw from that law with fields and couplings multiplied by $\beta$.
    """
    model = dimod.BinaryQuadraticModel({"a": 0.5, "b": -0.2}, {("a", "b"): 0.7}, 0.0, "SPIN")
    problem, labels = from_bqm(model, beta=2.0)
    assert labels == ["a", "b"]
    for name in ("exact", "dqa"):
        reads = OceanSampler(name).sample(model, num_reads=20_000, beta=2.0, seed=1)
        want = sampler(name).moments(problem).magnetization
        assert reads.record.sample.mean(0).tolist() == pytest.approx(want.tolist(), abs=0.03)  # 4 errors
