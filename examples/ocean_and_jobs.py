"""A backend as a sampler of D-Wave's Ocean, and many sampling jobs over two processes.

python examples/ocean_and_jobs.py
"""

from __future__ import annotations

import dimod
import torch

import diabat
from diabat.ising import pack_couplings
from diabat.samplers.distributed import DistributedSampler
from diabat.samplers.ocean import OceanSampler


def main() -> None:
    # Ocean minimises +Σ h s + Σ J s s; reads follow exp(-beta · energy), and are not annealed.
    bqm = dimod.BinaryQuadraticModel({"a": 0.5, "b": -0.2}, {("a", "b"): 1.0, ("b", "c"): -1.0}, 0.0, "SPIN")
    sampleset = OceanSampler("exact").sample(bqm, num_reads=1000, beta=2.0, seed=1)
    print(sampleset.aggregate().truncate(3))

    # The same problem at several temperatures, one job each.
    torch.manual_seed(0)
    fields, J = torch.randn(12), pack_couplings(0.3 * torch.randn(66), 12)
    betas = torch.tensor([0.25, 0.5, 1.0, 2.0])
    problems = diabat.Ising(betas[:, None] * fields, betas[:, None, None] * J)
    with DistributedSampler("exact", workers=2, chunk=1) as sampler:
        samples = sampler.sample(problems, num_reads=500, seed=7)
    for beta, energy in zip(betas, diabat.Ising(fields, J).energy(samples.spins).mean(0), strict=True):
        print(f"beta {beta}: mean energy {energy:.3f}")


if __name__ == "__main__":  # the processes import this file
    main()
