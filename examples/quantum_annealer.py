"""A person with a D-Wave account: a QUBO, its cost, the temperature of the reads, and one training step.

python examples/quantum_annealer.py        (extra dwave; a mock processor, nothing is submitted anywhere)
"""

from __future__ import annotations

from typing import Any

import dimod
import torch

import diabat
from diabat.samplers.dimod import DimodSampler
from diabat.samplers.dimod.tiled import TiledComposite
from diabat.samplers.ocean import OceanSampler, to_sampleset
from diabat.testing.strict_qpu import StrictMockQPU


def main() -> None:
    # Ocean minimises; diabat's law is exp(-energy), hence a positive coupling favours agreement.
    Q = {("a", "a"): -1.0, ("b", "b"): -1.0, ("c", "c"): -0.5, ("a", "b"): 2.0, ("b", "c"): 1.0}
    bqm = dimod.BinaryQuadraticModel.from_qubo(Q)
    problem, labels = diabat.ising.from_bqm(bqm)
    lowest = dimod.ExactSolver().sample(bqm).first.energy

    # On hardware: dwave.system.DWaveSampler(), with the token in Ocean's configuration.
    chip = StrictMockQPU(topology_type="zephyr", topology_shape=[4, 4], beta=10.0, sweeps=32, tied_below=-1.5)
    tiled = TiledComposite(chip, spins=6, fields="ancilla")
    fast: dict[str, Any] = {"fast_anneal": True, "annealing_time": 0.005}  # microseconds
    limits: dict[str, Any] = {"max_reads": 100_000, "max_qpu_seconds": 2.0}
    sampler = DimodSampler(tiled, parameters=fast, beta=10.0, law="boltzmann", num_reads=100, **limits)
    print(sampler.dry_run(problem, num_reads=500))
    samples = sampler.sample(problem, num_reads=500, seed=1)
    sampleset = to_sampleset(samples, labels)  # ±1, with the energies of the problem
    print(sampleset.aggregate().truncate(3))
    assert abs(sampleset.first.energy - lowest) < 1e-5

    exact = diabat.sampler("exact").moments(problem).probability
    error = (samples.moments().probability - exact).abs().max().item()
    print(f"P(x = 1) of {labels}: exact {[round(p, 3) for p in exact.tolist()]}, largest error {error:.3f}")
    assert error < 0.1

    cold = OceanSampler("tempering", schedule="auto", track_lowest=True).sample(bqm, num_reads=10, seed=1)
    assert abs(cold.first.energy - lowest) < 1e-5  # as an optimiser, which a sampler is not

    unknown = DimodSampler(tiled, parameters=fast, beta="estimate")
    weak = diabat.Ising(0.5 * torch.randn(10, 6), diabat.ising.pack_couplings(0.2 * torch.randn(15), 6))
    beta_h, beta_J = unknown.sample(weak, num_reads=200, seed=1).info["programmed_with"]
    print(f"estimated beta_h = {beta_h:.2f}, beta_J = {beta_J:.2f}; the mock has 10")

    layer = diabat.BoltzmannAttention(
        embed_dim=8, num_heads=1, window=6, readout="probability", sampler=sampler
    )
    output = layer(torch.randn(4, 6, 8))
    output.square().mean().backward()
    print(f"attended over 4 x 6 windows; so far {chip.answered} submissions, {chip.reads} reads")


if __name__ == "__main__":
    main()
