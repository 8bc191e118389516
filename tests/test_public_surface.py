"""The names of the contract with users, and what importing them costs."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import diabat

HEAVY = (
    *("qiskit", "qiskit_aer", "dimod", "numba", "matplotlib", "scipy.stats", "rich", "typer", "pydantic"),
    *("transformers", "sympy"),
)


LAYERS = "diabat.BoltzmannAttention(8, 2, window=4), diabat.NeuroGameAttention(8, 2)"
# What a fresh interpreter runs in this order, and the libraries that it has loaded then.
STEPS: list[tuple[str, set[str]]] = [
    ("import diabat", set()),
    ("import diabat.circuits", set()),
    ("import torch", {"torch"}),
    ("problem = diabat.Ising(torch.zeros(4, 6), torch.zeros(6, 6), torch.ones(6, dtype=bool))", {"torch"}),
    ("[diabat.sampler(name) for name in ('exact', 'mean_field', 'dqa')]", {"torch"}),
    ("diabat.sampler('exact').moments(problem)", {"torch", "numba"}),
    # torch.compiler.assume_constant_result, for one, loads sympy.
    (f"[layer(torch.randn(2, 4, 8)).sum().backward() for layer in ({LAYERS})]", {"torch", "numba"}),
]


def test_heavy_libraries_wait_until_they_are_needed() -> None:
    report = f"print(*(name for name in {(*HEAVY, 'torch')!r} if name in sys.modules))"
    code = "\n".join(["import sys", *(f"{step}\n{report}" for step, _ in STEPS)])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = [set(line.split()) for line in done.stdout.splitlines()]
    assert dict(zip((step for step, _ in STEPS), found, strict=True)) == dict(STEPS)


def test_first_block_of_the_readme() -> None:
    """Shapes and dtypes as promised beside each line."""
    J = diabat.ising.pack_couplings(0.1 * torch.randn(66), 12)
    problem = diabat.Ising(fields=torch.randn(32, 12), couplings=J)
    sampler = diabat.sampler("exact")
    moments = sampler.moments(problem, correlations=True)
    assert moments.probability.shape == (32, 12)
    assert moments.correlation.shape == (32, 12, 12)
    assert moments.log_partition.shape == (32,)
    samples = sampler.sample(problem, num_reads=10, seed=7)
    assert samples.spins.shape == (10, 32, 12)
    assert samples.spins.dtype == torch.int8
    assert samples.info["seed"] == 7
    fields = torch.randn(32, 12, requires_grad=True)
    alpha = diabat.spin_probabilities(fields, J, sampler, gradient="straight_through")
    alpha.sum().backward()
    assert fields.grad is not None
    layer = diabat.BoltzmannAttention(embed_dim=64, num_heads=1, window=16, sampler="exact")
    assert layer(torch.randn(2, 5, 64)).shape == (2, 5, 64)


def test_the_names_of_the_dqa_example() -> None:
    sampler = diabat.sampler("dqa", engine="aer", annealing_time_ns=5.0, schedule="Advantage2_system1")
    assert sampler.name == "dqa"


def test_names_of_the_package_exist_and_are_documented_and_others_are_attribute_errors() -> None:
    assert [name for name in diabat.__all__ if not getattr(diabat, name).__doc__] == []
    assert set(diabat.__all__) <= set(dir(diabat))
    for name in ("attention", "ising", "samplers"):
        assert getattr(diabat, name).__name__ == f"diabat.{name}"
    with pytest.raises(AttributeError, match="module 'diabat' has no attribute 'Izing'"):
        diabat.Izing  # noqa: B018 - the access is the test
