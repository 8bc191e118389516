"""Boltzmann attention on a mock quantum annealer: cost of a call, its temperature, and one training step.

python examples/quantum_annealer.py        (extra dwave; nothing is submitted anywhere)
"""

from __future__ import annotations

from typing import Any

import torch

import diabat
from diabat.samplers.dimod import DimodSampler
from diabat.testing.strict_qpu import StrictMockQPU


def main() -> None:
    # On hardware: dwave.system.DWaveSampler(), with the token in Ocean's configuration.
    chip = StrictMockQPU(topology_type="zephyr", topology_shape=[4, 4], beta=10.0, sweeps=32, tied_below=-1.5)
    qpu: dict[str, Any] = {"annealing_time_ns": 5.0, "fields": "ancilla", "spins": 6}

    unknown = DimodSampler(chip, qpu=qpu, beta="estimate")
    problem = diabat.Ising(0.5 * torch.randn(10, 6), diabat.ising.pack_couplings(0.2 * torch.randn(15), 6))
    fit = unknown.sample(problem, num_reads=200, seed=1).info
    beta_h, beta_J = fit["programmed_with"]
    print(f"estimated beta_h = {beta_h:.2f}, beta_J = {beta_J:.2f}; the stand-in has 10")

    sampler = DimodSampler(chip, qpu=qpu, beta=10.0, law="boltzmann", num_reads=100)
    print(sampler.dry_run(problem, num_reads=100))

    layer = diabat.BoltzmannAttention(embed_dim=8, num_heads=1, window=6, sampler=sampler)
    output = layer(torch.randn(4, 6, 8))
    output.square().mean().backward()
    print(f"attended over 4 x 6 windows in {chip.answered} submissions so far, {chip.reads} reads")


if __name__ == "__main__":
    main()
